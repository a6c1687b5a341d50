"""AWS's notice, two minutes before, that it takes a spot machine away."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

#: Environment variable with the address of AWS's metadata service; cluster/setup_node.sh sets it on AWS.
METADATA = "INTERPLAY_METADATA"
#: Seconds between two questions; AWS recommends five.
POLL_SECONDS = 5.0


@contextmanager
def spot_notices() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether this machine will be taken away; outside of AWS it never is."""
    over, noticed = threading.Event(), threading.Event()
    address = os.environ.get(METADATA)

    def watch(address: str) -> None:
        while not noticed.is_set() and not over.wait(POLL_SECONDS):
            if is_noticed(address):
                noticed.set()

    if address:
        threading.Thread(target=watch, args=(address,), name="spot notice", daemon=True).start()
    try:
        yield noticed.is_set
    finally:
        over.set()


def is_noticed(address: str) -> bool:
    """Whether the metadata service at an address has the notice; 404 and no answer mean that it has none."""
    token = Request(
        f"{address}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    try:
        with urlopen(token, timeout=2) as answer:
            header = {"X-aws-ec2-metadata-token": answer.read().decode()}
        with urlopen(Request(f"{address}/latest/meta-data/spot/instance-action", headers=header), timeout=2):
            return True
    except OSError:
        return False
