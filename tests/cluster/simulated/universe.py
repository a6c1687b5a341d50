"""The simulated cloud: one process in namespaces of its own, with moto as the API and namespaces as machines.

The API (EC2, IAM, S3 and the metadata service) is moto's. Every instance it says is running becomes a machine (see
machine.py) on one bridge; every instance that is terminated loses its power. Besides, machines that are not of the
cloud (the laptop, machines on premises) run while their description lies in STATE/wanted/NAME.json.

Everything ends with this process, the first of its pid namespace: the kernel kills the rest.

Usage: `python -m tests.cluster.simulated.universe STATE OUTSIDE`; a Simulation starts it.
"""

import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.simulated.isolation import namespace, require_private
from tests.cluster.simulated.machine import Machine, mount

#: This process in the network of the machines: the API, and the end of every route.
GATEWAY = "172.31.255.254"
ENDPOINT = f"http://{GATEWAY}"
METADATA = "169.254.169.254"
#: What moto takes public addresses from.
PUBLIC = "54.0.0.0/8"
REGION = "us-west-2"
POLL_SECONDS = 0.5


def ip(command: str) -> None:
    """Run `ip COMMAND`."""
    subprocess.run(["ip", *command.split()], check=True)


def make_network() -> None:
    """Make a bridge for all machines and all public addresses, without a way out."""
    Path("/run/netns").mkdir(exist_ok=True)
    mount("-t", "tmpfs", "tmpfs", "/run/netns")
    for command in (
        "link set lo up",
        f"addr add {METADATA}/32 dev lo",
        # By default a bridge takes the lowest address of its ports: whenever a machine comes or goes, the
        # others would use a wrong address for 40 s.
        "link add br0 address 02:00:00:00:00:01 type bridge",
        f"addr add {GATEWAY}/16 dev br0",
        "link set br0 up",
        f"route add {PUBLIC} dev br0",
    ):
        ip(command)
    # This bridge answers at once that a public address cannot be reached.
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def start_api(state: Path) -> Any:
    """Start moto and return a client of its EC2."""
    os.environ.update(
        MOTO_IAM_LOAD_MANAGED_POLICIES="true",
        AWS_ACCESS_KEY_ID="universe",
        AWS_SECRET_ACCESS_KEY="universe",
        AWS_DEFAULT_REGION=REGION,
        AWS_ENDPOINT_URL=ENDPOINT,
    )
    import boto3
    from moto.ec2.exceptions import EC2ClientError
    from moto.ec2.models.instances import InstanceBackend
    from moto.instance_metadata import responses
    from moto.server import ThreadedMotoServer

    # Arrow's S3 client asks without the last slash, gets 404 from moto, and continues without credentials.
    responses.INSTANCE_METADATA["iam/security-credentials"] = "default-role"
    launch = InstanceBackend.run_instances

    def run_instances(self: Any, *arguments: Any, **options: Any) -> Any:
        """Refuse the node types of Ray that the file `full` lists, one per line."""
        full = state / "full"
        asked = repr(options.get("tags"))
        for pool in full.read_text().split() if full.exists() else ():
            if repr(pool) in asked:
                raise EC2ClientError(
                    "InsufficientInstanceCapacity",
                    "We currently do not have sufficient capacity in the Availability Zone you requested.",
                )
        return launch(self, *arguments, **options)

    InstanceBackend.run_instances = run_instances
    metadata = responses.InstanceMetadataResponse.metadata_response

    def metadata_response(request: Any, full_url: str, headers: Any) -> Any:
        """Give the notice of a spot machine, which moto lacks, to those whose addresses the file `noticed` lists."""
        if not full_url.endswith("/spot/instance-action"):
            return metadata(request, full_url, headers)
        noticed = state / "noticed"
        if noticed.exists() and request.remote_addr in noticed.read_text().split():
            return 200, {}, json.dumps({"action": "terminate"})
        return 404, {}, ""

    responses.InstanceMetadataResponse.metadata_response = staticmethod(metadata_response)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    ThreadedMotoServer(ip_address="0.0.0.0", port=80, verbose=False).start()
    client = boto3.client("ec2")
    client.describe_instances()
    return client


