"""Fit files that people write or mend by hand: read as far as they say something, else refused in one paragraph."""

import copy
import json
import math
import sys

import pytest

from analysis.fit.document import Fit
from analysis.law.threshold_law import solve_depth
from core.errors import InputError
from interplay.cli import main

#: Every key that a fit file is sure to have, and no other.
CONTRACT = {
    "crossings": [
        {
            "shallow": 1,
            "deep": 2,
            "status": "bracketed",
            "params": 4100.0,
            "params_interval": [3100.0, 5600.0],
        }
    ],
    "law": {
        "form": "log-linear",
        "status": "ok",
        "a": 2.5,
        "b": 0.31,
        "covariance": [[0.01, -0.004], [-0.004, 0.002]],
        "a_interval": [2.3, 2.7],
        "b_interval": [0.2, 0.4],
        "level": 0.95,
    },
    "alternatives": [{"form": "power", "...": "..."}],
    "rows": {"used": 45, "left_out": [{"row": 3, "reason": "diverged"}]},
}


def with_law(**changes):
    document = copy.deepcopy(CONTRACT)
    document["law"] |= changes
    return document


def command(monkeypatch, *words):
    """Exit status of `interplay` with these words."""
    monkeypatch.setattr(sys, "argv", ["interplay", *map(str, words)])
    try:
        main()
    except SystemExit as ended:
        return ended.code or 0
    return 0


VERBS = [["recommend", "1e4"], ["audit", "--depth", "3", "--width", "40"]]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_file_of_the_contracts_keys_alone_is_enough(verb, monkeypatch, capsys, tmp_path):
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(CONTRACT))
    assert command(monkeypatch, *verb, "--fit", path) == 0
    capsys.readouterr()
    assert command(monkeypatch, *verb, "--fit", path, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    params = 1e4 if verb[0] == "recommend" else 12 * 3 * 40**2
    best = found if verb[0] == "recommend" else found["laws"][0]["best"]
    # The equation that defines the best depth, with the a and b of the file.
    assert 12 * best["depth_exact"] * math.exp(2 * (2.5 + 0.31 * best["depth_exact"])) == pytest.approx(
        params
    )
    # The file does not say which depths it was fitted on.
    assert found["extrapolated"] is True


def test_without_depths_every_answer_is_an_extrapolation():
    unknown = Fit.from_json(CONTRACT)
    assert all(unknown.predict(params).extrapolated for params in (1e3, 4100.0, 1e4, 1e9))
    known = Fit.from_json(with_law(depths=[1, 2, 3]))
    assert 1 < solve_depth(2.5, 0.31, 4100.0) < 2.5
    assert not known.predict(4100.0).extrapolated


def test_a_rival_of_which_nothing_is_said_has_no_law():
    (alternative,) = Fit.from_json(CONTRACT).alternatives
    assert (alternative.form, alternative.status, alternative.a, alternative.reason) == (
        "power",
        "insufficient",
        None,
        "not in the file",
    )


BROKEN = {
    "a": ["x", True, math.nan, math.inf, 10**400, None],
    "b": [None, [0.3]],
    "covariance": [
        *(None, [[1, 2]], [1, 2], "none", [[1, 0], [0, "1"]]),
        *([[-1, 0], [0, 1]], [[1, 0.5], [0, 1]], [[1, 0, 0], [0, 1, 0]]),
    ],
    "region": [[[1]], [[1, 2, 3]], [[1, None, True]], 5, None],
    "a_interval": [[1]],
    "b_interval": [["low", "high"], 0.3],
    "params_range": [[1, None]],
    "depths": ["12", [1, "2"], [1, None], None, 3],
    "widths": [[True]],
    "level": ["high", 1, None],
    "status": ["fine", []],
    "form": ["linear", {}],
    "reasons": [3, ["no_noise"]],
    "pairs": [1.5],
}


def test_a_reason_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"law\.reasons\.0\.reason.*'fine'"):
        Fit.from_json(with_law(reasons=[{"reason": "fine", "values": []}]))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BROKEN for value in BROKEN[name]])
def test_a_law_of_another_shape_is_refused_by_name(name, value):
    with pytest.raises(InputError, match="This is not a fit file") as caught:
        Fit.from_json(with_law(**{name: value}))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert name in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"depths": []},
        {"losses": []},
        {"losses": [[2.0], [1.9, 1.8]]},
        {"near": [[1]]},
        {"missing": []},
        {"params": [-1.0, 2e3]},
        {"params": [2e3, 1e3]},
        {"depths": [0, 2]},
    ],
)
def test_a_reading_whose_parts_do_not_fit_is_refused(fields):
    whole = {
        "params": [1e3, 2e3],
        "depths": [1, 2],
        "losses": [[2.0, 1.9], [1.9, 1.8]],
        "near": [[1], [2]],
        "missing": [[], []],
    }
    assert Fit.from_json(CONTRACT | {"reading": whole}).reading.at(1e3).depth == 2
    with pytest.raises(InputError, match=r"This is not a fit file.*reading"):
        Fit.from_json(CONTRACT | {"reading": whole | fields})


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize("text", ['"x"', "1e400", "NaN"])
def test_the_command_ends_with_a_paragraph(verb, text, monkeypatch, capsys, tmp_path):
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(CONTRACT).replace('"a": 2.5', f'"a": {text}'))
    assert command(monkeypatch, *verb, "--fit", path) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "not a fit file" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("a", "b"), [(-1000, 5e-324), (-1e300, 1.0), (-1000, 1e-300), (-200, 1e-200), (-100, 1e-60)]
)
def test_a_law_of_absurd_depths_gives_none(a, b):
    found = Fit.from_json(with_law(a=a, b=b)).predict(1e9)
    assert found.depth is None
    assert "finite" in found.reason


@pytest.mark.parametrize(("a", "b", "depth"), [(1e300, 1.0, None), (400, 1e-9, None), (3, 1e300, 1)])
def test_a_law_of_less_than_a_layer_is_answered_with_one(a, b, depth):
    found = Fit.from_json(with_law(a=a, b=b)).predict(1e9)
    assert found.extrapolated
    # A depth of zero to all digits is none.
    assert found.depth == depth
