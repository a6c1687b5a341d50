"""One thread everywhere and no network: what a test measures must not depend on the machine's cores or its luck."""

import atexit
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.durations import RECORD, ROOT

# A shell ignores SIGINT in what it starts in the background, `nohup` ignores SIGHUP, and every process that a test
# starts would inherit that and be deaf to what the test sends.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Before numpy and torch are first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray's core reads it when it is first imported, which a test may do before any session of ours is there to set it.
os.environ["RAY_AUTH_MODE"] = "token"
# The list of fonts, which matplotlib would make again in the empty cache folder of every test.
os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))


# Plans do not follow a speed that this machine was measured with, not even those of fixtures of a module.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="interplay-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.fixture(autouse=True)
def no_measured_speed(tmp_path, monkeypatch):
    """Nor do they follow one that another test measures."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A database with MLflow's tables and an experiment; making one takes seconds, copying one does not."""
    from study.tracking.mlflow_store import Experiment, tracking_uri

    folder = tmp_path_factory.mktemp("mlflow")
    Experiment(tracking_uri("auto", folder), "template")
    return folder / "mlflow.db"


@pytest.fixture
def columns():
    """Width of the terminal."""
    return 120


@pytest.fixture
def command(tmp_path, monkeypatch, capsys, columns):
    """Run the command in an empty folder; return (status, stdout, stderr)."""
    from interplay import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["interplay", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def pytest_collection_modifyitems(items):
    """Run the files that took longest first, so that no process of pytest-xdist ends late."""
    record = json.loads(RECORD.read_text())

    def seconds(item):
        tier = next((name for name in ("extended", "slow") if item.get_closest_marker(name)), "fast")
        files = record.get({"slow": "gate"}.get(tier, tier), {}).get("files", {})
        return files.get(item.path.relative_to(ROOT).as_posix(), 0)

    items.sort(key=seconds, reverse=True)
