"""cluster/start_mlflow.sh with a real server, in its own home and on its own port, killed and restarted."""

import base64
import logging
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.environment import free_port

pytestmark = [pytest.mark.extended]
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "cluster" / "start_mlflow.sh"
PASSWORD = "kept-from-everyone"


class Head:
    """A machine's home folder, and the actions of its user."""

    def __init__(self, home, **settings):
        self.home, self.port = home, free_port()
        binaries = Path(sys.executable).parent
        self.environment = {
            "HOME": str(home),
            "PATH": f"{binaries}:/usr/bin:/bin",
            "MLFLOW_PORT": str(self.port),
            "INTERPLAY_LOCKS": str(home),
            **settings,
        }

    def call(self, *arguments):
        return subprocess.run(
            ["bash", SCRIPT, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )

    def family(self):
        """All processes of this home: the loop, the server and its helpers."""
        mark = f"{self.home}/mlflow"
        return [p for p in psutil.process_iter() if self._environ(p).get("INTERPLAY_MLFLOW_OF") == mark]

    def loop(self):
        """The process that restarts the server."""
        family = self.family()
        members = {process.pid for process in family}
        (loop,) = (process for process in family if process.ppid() not in members)
        assert loop.cmdline()[-1] == "--watch"
        return loop

    @staticmethod
    def _environ(process):
        try:
            return process.environ()
        except psutil.Error:
            return {}

    def server(self):
        """The process that holds the port."""
        (found,) = {
            c.pid
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr.port == self.port
        }
        return psutil.Process(found)

    def status(self, path="/", host="127.0.0.1", **headers):
        request = urllib.request.Request(f"http://{host}:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def healthy_again(self):
        deadline = time.monotonic() + 900
        while True:
            try:
                if self.status("/health") == 200:
                    return
            except OSError:
                pass
            assert time.monotonic() < deadline, (self.home / "mlflow" / "server.log").read_text()
            time.sleep(0.2)

    def log(self):
        return (self.home / "mlflow" / "server.log").read_text()


@pytest.fixture
def head(tmp_path):
    """Heads whose server is stopped after the test by the script itself; nothing may remain."""
    made = []

    def make(**settings):
        home = tmp_path / f"home{len(made)}"
        home.mkdir()
        made.append(Head(home, **settings))
        return made[-1]

    yield make
    for one in made:
        assert one.call("--stop").returncode == 0
        deadline = time.monotonic() + 50
        while one.family():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def modes(folder):
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()}


def test_the_server_starts_once_and_comes_back_by_itself(head):
    one = head()
    done = one.call()
    assert done.returncode == 0, done.stderr + one.log()
    assert one.status("/health") == 200
    assert one.status("/", Host="evil.com") == 403
    assert one.status("/", Host=f"localhost:{one.port}") == 200
    # On loopback only.
    assert {c.laddr.ip for c in one.server().net_connections() if c.status == psutil.CONN_LISTEN} == {
        "127.0.0.1"
    }
    assert set(modes(one.home / "mlflow").values()) == {0o600}

    # Further calls, also several at once, start nothing.
    before = one.server()
    again = [subprocess.Popen(["bash", SCRIPT], env=one.environment) for _ in range(4)]
    assert [process.wait(60) for process in again] == [0] * 4
    assert one.server() == before
    assert before.is_running()

    # If only the server is killed, the loop starts another with the same store.
    import mlflow

    client = mlflow.MlflowClient(f"http://127.0.0.1:{one.port}")
    client.create_experiment("kept")
    before.send_signal(signal.SIGKILL)
    one.healthy_again()
    assert one.server() != before
    assert client.get_experiment_by_name("kept").artifact_location.startswith("mlflow-artifacts:/")
    assert "MLflow ended with status" in one.log()

    # If the loop is killed, the server remains as an orphan; a new start replaces both.
    orphan = one.server()
    loop = one.loop()
    loop.send_signal(signal.SIGKILL)
    assert one.status("/health") == 200
    assert one.call().returncode == 0
    assert not orphan.is_running()
    one.server().send_signal(signal.SIGKILL)
    one.healthy_again()


@pytest.mark.parametrize("below", ["mlflow", ""])
def test_a_file_system_without_locks_does_not_stop_it(head, no_flock, below):
    one = head()
    one.environment |= no_flock(one.home / below if below else "/")
    first = one.call("--no-wait")
    assert first.returncode == 0, first.stderr
    # A message only where the locks of this machine fail, too.
    assert first.stderr.count("\n") == (0 if below else 1)
    assert ("INTERPLAY_LOCKS" in first.stderr) == (not below)
    loop = one.loop()
    again = one.call("--no-wait")
    assert again.returncode == 0, again.stderr
    assert one.loop() == loop
    assert one.log().count("MLflow starts") == 1


def test_locks_in_the_folder_of_somebody_else_are_refused(head, tmp_path):
    """Whoever holds them decides when MLflow starts."""
    one = head()
    locks = one.home / f"interplay-locks-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    locks.symlink_to(tmp_path / "elsewhere")
    refused = one.call("--no-wait")
    assert refused.returncode == 1
    assert str(locks) in refused.stderr
    assert not one.family()
    locks.unlink()
    locks.mkdir(mode=0o777)
    if os.geteuid() == 0:
        os.chown(locks, 65534, 65534)
        assert one.call("--no-wait").returncode == 1
        os.chown(locks, 0, 0)
    one.home.chmod(0o755)
    assert one.call("--no-wait").returncode == 0
    assert locks.stat().st_mode & 0o777 == 0o700
    # It may be `/var/tmp`, which other users need.
    assert one.home.stat().st_mode & 0o777 == 0o755


def test_a_server_that_cannot_start_says_why_and_keeps_the_password(head):
    """Under SQLAlchemy 2.1, plain `postgresql` selects a driver that is not installed."""
    one = head(INTERPLAY_MLFLOW_STORE=f"postgresql://mlflow:{PASSWORD}@127.0.0.1:1/mlflow")
    # The log of a server that could not start for a night.
    (one.home / "mlflow").mkdir()
    (one.home / "mlflow" / "server.log").write_text(
        "".join(f"line {number:8}\n" for number in range(600_000))
    )
    assert one.call("--no-wait").returncode == 0
    deadline = time.monotonic() + 600
    while "MLflow ended with status" not in one.log():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert "No module named 'psycopg'" in one.log()
    older = (one.home / "mlflow" / "server.log.1").read_text()
    assert len(older) == 4_000_000
    assert "599999" in older[-200:]
    assert len(one.log()) < 1_000_000
    assert PASSWORD not in one.log()
    assert not [p for p in one.family() if PASSWORD in " ".join(p.cmdline())]


def test_with_authentication_only_the_password_opens_it(head):
    one = head()
    assert one.call("--no-wait").returncode == 0
    # A server with other settings is replaced.
    one.environment["INTERPLAY_MLFLOW_AUTH"] = "1"
    done = one.call()
    assert done.returncode == 0, done.stderr + one.log()
    password = (one.home / "mlflow" / "admin_password").read_text()
    assert len(password) == 64
    assert set(modes(one.home / "mlflow").values()) == {0o600}
    api = "/api/2.0/mlflow/experiments/search?max_results=1"

    def basic(word):
        return "Basic " + base64.b64encode(f"admin:{word}".encode()).decode()

    assert one.status("/health") == 200
    assert one.status(api) == 401
    assert one.status(api, Authorization=basic("wrong")) == 401
    assert one.status(api, Authorization=basic(password)) == 200
    # Drivers of jobs get it from environment.sh.
    show = f"source {ROOT}/cluster/environment.sh; echo $MLFLOW_TRACKING_USERNAME:$MLFLOW_TRACKING_PASSWORD"
    shown = subprocess.run(
        ["bash", "-c", show], env=one.environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == f"admin:{password}"
    # Nobody else does: neither the log nor `ps` has it.
    assert password not in one.log()
    assert not [p for p in one.family() if password in " ".join(p.cmdline())]


@pytest.fixture
def bucket():
    """A bucket of an S3 server on loopback, and the environment to reach it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/study", method="PUT")).close()
    yield {
        "INTERPLAY_STORAGE": "s3://study/interplay",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server.stop()


def test_artifacts_are_in_the_bucket_and_a_new_head_has_an_empty_store(head, bucket):
    """A study that is submitted again sends its rows to it; tests/study/tracking tests that."""
    import mlflow

    old = head(**bucket)
    done = old.call()
    assert done.returncode == 0, done.stderr + old.log()
    client = mlflow.MlflowClient(f"http://127.0.0.1:{old.port}")
    run = client.create_run(client.create_experiment("kept"))
    client.log_text(run.info.run_id, "shown", "report.html")
    with urllib.request.urlopen(f"{bucket['AWS_ENDPOINT_URL']}/study?list-type=2") as reply:
        assert re.search(
            rf"<Key>mlflow/\d+/{run.info.run_id}/artifacts/report.html</Key>", reply.read().decode()
        )
    assert old.call("--stop").returncode == 0

    new = head(**bucket)
    done = new.call()
    assert done.returncode == 0, done.stderr + new.log()
    assert mlflow.MlflowClient(f"http://127.0.0.1:{new.port}").get_experiment_by_name("kept") is None
    assert not any(PASSWORD in one.log() for one in (old, new))


@pytest.fixture
def postgres(tmp_path):
    """Debian's PostgreSQL, run as its package's user, because it refuses to run as root."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL refuses root, and there is no user `postgres`")
        become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    else:
        become = []
    # That user cannot enter pytest's own folder.
    place = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    if become:
        os.chown(place, user.pw_uid, user.pw_gid)
    port = free_port()
    (place / "password").write_text(PASSWORD)
    (place / "password").chmod(0o644)
    initialise = [
        "initdb",
        "-D",
        place / "data",
        "-U",
        "mlflow",
        "-A",
        "scram-sha-256",
        "--pwfile",
        place / "password",
    ]
    subprocess.run(
        [*become, folders[-1] / initialise[0], *initialise[1:]], check=True, capture_output=True, cwd=place
    )
    serve = [folders[-1] / "postgres", "-D", place / "data", "-k", place, "-h", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "postgres.log").open("w") as log:
        process = subprocess.Popen([*become, *serve], stdout=log, stderr=log, cwd=place)
    try:
        yield port, folders[-1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        shutil.rmtree(place)


def test_the_store_may_be_postgresql(head, postgres, tmp_path):
    port, binaries = postgres
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"127.0.0.1:{port}:*:mlflow:{PASSWORD}\n")
    passwords.chmod(0o600)
    deadline = time.monotonic() + 300
    ask = [binaries / "psql", "-h", "127.0.0.1", "-p", str(port), "-U", "mlflow", "-d", "postgres", "-Atc"]
    known = {"PGPASSFILE": str(passwords), "PATH": os.environ["PATH"]}
    while subprocess.run(
        [*ask, "create database mlflow"], env=known, capture_output=True, check=False
    ).returncode:
        assert time.monotonic() < deadline, (tmp_path / "postgres.log").read_text()
        time.sleep(0.5)

    uri = f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/mlflow"
    one = head(INTERPLAY_MLFLOW_STORE=uri, PGPASSFILE=str(passwords))
    done = one.call()
    assert done.returncode == 0, done.stderr + one.log()

    import mlflow

    client = mlflow.MlflowClient(f"http://127.0.0.1:{one.port}")
    run = client.create_run(client.create_experiment("in PostgreSQL"))
    client.log_metric(run.info.run_id, "loss", 1.5)
    one.server().send_signal(signal.SIGKILL)
    one.healthy_again()
    assert client.get_run(run.info.run_id).data.metrics == {"loss": 1.5}
    ask[ask.index("postgres")] = "mlflow"
    counted = subprocess.run(
        [*ask, "select count(*) from metrics"], env=known, capture_output=True, text=True, check=True
    )
    assert counted.stdout.strip() == "1"
    assert not (one.home / "mlflow" / "mlflow.db").exists()
    assert PASSWORD not in one.log()
    assert not [p for p in one.family() if PASSWORD in " ".join(p.cmdline())]
