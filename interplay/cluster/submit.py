"""`interplay submit`, `jobs`, `logs` and `stop`: studies as Ray jobs on a cluster; SpecErrors as of `connect`."""

import asyncio
import math
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from core.errors import did_you_mean
from core.extras import need
from core.numbers import duration
from interplay.cluster.check import option_text
from interplay.cluster.cluster_file import ClusterFile, read
from interplay.cluster.connection import Cluster, connect
from interplay.cluster.prices import StudyPrice, price_study
from interplay.cluster.rules import AWS_METADATA, check_metadata
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.plan.prices import money
from study.plan.saves import seconds_to_stop
from study.revision import REVISION, revision
from study.spec import yaml_file
from study.spec.study import StudySpec, load_spec
from trainables.data.kind import TOKENIZERS

#: Key of the study's name in a job's metadata.
STUDY_KEY = "interplay_study"
STOPPED = 130
#: Ray's variable with the seconds between the two signals, SIGTERM and SIGKILL, by which it stops a job.
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
#: A study that costs more is submitted only if the user agrees.
ASK_DOLLARS = 50.0
#: Time limit for a head that has just started: its dashboard answers before it can start jobs (ray 2.60).
AGENT_SECONDS = 60.0
NO_AGENT = "status code 500: No available agent to submit job"


def submit(
    source: str,
    overrides: Sequence[str],
    file: str | None,
    address: str | None,
    submission: str | None,
    *,
    wait: bool,
    yes: bool = False,
    most: float | None = None,
    results: Path | None = None,
) -> int:
    """Send a study to a cluster and follow it; the options are those of `interplay submit`.

    Above `ASK_DOLLARS`, or where the price is not known, it asks unless `yes`; above `most` dollars it refuses.

    Returns the exit status of the study: 0, 1 or 2 as of `interplay run`, 130 if the job or the following was stopped
    or the user did not agree to the price.

    Raises:
        SpecError: the spec is wrong or does not fit the cluster, costs more than `most` or needs an answer without a
            terminal, the study already runs there, the package is too large, or as `connect`.
    """
    spec = load_spec(source, overrides, results)
    cluster_file = None if file is None else read(file)
    price = None
    if cluster_file is not None and cluster_file.provider == "aws":
        price = _check(spec, cluster_file, opens_tunnel=address is None)
    # The sizes of the machines may be unknown: whether the shapes fit shows on the head.
    plan = make_plan(spec) if price is None else price.plan
    with tempfile.TemporaryDirectory() as scratch:
        entrypoint = pack(source, overrides, spec, Path(scratch))
        # Machines that one has cost nothing more.
        is_owned = cluster_file is not None and cluster_file.provider == "local"
        if not is_owned and not _agreed(_most_dollars(price), most, yes=yes):
            _print("Nothing was submitted.")
            return STOPPED
        with connect(file, address) as cluster:
            with Console().status("sending the study"):
                _refuse_second_driver(cluster, spec.name)
                job = _submit_once_ready(
                    cluster.client,
                    entrypoint=entrypoint,
                    runtime_env={
                        **({"working_dir": scratch} if any(Path(scratch).iterdir()) else {}),
                        "env_vars": _variables(plan),
                    },
                    metadata={STUDY_KEY: spec.name},
                    submission_id=submission,
                )
            _print(f"Job {job} runs {spec.name} on {cluster.options[-1]}.")
            if wait:
                return _follow(cluster, job)
            _print_commands(cluster, job)
            return 0


def _variables(plan: Plan) -> dict[str, str]:
    """Return the environment of the job and of Ray's process that supervises it."""
    saves = [planned.save_seconds for planned in plan.pool]
    return {
        # Ray kills a stopped job after this time, by default 3 s. The driver ends sooner if its cells have saved.
        STOP_WAIT: str(math.ceil(seconds_to_stop(saves))),
        # The package has no git repository.
        REVISION: revision(),
    }


def _submit_once_ready(client: Any, **job: Any) -> str:
    """Submit a job and return its id; try again for `AGENT_SECONDS` while the head has no agent for it."""
    deadline = time.monotonic() + AGENT_SECONDS
    while True:
        try:
            return str(client.submit_job(**job))
        except RuntimeError as error:
            if NO_AGENT not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(1)


def jobs(file: str | None, address: str | None) -> list[dict[str, Any]]:
    """Return a record of each job that was submitted to a cluster, newest first; times are in seconds since 1970."""
    with connect(file, address) as cluster:
        submitted = _submitted(cluster).values()
    return [
        {
            "job": job.submission_id,
            "study": _study_of(job),
            "status": str(job.status),
            "started": job.start_time and job.start_time / 1000,
            "ended": job.end_time and job.end_time / 1000,
        }
        for job in sorted(submitted, key=lambda job: -(job.start_time or 0))
    ]


