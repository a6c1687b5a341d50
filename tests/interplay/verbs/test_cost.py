"""`interplay cost`: the table with its ratios, and a small study measured for real."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from analysis.runs.costs import ShapeCosts, read_costs
from interplay.verbs.cost import StudyCosts
from trainables.cell import Shape

SPEC = """
name: small
data: {kind: hierarchy, vocabulary: 8, branching: 2, levels: 4, synonyms: 2, sequences: 500}
frontier: {depths: [1, 4], heads: 2, widths: {1: [24], 4: [12]}}
training: {steps: 3, batch: 4, context: 16, network: NETWORK, lr: {rule: width, base: 0.4, cap: 0.04}, seeds: 2}
resources: {device: cpu, slots: 2}
"""


def row(depth, width, batch, **values):
    return ShapeCosts(
        depth=depth, width=width, heads=2, kv_heads=2, params=9_000, device="cpu", machine="M", precision="fp32",
        context=32, batch=batch, date="2026-11-29", versions="torch 2", **values,
    )  # fmt: skip


def shown(costs):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(costs)
    return console.export_text()


def test_each_measure_has_its_ratio_to_the_shallowest_shape_of_its_size():
    def rows(depth, width, factor, **more):
        values = {"prefill_ms": 2.0 * factor, "kv_bytes_per_token": int(100 * factor), **more}
        return [row(depth, width, batch, decode_ms=batch * factor, **values) for batch in (1, 8)]

    costs = StudyCosts(
        "small", Path("costs.csv"),
        [
            *rows(2, 16, 3.0, train_tokens_per_second=20_000.0), *rows(4, 12, 6.0, unsteady=("decode",)),
            *rows(1, 40, 5.0), *rows(2, 28, 7.5),
        ],
        {(2, 16): 6144.0, (4, 12): 6144.0, (1, 40): 19_200.0, (2, 28): 19_200.0},
        unit=None, new=4, left_out=[Shape(depth=9, width=8, heads=2)], again="interplay cost small --again",
    )  # fmt: skip
    lines = shown(costs).splitlines()
    assert [line.split() for line in lines if re.search(r"L\d+ d\d+", line)] == [
        ["6.1k", "L2", "d16", "20k", "6.00", "3.00", "24.0", "300"],
        ["L4", "d12", "-", "12.0", "(2.0)", "~6.00", "(2.0)", "~48.0", "(2.0)", "600", "(2.0)"],
        ["19k", "L1", "d40", "-", "10.0", "5.00", "40.0", "500"],
        ["L2", "d28", "-", "15.0", "(1.5)", "7.50", "(1.5)", "60.0", "(1.5)", "750", "(1.5)"],
    ]
    assert "~:" in shown(costs)
    assert "1 shape not measured" in shown(costs)
    assert "MLflow" not in shown(costs)
    assert "in MLflow lack these costs: the server" in shown(replace(costs, not_logged="the server is away"))
    document = costs.to_json()
    assert json.loads(json.dumps(document)) == document
    assert document["left_out"] == [{"depth": 9, "width": 8, "heads": 2}]
    assert [(line["depth"], line["batch"]) for line in document["rows"][:3]] == [(2, 1), (2, 8), (4, 1)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("network", ["gpt2", "qwen3", "analysed"])
def test_the_shapes_of_a_study_are_measured_for_real(command, tmp_path, network):
    (tmp_path / "small.yaml").write_text(SPEC.replace("NETWORK", network))
    status, output, errors = command("cost", "small.yaml", "--json")
    assert (status, errors) == (0, "")
    document = json.loads(output)
    assert document["measured"] == 2
    rows = read_costs(tmp_path / "results" / "small" / "costs.csv")
    assert [(line.depth, line.width, line.batch) for line in rows] == [
        (1, 24, 1),
        (1, 24, 8),
        (4, 12, 1),
        (4, 12, 8),
    ]
    assert all(line.train_tokens_per_second > 0 for line in rows)
    if network == "analysed":
        # HuggingFace has no class that could generate.
        assert {line.decode_ms for line in rows} == {None}
        return
    assert [line.kv_bytes_per_token for line in rows] == [192, 192, 384, 384]
    shallow, _, deep, _ = rows
    assert deep.decode_ms > shallow.decode_ms
    status, output, _ = command("cost", "small.yaml")
    assert status == 0
    assert "interplay cost small.yaml --again" in output
    assert read_costs(tmp_path / "results" / "small" / "costs.csv") == rows


def test_a_study_of_several_devices_is_refused(command):
    status, _, errors = command("cost", "text", "resources.tensor_parallel=2")
    assert status == 2
    assert "several devices" in errors
