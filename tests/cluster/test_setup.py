"""cluster/setup_node.sh and cluster/environment.sh in their own home folder; no package is downloaded."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parents[2] / "cluster"
ROOT = CLUSTER.parent


class Machine:
    """A machine before the setup commands of `ray up`: it has only the repository's files."""

    def __init__(self, home):
        self.home = home
        (home / "interplay").symlink_to(ROOT)
        self.environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}

    def run(self, script, **more):
        return subprocess.run(
            ["bash", "-c", script],
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            check=False,
        )

    def setup(self, **more):
        return self.run("bash ~/interplay/cluster/setup_node.sh", **more)

    def use_this_environment(self):
        """Leave what a setup with the environment of the tests leaves; pip's check takes seconds."""
        versions = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
        (self.home / ".interplay-env.stamp").write_text(hashlib.sha256(versions).hexdigest() + "\n")
        (self.home / "interplay-env").symlink_to(sys.prefix)
        return self

    def variables(self, **more):
        """The environment of a login shell, in which Ray's launcher runs commands."""
        done = self.run("source ~/.bashrc; source ~/interplay/cluster/environment.sh; env -0", **more)
        assert done.returncode == 0, done.stderr
        return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)

    def configure(self, **config):
        """Write the file that Ray writes on a head only."""
        (self.home / "ray_bootstrap_config.yaml").write_text(json.dumps(config))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.slow
def test_an_environment_that_has_all_is_taken_and_kept(machine):
    done = machine.setup(INTERPLAY_ENV=sys.prefix)
    assert done.returncode == 0, done.stderr
    assert "has the pinned packages" in done.stdout
    assert (machine.home / "interplay-env").readlink() == Path(sys.prefix)
    again = machine.setup()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    # An environment is checked again after a change of the versions.
    (machine.home / ".interplay-env.stamp").write_text("of an older version\n")
    assert "has the pinned packages" in machine.setup(INTERPLAY_ENV=sys.prefix).stdout
    # It must come once, before the line that ends ~/.bashrc in shells without a terminal.
    assert (machine.home / ".bashrc").read_text().count("environment.sh;") == 1


@pytest.mark.slow
def test_the_python_of_the_path_is_taken_if_it_has_all(machine):
    done = machine.setup(PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert (machine.home / "interplay-env" / "bin" / "python").exists()


def test_users_own_lines_of_the_shell_are_kept(machine):
    own = "case $- in *i*) ;; *) return ;; esac\nexport MINE='a  b'\n"
    machine.use_this_environment()
    # ~/.bashrc may be a link to a folder of settings.
    (machine.home / "kept").write_text(own)
    (machine.home / "kept").chmod(0o600)
    (machine.home / ".bashrc").symlink_to("kept")
    several = "for i in 1 2 3 4; do bash ~/interplay/cluster/setup_node.sh & done; wait"
    assert machine.run(several).returncode == 0
    assert (machine.home / ".bashrc").is_symlink()
    assert (machine.home / "kept").stat().st_mode & 0o777 == 0o600
    first, rest = (machine.home / ".bashrc").read_text().split("\n", 1)
    assert "environment.sh" in first
    assert rest == own


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("constraints.txt", "ray==2.60.0", "ray==2.59.0"), "ray[tune]==2.60.0"),
        # A package that another one requires.
        (("constraints.txt", "s3transfer==", "s3transfer==9"), "s3transfer==9"),
        (("pyproject.toml", '"boto3>=1.40"', '"no-such-package>=1"'), "no-such-package>=1"),
    ],
)
def test_an_environment_that_lacks_something_is_refused_by_its_name(machine, tmp_path, change, reason):
    name, old, new = change
    copy = tmp_path / "copy"
    shutil.copytree(CLUSTER, copy / "cluster")
    for file in ("constraints.txt", "pyproject.toml"):
        shutil.copyfile(ROOT / file, copy / file)
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new))
    done = machine.run(f"bash {copy}/cluster/setup_node.sh", INTERPLAY_ENV=sys.prefix)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "unset INTERPLAY_ENV" in done.stderr
    assert not (machine.home / ".interplay-env.stamp").exists()


