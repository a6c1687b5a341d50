"""AWS's notice, two minutes before, that it takes a spot machine away."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from urllib.request import ProxyHandler, Request, build_opener

from study.workers.ray_session import polled

#: Environment variable with the address of AWS's metadata service; cluster/setup_node.sh sets it on AWS.
METADATA = "INTERPLAY_METADATA"
#: Seconds between two questions; AWS recommends five.
POLL_SECONDS = 5.0
#: The service is on the machine's own link: a proxy would not answer, or with the notice of its own machine.
_DIRECT = build_opener(ProxyHandler({}))


def spot_notices() -> AbstractContextManager[Callable[[], bool]]:
    """Give a function that returns whether this machine will be taken away; outside of AWS it never is."""
    address = os.environ.get(METADATA)
    if not address:
        return nullcontext(lambda: False)
    return polled(partial(is_noticed, address), POLL_SECONDS, "spot notice")


def is_noticed(address: str) -> bool:
    """Whether the metadata service at an address has the notice; 404 and no answer mean that it has none."""
    token = Request(
        f"{address}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    try:
        with _DIRECT.open(token, timeout=2) as answer:
            header = {"X-aws-ec2-metadata-token": answer.read().decode()}
        notice = Request(f"{address}/latest/meta-data/spot/instance-action", headers=header)
        with _DIRECT.open(notice, timeout=2):
            return True
    except OSError:
        return False
