"""The simulated cloud is cut off from the world, refuses to run otherwise, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.simulated import isolation
from tests.cluster.simulated.isolation import NotPrivateError, namespace, require_private
from tests.cluster.simulated.machine import Machine
from tests.cluster.simulated.simulation import LAPTOP, REPOSITORY, Laptop, Simulation, Traces, missing
from tests.cluster.simulated.universe import GATEWAY, PUBLIC

GUARD = (sys.executable, isolation.__file__)
SIMULATED = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def test_in_the_network_of_the_host_the_guard_refuses():
    with pytest.raises(NotPrivateError, match=r"network of the host \(net:\["):
        require_private(namespace())
    with pytest.raises(NotPrivateError, match="network of the host"):
        require_private("")


def test_no_command_of_the_laptop_runs_in_the_network_of_the_host(tmp_path):
    touched = tmp_path / "touched"
    done = subprocess.run(
        [*GUARD, namespace(), "touch", str(touched)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "network of the host" in done.stderr
    assert not touched.exists()


def test_the_cloud_does_not_start_in_the_network_of_the_host(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.simulated.universe", str(tmp_path), namespace()],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "first process of a pid namespace" in done.stderr
    if missing() is None:
        in_host_network = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc",
             sys.executable, "-m", "tests.cluster.simulated.universe", str(tmp_path), namespace()],
            cwd=REPOSITORY, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert in_host_network.returncode == 1
        assert "NotPrivateError: This is the network of the host" in in_host_network.stderr
    assert not list(tmp_path.iterdir())


@SIMULATED
@pytest.mark.parametrize("route", ["route add default dev lo", "-6 route add default dev dummy0"])
def test_a_private_network_with_a_way_out_is_refused_too(tmp_path, route):
    guard = " ".join([*GUARD, namespace(), "touch", str(tmp_path / "touched")])
    script = (
        f"ip link set lo up; ip link add dummy0 type bridge; ip link set dummy0 up; {guard} || exit 9; "
        f"rm {tmp_path}/touched; ip {route} || exit 8; {guard}"
    )
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "has a default route by" in done.stderr
    assert not (tmp_path / "touched").exists()


@SIMULATED
@pytest.mark.extended
def test_machines_see_each_other_and_nothing_else_and_leave_nothing(tmp_path):
    with Simulation(tmp_path / "state") as simulation:
        shared = {"/shared": str(simulation.state / "shared")}
        for number in (1, 2):
            simulation.want(
                Machine(
                    f"rack{number}", f"172.31.241.{number}", "ubuntu", needs=simulation.needs, shares=shared
                )
            )
        for name in ("rack1", "rack2"):
            simulation.wait_for_boot(name)
        networks = {machine.network for machine in simulation.machines().values()}
        assert len(networks | {namespace(), (simulation.state / "network").read_text()}) == 5

        laptop = Laptop(simulation)
        laptop.clone()
        assert laptop.run("python", "-c", "import study; print(study.__file__)").stdout.startswith(
            "/home/ada/"
        )
        # A machine's file system is separate from the host's, except for a share.
        simulation.ask(
            "rack1", "sh", "-c", "echo one > /shared/file; echo two > /etc/of-rack1; touch /tmp/of-rack1"
        )
        assert simulation.ask("rack2", "cat", "/shared/file") == "one\n"
        assert not any(Path(path).exists() for path in ("/etc/of-rack1", "/tmp/of-rack1", "/shared/file"))
        venv = simulation.on("rack1", "touch", f"{REPOSITORY}/touched")
        assert "Read-only" in subprocess.run(venv, capture_output=True, text=True, check=False).stderr

        connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
        for place, address, port, says in (
            (LAPTOP, "172.31.241.1", "22", ""),
            (LAPTOP, GATEWAY, "80", ""),
            ("rack1", "172.31.241.2", "22", ""),
            # Connections to the world are refused at once.
            (LAPTOP, "1.1.1.1", "53", "Network is unreachable"),
            ("rack1", "1.1.1.1", "53", "Network is unreachable"),
            # A public address of the cloud, on the bridge, that no machine has.
            (LAPTOP, PUBLIC.replace("0.0.0/8", "214.7.9"), "22", "No route to host"),
        ):
            tried = subprocess.run(
                simulation.on(place, sys.executable, "-c", connect, address, port),
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert tried.stderr.strip().endswith(says), (place, address)
            assert (tried.returncode == 0) == (not says), (place, address, tried.stderr)

        with laptop.started("sleep", "1000") as stays:
            traces = Traces.of(simulation)
            assert len(traces.processes) >= 3 * 2 + 2
            assert len([n for n in traces.namespaces if n.startswith("net:")]) == 4
            os.kill(simulation.process.pid, 9)
            simulation.process.wait()
            assert not traces.left()
            stays.wait(20)
