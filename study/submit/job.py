"""`interplay submit`: send a study to a cluster as a Ray job, and follow its log to the end."""

import asyncio
import logging
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from study.cluster.cluster_file import ADDRESS, ClusterFile, read
from study.cluster.findings import Report, need
from study.cluster.prices import pools
from study.cluster.rules import AWS_METADATA, check_metadata
from study.cluster.study_price import price_study
from study.cluster.token import read_token
from study.cluster.view import option_text
from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.study import StudySpec, load_spec
from study.submit.package import JobPackage, pack
from study.submit.tunnel import answers, open_tunnel

#: Key of the study's name in a job's metadata.
STUDY_KEY = "interplay_study"
#: The token of this machine, used without a cluster file.
TOKEN = Path("~/.ray/interplay-token")
STOPPED = 130


@dataclass(frozen=True)
class Cluster:
    """A reachable cluster."""

    address: str
    token: Path | None
    file: str | None
    by_tunnel: bool

    def command(self, verb: str, job: str) -> str:
        """A shell command of Ray about a job."""
        token = ""
        if self.token is not None:
            token = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={shlex.quote(str(self.token))} "
        # Without an address, Ray looks for a cluster on this machine instead of the tunnel (ray 2.60).
        address = ADDRESS if self.by_tunnel else self.address
        return token + shlex.join(["ray", "job", *verb.split(), "--address", address, job])


def submit(
    source: str,
    overrides: Sequence[str],
    file: str | None,
    address: str | None,
    submission: str | None,
    *,
    wait: bool,
) -> int:
    """Send a study to a cluster and follow it; the options are those of `interplay submit`.

    Without an address, a tunnel to the head of the cluster file is opened. Returns the exit status of the study: 0, 1
    or 2 as of `interplay run`, 130 if the job or the following was stopped.

    Raises:
        SpecError: the spec is wrong or does not fit the cluster, the cluster does not answer or refuses the token, the
            study already runs there, or the package is too large.
    """
    need("submitting a study", "aiohttp")
    console = Console(highlight=False)
    spec = load_spec(source, overrides)
    cluster_file = None if file is None else read(file)
    if cluster_file is None:
        address = address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if cluster_file is not None and cluster_file.provider == "aws":
        _check(source, overrides, cluster_file, opens_tunnel=address is None, console=console)
    else:
        # The sizes of the machines are unknown; data, shapes and options are checked.
        make_plan(spec, to_read=True)
    token = cluster_file.token if cluster_file else _default_token()
    secret = None if token is None else read_token(token)
    with ExitStack() as stack:
        stack.enter_context(_client_environment())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        package = pack(source, overrides, spec, scratch)
        cluster = _connect(file, address, token, stack, console)
        with console.status("sending the study"), _as_spec_errors(cluster):
            from ray.job_submission import JobSubmissionClient

            # Ray would read the token once per process, from the environment at that time.
            headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
            client = JobSubmissionClient(cluster.address, headers=headers)
            job = _send(client, cluster, spec, package, submission)
        console.print(Text(f"Job {job} runs {spec.name} on {file or cluster.address}."), soft_wrap=True)
        if not wait:
            _print_commands(console, cluster, job)
            return 0
        return _follow(client, cluster, job, console)


def _check(
    source: str, overrides: Sequence[str], file: ClusterFile, *, opens_tunnel: bool, console: Console
) -> None:
    """Refuse here what `ray dashboard` or the driver would refuse later; print warnings and the estimated price."""
    report = Report(file)
    if opens_tunnel:
        need("opening a tunnel", "boto3")
        check_metadata(report, AWS_METADATA)
    price = price_study(report, pools(file), source, overrides)
    if report.errors:
        found = "; ".join(f"line {one.line}, {one.path}: {one.message}" for one in report.errors)
        raise SpecError(f"{file.name} cannot be used: {found}. See `interplay cluster check {file.name}`.")
    for warning in report.warnings:
        console.print(Text.assemble(("warning: ", "yellow"), f"{warning.message}."), soft_wrap=True)
    for option in price.options if price else ():
        console.print(Text(f"Estimated {option_text(option)}."), soft_wrap=True)


