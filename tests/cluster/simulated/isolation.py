"""The guard of a simulated cloud: nothing of it runs where it could reach a real machine.

The simulated EC2 hands out addresses that look public and belong to somebody. In the network namespace of the host,
`ray up` would knock at their doors. So the simulated cloud itself, and every command of its laptop, passes this guard.

Usage as a program: `python isolation.py OUTSIDE COMMAND...` becomes COMMAND, or ends with status 3.
"""

import os
import sys
from pathlib import Path


class NotPrivateError(Exception):
    """The network here can reach the world; the message gives the reason."""


def namespace(kind: str = "net") -> str:
    """The name of a namespace of this process, such as `net:[4026531840]`."""
    return str(Path(f"/proc/self/ns/{kind}").readlink())


def default_routes() -> list[str]:
    """The network interfaces of the default routes of this network namespace."""
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask = line.split()[:8]
        if destination == mask == "00000000":
            found.append(interface)
    six = Path("/proc/net/ipv6_route")
    for line in six.read_text().splitlines() if six.exists() else ():
        # The kernel lists "no route to ::/0" as a route to the loopback interface.
        destination, length, *_, interface = line.split()
        if set(destination) == {"0"} and length == "00" and interface != "lo":
            found.append(interface)
    return found


def require_private(outside: str) -> None:
    """Return where nothing can leave the machine.

    Args:
        outside: `namespace()` of the host, recorded there before.

    Raises:
        NotPrivateError: this is the host's network, or it has a way out.
    """
    here = namespace()
    if not outside.startswith("net:[") or here == outside:
        raise NotPrivateError(
            f"This is the network of the host ({here}), and what would run here calls addresses that a simulated "
            "cloud made up: they belong to real machines. Run it inside a started Simulation."
        )
    if leads := default_routes():
        raise NotPrivateError(
            f"The network {here} is private, but has a default route by {', '.join(leads)}, and what would run here "
            "calls addresses that a simulated cloud made up. Take the route away."
        )


def main(arguments: list[str]) -> None:
    """Replace this process by the command if that is safe."""
    outside, *command = arguments
    try:
        require_private(outside)
    except NotPrivateError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(3)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
