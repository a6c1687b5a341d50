"""Servers on this machine with a proxy in the environment, in processes of their own: urllib keeps its proxies."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from study.proxy import LOOPBACK, reach_loopback_directly

#: Ask a server on this machine as a study does: its health, MLflow's client, AWS's metadata service; and one elsewhere.
ASK = """
import json
import sys

from study.tracking.mlflow_store import server_problem, silence_mlflow
from study.workers.spot_notice import is_noticed

address = sys.argv[1]
noticed = is_noticed(address)
problem = server_problem(address)
silence_mlflow()
from mlflow.tracking import MlflowClient

name = MlflowClient(address).get_experiment("7").name
elsewhere = server_problem("http://tracking.example")
print(json.dumps([noticed, problem, name, elsewhere]))
"""


@pytest.fixture
def server():
    """Start a server that answers everything as `say` has it, and keeps what it was asked for."""
    started = []

    def start(say):
        asked = []

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                code, body = say(self.path)
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self):
                self.do_GET()

            def log_message(self, *_):
                pass

        made = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        started.append(made)
        return f"http://127.0.0.1:{made.server_port}", asked

    yield start
    for made in started:
        made.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("exceptions", [{}, {"no_proxy": "intra.example"}, {"NO_PROXY": "intra.example"}])
def test_only_a_server_elsewhere_is_asked_through_the_proxy(server, exceptions):
    experiment = json.dumps({"experiment": {"experiment_id": "7", "name": "here"}}).encode()
    here, asked_here = server(lambda path: (200, experiment))
    proxy, asked_proxy = server(lambda path: (502, b"no way there"))
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    environment |= {"http_proxy": proxy, "HTTP_PROXY": proxy, **exceptions}
    done = subprocess.run(
        [sys.executable, "-c", ASK, here], env=environment, capture_output=True, text=True, check=True
    )
    noticed, problem, name, elsewhere = json.loads(done.stdout)
    assert (noticed, problem, name) == (True, None, "here")
    assert "502" in elsewhere
    assert len(asked_here) == 4
    assert asked_proxy == ["http://tracking.example/health"]


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_the_names_that_a_user_excepts_are_kept_and_come_once(monkeypatch, name):
    for either in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(either, raising=False)
    monkeypatch.setenv(name, "intra.example, 10.0.0.0/8")
    for _ in range(2):
        reach_loopback_directly()
        for either in ("no_proxy", "NO_PROXY"):
            assert os.environ[either].split(",") == ["intra.example", "10.0.0.0/8", *LOOPBACK]
    # urllib knows `*`, no proxy at all, only alone.
    monkeypatch.setenv("no_proxy", "*")
    reach_loopback_directly()
    assert os.environ["no_proxy"] == "*"
