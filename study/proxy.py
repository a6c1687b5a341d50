"""Servers on this machine, which must not be asked through a proxy."""

import os

#: Names of this machine in `no_proxy`; urllib compares an IPv6 address with its brackets, requests without.
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def reach_loopback_directly() -> None:
    """Have urllib, requests and Ray's clients of this process and its children ask this machine without a proxy.

    `http_proxy` would send them to a proxy that cannot reach the servers of this machine. urllib and requests read
    `no_proxy`, and `NO_PROXY` only without it, so both get what either has.
    """
    present = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if present.strip() == "*":
        return
    names = [name.strip() for name in present.split(",") if name.strip()]
    value = ",".join(dict.fromkeys([*names, *LOOPBACK]))
    if value != present or os.environ.get("NO_PROXY") != value:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = value
