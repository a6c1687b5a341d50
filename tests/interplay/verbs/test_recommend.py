"""`recommend` at a limit of cost, by the losses and the measured costs of a study's folder."""

import json

import pytest

import interplay
from analysis.runs.costs import write_costs
from core.errors import InputError
from study.errors import SpecError
from tests.analysis.fit.test_limits import costs, rows_of


@pytest.fixture
def folder(tmp_path):
    """The folder of a report with the costs of its shapes."""
    interplay.report(rows_of(), out=tmp_path / "measured")
    write_costs(tmp_path / "measured" / "costs.csv", costs())
    return tmp_path / "measured"


def test_the_shape_at_a_latency_is_the_same_in_python_and_in_the_shell(folder, command):
    shape = interplay.recommend(latency="5ms", fit=folder)
    status, out, err = command("recommend", "--latency", "5ms", "--fit", str(folder), "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document == shape.to_json()
    assert document["limit"] == {"kind": "latency", "value": 0.005, "batch": 1}
    assert document["depth"] == shape.depth
    assert [item["depth"] for item in document["shapes"]] == [item.depth for item in shape.shapes]
    assert interplay.recommend(latency=0.005, fit=folder) == shape
    text = command("recommend", "--latency", "5ms", "--fit", str(folder))[1]
    assert f"{shape.depth} layer" in text
    assert "5.00 ms per token" in text


@pytest.mark.parametrize("limit", [{"train_time": "50s"}, {"kv": "0.5k"}, {"latency": "20ms", "batch": 8}])
def test_every_kind_of_limit_has_an_option(folder, command, limit):
    shape = interplay.recommend(fit=folder, **limit)
    options = [part for name, value in limit.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    status, out, _ = command("recommend", *options, "--fit", str(folder), "--json")
    assert (status, json.loads(out)) == (0, shape.to_json())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"latency": "soon"}, "latency="),
        ({"latency": "-1s"}, "latency="),
        ({"latency": 0}, "latency="),
        ({"kv": "much"}, "kv="),
        ({"latency": "5ms", "kv": "64k"}, "one limit"),
        ({"latency": "5ms", "batch": 0}, "batch="),
        ({"latency": "5ms", "batch": 3}, "batches of 1 and 8"),
        ({"latency": "5ms", "device": "h100"}, "device='h100'"),
        ({"latency": "5ms", "params": 1e9}, "in the place|takes the place"),
        ({"latency": "5ms", "within": 0.1}, "takes the place"),
        ({"latency": "5ms", "law": "liu2026"}, "takes the place"),
    ],
)
def test_wrong_limits_are_refused(folder, given, words):
    with pytest.raises(InputError, match=words):
        interplay.recommend(fit=folder, **given)


def test_a_limit_needs_a_fit_and_costs(folder, tmp_path):
    with pytest.raises(InputError, match=r"fit='quickstart'"):
        interplay.recommend(latency="5ms")
    with pytest.raises(InputError, match=r"fit='quickstart'"):
        interplay.recommend(latency="5ms", fit=interplay.fit(rows_of()))
    (folder / "costs.csv").unlink()
    with pytest.raises(InputError, match=r"interplay\.cost\('measured'"):
        interplay.recommend(latency="5ms", fit=folder)
    with pytest.raises((SpecError, InputError)):
        interplay.recommend(latency="5ms", fit=tmp_path / "nowhere")
