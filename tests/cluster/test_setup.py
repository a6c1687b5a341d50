"""cluster/setup_node.sh and cluster/environment.sh in their own home folder; no package is downloaded."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
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


def folder_lock(machine, owner):
    """Leave the lock of a setup without flock(2), with its owner or, if it was killed before it wrote that, without."""
    lock = machine.home / ".interplay-env.lock.d"
    lock.mkdir()
    if owner:
        (lock / owner).write_text("7\n")
    return lock


def this_machine():
    """The name of this machine in a lock; a restart gives it another."""
    space = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}.{space}"


def test_setups_in_a_shared_home_without_locks_come_one_after_another(machine, no_flock):
    """Each writes ~/.bashrc once; four at once would write the line several times."""
    machine.use_this_environment()
    preload = no_flock(machine.home)
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock = folder_lock(machine, f"{this_machine()}.{ended.pid}")
    several = "for i in 1 2 3 4; do bash ~/interplay/cluster/setup_node.sh & done; wait"
    done = machine.run(several, **preload)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is gone; going on in its place") == 1
    assert (machine.home / ".bashrc").read_text().count("environment.sh;") == 1
    assert not lock.exists()
    # The owner of a lock that lives is waited for.
    waited = subprocess.Popen(["sleep", "60"])
    lock = folder_lock(machine, f"{this_machine()}.{waited.pid}")
    setup = subprocess.Popen(
        ["bash", CLUSTER / "setup_node.sh"], env={**machine.environment, **preload}, stdout=subprocess.DEVNULL
    )
    with pytest.raises(subprocess.TimeoutExpired):
        setup.wait(3)
    waited.kill()
    waited.wait()
    assert setup.wait(60) == 0
    assert not lock.exists()


@pytest.mark.extended
@pytest.mark.parametrize("owner", ["another-machine.1", ""])
def test_the_lock_of_another_machine_that_is_gone_is_taken_over(machine, no_flock, owner):
    lock = folder_lock(machine, owner)
    done = machine.use_this_environment().setup(**no_flock(machine.home))
    assert done.returncode == 0, done.stderr
    assert not lock.exists()


@pytest.fixture
def apt(machine, tmp_path):
    """A machine without Python 3.11 or newer, with the real apt-get on empty lists, and `sudo` without a password."""
    if not shutil.which("apt-get", path="/usr/bin"):
        pytest.skip("no apt-get here")
    place = tmp_path / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "log", "etc", "bin"):
        (place / folder).mkdir(parents=True)
    for part in ("python3-venv", "dpkg"):
        with (place / "status").open("a") as status:
            status.write(
                f"Package: {part}\nStatus: install ok installed\nVersion: 3.12\nArchitecture: all\n"
                "Maintainer: nobody\nDescription: nothing\n\n"
            )
    (place / "apt.conf").write_text(
        f'Dir::State "{place}";\nDir::State::lists "{place}/lists";\nDir::State::status "{place}/status";\n'
        f'Dir::Cache "{place}/cache";\nDir::Etc "{place}/etc";\nDir::Log "{place}/log";\n'
        'Dir::Bin::dpkg "/bin/false";\nAPT::Sandbox::User "root";\n'
    )
    for name in ("python3.11", "python3.12", "python3.13", "python3", "python"):
        (place / "bin" / name).symlink_to("/bin/false")
    (place / "bin" / "sudo").write_text('#!/bin/sh\nshift\nexec env "$@"\n')
    (place / "bin" / "apt-get").write_text(
        f'#!/bin/sh\necho "$@" >>{place}/calls\nexec /usr/bin/apt-get "$@"\n'
    )
    for name in ("sudo", "apt-get"):
        (place / "bin" / name).chmod(0o755)
    machine.environment |= {"PATH": f"{place}/bin:/usr/bin:/bin", "APT_CONFIG": str(place / "apt.conf")}
    machine.apt = place
    return machine


@contextlib.contextmanager
def lists_held(place):
    """Hold the lock of apt's lists, as apt-daily does on a new machine."""
    with (place / "lists" / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.slow
def test_a_machine_whose_package_lists_are_locked_waits_for_them(apt):
    with lists_held(apt.apt):
        setup = subprocess.Popen(
            ["bash", CLUSTER / "setup_node.sh"], env=apt.environment, stderr=subprocess.PIPE, text=True
        )
        calls = apt.apt / "calls"
        while not calls.exists() or calls.read_text().count("update") < 2:
            assert setup.poll() is None, setup.communicate()
            time.sleep(0.1)
        assert "install" not in calls.read_text()
    _, errors = setup.communicate(timeout=60)
    # Here apt finds the package installed and does nothing, so that the next check fails.
    assert calls.read_text().splitlines()[-1].endswith("install -y -qq python3-venv")
    assert calls.read_text().count("install") == 1
    assert "has no Python of 3.11 or newer" in errors


@pytest.mark.slow
def test_lists_that_stay_locked_are_given_up_in_one_sentence(apt):
    with lists_held(apt.apt):
        done = apt.setup(INTERPLAY_APT_PATIENCE="2")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "apt-get update has failed for 2 s" in done.stderr
    assert "lists/lock" in done.stderr
    assert not (apt.home / "interplay-env").exists()


@pytest.mark.parametrize(
    ("config", "off"), [({"type": "aws", "region": "eu-west-1"}, True), ({"type": "local"}, False)]
)
def test_automatic_upgrades_are_stopped_on_machines_of_aws_alone(machine, tmp_path, config, off):
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (binaries / "systemctl").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    for name in ("sudo", "systemctl"):
        (binaries / name).chmod(0o755)
    machine.configure(cluster_name="x", provider=config, metadata={"bucket": "studies", "storage": "/mnt"})
    done = machine.use_this_environment().setup(PATH=f"{binaries}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines() if off else []
    assert (tmp_path / "calls").exists() == off
    assert [call.split()[0] for call in calls] == (["is-active", "disable", "stop"] if off else [])
    assert done.stdout.count("\n") == len(calls) / 3
    assert all("apt-daily-upgrade.timer unattended-upgrades.service" in call for call in calls)


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


@pytest.mark.parametrize("name", ["INTERPLAY_CACHE", "INTERPLAY_SCRATCH"])
def test_data_and_checkpoints_are_kept_on_the_instance_store_if_there_is_one(machine, tmp_path, name):
    machine.use_this_environment().setup()
    assert name not in machine.variables(INTERPLAY_NVME=str(tmp_path / "nvme"))
    (tmp_path / "nvme" / "interplay").mkdir(parents=True)
    found = machine.variables(INTERPLAY_NVME=str(tmp_path / "nvme"))
    assert found[name] == str(tmp_path / "nvme" / "interplay")
    assert machine.variables(INTERPLAY_NVME=str(tmp_path / "nvme"), **{name: "/mine"})[name] == "/mine"


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({}, ["127.0.0.1", "localhost", "169.254.169.254"]),
        ({"NO_PROXY": "intra"}, ["intra", "127.0.0.1", "localhost", "169.254.169.254"]),
        ({"no_proxy": "localhost", "NO_PROXY": "x"}, ["localhost", "127.0.0.1", "169.254.169.254"]),
        ({"no_proxy": "*"}, ["*"]),
        ({"MLFLOW_HOST": "10.0.0.4"}, ["127.0.0.1", "localhost", "169.254.169.254", "10.0.0.4"]),
    ],
)
def test_programs_ask_this_machine_without_a_proxy(machine, given, direct):
    found = machine.use_this_environment().variables(**given)
    assert found["no_proxy"].split(",") == found["NO_PROXY"].split(",") == direct


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
    assert found["RAY_JOB_STOP_WAIT_TIME_S"] == "600"
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


