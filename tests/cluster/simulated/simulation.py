"""Control a simulated cloud from a test: start it, run commands on its laptop, look into its machines."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psutil

from tests.cluster.simulated.isolation import namespace
from tests.cluster.simulated.machine import Machine
from tests.cluster.simulated.universe import ENDPOINT, REGION
from tests.environment import PRIORITY

REPOSITORY = Path(__file__).parents[3]
#: The environment that the machines' image brings: the one these tests run in.
IMAGE_ENVIRONMENT = Path(sys.executable).parents[1]
#: Programs of the host that a simulation is made of, and the packages of Debian that have them.
PROGRAMS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "runuser": "util-linux",
    "mount": "mount",
    "rsync": "rsync",
    "curl": "curl",
    "ps": "procps",
    "pkill": "procps",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sudo": "sudo",
    "useradd": "passwd",
}
LAPTOP = "laptop"
USER = "ada"
START_SECONDS = 60.0
#: Time limits are for two quiet cores, and only end tests that hang: on a busy machine all takes this much longer.
PATIENCE = 5


def missing() -> str | None:
    """The reason in one sentence if there can be no simulation on this host; else None."""
    if os.name != "posix" or os.geteuid() != 0:
        return "a simulated cloud needs root, to make namespaces"
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    lacking = {package for program, package in PROGRAMS.items() if not shutil.which(program, path=search)}
    if not Path("/usr/sbin/sshd").exists():
        lacking.add("openssh-server")
    if lacking:
        return f"a simulated cloud needs Debian's packages {', '.join(sorted(lacking))}"
    with tempfile.TemporaryDirectory() as folder:
        script = (
            f"mount -t tmpfs tmpfs {folder} && mkdir {folder}/u {folder}/w {folder}/m && mount -t overlay overlay "
            f"-o lowerdir=/,upperdir={folder}/u,workdir={folder}/w {folder}/m && ip link set lo up && "
            "ip link add b0 type bridge && ip link add v0 type veth peer name v1"
        )
        tried = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--mount-proc", "sh", "-c", script],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if tried.returncode:
        reason = " ".join(tried.stderr.split()) or f"status {tried.returncode}"
        return f"a simulated cloud needs namespaces, overlays and bridges, which are refused here: {reason}"
    return None


@dataclasses.dataclass(frozen=True)
class Running:
    """A running machine, as the host sees it."""

    name: str
    network: str
    address: str
    public: str | None
    pool: str | None
    """Ray's node type, if Ray started it."""
    type: str | None
    """EC2's instance type, if it is an instance."""


