"""A study of which all that machines share lies in an object store, by the real command."""

import signal
import urllib.request

import psutil
import pytest

from tests.clouds import amazon
from tests.study.run.test_study import LONG, Laptop
from trainables.storage.storage import open_storage


@pytest.mark.extended
def test_a_study_shares_all_through_an_object_store_and_a_killed_trial_goes_on_from_there(
    tmp_path, monkeypatch
):
    with amazon() as address:
        urllib.request.urlopen(urllib.request.Request(f"http://{address}/kept", method="PUT")).close()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        options = f"endpoint_override={address}&scheme=http&region=us-east-1"
        laptop = Laptop(tmp_path)
        refused = laptop.run("run", "tiny.yaml", f"resources.storage=s3://lost/c?{options}")
        assert refused.returncode == 2
        assert "Nothing can be written to s3://lost/c/tiny/checkpoints" in " ".join(refused.stderr.split())
        kept = f"resources.storage=s3://kept/c?{options}"

        def stored(path):
            return open_storage(f"s3://kept/c/{path}?{options}")

        cells = stored("tiny/checkpoints")
        overrides = [*LONG, "training.seeds=1", kept]
        process = laptop.start("run", "tiny.yaml", *overrides)

        def saved():
            return any(
                stored(f"tiny/checkpoints/{cell}").read(tag, "complete.json")
                for cell in cells.tags()
                for tag in stored(f"tiny/checkpoints/{cell}").tags()
            )

        laptop.wait_for(saved, process)
        for child in psutil.Process(process.pid).children(recursive=True):
            if "ray::ImplicitFunc" in " ".join(child.cmdline()):
                child.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=480)
        assert process.returncode == 0, output
        _, runs = laptop.runs()
        assert [run.info.status for run in runs] == ["FINISHED"]
        assert int(runs[0].data.tags["interplay.resumed_from"]) > 0
        assert cells.tags() == []
        (key,) = stored("tiny/models").tags()
        assert stored("data").tags() != []
        assert (
            stored("tiny/results").read("", "runs.csv") == (laptop.results / "tiny" / "runs.csv").read_bytes()
        )
        assert {path.name for path in (laptop.results / "tiny").iterdir()} & {
            "checkpoints",
            "models",
        } == set()
        exported = laptop.run("export", "tiny", key, "--out", "model")
        assert exported.returncode == 0, exported.stderr
        assert (tmp_path / "model" / "model.safetensors").is_file()
