"""One machine of the simulated cloud: the first process of its own pid, mount and uts namespaces.

It makes a root file system (an overlay on the host's, whose changes lie in a memory disk of the machine's own), puts
into it what a machine image and the first boot would, and becomes sshd. When it is killed, all of this is gone.

Usage: `python -m tests.cluster.simulated.machine SPEC.json`, where the file holds the fields of `Machine`.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

#: In the overlay, a directory with this mark shows nothing of what lies below it.
OPAQUE = "trusted.overlay.opaque"


@dataclass(frozen=True)
class Machine:
    """Properties of one machine."""

    name: str
    address: str
    """Address in the network of all machines."""
    user: str
    """The user who may log in, and become root without a password."""
    key: str | None = None
    """Line for `authorized_keys`; None if nobody logs in over the network."""
    public: str | None = None
    """A second, public address."""
    routed: bool = True
    """Whether it has a default route, by the simulation's host, which has none itself."""
    disk: str = "3g"
    """Size of its disk in bytes, in the memory of the host."""
    shares: dict[str, str] = field(default_factory=dict)
    """Writable folders of the host by their path on the machine: a network file system."""
    needs: tuple[str, ...] = ()
    """Read-only folders of the host, at the same path: the content of the image."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment of every login."""
    files: dict[str, str] = field(default_factory=dict)
    """Files of the user by path from the home."""
    names: dict[str, str] = field(default_factory=dict)
    """Other host names by address."""

    @property
    def hostname(self) -> str:
        """Host name in EC2's form."""
        return "ip-" + self.address.replace(".", "-")


def mount(*arguments: str) -> None:
    """Mount, in the mount namespace of this process."""
    subprocess.run(["mount", *arguments], check=True)


def make_root(machine: Machine, folder: Path) -> Path:
    """Mount the machine's root file system under a folder and return it."""
    disk, root = folder / "disk", folder / "root"
    for path in (disk, root):
        path.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", f"size={machine.disk},mode=755", "tmpfs", str(disk))
    upper, work = disk / "upper", disk / "work"
    for path in (upper, work):
        path.mkdir()
    upper.chmod(0o755)
    for name, mode in (("tmp", 0o1777), ("home", 0o755)):
        # Hide the host's temporary files and homes; those that the machine needs are mounted below.
        (upper / name).mkdir()
        (upper / name).chmod(mode)
        os.setxattr(upper / name, OPAQUE, b"y")
    mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", str(root))
    mount("-t", "proc", "proc", str(root / "proc"))
    mount("--rbind", "/dev", str(root / "dev"))
    mount("-t", "tmpfs", "-o", "size=8g,mode=1777", "tmpfs", str(root / "dev/shm"))
    mount("--bind", "/sys", str(root / "sys"))
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root / "run"))
    for name in ("sshd", "lock"):
        (root / "run" / name).mkdir()
    for source in machine.needs:
        target = root / source.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        for parent in target.relative_to(root).parents:
            # An interpreter may be below root's home, which others may not enter.
            (root / parent).chmod((root / parent).stat().st_mode | 0o011)
        mount("-o", "bind,ro", source, str(target))
    for target, source in machine.shares.items():
        (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        mount("--bind", source, str(root / target.lstrip("/")))
    return root


def first_boot(machine: Machine) -> None:
    """Write the files that differ between machines; the root file system is the machine's own here."""
    own = f"{machine.address} {machine.hostname}\n"
    others = "".join(f"{address} {name}\n" for address, name in machine.names.items())
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{own}{others}")
    Path("/etc/hostname").write_text(machine.hostname + "\n")
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    Path("/etc/resolv.conf").write_text("")
    if subprocess.run(["id", machine.user], capture_output=True, check=False).returncode:
        # Not `!`, the default: sshd without PAM refuses a locked account.
        subprocess.run(["useradd", "-m", "-s", "/bin/bash", "-p", "*", machine.user], check=True)
    sudoers = Path("/etc/sudoers.d/simulated")
    sudoers.write_text(f"{machine.user} ALL=(ALL) NOPASSWD:ALL\n")
    sudoers.chmod(0o440)
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in machine.environment.items())
    Path("/etc/profile.d/image.sh").write_text(exports)
    home = Path("/home") / machine.user
    files = dict(machine.files)
    if machine.key:
        files[".ssh/authorized_keys"] = machine.key + "\n"
    for name, content in files.items():
        path = home / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o600)
    subprocess.run(["chown", "-R", f"{machine.user}:", str(home)], check=True)
    subprocess.run(["ssh-keygen", "-A"], check=True, stdout=subprocess.DEVNULL)


def main(spec: Path) -> None:
    """Boot."""
    machine = Machine(**json.loads(spec.read_text()))
    socket.sethostname(machine.hostname)
    root = make_root(machine, spec.with_suffix(""))
    os.chroot(root)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", HOME="/root")
    first_boot(machine)
    options = ("UsePAM=no", "PasswordAuthentication=no", "MaxSessions=100", "MaxStartups=100", "PidFile=none")
    os.execv("/usr/sbin/sshd", ["/usr/sbin/sshd", "-D", "-e", *(t for o in options for t in ("-o", o))])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