class Machines:
    """The running machines."""

    def __init__(self, state: Path, image: dict[str, Any]) -> None:
        """Args: state, the folder shared with the host; image, fields of `Machine` common to the cloud."""
        self.state, self.image = state, image
        self.powered: dict[str, subprocess.Popen[bytes]] = {}
        self._links = 0

    def boot(self, machine: Machine, about: dict[str, Any]) -> None:
        """Start a machine with a network, and record it for the host."""
        name = machine.name
        self._links += 1
        link = f"m{self._links}"
        inside = f"-n {name} "
        commands = [
            f"netns add {name}",
            f"link add {link} type veth peer name eth0 netns {name}",
            f"link set {link} master br0 up",
            inside + "link set lo up",
            inside + f"addr add {machine.address}/16 dev eth0",
            inside + "link set eth0 up",
        ]
        if machine.public:
            commands.append(inside + f"addr add {machine.public}/32 dev eth0")
        commands.append(inside + f"route add {PUBLIC} dev eth0 src {machine.address}")
        if machine.routed:
            commands.append(inside + f"route add default via {GATEWAY}")
        for command in commands:
            ip(command)
        spec = self.state / "machines" / f"{name}.json"
        spec.write_text(json.dumps(dataclasses.asdict(machine)))
        with (self.state / "consoles" / f"{name}.log").open("ab") as console:
            self.powered[name] = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{name}", "unshare", "--mount", "--pid", "--uts", "--fork",
                 "--kill-child=SIGKILL", sys.executable, "-m", "tests.cluster.simulated.machine", str(spec)],
                stdout=console, stderr=console, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        network = Path(f"/run/netns/{name}").stat().st_ino
        told = {
            "network": f"net:[{network}]",
            "address": machine.address,
            "public": machine.public,
            **about,
        }
        part = self.state / "running" / f".{name}"
        part.write_text(json.dumps(told))
        part.rename(self.state / "running" / f"{name}.json")
        print(f"{time.time():.1f} boots {name} {told}", flush=True)

    def cut(self, name: str) -> None:
        """Stop a machine."""
        process = self.powered.pop(name)
        process.kill()
        process.wait()
        ip(f"netns del {name}")
        (self.state / "running" / f"{name}.json").unlink()
        print(f"{time.time():.1f} loses {name}", flush=True)

    def check(self) -> None:
        """End everything when a machine has ended by itself, so that no test waits for it."""
        for name, process in self.powered.items():
            if process.poll() is not None:
                sys.exit(f"The machine {name} ended by itself with status {process.returncode}.")


def instances(client: Any) -> Iterator[dict[str, Any]]:
    """The running instances by the cloud's API."""
    for reservation in client.describe_instances()["Reservations"]:
        for instance in reservation["Instances"]:
            if instance["State"]["Name"] in ("pending", "running"):
                yield instance


def public_key(client: Any, name: str) -> str:
    """The line for `authorized_keys` that the first boot of an image fetches."""
    (pair,) = client.describe_key_pairs(KeyNames=[name], IncludePublicKey=True)["KeyPairs"]
    return str(pair["PublicKey"]).strip()


def ordered(client: Any, instance: dict[str, Any], image: dict[str, Any]) -> tuple[Machine, dict[str, Any]]:
    """The machine of an instance, and its record for the host: node type of Ray, type of EC2."""
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    machine = Machine(
        name=instance["InstanceId"],
        address=instance["PrivateIpAddress"],
        public=instance.get("PublicIpAddress"),
        key=public_key(client, instance["KeyName"]),
        **image,
    )
    return machine, {"pool": tags.get("ray-user-node-type"), "type": instance["InstanceType"]}


def main(state: Path, outside: str) -> None:
    """Run the cloud until killed."""
    if os.getpid() != 1:
        sys.exit(
            "The simulated cloud must be the first process of a pid namespace of its own; start a Simulation."
        )
    require_private(outside)
    make_network()
    require_private(outside)
    client = start_api(state)
    machines = Machines(state, json.loads((state / "image.json").read_text()))
    part = state / ".network"
    part.write_text(namespace())
    part.rename(state / "network")
    while True:
        alive = set()
        for path in (state / "wanted").glob("*.json"):
            alive.add(path.stem)
            if path.stem not in machines.powered:
                machines.boot(Machine(**json.loads(path.read_text())), {"pool": None, "type": None})
        for instance in instances(client):
            alive.add(instance["InstanceId"])
            if instance["InstanceId"] not in machines.powered:
                machines.boot(*ordered(client, instance, machines.image))
        for name in set(machines.powered) - alive:
            machines.cut(name)
        machines.check()
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