def _default_token() -> Path | None:
    """The token that the environment names, or the default one if it exists."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else TOKEN.expanduser()
    return path if named or path.is_file() else None


def _connect(
    file: str | None, address: str | None, token: Path | None, stack: ExitStack, console: Console
) -> Cluster:
    if address is None and file is not None:
        with console.status(f"opening a tunnel to the head of {file}"):
            return Cluster(stack.enter_context(open_tunnel(file)), token, file, by_tunnel=True)
    found = (address or ADDRESS).rstrip("/")
    if not re.fullmatch(r"https?://[^/\s]+", found):
        raise SpecError(f"--address {address} is not the address of a dashboard; write it as {ADDRESS}.")
    if not answers(found):
        raise SpecError(
            f"no cluster answers on {found}; give its file, as --cluster cluster/aws.yaml, to open a tunnel, or open "
            "one with `ray dashboard cluster/aws.yaml` in another window."
        )
    return Cluster(found, token, file, by_tunnel=False)


def _send(client: Any, cluster: Cluster, spec: StudySpec, package: JobPackage, submission: str | None) -> str:
    for job in client.list_jobs():
        if not job.status.is_terminal() and _runs(job, spec.name):
            running = job.submission_id or job.job_id
            raise SpecError(
                f"job {running} of this cluster already runs the study {spec.name}, and two drivers would train the "
                f"same cells. Follow it with `{cluster.command('logs --follow', running)}`, or stop it with "
                f"`{cluster.command('stop', running)}` and submit again; finished cells are kept."
            )
    return str(
        client.submit_job(
            entrypoint=package.entrypoint,
            runtime_env={"working_dir": str(package.archive)} if package.archive else {},
            metadata={STUDY_KEY: spec.name},
            submission_id=submission,
        )
    )


def _runs(job: Any, study: str) -> bool:
    """Whether a job runs a study, sent by this command or by `ray job submit -- python -m study run NAME`."""
    if (job.metadata or {}).get(STUDY_KEY):
        return bool(job.metadata[STUDY_KEY] == study)
    words = (job.entrypoint or "").split()
    return any(verb == "run" and Path(name.strip("'\"")).stem == study for verb, name in pairwise(words))


def _follow(client: Any, cluster: Cluster, job: str, console: Console) -> int:
    import aiohttp
    import requests

    try:
        asyncio.run(_tail(client, job))
        while not (info := client.get_job_info(job)).status.is_terminal():
            time.sleep(1)
    except KeyboardInterrupt:
        console.print(Text(f"Stopped following; job {job} continues."), soft_wrap=True)
        _print_commands(console, cluster, job)
        return STOPPED
    except (RuntimeError, ConnectionError, aiohttp.ClientError, requests.RequestException) as error:
        raise SpecError(
            f"lost the connection to the cluster ({type(error).__name__}); job {job} continues. Once it answers "
            f"again, follow it: `{cluster.command('logs --follow', job)}`."
        ) from error
    if info.status == "SUCCEEDED":
        return 0
    if info.status == "STOPPED":
        console.print(Text(f"Job {job} was stopped. Submit again to continue."), soft_wrap=True)
        return STOPPED
    if info.driver_exit_code in (1, 2, STOPPED):
        return int(info.driver_exit_code)
    console.print(Text(f"Job {job} failed: {info.message}"), soft_wrap=True)
    return 1


async def _tail(client: Any, job: str) -> None:
    async for text in client.tail_job_logs(job):
        sys.stdout.write(text)
        sys.stdout.flush()


def _print_commands(console: Console, cluster: Cluster, job: str) -> None:
    if cluster.by_tunnel:
        console.print(Text(f"With `ray dashboard {cluster.file}` open in another window:"), soft_wrap=True)
    for word, verb in (("follow it", "logs --follow"), ("stop it", "stop")):
        console.print(Text.assemble(f"  {word}: ", (cluster.command(verb, job), "bold")), soft_wrap=True)


@contextmanager
def _as_spec_errors(cluster: Cluster) -> Iterator[None]:
    """Turn the errors of Ray's client into one paragraph."""
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        if cluster.file:
            fix = f"make one with `interplay cluster token {cluster.file}`, and copy it with `ray up {cluster.file}`"
        else:
            fix = "give the cluster's file with --cluster, or the token's with RAY_AUTH_TOKEN_PATH"
        wrong = "there is no token here" if cluster.token is None else f"it refuses the token {cluster.token}"
        raise SpecError(
            f"the cluster on {cluster.address} requires its token, and {wrong}; {fix}."
        ) from error
    except (ConnectionError, requests.RequestException) as error:
        raise SpecError(
            f"the cluster on {cluster.address} stopped answering ({type(error).__name__}); `ray status` on the head "
            "shows its state."
        ) from error
    except SpecError:
        raise
    except (RuntimeError, ValueError) as error:
        if "status code 404" in str(error) or "returned 404" in str(error):
            raise SpecError(
                f"the server on {cluster.address} is not a Ray dashboard; give another address, or the cluster's file "
                "with --cluster."
            ) from error
        # The server answers with a traceback; its last line is the reason.
        reason = (str(error).rstrip(". \n") or type(error).__name__).splitlines()[-1]
        raise SpecError(f"the cluster on {cluster.address} refused the job: {reason}.") from error


@contextmanager
def _client_environment() -> Iterator[None]:
    """Set up signals, logging and environment for Ray's client, and restore them."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # The tunnel has a session of its own: without handlers it would outlive this process.
    signals = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    disabled = logging.root.manager.disable
    # Ray's client logs a line for each ignore file.
    logging.disable(logging.WARNING)
    before = dict(os.environ)
    # Both silently replace the client's address (ray 2.60).
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        os.environ.pop(name, None)
    # The end of a tunnel is not behind a proxy.
    os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"]))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        logging.disable(disabled)
        for number, handler in signals.items():
            signal.signal(number, handler)
