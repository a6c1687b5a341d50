"""Amazon's services spoken by a real server of moto's, on loopback."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def amazon() -> Iterator[str]:
    """Start the server, and yield its HOST:PORT."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield "{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()
