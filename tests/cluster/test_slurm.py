"""cluster/slurm.sbatch under a real Slurm with two simulated machines in namespaces of this one."""

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from study.tracking.ledger import Ledger
from tests.environment import PRIORITY

pytestmark = [pytest.mark.extended]
ROOT = Path(__file__).parents[2]
NEEDED = (
    "unshare",
    "nsenter",
    "ip",
    "setpriv",
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "scontrol",
    "sinfo",
)
TRUSTED = "/usr/sbin:/usr/bin:/sbin:/bin"
#: The folders of a job in /tmp: of Ray, and of MLflow.
JOB_FOLDER = re.compile(r"ray-\d+$|interplay-\d+-\w{6}$")
STUDY = (
    *("quickstart", "training.seeds=1", "training.steps=200"),
    *("frontier.depths=[1,2]", "frontier.budgets=[3100,6900,12300,27500]"),
)


class Slurm:
    """The namespaces, and commands run in them."""

    def __init__(self, folder):
        self.folder = folder
        # Killing this process ends all of its namespaces.
        self.process = subprocess.Popen(
            ["unshare", "-m", "-n", "-p", "-u", "-f", "--mount-proc", "--kill-child=SIGKILL",
             "bash", Path(__file__).parent / "slurm" / "machines.sh", folder],
            env={"PATH": TRUSTED}, stdout=(folder / "machines.log").open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def ready(self):
        deadline = time.monotonic() + 300
        while not (self.folder / "ready").exists():
            assert self.process.poll() is None, (self.folder / "machines.log").read_text()
            assert time.monotonic() < deadline, (self.folder / "machines.log").read_text()
            time.sleep(0.2)
        (inside,) = psutil.Process(self.process.pid).children()
        self.inside = inside.pid

    @property
    def environment(self):
        """That of the user who submits jobs."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": TRUSTED,
            "HOME": str(home),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "INTERPLAY_ENV": sys.prefix,
            "INTERPLAY_RESULTS": str(self.folder / "results"),
            "OMP_NUM_THREADS": "1",
            **PRIORITY,
        }

    def run(self, *command, check=True):
        enter = ["nsenter", "-t", str(self.inside), "-m", "-n", "-p", "-u", f"--wdns={ROOT}"]
        done = subprocess.run(
            [*enter, *command], env=self.environment, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def submit(self, *study, keep_environment=True):
        """Submit the script with a user's edits, for machines without GPUs; return the job's number.

        Without the environment, as at sites with `--export=NONE`, the script sets what it needs.
        """
        script = self.folder / "job.sbatch"
        lines = (ROOT / "cluster" / "slurm.sbatch").read_text().splitlines(keepends=True)
        lines = [line for line in lines if not line.startswith("#SBATCH --gpus-per-node")]
        options = []
        if not keep_environment:
            options = ["--export=NONE"]
            own = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.environment.items())
            lines.insert(lines.index("set -euo pipefail\n"), own)
        script.write_text("".join(lines))
        return self.run("sbatch", "--parsable", f"--output={self.folder}/%j.log", *options, script, *study)

    def mirrored(self):
        """The cells whose runs in results/mlflow.db have ended, read without MLflow."""
        with closing(sqlite3.connect(self.folder / "results" / "mlflow.db")) as store:
            query = (
                "select tags.value from tags join runs using (run_uuid) where tags.key = 'interplay.cell' "
                "and runs.status = 'FINISHED' and runs.lifecycle_stage = 'active'"
            )
            return sorted(cell for (cell,) in store.execute(query))

    def state(self, job):
        return re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", job)).group(1)

    def ended(self, job, patience=1200):
        deadline = time.monotonic() + patience
        while (state := self.state(job)) in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            assert time.monotonic() < deadline, self.log(job)
            time.sleep(0.5)
        return state

    def log(self, job):
        path = self.folder / f"{job}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def slurm(tmp_path):
    if os.geteuid():
        pytest.skip("needs root, for namespaces and Slurm's own processes")
    if absent := [name for name in NEEDED if not shutil.which(name, path=TRUSTED)]:
        pytest.skip(f"{', '.join(absent)} not installed: apt-get install slurm-wlm munge iproute2")
    started = Slurm(tmp_path)
    try:
        started.ready()
        # It cannot leave this machine: its network has no way out.
        own, inside = (Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", started.inside))
        assert own != inside
        assert "default" not in started.run("ip", "route")
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def left_over(slurm):
    """The programs of Ray and MLflow, drivers of studies and folders of jobs that are on the simulated machines.

    By the program and the arguments that end a path: the folder of this checkout may have any name.
    """
    programs = {"raylet", "gcs_server", "mlflow", "interplay", "ray", "gunicorn", "uvicorn"}
    lines = [line.split() for line in slurm.run("ps", "-eo", "args=").splitlines()]
    running = [
        line
        for line in lines
        if programs & {Path(word).name for word in line[:3]}
        or "study" in line[:4]
        or line[0].startswith("ray::")
    ]
    jobs = {path.stem for path in slurm.folder.glob("*.log")}
    folders = [path for job in jobs for path in Path("/tmp").glob(f"*-{job}*") if JOB_FOLDER.match(path.name)]
    return running + folders


def test_a_job_that_is_told_to_end_goes_on_when_submitted_again(slurm):
    first = slurm.submit(*STUDY)
    deadline = time.monotonic() + 1200
    while "[1/8]" not in slurm.log(first):
        assert slurm.state(first) in ("PENDING", "CONFIGURING", "RUNNING"), slurm.log(first)
        assert time.monotonic() < deadline, slurm.log(first)
        time.sleep(0.5)
    assert left_over(slurm)
    # The signal that Slurm sends 120 s before the time limit.
    slurm.run("scancel", "--batch", "--signal=TERM", first)
    assert slurm.ended(first) == "FAILED"
    assert not left_over(slurm)
    rows = Ledger(slurm.folder / "results" / "quickstart" / "rows").rows()
    assert 1 <= len(rows) < 8
    # MLflow's database was on the disk of the first machine, and has been copied from there.
    assert slurm.mirrored() == sorted(rows)

    second = slurm.submit(*STUDY, keep_environment=False)
    assert slurm.ended(second) == "COMPLETED", slurm.log(second)
    # Two machines of two CPUs each.
    assert f"8 cells, {len(rows)} done" in slurm.log(second)
    assert "on 4 slots" in slurm.log(second)
    again = Ledger(slurm.folder / "results" / "quickstart" / "rows").rows()
    assert len(again) == 8
    assert {cell: again[cell].loss for cell in rows} == {cell: row.loss for cell, row in rows.items()}
    assert (slurm.folder / "results" / "quickstart" / "report.html").is_file()
    assert slurm.mirrored() == sorted(again)
    assert not left_over(slurm)