@pytest.mark.slow
def test_a_gpu_that_torch_cannot_use_is_said_at_once(machine, tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine may have a GPU that torch can use")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA L4 (UUID: GPU-1)'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = machine.setup(INTERPLAY_ENV=sys.prefix, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "torch cannot use it" in done.stderr


def test_a_driver_that_is_too_old_is_refused_by_number_before_anything_is_installed(machine, tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine may have a driver of its own")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 550.54.15\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = machine.setup(PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "550.54.15" in done.stderr
    assert "580" in done.stderr
    assert not (machine.home / "interplay-env").exists()


def test_packed_data_are_kept_on_the_instance_store_if_there_is_one(machine, tmp_path):
    machine.use_this_environment().setup()
    assert "INTERPLAY_CACHE" not in machine.variables(INTERPLAY_NVME=str(tmp_path / "nvme"))
    (tmp_path / "nvme" / "interplay").mkdir(parents=True)
    found = machine.variables(INTERPLAY_NVME=str(tmp_path / "nvme"))
    assert found["INTERPLAY_CACHE"] == str(tmp_path / "nvme" / "interplay")
    own = machine.variables(INTERPLAY_NVME=str(tmp_path / "nvme"), INTERPLAY_CACHE="/mine")
    assert own["INTERPLAY_CACHE"] == "/mine"


def test_the_head_of_aws_tells_the_region_and_the_bucket(machine):
    machine.configure(
        cluster_name="interplay",
        provider={"type": "aws", "region": "eu-west-1"},
        metadata={"bucket": "studies"},
    )
    assert machine.use_this_environment().setup().returncode == 0
    found = machine.variables()
    assert found["INTERPLAY_STORAGE"] == "s3://studies/interplay"
    assert found["INTERPLAY_CLUSTER"] == "interplay"
    assert found["AWS_DEFAULT_REGION"] == found["AWS_REGION"] == "eu-west-1"
    assert found["INTERPLAY_METADATA"] == "http://169.254.169.254"
    # A worker has no configuration, only this file, which Ray copies from the head.
    (machine.home / "worker").mkdir()
    worker = Machine(machine.home / "worker").use_this_environment()
    shutil.copyfile(machine.home / "interplay-cluster.sh", worker.home / "interplay-cluster.sh")
    assert worker.setup().returncode == 0
    assert worker.variables()["INTERPLAY_STORAGE"] == "s3://studies/interplay"


def test_the_head_of_ones_own_machines_tells_the_folder_whatever_its_name(machine):
    folder = "/mnt/our data/$(touch oops)"
    machine.configure(cluster_name="interplay", provider={"type": "local"}, metadata={"storage": folder})
    assert machine.use_this_environment().setup().returncode == 0
    found = machine.variables()
    assert found["INTERPLAY_STORAGE"] == folder
    assert "AWS_REGION" not in found


def test_what_the_drivers_of_jobs_are_told(machine):
    assert machine.use_this_environment().setup().returncode == 0
    # Ray's launcher sets the first for its commands, including `ray start`.
    found = machine.variables(OMP_NUM_THREADS="1")
    assert "OMP_NUM_THREADS" not in found
    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_USAGE_STATS_ENABLED"] == "0"
    assert found["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert found["INTERPLAY_RESULTS"] == f"{machine.home}/results"
    assert found["PATH"].split(":")[0] == f"{machine.home}/interplay-env/bin"
    assert found["PATH"].count("interplay-env") == found["PYTHONPATH"].count("interplay") == 1
    # No variable if no server was started.
    assert "INTERPLAY_TRACKING" not in found
    (machine.home / "mlflow").mkdir()
    assert machine.variables()["INTERPLAY_TRACKING"] == "http://127.0.0.1:5000"
    assert machine.variables(MLFLOW_HOST="0.0.0.0")["INTERPLAY_TRACKING"] == "http://127.0.0.1:5000"
    assert machine.variables(MLFLOW_HOST="10.0.0.4")["INTERPLAY_TRACKING"] == "http://10.0.0.4:5000"
    (machine.home / "interplay-settings.sh").write_text("export INTERPLAY_TRACKING=https://mlflow.example\n")
    assert machine.variables()["INTERPLAY_TRACKING"] == "https://mlflow.example"
