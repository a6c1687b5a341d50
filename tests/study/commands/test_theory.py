"""`interplay theory`: tables of 80 columns, one JSON document, errors of one paragraph."""

import json
import math
import re
import subprocess
import sys

import pytest

from study import cli
from study.commands.theory import _power_of_ten


@pytest.fixture
def theory(tmp_path, monkeypatch, capsys):
    """Run `interplay theory …` in an empty folder on 80 columns; return (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["interplay", "theory", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def document(theory, *arguments):
    status, out, err = theory(*arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out, parse_constant=pytest.fail)


def rows(text):
    """The lines, with one space between their cells."""
    return [" ".join(line.split()) for line in text.splitlines()]


VERBS = [
    ("bounds", "--depth", "96", "--width", "12288", "--heads", "96"),
    ("example",),
    ("example", "--depth", "12", "--width", "1000000"),
    ("rank", "--depth", "2", "--width", "2"),
]


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_a_table_fits_80_columns_and_cuts_nothing(theory, arguments):
    status, out, err = theory(*arguments)
    assert (status, err) == (0, "")
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out
    document(theory, *arguments)


def test_bounds(theory):
    found = document(theory, "bounds", "--depth", "6", "--width", "1000", "--heads", "16")
    assert found["lower"] == pytest.approx(133.010, abs=5e-4)
    assert found["upper"] == pytest.approx(2294, abs=0.5)
    assert (found["theorem"], found["vacuous"], found["corollary_2"]) == (1, False, None)
    assert found["threshold"] == pytest.approx(6.29, abs=5e-3)
    out = theory("bounds", "--depth", "6", "--width", "1000", "--heads", "16")[1]
    # 3^133.01 = 2.9e63.
    assert "lower bound 133.010 2.90e63" in rows(out)
    assert "Theorem 1" in out


def test_bounds_beyond_and_at_the_threshold(theory):
    beyond = document(theory, "bounds", "--depth", "12", "--width", "729", "--heads", "16")
    assert (beyond["theorem"], beyond["corollary_2"]["beta1"], beyond["corollary_2"]["beta2"]) == (
        2,
        0.5,
        None,
    )
    out = theory("bounds", "--depth", "12", "--width", "729")[1]
    assert "β1 = log3(d)/L = 0.500" in out
    assert "it gives no value" in re.sub(r"\s+", " ", out)
    at = document(theory, "bounds", "--depth", "6", "--width", "729")
    assert (at["lower"], at["upper"], at["theorem"], at["regime"]) == (None, None, None, "boundary")
    assert "boundary, no theorem" in theory("bounds", "--depth", "6", "--width", "729")[1]
    assert "vacuous" in theory("bounds", "--depth", "7", "--width", "1000", "--heads", "16")[1]
    assert "more width than heads" in theory("bounds", "--depth", "1", "--width", "4", "--heads", "4")[1]


def test_example(theory):
    found = document(theory, "example")
    by_depth = {item["shallow"]: item for item in found["shallow"]}
    assert found["deep"]["lower"] == pytest.approx(133.010, abs=5e-4)
    assert by_depth[2]["width"] == pytest.approx(7.34e15, rel=1e-3)
    assert by_depth[3]["width"] == pytest.approx(7.61e4, rel=1e-3)
    assert "2 7.34e15" in rows(theory("example")[1])
    assert "2 1.20e16" in rows(theory("example", "--width", "1024")[1])


def test_example_beyond_a_float(theory):
    found = document(theory, "example", "--depth", "12", "--width", "1000000")
    assert found["shallow"][0]["width"] is None
    assert found["shallow"][0]["log10_width"] == pytest.approx(54782.7, abs=0.1)
    assert "1 5.49e54782" in rows(theory("example", "--depth", "12", "--width", "1000000")[1])


def test_rank_beside_its_bounds(theory):
    arguments = ("rank", "--depth", "2", "--width", "3", "--tokens", "4")
    found = document(theory, *arguments)
    assert (found["rank"], found["grid"], found["saturated"]) == (49, 64, False)
    assert found["log3_rank"] == pytest.approx(math.log(49, 3))
    assert found["held"] == {"lower": True, "upper": True}
    assert found["bounds"]["theorem"] == 2
    assert "measured 49" in rows(theory(*arguments)[1])


@pytest.mark.parametrize(
    ("shape", "rank", "limits"),
    [
        (("1", "4", "1"), 5, ["lower bound 1.651 yes", "upper bound 5 yes"]),
        (("1", "3", "1"), 4, ["lower bound - -", "upper bound - -"]),
        (("2", "2", "2"), 17, ["lower bound - -", "upper bound 3.49e6 yes"]),
    ],
)
def test_which_theorem_covers_a_measured_shape(theory, shape, rank, limits):
    depth, width, heads = shape
    arguments = ("rank", "--depth", depth, "--width", width, "--heads", heads, "--tokens", "6")
    assert document(theory, *arguments)["rank"] == rank
    shown = rows(theory(*arguments)[1])
    assert all(line in shown for line in limits)


def test_a_full_grid_is_called_a_lower_bound(theory):
    arguments = ("rank", "--depth", "2", "--width", "3", "--grid", "16")
    found = document(theory, *arguments)
    assert found["saturated"] is True
    assert found["held"] == {"lower": True, "upper": None}
    out = re.sub(r"\s+", " ", theory(*arguments)[1])
    assert "≥ 16" in out
    assert "only a lower bound" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bounds --depth -3 --width 4", "depth is -3"),
        ("bounds --depth 3 --width 0", "width is 0"),
        ("bounds --depth 3 --width 4 --heads 0", "heads is 0"),
        ("bounds --depth 3 --width x", "--width"),
        ("example --depth 12", "range of Theorem 1"),
        ("example --depth 1", "no model is shallower"),
        ("example --depth 0", "depth is 0"),
        ("rank --depth 1 --width 6 --heads 4", "do not divide the width 6"),
        ("rank --depth 1 --width 3 --tokens 5", "even number"),
        ("rank --depth 0 --width 3", "depth is 0"),
        ("rank --depth 30 --width 3", "up to depth 18"),
    ],
)
def test_wrong_values_end_with_status_2_and_one_paragraph(theory, tmp_path, arguments, message):
    status, out, err = theory(*arguments.split())
    assert (status, out) == (2, "")
    assert message in re.sub(r"\s+", " ", err)
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_numbers_too_large_for_a_float_are_written_out():
    assert _power_of_ten(0) == "1"
    assert _power_of_ten(2.5) == "316.2"
    assert _power_of_ten(4.8816) == "76,138"
    assert _power_of_ten(63.4619) == "2.90e63"
    # 9.999e9 is 10.00e9 to three digits, so 1.00e10.
    assert _power_of_ten(9.99999) == "1.00e10"
    assert _power_of_ten(1.25e95) == "10^(1.25e+95)"


def test_the_verbs_are_listed_before_anything_heavy_is_loaded():
    program = (
        "import study.commands.theory, sys; print(*{'numpy', 'scipy', 'pandas', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
