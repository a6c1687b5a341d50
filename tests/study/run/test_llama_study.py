"""Llama blocks at 20 tokens per parameter with a tokenizer of the user, from a spec of five lines to generated text."""

import json
import math
import signal
import subprocess
import sys

import pytest

from study.tracking.ledger import Ledger
from tests.study.run.test_study import Laptop
from tests.trainables.data.tokenizer_files import TEXT, save
from trainables.cell import Recipe, Shape
from trainables.model.family import family

SPEC = """
data: {path: corpus.txt, tokenizer: my-tokenizer, validation_fraction: 0.1}
frontier: {budgets: [768, 3072], depths: [1], heads: 4, kv_heads: 2}
training: {network: llama, tokens_per_parameter: 20, context: 32, batch: 8, seeds: 1, lr: 0.002}
"""
RECIPE = Recipe(steps=1, batch=8, context=32, network="llama")
#: What a user does with an exported folder, where nothing of ours is installed.
GENERATE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
assert not [name for name in sys.modules if name.split(".")[0] in ("study", "trainables", "analysis", "interplay")]
model, tokenizer = AutoModelForCausalLM.from_pretrained("model"), AutoTokenizer.from_pretrained("model")
inputs = tokenizer("The 7th naïve fox jumps", return_tensors="pt")
out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
print(json.dumps({"class": type(model).__name__, "text": tokenizer.decode(out[0]), "ids": out[0].tolist()}))
"""


@pytest.fixture
def laptop(tmp_path):
    one = Laptop(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SPEC)
    (tmp_path / "corpus.txt").write_text("\n\n".join([TEXT] * 4))
    save(tmp_path / "my-tokenizer", "llama")
    yield one
    for process in one.started:
        process.kill()


def losses(laptop, results):
    rows = Ledger(laptop.folder / results / "tiny" / "rows").rows().values()
    return {row.name: row for row in rows}


@pytest.mark.slow
def test_llama_blocks_at_20_tokens_per_parameter_from_a_short_spec_to_generated_text(laptop):
    overrides = ["resources.slots=1", "resources.checkpoint_every_seconds=0.2"]
    process = laptop.start("run", "tiny.yaml", *overrides)
    laptop.wait_for(laptop.checkpoints, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = laptop.run("run", "tiny.yaml", *overrides)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "at 20 training tokens per parameter" in " ".join(again.stdout.split())
    alone = losses(laptop, "results")
    assert any(row.resumed_from > 0 for row in alone.values())
    (manifest,) = laptop.results.glob("data/*/manifest.json")
    size = json.loads(manifest.read_text())["bytes_per_token"]
    for row in alone.values():
        shape = Shape(
            depth=row.depth,
            width=row.width,
            heads=4,
            kv_heads=row.kv_heads,
        )
        assert abs(row.tokens - 20 * shape.budget_params) <= 8 * 32 / 2
        assert family("llama").layer_weights(shape, RECIPE) == pytest.approx(12, rel=0.02)
        assert row.bits_per_byte == pytest.approx(row.loss / math.log(2) / size, rel=1e-9)
        assert row.loss < 0.95 * math.log(row.vocabulary), "it learns"

    two = laptop.run(
        "run", "tiny.yaml", "--results", "two", "resources.slots=2", "resources.tensor_parallel=2"
    )
    assert two.returncode == 0, two.stdout + two.stderr
    gang = losses(laptop, "two")
    assert gang.keys() == alone.keys()
    for name, row in gang.items():
        # At five times the rate training magnifies rounding to 3e-5 over twice the steps.
        assert row.loss == pytest.approx(alone[name].loss, rel=2e-6)
        assert row.cell == alone[name].cell

    name = next(iter(alone))
    exported = laptop.run("export", "tiny", name, "--out", "model")
    assert exported.returncode == 0, exported.stdout + exported.stderr
    done = subprocess.run(
        [sys.executable, "-c", GENERATE], cwd=laptop.folder, capture_output=True, text=True, check=True,
        env=laptop.environment,
    )  # fmt: skip
    generated = json.loads(done.stdout)
    assert generated["class"] == "LlamaForCausalLM"
    assert "naïve fox jumps" in generated["text"]
    assert len(generated["ids"]) > 12
    assert laptop.run("status", "tiny").returncode == 0
