"""`interplay submit`, `jobs`, `logs`, `stop`: the package of a job, refusals, a study on a Ray head with a token."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
import yaml
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from ray.job_submission import JobDetails
from sqlalchemy.exc import SQLAlchemyError

from interplay import cli
from interplay.cluster import connection
from interplay.cluster import submit as submitting
from interplay.cluster.connection import answers, open_tunnel
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.saves import RESULTS_SECONDS, SAVES
from study.revision import revision
from study.spec.study import load_spec
from study.tracking.ledger import Ledger
from tests.environment import environment_without, free_port
from tests.named import assert_named
from tests.study.small import SMALL
from tests.trainables.data.tokenizer_files import save

ROOT = Path(__file__).parents[2]


def command(*arguments, **environment):
    """Run the command in the repository, without the environment variables of Ray."""
    clean = environment_without("RAY_", "INTERPLAY_")
    return subprocess.run(
        [sys.executable, "-m", "interplay", *map(str, arguments)], cwd=ROOT,
        env={**clean, "COLUMNS": "200", **environment}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


# A dashboard


class Dashboard(BaseHTTPRequestHandler):
    """The answers of Ray's dashboard that decide about packages and refusals."""

    jobs: tuple = ()
    refusal: int | None = None
    accepts = False
    answers_before: list
    """Answers to the first submissions."""
    asked: list
    packages: list
    submitted: list

    def do_GET(self):
        self.asked.append((self.path, self.headers.get("Authorization")))
        status, answer = self.refusal or 200, {"ray_version": "2.60.0", "version": "4", "ray_commit": "x"}
        if self.path.startswith("/api/jobs"):
            answer = [*self.jobs]
        elif self.path.startswith("/api/packages"):
            status = 404
        self.answer(status, answer)

    def do_PUT(self):
        self.packages.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, {})

    def do_POST(self):
        self.submitted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.answers_before:
            self.answer(*self.answers_before.pop(0))
        elif self.accepts:
            self.answer(200, {"job_id": "x", "submission_id": "x"})
        else:
            self.answer(500, "Traceback\nValueError: no driver could be started\n")

    def answer(self, status, document):
        body = json.dumps(document).encode() if not isinstance(document, str) else document.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def dashboard(tmp_path, monkeypatch):
    """Start the answers above; return their class."""
    kind = type("Answers", (Dashboard,), {"asked": [], "packages": [], "submitted": [], "answers_before": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    kind.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "")
    (tmp_path / "token").write_text("abc")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    yield kind
    server.shutdown()
    thread.join()


def refused(capsys, monkeypatch, *arguments, yes=True):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(
        "sys.argv", ["interplay", "submit", *map(str, arguments), *(["--yes"] if yes else [])]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2, out + err
    assert err.count("\n") == 1
    return err


# The package


@pytest.fixture
def checkout(dashboard, tmp_path, monkeypatch):
    """A minimal checkout."""
    folder = tmp_path / "checkout"
    (folder / "interplay").mkdir(parents=True)
    (folder / "interplay/__main__.py").write_text("")
    (folder / "pyproject.toml").write_text("")
    (folder / ".gitignore").write_text("results/\n")
    (folder / ".rayignore").write_text("secret.txt\n")
    (folder / "results").mkdir()
    (folder / "results/big.bin").write_text("x")
    (folder / "corpus.txt").write_text("words and words\n" * 100)
    (folder / "secret.txt").write_text("words")
    subprocess.run(["git", "init", "-q", folder], check=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def sent(dashboard, monkeypatch):
    """Submit a study; return the command of its job and the files of its package."""

    def sent(source, *overrides):
        dashboard.accepts = True
        words = ["interplay", "submit", str(source), *overrides, "--address", dashboard.address]
        monkeypatch.setattr("sys.argv", [*words, "--no-wait", "--yes"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        job = dashboard.accepted = dashboard.submitted.pop()
        if "working_dir" not in job["runtime_env"]:
            return job["entrypoint"], None
        with zipfile.ZipFile(io.BytesIO(dashboard.packages.pop())) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
        return job["entrypoint"], files

    return sent


def test_a_preset_is_called_by_its_name_with_its_overrides(sent, checkout, monkeypatch):
    monkeypatch.chdir(checkout / "interplay")
    entrypoint, files = sent("quickstart", "training.seeds=1", "frontier.depths=[1, 2]")
    assert entrypoint == "python -m interplay run quickstart training.seeds=1 'frontier.depths=[1, 2]'"
    assert {"interplay/__main__.py", "pyproject.toml", "corpus.txt"} <= set(files)
    assert not {"results/big.bin", "secret.txt"} & set(files)


def test_any_other_spec_is_sent_whole(sent, checkout, tmp_path):
    (checkout / "small.submitted.yaml").write_text("mine")
    entrypoint, files = sent(SMALL, "training.seeds=7")
    assert entrypoint == "python -m interplay run small.submitted.yaml"
    (tmp_path / "there.yaml").write_bytes(files["small.submitted.yaml"])
    assert load_spec(str(tmp_path / "there.yaml")) == load_spec(str(SMALL), ["training.seeds=7"])
    assert (checkout / "small.submitted.yaml").read_text() == "mine"


def test_without_a_checkout_the_package_of_the_machines_runs(sent):
    assert sent("quickstart") == ("python -m interplay run quickstart", None)
    assert set(sent(SMALL)[1]) == {"small.submitted.yaml"}


def test_data_and_tokenizer_of_the_checkout_go_along_by_paths_that_hold_there(
    sent, checkout, dashboard, capsys, monkeypatch
):
    for folder in ("mine", "results/mine"):
        save(checkout / folder, "llama")
    _, files = sent("text", "data.path=corpus.txt", "data.tokenizer=mine")
    assert {"corpus.txt", "mine/tokenizer.json"} <= set(files)
    data = yaml.safe_load(files["text.submitted.yaml"])["data"]
    assert (data["path"], data["tokenizer"], data["vocabulary"]) == ("corpus.txt", "mine", 700)
    other = ("data.path=corpus.txt", "data.tokenizer=results/mine")
    assert "`data.tokenizer` is" in refused(capsys, monkeypatch, "text", *other)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("secret.txt", ["secret.txt", "ignore"]),
        ("results/big.bin", ["results/big.bin", "ignore"]),
        ("/etc/hostname", ["/etc/hostname"]),
        ("~/mine.txt", ["mine.txt"]),
    ],
)
def test_data_that_the_cluster_would_not_have_are_refused(
    checkout, dashboard, capsys, monkeypatch, tmp_path, path, named
):
    (tmp_path / "mine.txt").write_text("my words\n" * 100)
    assert_named(refused(capsys, monkeypatch, "text", f"data.path={path}"), "data.path", *named)
    assert not dashboard.asked


def test_the_package_of_a_checkout_after_a_study_has_every_source_and_nothing_large_or_private(
    sent, tmp_path, monkeypatch
):
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no git checkout, so nothing says which files are sources")
    tracked = [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    folder = tmp_path / "checkout"
    left = {
        "results/mlflow.db": 3_000_000,
        "results/quickstart/runs.csv": 10,
        ".venv/lib/torch.so": 3_000_000,
        ".git/objects/pack": 3_000_000,
        "study/__pycache__/cli.cpython-311.pyc": 10,
        "interplay.egg-info/PKG-INFO": 10,
        "corpora/wikipedia.txt": 3_000_000,
        "my-study.yaml": 10,
        "corpus.txt": 10,
    }
    for name in (*tracked, *left):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes() if name in tracked else b"x" * left[name])
    monkeypatch.chdir(folder)
    _, files = sent("quickstart")
    packages = {"core", "interplay", "study", "trainables", "analysis", "cluster"}
    sources = {name for name in tracked if name.split("/")[0] in packages}
    assert {name.split("/")[0] for name in sources} == packages
    assert sources <= set(files)
    assert {"constraints.txt", "pyproject.toml", "README.md", "my-study.yaml", "corpus.txt"} <= set(files)
    assert {name.split("/")[0] for name in files if "/" in name} == packages
    assert not [name for name in files if "__pycache__" in name]
    # Each submission sends them all.
    assert sum(map(len, files.values())) < 5_000_000


# A head that has just started

NO_AGENT = (500, "No available agent to submit job, please try again later.")


@pytest.fixture
def soon(monkeypatch):
    """Waits of a second take a hundredth of it."""
    sleep = time.sleep
    monkeypatch.setattr(submitting.time, "sleep", lambda seconds: sleep(seconds / 100))


def test_a_job_has_the_revision_and_time_to_save_its_largest_cell(sent, dashboard):
    sent("levine2020")
    variables = dashboard.accepted["runtime_env"]["env_vars"]
    assert variables["INTERPLAY_REVISION"] == revision()
    plan = make_plan(load_spec("levine2020"))
    # Weights and two moments in fp32, weights in bf16.
    largest = 14 * max(planned.parameters.total for planned in plan.pool)
    seconds = int(variables["RAY_JOB_STOP_WAIT_TIME_S"]) - RESULTS_SECONDS
    assert largest > 10e9
    assert 50e6 < SAVES * largest / seconds < 100e6, "bytes per second"


@pytest.mark.parametrize(
    ("answers_before", "submissions"), [([NO_AGENT, NO_AGENT], 3), ([(500, "No disk is left."), NO_AGENT], 1)]
)
def test_only_a_head_that_has_just_started_is_asked_again(
    dashboard, soon, capsys, monkeypatch, answers_before, submissions
):
    dashboard.answers_before += answers_before
    err = refused(capsys, monkeypatch, "quickstart", "--address", dashboard.address)
    assert len(dashboard.submitted) == submissions
    # What the first answer says that is not asked about again.
    assert ("No disk is left" if submissions == 1 else "no driver could be started") in err


def test_a_head_that_can_start_no_job_is_given_up(dashboard, soon, capsys, monkeypatch):
    monkeypatch.setattr(submitting, "AGENT_SECONDS", 0.2)
    dashboard.answers_before += [NO_AGENT] * 10_000
    assert NO_AGENT[1].rstrip(".") in refused(
        capsys, monkeypatch, "quickstart", "--address", dashboard.address
    )
    assert len(dashboard.submitted) > 1


# The price


@pytest.fixture
def at_aws(dashboard, capsys, monkeypatch, tmp_path):
    """Submit to the machines of cluster/aws.yaml; return the exit status, what was printed and the number of jobs."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/interplay-token").write_text("def")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "400")
    dashboard.accepts = True

    def submit(*arguments, answer=None, file=("--cluster", "cluster/aws.yaml")):
        words = ["interplay", "submit", *arguments, *file, "--address", dashboard.address, "--no-wait"]
        monkeypatch.setattr("sys.argv", words)
        monkeypatch.setattr("sys.stdin", io.StringIO("" if answer is None else f"{answer}\n"))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: answer is not None, raising=False)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out + err, len(dashboard.submitted)

    return submit


@pytest.mark.parametrize(("answer", "status", "jobs"), [("y", 0, 1), ("n", 130, 0), ("", 130, 0)])
def test_a_study_above_50_dollars_is_submitted_only_if_the_user_agrees(at_aws, answer, status, jobs):
    ended, printed, submitted = at_aws("one-gpu-night", answer=answer)
    assert (ended, submitted) == (status, jobs)
    assert re.search(r"\$5\d\..*\[y/N\]", printed)


def test_a_study_is_submitted_by_its_name(at_aws, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/spec.yaml").write_text(load_spec("one-gpu-night", ["name=mine"]).to_yaml())
    assert at_aws("mine", "--yes", "--results", str(tmp_path))[::2] == (0, 1)


def test_without_a_terminal_the_command_that_agrees_is_named_and_it_submits(at_aws):
    ended, printed, submitted = at_aws("one-gpu-night")
    assert (ended, submitted) == (2, 0)
    program, verb, study, *options = shlex.split(printed.split("To submit it: ")[1])
    assert (program, verb, study, options[-1]) == ("interplay", "submit", "one-gpu-night", "--yes")
    assert at_aws("one-gpu-night", "--yes")[::2] == (0, 1)


def test_a_cheap_study_is_not_asked_about_and_none_above_the_limit_is_sent(at_aws):
    assert at_aws("quickstart", "resources.pool=cpu")[::2] == (0, 1)
    ended, printed, submitted = at_aws("one-gpu-night", "--yes", "--max-dollars", "20")
    assert (ended, submitted) == (2, 1)
    assert "--max-dollars 20" in printed
    assert at_aws("one-gpu-night", "--yes", "--max-dollars", "60")[::2] == (0, 2)


def test_a_price_that_is_not_known_is_asked_about(at_aws):
    ended, printed, submitted = at_aws("quickstart", file=())
    assert (ended, submitted) == (2, 0)
    assert "--yes" in printed
    assert at_aws("quickstart", file=(), answer="y")[::2] == (0, 1)


# Refusals


def job(**values):
    return {
        "type": "SUBMISSION",
        "status": "RUNNING",
        "entrypoint": "x",
        "submission_id": "raysubmit_7",
        **values,
    }


QUICKSTART = {"interplay_study": "quickstart"}
PRESET = "python -m interplay run presets/quickstart.yaml"
STARTED = "no driver could be started"
STOP = "interplay stop raysubmit_7 --address {}`"


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        # RAY_ADDRESS would silently replace the address in Ray's client.
        ({}, STARTED),
        ({"refusal": 401}, "the token"),
        ({"refusal": 403}, "the token"),
        ({"refusal": 404}, "no Ray dashboard"),
        # The study runs there already.
        ({"jobs": (job(metadata=QUICKSTART),)}, STOP),
        ({"jobs": (job(entrypoint="python -m interplay run quickstart training.seeds=1"),)}, STOP),
        ({"jobs": (job(entrypoint=PRESET, status="PENDING"),)}, STOP),
        # Another one does, or it did.
        ({"jobs": (job(metadata=QUICKSTART, status="FAILED"),)}, STARTED),
        ({"jobs": (job(metadata={"interplay_study": "text"}),)}, STARTED),
        ({"jobs": (job(entrypoint="python -m interplay run text"),)}, STARTED),
    ],
)
def test_a_head_that_takes_no_job_is_refused_with_the_reason(dashboard, capsys, monkeypatch, answers, named):
    for name, value in answers.items():
        setattr(dashboard, name, value)
    err = refused(capsys, monkeypatch, "quickstart", "--address", dashboard.address)
    assert_named(err, named.format(dashboard.address))
    assert "abc" not in err, "the token"
    assert ".." not in err
    assert bool(dashboard.submitted) == (named == STARTED)
    assert {token for _, token in dashboard.asked} == {"Bearer abc"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["quickstrat"], "`quickstart`?"),
        (["quickstart", "training.deepspeed={nonsense: 1}"], "nonsense"),
        (["quickstart", "--cluster", "absent.yaml"], "absent.yaml"),
        (["quickstart", "--address", "nowhere"], "nowhere"),
        (["quickstart", "--address", "http://127.0.0.1:9"], "http://127.0.0.1:9"),
        (["quickstart", "resources.pool=huge", "--cluster", f"{ROOT}/cluster/aws.yaml"], "is 'huge'"),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(dashboard, capsys, monkeypatch, arguments, named):
    if "--address" not in arguments:
        arguments = [*arguments, "--address", dashboard.address]
    assert named in refused(capsys, monkeypatch, *arguments)
    assert not dashboard.asked


def test_a_missing_token_is_refused_before_anything_is_sent(dashboard, capsys, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/absent/token")
    err = refused(capsys, monkeypatch, "quickstart", "--address", dashboard.address)
    assert "/absent/token" in err
    assert not dashboard.asked


def test_warnings_and_the_price_are_printed_and_do_not_stop_it(at_aws, dashboard):
    status, printed, submitted = at_aws("quickstart", "resources.slots=500")
    assert (status, submitted) == (0, 1)
    assert "`resources.slots` of quickstart is 500" in printed
    assert re.search(r"(?m)^Estimated on cpu alone, 4 x m7i\.2xlarge: .*(\$[\d.]+|\d+ cents?)", printed)
    assert ("/api/jobs/", "Bearer def") in dashboard.asked, "the token is that of the cluster's file"


def test_the_default_address_comes_from_the_environment(dashboard, capsys, monkeypatch):
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", dashboard.address)
    assert STARTED in refused(capsys, monkeypatch, "quickstart")


@pytest.mark.parametrize("options", [("--cluster", "my file.yaml"), ("--address", "http://10.0.0.1:8265")])
def test_the_commands_that_are_printed_can_be_copied_into_a_shell(options):
    command = submitting.Cluster(None, options).command("logs", "x")
    assert shlex.split(command) == ["interplay", "logs", "x", *options]


class FollowedJob:
    """A client whose job has two lines of log, and ends later than its log or loses the connection."""

    def __init__(self, *states, lost=False):
        self.states, self.lost = list(states), lost

    async def tail_job_logs(self, job):
        yield "first\n"
        if self.lost:
            raise RuntimeError("WebSocket connection closed unexpectedly with close code 1006")
        yield "second\n"

    def get_job_info(self, job):
        return JobDetails(type="SUBMISSION", status=self.states.pop(0), entrypoint="", driver_exit_code=2)


@pytest.mark.parametrize(("state", "status"), [("SUCCEEDED", 0), ("FAILED", 2), ("STOPPED", 130)])
def test_the_log_is_written_and_the_status_of_the_job_is_returned(capsys, state, status):
    client = FollowedJob("RUNNING", state)
    assert submitting._follow(submitting.Cluster(client, ()), "x") == status
    log, end = capsys.readouterr().out.split("second\n")
    assert (log, bool(end)) == ("first\n", state == "STOPPED")


def test_a_lost_connection_is_an_error_with_the_command_that_follows_the_job():
    with pytest.raises(SpecError, match=r"job x .*interplay logs x"):
        submitting._follow(submitting.Cluster(FollowedJob(lost=True), ()), "x")


# The tunnel


@pytest.fixture
def no_tunnel(tmp_path, monkeypatch):
    """A laptop on which no tunnel may be opened."""
    monkeypatch.setattr(connection, "open_tunnel", lambda *_: pytest.fail("a tunnel was opened"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/interplay-token").write_text("abc")
    monkeypatch.chdir(ROOT)


def test_a_file_that_is_not_edited_yet_opens_no_tunnel(no_tunnel, capsys, monkeypatch):
    err = refused(capsys, monkeypatch, "quickstart", "--cluster", "cluster/aws.yaml")
    assert_named(err, "metadata.image: ", "interplay cluster check cluster/aws.yaml")


def test_a_tunnel_that_fails_reports_the_output_of_ray(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "file.yaml"
    file.write_text("cluster_name: a\nprovider: {type: local, head_ip: 127.0.0.1}\n")
    with (
        pytest.raises(SpecError, match=r"(?s)ray dashboard .*worker_ips.*ray up"),
        open_tunnel(str(file)),
    ):
        pytest.fail("it is open")


def test_closing_a_tunnel_ends_all_its_processes(tmp_path, monkeypatch):
    """With a fake `ray dashboard`, which starts a server as Ray starts ssh."""
    (tmp_path / "ray/scripts").mkdir(parents=True)
    (tmp_path / "ray/__init__.py").write_text("")
    (tmp_path / "ray/scripts/__init__.py").write_text("")
    (tmp_path / "ray/scripts/scripts.py").write_text(
        "import subprocess, sys\n"
        "serve = [sys.executable, '-m', 'http.server', sys.argv[-1], '--bind', '127.0.0.1']\n"
        "raise SystemExit(subprocess.call(serve))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with open_tunnel("file.yaml") as address:
        assert answers(address)
    assert not answers(address)


# A real head


@pytest.fixture(scope="module")
def head():
    """A Ray head with token authentication, on ports of its own; return what a client needs."""
    # Paths of Ray's sockets have at most 107 characters, and pytest's folders are longer in a parallel run.
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    token = folder / "token"
    token.touch(0o600)
    token.write_text("5" * 64)
    environment = {
        **environment_without("RAY_", "INTERPLAY_"),
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder / "ray"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "INTERPLAY_RESULTS": str(folder / "results"),
        # The `python` of a job's command on the head.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    # Ray ends a head whose agent does not start in time, which happens on a busy machine.
    for last in (False, True):
        process, port = start_head(folder / "log", environment)
        if takes_jobs(process, f"http://127.0.0.1:{port}"):
            break
        end_head(process)
        assert not last, (folder / "log").read_text()
    yield {
        "address": f"http://127.0.0.1:{port}", "RAY_AUTH_TOKEN_PATH": str(token), "HOME": str(folder),
        "folder": folder,
    }  # fmt: skip
    end_head(process)
    shutil.rmtree(folder, ignore_errors=True)


def start_head(log, environment):
    """Start a head; return its process, which has its own session, and the port of its dashboard."""
    ports = {
        name: free_port()
        for name in (
            *("port", "ray-client-server-port", "metrics-export-port"),
            *("dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port"),
        )
    }
    started = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--dashboard-host=127.0.0.1", "--num-cpus=2", "--object-store-memory=150000000"),
        *(f"--{name}={port}" for name, port in ports.items()),
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(
            started, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    return process, ports["dashboard-port"]


def takes_jobs(process, address):
    """Whether a head takes a job within three minutes; its agent, which runs them, starts after its dashboard."""
    headers = {"Authorization": "Bearer " + "5" * 64}
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(requests.RequestException):
            if requests.post(
                f"{address}/api/jobs/", json={"entrypoint": "true"}, headers=headers, timeout=30
            ).ok:
                return True
        time.sleep(0.5)
    return False


def end_head(process):
    """End a head and its workers, which are of its session; `ray stop` would end every Ray of this machine."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(3)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


TINY = ("training.steps=20", "frontier.depths=[1]", "training.seeds=1")


def environment(head):
    return {name: head[name] for name in ("RAY_AUTH_TOKEN_PATH", "HOME")}


@pytest.mark.slow
def test_a_study_is_sent_followed_and_its_status_returned(head):
    done = command("submit", "--yes", SMALL, *TINY, "--address", head["address"], **environment(head))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"Job \w+ runs small on http", done.stdout)
    assert done.stdout.count("Running entrypoint for job") == 1
    assert "python -m interplay run small.submitted.yaml" in done.stdout
    assert [int(number) for number in re.findall(r"(?m)^\[(\d)/5\]", done.stdout)] == [1, 2, 3, 4, 5]
    assert done.stdout.count("Report: ") == 1
    assert done.stderr == "", "Ray's own words of packing are kept back"
    assert (head["folder"] / "results/small/report.html").is_file()
    rows = Ledger(head["folder"] / "results/small/rows").rows().values()
    assert {row.revision for row in rows} == {revision()}, "the package has no git repository"


@pytest.mark.slow
def test_a_stopped_job_has_time_to_save_its_cells_and_to_record_its_end(head):
    """Ray kills a stopped job after 3 s by default, before a cell that is not asked at once has saved."""
    changes = ("name=stopped", "training.steps=60000", "frontier.depths=[1]", "training.seeds=1")
    study, results = Path("stopped"), head["folder"] / "results"
    done = command(
        "submit", "--yes", SMALL, *changes, "resources.checkpoint_every_seconds=3600", "--no-wait",
        "--submission-id", "stopped", "--address", head["address"], **environment(head),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows, deadline = Ledger(results / study / "rows"), time.monotonic() + 240
    store = MlflowClient(f"sqlite:///{results}/mlflow.db")

    def runs(kind):
        with suppress(MlflowException, SQLAlchemyError):
            if experiment := store.get_experiment_by_name("stopped"):
                return store.search_runs([experiment.experiment_id], f"tags.`interplay.kind` = '{kind}'")
        return []

    while not any("train_loss" in run.data.metrics for run in runs("trial")):
        assert time.monotonic() < deadline, command("logs", "stopped", "--address", head["address"]).stdout
        time.sleep(0.5)
    done = command("stop", "stopped", "--address", head["address"], **environment(head))
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((results / study / "checkpoints").glob("*/*/*.part"))
    left = {path.parent.name for path in (results / study / "checkpoints").glob("*/step-*")}
    saved = {
        path.parent.parent.name for path in (results / study / "checkpoints").glob("*/step-*/complete.json")
    }
    assert saved == left
    assert len(saved) == 2, "both running cells, whose first checkpoint was an hour away"
    assert not saved & rows.rows().keys()
    (driver,) = runs("study")
    assert driver.info.status == "KILLED"


@pytest.fixture
def taken(head):
    """A study that fails only on the head, where a file has the path of its results folder."""
    (head["folder"] / "results").mkdir(exist_ok=True)
    (head["folder"] / "results/taken").write_text("")
    return (SMALL, *TINY, "name=taken", "--address", head["address"])


@pytest.mark.slow
@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_the_clusters_token_nothing_runs(head, tmp_path, token):
    settings = {"HOME": str(tmp_path)}
    if token:
        (tmp_path / "token").write_text(token)
        settings["RAY_AUTH_TOKEN_PATH"] = str(tmp_path / "token")
    done = command("submit", "--yes", "quickstart", "--address", head["address"], **settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert_named(done.stderr, " token")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_ends_the_following_and_not_the_job(head):
    long = ("name=long", "training.steps=20000")
    clean = environment_without("RAY_", "INTERPLAY_")
    started = [
        *(sys.executable, "-u", "-m", "interplay", "submit", "--yes", str(SMALL)),
        *(*long, "--address", head["address"]),
    ]
    process = subprocess.Popen(
        started, cwd=ROOT, env={**clean, **environment(head)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    first = process.stdout.readline()
    known = re.match(r"Job (\w+) runs long", first)[1]
    for line in process.stdout:
        if "Running entrypoint" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    busy = command("submit", "--yes", SMALL, *long, "--address", head["address"], **environment(head))
    assert busy.returncode == 2
    assert known in busy.stderr
    stop = shlex.split(re.search(r"stop it: (.*)", out)[1])
    done = command(*stop[1:], **environment(head))
    assert (done.returncode, done.stderr) == (0, "")
    assert known in done.stdout
    assert "(STOPPED)" in command(*stop[1:], **environment(head)).stdout
    log = command("logs", known, "--address", head["address"], **environment(head))
    assert log.returncode == 130
    assert "Running entrypoint" in log.stdout
    listed = json.loads(command("jobs", "--json", "--address", head["address"], **environment(head)).stdout)
    (found,) = [job for job in listed if job["job"] == known]
    assert (found["study"], found["status"]) == ("long", "STOPPED")
    assert time.time() - 300 < found["started"] < found["ended"] < time.time()
    assert [job["started"] for job in listed] == sorted((job["started"] for job in listed), reverse=True)
    table = command("jobs", "--address", head["address"], **environment(head)).stdout
    assert re.search(rf"(?m)^{known} +long +stopped +\d{{4}}-", table)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["logs", "stop"])
def test_a_job_that_the_cluster_does_not_have_is_refused(head, verb):
    done = command(verb, "raysubmit_none", "--address", head["address"], **environment(head))
    assert (done.returncode, done.stdout) == (2, "")
    assert "raysubmit_none" in done.stderr


@pytest.mark.slow
def test_library_defect_ray_sends_a_package_that_its_dashboard_refuses(head, tmp_path):
    """Ray packs up to 512 MB, and its dashboard takes 100 MiB per request and answers by a traceback (ray 2.60)."""
    for name in ("interplay/__main__.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "weights.bin").write_bytes(os.urandom(110 * 2**20))
    settings = {**environment_without("RAY_", "INTERPLAY_"), **environment(head)}
    done = subprocess.run(
        [sys.executable, "-m", "interplay", "submit", "--yes", SMALL, *TINY, "--address", head["address"]],
        cwd=tmp_path, env={**settings, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert_named(done.stderr, "105 MB", ".rayignore")


@pytest.mark.slow
def test_no_wait_prints_the_job_and_what_to_do_with_it(head, taken):
    done = command("submit", "--yes", *taken, "--no-wait", "--submission-id", "mine", **environment(head))
    assert done.returncode == 0, done.stderr
    assert "Job mine runs taken" in done.stdout
    follow = re.search(r"follow it: (.*)", done.stdout)[1]
    log = command(*shlex.split(follow)[1:], **environment(head))
    assert log.returncode == 2
    assert "error: " in log.stdout
