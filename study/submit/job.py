"""`interplay submit`: a study sent to a cluster as a job of Ray, and its log followed to the end."""

import asyncio
import logging
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from study.cluster.cluster_file import ClusterFile, read
from study.cluster.extra import need
from study.cluster.token import read_token
from study.errors import SpecError
from study.spec.study import StudySpec, load_spec
from study.submit.package import Shipment, pack
from study.submit.tunnel import ADDRESS, Tunnel, answers, open_tunnel

#: Under which the name of a study is kept with its job.
STUDY_KEY = "interplay_study"
#: How long a lost connection to a job's log is sought again.
LOST_SECONDS = 60.0
#: The default token of this machine, where no cluster file names one.
TOKEN = Path("~/.ray/interplay-token")
STOPPED = 130


@dataclass(frozen=True)
class Cluster:
    """A cluster that answers: where, and what its own commands need."""

    address: str
    token: Path | None
    file: str | None
    tunnel: Tunnel | None

    def command(self, verb: str, job: str) -> str:
        """A command of Ray about a job, as a shell takes it."""
        token = ""
        if self.token is not None:
            token = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={shlex.quote(str(self.token))} "
        # Always named: without it Ray looks for a cluster on this machine and not for the tunnel's end (ray 2.60).
        address = ADDRESS if self.tunnel else self.address
        return token + shlex.join(["ray", "job", *verb.split(), "--address", address, job])


def submit(
    source: str,
    overrides: Sequence[str],
    console: Console,
    *,
    file: str | None = None,
    address: str | None = None,
    submission: str | None = None,
    wait: bool = True,
) -> int:
    """Send a study to a cluster and follow it.

    Args:
        source: a preset's name or a YAML file.
        overrides: `section.key=value`.
        console: where this command's own words go; the job's go to stdout.
        file: the cluster's file; a tunnel to its head is opened, unless there is an address.
        address: of a dashboard that can be reached.
        submission: the job's id; by default Ray chooses one.
        wait: whether to follow the log to the end.

    Returns:
        The exit status of the study: 0, 1 or 2 as `interplay run` ends, 130 where job or following was stopped.

    Raises:
        SpecError: the spec is wrong or does not fit the cluster; the cluster does not answer or refuses the token; the
            study runs there already, or what is to be sent is too large.
    """
    need("submitting a study", "aiohttp")
    spec = load_spec(source, overrides)
    cluster_file = None if file is None else read(file)
    if file is None:
        address = address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if cluster_file is not None and address is None:
        _check_way(cluster_file)
    _check(source, overrides, spec, cluster_file, console)
    token = cluster_file.token if cluster_file else _own_token()
    # Before the tunnel, which takes a while: without it every request would be refused.
    secret = None if token is None else read_token(token)
    with ExitStack() as stack:
        stack.enter_context(_ends_cleanly())
        stack.enter_context(_quiet())
        stack.enter_context(_plain_environment())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shipment = pack(source, overrides, spec, scratch)
        cluster = _reach(file, address, token, stack, console)
        client = _client(cluster, secret)
        with console.status("sending the study"):
            job = _send(client, cluster, spec, shipment, submission)
        console.print(Text(f"Job {job} runs {spec.name} on {file or cluster.address}."), soft_wrap=True)
        if not wait:
            _say_how(console, cluster, job)
            return 0
        return _follow(client, cluster, job, console)


def _check(
    source: str, overrides: Sequence[str], spec: StudySpec, file: ClusterFile | None, console: Console
) -> None:
    """Refuse here what the driver would refuse on the head, minutes later; say what is doubtful, and the price."""
    from study.cluster.findings import Report
    from study.cluster.pools import pools
    from study.cluster.study_price import price_study
    from study.cluster.view import option_text
    from study.plan.plan import make_plan

    if file is None or file.provider != "aws":
        # What the machines hold is not known here; the data, the shapes and the options are looked at.
        make_plan(spec, to_read=True)
        return
    report = Report(file)
    price = price_study(report, pools(file), source, overrides)
    if report.errors:
        raise SpecError(". ".join(found.message for found in report.errors) + ".")
    for found in report.warnings:
        console.print(Text.assemble(("warning: ", "yellow"), f"{found.message}."), soft_wrap=True)
    for option in price.options if price else ():
        console.print(Text(f"Estimated {option_text(option)}."), soft_wrap=True)