@pytest.mark.extended
def test_python_3_12_gets_the_pinned_packages_and_trains(machine, tmp_path):
    """The Python of Ubuntu 24.04, on which AWS's images are based; some 3 GB are downloaded."""
    candidates = [shutil.which("python3.12"), *Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12")]
    check = ["-c", "import ensurepip, venv"]
    python = next(
        (
            p
            for p in candidates
            if p and not subprocess.run([p, *check], capture_output=True, check=False).returncode
        ),
        None,
    )
    if python is None:
        pytest.skip("no python3.12 with venv here")
    # As there, it is `python3`, and the one of 3.11 is absent. A copy of the sources, into which pip writes.
    (tmp_path / "bin").mkdir()
    for name, target in (("python3.11", "/bin/false"), ("python3.12", python), ("python3", python)):
        (tmp_path / "bin" / name).symlink_to(target)
    (machine.home / "interplay").unlink()
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in files.splitlines():
        copy = machine.home / "interplay" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, copy)
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = machine.setup(PATH=f"{tmp_path}/bin:/usr/bin:/bin", **pip)
    assert done.returncode == 0, done.stderr
    small = "training.seeds=1 training.steps=20 frontier.depths=[1,2] frontier.budgets=[3100]"
    done = machine.run(
        "source ~/interplay/cluster/environment.sh; python --version; pip check; "
        f"interplay run quickstart {small} --results results"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Python 3.12." in done.stdout
    assert "No broken requirements" in done.stdout
    assert len(list((machine.home / "results" / "quickstart" / "rows").glob("*.json"))) == 2