class Simulation:
    """A cloud in its own namespaces, with a laptop. Use it in a `with`, whose end stops all of it."""

    def __init__(self, state: Path) -> None:
        """Args: state, an empty folder for logs and orders."""
        self.state = state
        for name in ("machines", "consoles", "wanted", "running", "shared"):
            (state / name).mkdir(parents=True)
        (state / "shared").chmod(0o777)
        self.outside = namespace()
        self._process: subprocess.Popen[bytes] | None = None
        needs = (REPOSITORY, IMAGE_ENVIRONMENT, Path(sys.base_prefix))
        self.needs = tuple(
            str(one) for one in needs if not any(one.is_relative_to(o) and one != o for o in needs)
        )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process whose end stops all others."""
        assert self._process is not None, "the simulation has not been started"
        return self._process

    def __enter__(self) -> Self:
        image = {
            "user": "ubuntu",
            "needs": self.needs,
            # The environment of an image for this project, and the address of the cloud's API.
            "environment": {
                "INTERPLAY_ENV": str(IMAGE_ENVIRONMENT),
                "AWS_ENDPOINT_URL": ENDPOINT,
                **PRIORITY,
            },
        }
        (self.state / "image.json").write_text(json.dumps(image))
        self.want(
            Machine(name=LAPTOP, address="172.31.240.1", user=USER, routed=False, needs=self.needs),
        )
        # The kernel ends `unshare` with this process in any case, and everything else with `unshare`.
        with (self.state / "universe.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc",
                 "--propagation", "private", "--kill-child=SIGKILL",
                 sys.executable, "-m", "tests.cluster.simulated.universe", str(self.state), self.outside],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY, start_new_session=True,
            )  # fmt: skip
        try:
            self.wait_for_boot(LAPTOP)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill one process."""
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        """The logs of the cloud and of its machines, without those of sshd."""
        parts = [self.state / "universe.log", *sorted((self.state / "consoles").glob("*.log"))]
        usual = re.compile(r".*(listening on|logout\(\) returned|publickey for|isconnect).*\n")
        said = {path.stem: usual.sub("", path.read_text(errors="replace"))[-3000:] for path in parts}
        return "\n".join(f"== {name}\n{text}" for name, text in said.items() if text)

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float, every: float = 0.5) -> Any:
        """Return the value of a condition once it is true; fail the test after a time limit."""
        seconds *= PATIENCE
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None, f"the simulated cloud ended\n{self.log()}"
            assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}\n{self.log()}"
            time.sleep(every)
        return found

    def wait_for_boot(self, name: str) -> None:
        """Return when commands can run on a machine."""
        self.wait_for(lambda: name in self.machines() and self._first(name), f"{name} to boot", START_SECONDS)

    def want(self, machine: Machine) -> None:
        """Start a machine that does not belong to the cloud."""
        part = self.state / f".{machine.name}"
        part.write_text(json.dumps(dataclasses.asdict(machine)))
        part.rename(self.state / "wanted" / f"{machine.name}.json")

    def machines(self) -> dict[str, Running]:
        """All running machines by name: instances by their id."""
        found = {}
        for path in (self.state / "running").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found[path.stem] = Running(path.stem, **json.loads(path.read_text()))
        return found

    def instances(self, pool: str | None = None) -> dict[str, Running]:
        """The machines that the cloud's API started, of all pools or of one."""
        return {
            name: machine
            for name, machine in self.machines().items()
            if machine.type and pool in (None, machine.pool)
        }

    def refuse(self, *pools: str) -> None:
        """Set the node types of Ray for which the cloud has no capacity from now on; none by default."""
        (self.state / "full").write_text("\n".join(pools))

    def notify(self, *addresses: str) -> None:
        """Set the addresses of the spot machines that the cloud announces to take away, from now on."""
        (self.state / "noticed").write_text("\n".join(addresses))

    def pid(self, name: str) -> int:
        """Process id on the host of the first process of a booted machine."""
        found = self._first(name)
        assert found, f"{name} has not booted\n{self.log()}"
        return found

    def _first(self, name: str) -> int | None:
        for process in _members({self.machines()[name].network}):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process}/status").read_text()
                # Before sshd starts, its root is still the host's: a command would write there.
                if re.search(r"^Name:\tsshd$", status, re.M) and re.search(r"^NSpid:.*\t1$", status, re.M):
                    return process
        return None

    def root(self, name: str) -> Path:
        """The root of a machine's file system, readable from the host."""
        return Path(f"/proc/{self.pid(name)}/root")

    def on(self, name: str, *command: str, user: str | None = None, **environment: str) -> list[str]:
        """The command line that runs a command on a machine as a user, in the home; root by default."""
        login = ["runuser", "-u", user, "--"] if user else []
        home = f"/home/{user}" if user else "/root"
        values = {"HOME": home, "LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment}
        return [
            "nsenter", "-t", str(self.pid(name)), "--mount", "--net", "--pid", "--uts", "--root", "--wd",
            *login, "env", "-i", "-C", home, *(f"{k}={v}" for k, v in values.items()), *command,
        ]  # fmt: skip

    def ask(self, name: str, *command: str, user: str | None = None, **environment: str) -> str:
        """The output of a command on a machine; it must succeed."""
        done = subprocess.run(
            self.on(name, *command, user=user, **environment), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command} on {name}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def members(self) -> set[int]:
        """All processes on the host that belong to the simulation."""
        network = (self.state / "network").read_text()
        return _members({network, *(machine.network for machine in self.machines().values())})


def _members(networks: set[str]) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str((path / "ns/net").readlink()) in networks:
                found.add(int(path.name))
    return found


@dataclasses.dataclass(frozen=True)
class Traces:
    """What a simulation has on the host while it runs, for a check that nothing remains."""

    state: Path
    processes: frozenset[tuple[int, float]]
    """Process ids with start times, because a process id may be reused."""
    namespaces: frozenset[str]

    @classmethod
    def of(cls, simulation: Simulation) -> "Traces":
        """Record them."""
        processes, namespaces = set(), set()
        host = {str(path.readlink()) for path in Path("/proc/self/ns").iterdir()}
        for pid in simulation.members():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                processes.add((pid, psutil.Process(pid).create_time()))
                namespaces |= {str(path.readlink()) for path in Path(f"/proc/{pid}/ns").iterdir()}
        return cls(simulation.state, frozenset(processes), frozenset(namespaces - host))

    def left(self, seconds: float = 30.0) -> list[str]:
        """Those that remain after some seconds, which the kernel needs to end many processes."""
        deadline = time.monotonic() + seconds
        while (found := self._left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _left(self) -> list[str]:
        found = []
        for pid, started in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"process {pid}: {' '.join(process.cmdline())}")
        for path in Path("/proc").glob("[0-9]*/ns/*"):
            with contextlib.suppress(OSError):
                if (name := str(path.readlink())) in self.namespaces:
                    found.append(f"namespace {name} of process {path.parts[2]}")
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            # A namespace that is mounted as a file exists without a process.
            if str(self.state) in line or any(name in line for name in self.namespaces):
                found.append(f"mount {line}")
        return found


def copy_repository(target: Path) -> None:
    """Copy the repository to a new folder, without files that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    target.mkdir(parents=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, target / name)


@dataclasses.dataclass(frozen=True)
class Started:
    """A command that runs on the laptop."""

    command: tuple[str, ...]
    process: "subprocess.Popen[bytes]"
    folder: Path

    def out(self) -> str:
        """Its output on stdout until now."""
        return (self.folder / "out").read_text(errors="replace")

    def err(self) -> str:
        """Its output on stderr until now."""
        return (self.folder / "err").read_text(errors="replace")

    def wait(self, timeout: float) -> int:
        """Its exit status; fail the test after a time limit."""
        timeout *= PATIENCE
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            kill(self.process)
            said = f"{self.out()}\n{self.err()}"
            raise AssertionError(f"{self.command} took longer than {timeout:.0f} s\n{said}") from None


class Laptop:
    """The machine of the user: no internet, a copy of the repository, the cloud's keys."""

    def __init__(self, simulation: Simulation, folder: str = "interplay") -> None:
        """Args: folder, of the repository, below the home."""
        self.simulation = simulation
        self.home = Path("/home") / USER
        self.folder = self.home / folder
        self.environment = {
            "AWS_ENDPOINT_URL": ENDPOINT,
            "AWS_ACCESS_KEY_ID": "AKIALAPTOPOFADA",
            "AWS_SECRET_ACCESS_KEY": "the-secret-key-of-the-laptop",
            "AWS_DEFAULT_REGION": REGION,
            "RAY_USAGE_STATS_ENABLED": "0",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
            # Python buffers its output to a file, but not to a terminal.
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{IMAGE_ENVIRONMENT / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
        }

    @property
    def root(self) -> Path:
        """Its file system, readable from the host."""
        return self.simulation.root(LAPTOP)

    def path(self, name: str | Path) -> Path:
        """A file of the working folder, readable from the host."""
        return self.root / str(self.folder / name).lstrip("/")

    def clone(self) -> None:
        """Copy the repository into the working folder."""
        copy_repository(self.path(""))
        self.simulation.ask(LAPTOP, "chown", "-R", f"{USER}:", str(self.folder))

    def write(self, name: str, content: str, mode: int = 0o644) -> None:
        """Write a file of the working folder."""
        path = self.path(name)
        path.write_text(content)
        path.chmod(mode)
        self.simulation.ask(LAPTOP, "chown", f"{USER}:", str(self.folder / name))

    def command(self, *command: str, **environment: str) -> list[str]:
        """The command line that runs a command in the working folder, past the guard."""
        guard = (sys.executable, str(Path(__file__).with_name("isolation.py")), self.simulation.outside)
        script = ("env", "-C", str(self.folder), *guard, *command)
        return self.simulation.on(LAPTOP, *script, user=USER, **{**self.environment, **environment})

    def run(
        self, *command: str, timeout: float = 120, ok: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it must succeed, unless a test says otherwise."""
        with self.started(*command, **environment) as started:
            started.wait(timeout)
        done = subprocess.CompletedProcess(command, started.process.returncode, started.out(), started.err())
        assert not ok or done.returncode == 0, (
            f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    @contextlib.contextmanager
    def started(self, *command: str, **environment: str) -> Iterator["Started"]:
        """Run a command in the background until the end of a `with`."""
        folder = Path(tempfile.mkdtemp(prefix="command-", dir=self.simulation.state))
        # Files instead of pipes: nobody reads during a command of minutes.
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                self.command(*command, **environment), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        try:
            yield Started(command, process, folder)
        finally:
            kill(process)

    def get(self, url: str, *headers: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
        """Send a request by HTTP; return the status, 0 if nothing answers, and the text or parsed JSON."""
        post = () if body is None else ("-H", "Content-Type: application/json", "--data", json.dumps(body))
        more = (
            *(t for header in headers for t in ("-H", header)),
            *post,
            *(("-X", method) if method else ()),
        )
        done = self.run("curl", "-sS", "--max-time", "20", "-w", "\n%{http_code}", *more, url, ok=False)
        text, _, code = done.stdout.rpartition("\n")
        try:
            return int(code), json.loads(text)
        except ValueError:
            return int(code), text

    def python(self, function: Callable[..., Any], *arguments: Any, **environment: str) -> Any:
        """The value of a function of these test modules, called on the laptop; all values must be JSON."""
        script = (
            "import importlib, json, sys; module, name, arguments = json.loads(sys.argv[1]); "
            "print('\\n' + json.dumps(getattr(importlib.import_module(module), name)(*arguments)))"
        )
        call = json.dumps([function.__module__, function.__name__, arguments])
        done = self.run(sys.executable, "-c", script, call, **{"PYTHONPATH": str(REPOSITORY), **environment})
        return json.loads(done.stdout.splitlines()[-1])


def kill(process: "subprocess.Popen[Any]") -> None:
    """End a process and its children, which may be in another pid namespace and outlive it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid)
        for one in (*family.children(recursive=True), family):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
    if process.poll() is None:
        process.wait()
