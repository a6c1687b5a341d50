import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from study.workers import spot_notice
from study.workers.spot_notice import METADATA, is_noticed, spot_notices


@pytest.fixture
def service():
    """A metadata service as AWS describes it: a token by PUT, and the notice by GET with that token."""

    class Metadata(BaseHTTPRequestHandler):
        noticed = False

        def do_PUT(self):
            assert self.path == "/latest/api/token"
            self.answer(200 if int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) else 400, b"secret")

        def do_GET(self):
            known = self.headers["X-aws-ec2-metadata-token"] == "secret"
            here = self.path == "/latest/meta-data/spot/instance-action" and Metadata.noticed
            self.answer(401 if not known else 200 if here else 404, b'{"action": "terminate"}')

        def answer(self, status, body):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", Metadata
        server.shutdown()


def test_a_notice_is_found_and_no_answer_is_none(service):
    address, metadata = service
    assert not is_noticed(address)
    metadata.noticed = True
    assert is_noticed(address)
    assert not is_noticed("http://127.0.0.1:9")


def test_a_thread_asks_where_the_service_is_named(service, monkeypatch):
    address, metadata = service
    monkeypatch.setattr(spot_notice, "POLL_SECONDS", 0.01)
    metadata.noticed = True
    monkeypatch.delenv(METADATA, raising=False)
    with spot_notices() as at_risk:
        assert not at_risk()
        assert "spot notice" not in {thread.name for thread in threading.enumerate()}
    monkeypatch.setenv(METADATA, address)
    with spot_notices() as at_risk:
        while not at_risk():
            time.sleep(0.01)