def _check_way(file: ClusterFile) -> None:
    """Refuse a file by which no head can be found, in our words before those of a traceback."""
    if file.provider != "aws":
        return
    need("opening a tunnel", "boto3")
    from study.cluster.check import has_credentials
    from study.cluster.findings import Report
    from study.cluster.rules_aws import check_metadata

    report = Report(file)
    check_metadata(report)
    if report.errors:
        raise SpecError(
            f"{file.name} is not ready to be used: "
            + "; ".join(f"line {found.line}, {found.path}: {found.message}" for found in report.errors)
            + f". `interplay cluster check {file.name}` tells all."
        )
    if not has_credentials():
        raise SpecError(
            f"no credentials of AWS are set up on this machine, and the head of {file.name} is found with them; run "
            "`aws configure`, or set AWS_PROFILE. Where the machine itself has a role, open the way with `ray "
            f"dashboard {file.name}` and add --address {ADDRESS}."
        )


def _own_token() -> Path | None:
    """The token that the environment names, or the default one; None where there is none."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else TOKEN.expanduser()
    return path if named or path.is_file() else None


def _reach(
    file: str | None, address: str | None, token: Path | None, stack: ExitStack, console: Console
) -> Cluster:
    if address is None and file is not None:
        with console.status(f"opening a tunnel to the head of {file}"):
            tunnel = stack.enter_context(open_tunnel(file))
        return Cluster(tunnel.address, token, file, tunnel)
    found = (address or ADDRESS).rstrip("/")
    if not re.fullmatch(r"https?://[^/\s]+", found):
        raise SpecError(f"--address {address} is no address of a dashboard; write it as {ADDRESS}.")
    if not answers(found):
        where = "" if address else " (the end of `ray dashboard`)"
        raise SpecError(
            f"no cluster answers on {found}{where}; name its file with --cluster cluster/aws.yaml, which opens the "
            "way by itself, or open it with `ray dashboard cluster/aws.yaml` in another window."
        )
    return Cluster(found, token, file, None)


def _client(cluster: Cluster, secret: str | None) -> Any:
    from ray.job_submission import JobSubmissionClient

    # Sent by ourselves: Ray reads a token once in a process, and only from where its environment said at the time.
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    with _clear_errors(cluster):
        return JobSubmissionClient(cluster.address, headers=headers)


def _send(client: Any, cluster: Cluster, spec: StudySpec, shipment: Shipment, submission: str | None) -> str:
    with _clear_errors(cluster):
        for job in client.list_jobs():
            if not job.status.is_terminal() and _runs(job, spec.name):
                known = job.submission_id or job.job_id
                raise SpecError(
                    f"the study {spec.name} is being run on this cluster by job {known}, and two drivers would train "
                    f"the same cells. Follow it with `{cluster.command('logs --follow', known)}`, or end it with "
                    f"`{cluster.command('stop', known)}` (nothing is lost) and submit again."
                )
        if submission and any(job.submission_id == submission for job in client.list_jobs()):
            raise SpecError(
                f"--submission-id {submission} was given to a job of this cluster before; take another, or none."
            )
        return str(
            client.submit_job(
                entrypoint=shipment.entrypoint,
                runtime_env={"working_dir": str(shipment.package)} if shipment.package else {},
                metadata={STUDY_KEY: spec.name},
                submission_id=submission,
            )
        )


def _runs(job: Any, study: str) -> bool:
    """Whether a job runs a study: one of ours, or `ray job submit -- python -m study run NAME`."""
    if (job.metadata or {}).get(STUDY_KEY):
        return bool(job.metadata[STUDY_KEY] == study)
    words = (job.entrypoint or "").split()
    return any(verb == "run" and Path(name.strip("'\"")).stem == study for verb, name in pairwise(words))


def _follow(client: Any, cluster: Cluster, job: str, console: Console) -> int:
    try:
        info = asyncio.run(_log(client, cluster, job, sys.stdout.write))
    except KeyboardInterrupt:
        console.print(Text(f"Not followed any more; job {job} goes on."), soft_wrap=True)
        _say_how(console, cluster, job)
        return STOPPED
    status = str(info.status.value if hasattr(info.status, "value") else info.status)
    if status == "SUCCEEDED":
        return 0
    if status == "STOPPED":
        console.print(
            Text(f"Job {job} was stopped. What it had trained is kept; submit again to go on."),
            soft_wrap=True,
        )
        return STOPPED
    code = info.driver_exit_code
    if code not in (1, 2, STOPPED):
        console.print(Text(f"Job {job} failed: {info.message}"), soft_wrap=True)
        return 1
    return int(code)


async def _log(client: Any, cluster: Cluster, job: str, write: Callable[[str], Any]) -> Any:
    """Write the log of a job as it grows; where the connection is lost, go on where it was. Return how it ended."""
    import aiohttp
    import requests

    written, lost = 0, None
    while True:
        try:
            seen = 0
            # Ray sends the whole log to whoever asks anew.
            async for text in client.tail_job_logs(job):
                lost = None
                write(text[max(0, written - seen) :])
                sys.stdout.flush()
                seen += len(text)
                written = max(written, seen)
            info = client.get_job_info(job)
            if info.status.is_terminal():
                return info
            lost = None
        except (RuntimeError, ConnectionError, aiohttp.ClientError, requests.RequestException):
            lost = lost or time.monotonic()
            if time.monotonic() - lost > LOST_SECONDS:
                raise SpecError(
                    f"the connection to the cluster is lost, and job {job} goes on without it. Once the cluster "
                    f"can be reached, follow it: `{cluster.command('logs --follow', job)}`."
                ) from None
            if cluster.tunnel:
                # It may fail for as long as this machine is off the network.
                with suppress(SpecError):
                    cluster.tunnel.open()
        await asyncio.sleep(1)


def _say_how(console: Console, cluster: Cluster, job: str) -> None:
    if cluster.tunnel:
        console.print(Text(f"With `ray dashboard {cluster.file}` open in another window:"), soft_wrap=True)
    for word, verb in (("follow it", "logs --follow"), ("stop it", "stop")):
        console.print(Text.assemble(f"  {word}: ", (cluster.command(verb, job), "bold")), soft_wrap=True)


@contextmanager
def _clear_errors(cluster: Cluster) -> Iterator[None]:
    """Turn what the server refuses into one paragraph."""
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        have = "and none is here" if cluster.token is None else f"and it refuses the one in {cluster.token}"
        if cluster.file:
            fix = f"`interplay cluster token {cluster.file}` makes one, and `ray up {cluster.file}` takes it there"
        else:
            fix = "name the cluster's file with --cluster, or the token's with RAY_AUTH_TOKEN_PATH"
        raise SpecError(f"the cluster on {cluster.address} wants its token, {have}; {fix}.") from error
    except (ConnectionError, requests.RequestException) as error:
        raise SpecError(
            f"the cluster on {cluster.address} does not answer any more ({type(error).__name__}). Is it up? "
            "`ray status` on the head tells."
        ) from error
    except (RuntimeError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        if "returned 404" in str(error):
            raise SpecError(
                f"what answers on {cluster.address} is no dashboard of Ray; name another address, or the cluster's "
                "file with --cluster."
            ) from error
        first = str(error).splitlines()[0].rstrip(". ")
        raise SpecError(f"the cluster on {cluster.address} refused: {first}.") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Ray's client logs of its own doings, a line for each ignore file, from between our words."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _plain_environment() -> Iterator[None]:
    """Let nothing in the environment lead Ray's client elsewhere than to the address it is given."""
    before = dict(os.environ)
    # Both take the place of the address, without a word (ray 2.60).
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        os.environ.pop(name, None)
    # A proxy is no way to our own end of a tunnel.
    os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"]))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _ends_cleanly() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end this as Ctrl-C does: the tunnel is a session of its own and would stay."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