def jobs_view(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Lay out the records of jobs, one per line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("job", "study", "status", "started", "ran for"):
        table.add_column(title, no_wrap=True)
    for job in records:
        when = ran = ""
        if (started := job["started"]) is not None:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(started))
            ran = duration((job["ended"] or time.time()) - started)
        table.add_row(job["job"], job["study"] or "", job["status"].lower(), when, ran)
    return table if records else Text("No job was submitted to this cluster.")


def logs(job: str, file: str | None, address: str | None) -> int:
    """Print the log of a job and follow it to its end; return as `submit`. SpecError if the cluster has no such job."""
    with connect(file, address) as cluster:
        _find(cluster, job)
        return _follow(cluster, job)


def stop(job: str, file: str | None, address: str | None) -> None:
    """Stop a job and wait until it has ended; SpecError if the cluster has no such job."""
    with connect(file, address) as cluster:
        record = _find(cluster, job)
        if record.status.is_terminal():
            _print(f"Job {job} had already ended ({record.status}).")
            return
        cluster.client.stop_job(job)
        with Console().status(f"waiting for job {job}, whose cells save first"):
            while not cluster.client.get_job_info(job).status.is_terminal():
                time.sleep(0.5)
        _print(f"Job {job} was stopped. Submit its study again to continue.")


def _submitted(cluster: Cluster) -> dict[str, Any]:
    """Return Ray's records of the jobs that were submitted to a cluster, by id."""
    return {job.submission_id: job for job in cluster.client.list_jobs() if job.submission_id}


def _find(cluster: Cluster, name: str) -> Any:
    """Return Ray's record of a job."""
    jobs_by_name = _submitted(cluster)
    if name not in jobs_by_name:
        raise SpecError(
            f"this cluster has no job {name}{did_you_mean(name, jobs_by_name) or '.'} "
            f"Its jobs: {', '.join(jobs_by_name) or 'none'}."
        )
    return jobs_by_name[name]


def pack(source: str, overrides: Sequence[str], spec: StudySpec, folder: Path) -> str:
    """Fill an empty folder, which Ray packs, with links to the checkout and a spec; return the command to run there.

    Ray omits the files that `.gitignore` and `.rayignore` name. A preset is run by its name and overrides. Any other
    spec is written into the folder, with the paths of its data relative to the checkout.

    Raises:
        SpecError: the cluster would not have the data files.
    """
    working, marks = Path.cwd(), ("interplay/__main__.py", "pyproject.toml")
    folders = (working, *working.parents)
    checkout = next((at for at in folders if all((at / mark).is_file() for mark in marks)), None)
    for entry in checkout.iterdir() if checkout else ():
        (folder / entry.name).symlink_to(entry)
    raw = spec.model_dump(mode="json")
    sent = raw | {"data": _relocated(raw["data"], checkout)}
    name, changes = source, list(overrides)
    # Paths of a spec are absolute.
    if sent != raw or source not in yaml_file.preset_names():
        name, changes = f"{spec.name}.submitted.yaml", []
        # It may be a link to a file of the user.
        (folder / name).unlink(missing_ok=True)
        text = yaml.safe_dump(sent, sort_keys=False, allow_unicode=True)
        (folder / name).write_text(text, encoding="utf-8")
    return shlex.join(["python", "-m", "interplay", "run", name, *changes])


def _relocated(value: Any, checkout: Path | None, key: str = "") -> Any:
    """A section of a spec in which every data file, tokenizer or pattern is relative to the checkout."""
    if isinstance(value, dict):
        return {key: _relocated(part, checkout, key.split(".")[-1]) for key, part in value.items()}
    if isinstance(value, list):
        return [_relocated(part, checkout, key) for part in value]
    is_path = key in yaml_file.PATHS and value not in (None, "", *TOKENIZERS)
    return _inside(key, value, checkout) if is_path else value


def _inside(key: str, path: str, checkout: Path | None) -> str:
    """The path of a data file relative to the checkout; SpecError if the package will not have it."""
    full = Path(path).expanduser()
    if checkout is None or not full.is_relative_to(checkout):
        where = f"put it into {checkout}" if checkout else "run from a checkout of this project that has it"
        raise SpecError(
            f"`data.{key}` is {path}, a file that the cluster does not have; {where}, or use a data set of the hub."
        )
    inside = str(full.relative_to(checkout))
    # Without git or a repository this finds nothing, and the driver on the head refuses the path.
    rules = f"core.excludesFile={checkout / '.rayignore'}"
    command = ["git", "-C", str(checkout), "-c", rules, "check-ignore", "--no-index", "--quiet", "--", inside]
    if shutil.which("git") and subprocess.run(command, capture_output=True, check=False).returncode == 0:
        raise SpecError(
            f"`data.{key}` is {path}, which .gitignore or .rayignore excludes from the job; put it elsewhere in "
            f"{checkout}, or change the ignore file."
        )
    return inside


def _agreed(dollars: float | None, most: float | None, *, yes: bool) -> bool:
    """Whether the user agrees to a price, None if it is not known; asks only where it is high or not known."""
    price = "The price of this study is not known here"
    if dollars is not None:
        price = f"This study costs about {money(dollars)}"
        if most is not None and dollars > most:
            raise SpecError(f"{price}, above --max-dollars {most:g}; nothing was submitted.")
        if dollars <= ASK_DOLLARS:
            return True
    if yes:
        return True
    if not (sys.stdin and sys.stdin.isatty()):
        again = shlex.join(["interplay", *sys.argv[1:], "--yes"])
        raise SpecError(f"{price}, and without a terminal nobody can be asked. To submit it: {again}")
    return input(f"{price}. Submit it? [y/N] ").strip().lower() in ("y", "yes")


def _check(spec: StudySpec, file: ClusterFile, *, opens_tunnel: bool) -> StudyPrice | None:
    """Refuse here what `ray dashboard` or the driver would refuse later; print warnings, return the price."""
    if opens_tunnel:
        need("opening a tunnel", "cluster", "boto3")
        check_metadata(file, AWS_METADATA)
    price = price_study(file, spec)
    if file.errors:
        findings = "; ".join(
            f"line {finding.line}, {finding.path}: {finding.message}" for finding in file.errors
        )
        raise SpecError(f"{file.name} cannot be used: {findings}. See `interplay cluster check {file.name}`.")
    for warning in file.warnings:
        _print(Text.assemble(("warning: ", "yellow"), f"{warning.message}."))
    for option in price.options if price else ():
        _print(f"Estimated {option_text(option)}.")
    return price


def _most_dollars(price: StudyPrice | None) -> float | None:
    """The price on the most expensive of the pools that the study can use; None if one is not known."""
    options = price.options if price else ()
    dollars = [option.dollars for option in options if option.dollars is not None]
    return max(dollars) if dollars and len(dollars) == len(options) else None


def _refuse_second_driver(cluster: Cluster, study: str) -> None:
    for job in cluster.client.list_jobs():
        if not job.status.is_terminal() and _study_of(job) == study:
            running = job.submission_id or job.job_id
            raise SpecError(
                f"job {running} of this cluster already runs the study {study}, and two drivers would train the same "
                f"cells. Follow it with `{cluster.command('logs', running)}`, or stop it with "
                f"`{cluster.command('stop', running)}` and submit again; finished cells are kept."
            )


def _study_of(job: Any) -> str | None:
    """The study of a job that was sent by this command or by `ray job submit -- python -m interplay run NAME`."""
    if name := (job.metadata or {}).get(STUDY_KEY):
        return str(name)
    words = (job.entrypoint or "").split()
    return next((Path(name.strip("'\"")).stem for verb, name in pairwise(words) if verb == "run"), None)


def _follow(cluster: Cluster, job: str) -> int:
    """Print the log of a job to its end; return as `submit`."""
    import aiohttp
    import requests

    async def tail() -> None:
        async for text in cluster.client.tail_job_logs(job):
            print(text, end="", flush=True)

    try:
        asyncio.run(tail())
        while not (info := cluster.client.get_job_info(job)).status.is_terminal():
            time.sleep(1)
    except KeyboardInterrupt:
        _print(f"Stopped following; job {job} continues.")
        _print_commands(cluster, job)
        return STOPPED
    except (RuntimeError, ConnectionError, aiohttp.ClientError, requests.RequestException) as error:
        raise SpecError(
            f"lost the connection to the cluster ({type(error).__name__}); job {job} continues. Once it answers "
            f"again, follow it: `{cluster.command('logs', job)}`."
        ) from error
    if info.status == "SUCCEEDED":
        return 0
    if info.status == "STOPPED":
        _print(f"Job {job} was stopped. Submit again to continue.")
        return STOPPED
    if info.driver_exit_code in (1, 2, STOPPED):
        return int(info.driver_exit_code)
    _print(f"Job {job} failed: {info.message}")
    return 1


def _print(text: str | Text) -> None:
    Console(highlight=False).print(text, soft_wrap=True, markup=False)


def _print_commands(cluster: Cluster, job: str) -> None:
    for word, verb in (("follow it", "logs"), ("stop it", "stop")):
        _print(Text.assemble(f"  {word}: ", (cluster.command(verb, job), "bold")))
