"""`interplay theory`: tables of 80 columns, one JSON document, errors of one paragraph."""

import json
import re
import subprocess
import sys

import pytest

from interplay import cli
from interplay.verbs.theory import _rank_text


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
    arguments = ("bounds", "--depth", "6", "--width", "1000", "--heads", "16")
    found = document(theory, *arguments)
    assert found["lower"] == pytest.approx(133.010, abs=5e-4)
    assert found["upper"] == pytest.approx(2294, abs=0.5)
    assert found["theorem"] == 1
    assert found["threshold"] == pytest.approx(6.29, abs=5e-3)
    out = theory(*arguments)[1]
    # 3^133.01 = 2.9e63.
    assert rows(out)[2].startswith("lower bound 133.01")
    assert "2.9e63" in rows(out)[2]
    assert "Theorem 1" in out


def test_bounds_that_are_missing_or_vacuous(theory):
    at = document(theory, "bounds", "--depth", "6", "--width", "729")
    assert (at["lower"], at["upper"], at["theorem"]) == (None, None, None)
    assert "no theorem" in theory("bounds", "--depth", "6", "--width", "729")[1]
    assert "vacuous" in theory("bounds", "--depth", "7", "--width", "1000", "--heads", "16")[1]
    assert "more width than heads" in theory("bounds", "--depth", "1", "--width", "4", "--heads", "4")[1]


def test_example(theory):
    found = document(theory, "example")
    by_depth = {item["depth"]: item["width"] for item in found["shallow"]}
    assert found["deep"]["lower"] == pytest.approx(133.010, abs=5e-4)
    assert by_depth[2] == pytest.approx(7.34e15, rel=1e-3)
    assert by_depth[3] == pytest.approx(7.61e4, rel=1e-3)
    assert by_depth[5] is None
    assert {"2 7.34e15", "3 7.61e4", "5 any"} <= set(rows(theory("example")[1]))


@pytest.mark.parametrize(
    ("shape", "rank", "limits"),
    [
        (("1", "4", "1"), 5, ["lower bound 1.65", "upper bound 5"]),
        (("1", "3", "1"), 4, ["lower bound -", "upper bound -"]),
        (("2", "2", "2"), 17, ["lower bound -", "upper bound 3.49e6"]),
    ],
)
def test_a_rank_is_shown_between_its_bounds(theory, shape, rank, limits):
    depth, width, heads = shape
    arguments = ("rank", "--depth", depth, "--width", width, "--heads", heads, "--tokens", "6")
    found = document(theory, *arguments)
    assert (found["rank"], found["saturated"], found["bounds"]["width"]) == (rank, False, int(width))
    assert {f"computed {rank}", *limits} <= set(rows(theory(*arguments)[1]))


def test_a_full_grid_is_called_a_lower_bound(theory):
    arguments = ("rank", "--depth", "2", "--width", "3", "--grid", "16")
    assert document(theory, *arguments)["saturated"] is True
    out = re.sub(r"\s+", " ", theory(*arguments)[1])
    assert "≥ 16" in out
    assert "only a lower bound" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bounds --depth -3 --width 4", "depth must be"),
        ("bounds --depth 3 --width x", "--width"),
        ("rank --depth 1 --width 6 --heads 4", "do not divide the width 6"),
        ("rank --depth 1 --width 3 --tokens 5", "even number"),
        ("rank --depth 1 --width 3 --grid 0", "--grid"),
        ("rank --depth 30 --width 3", "beyond 18"),
    ],
)
def test_wrong_values_end_with_status_2_and_one_paragraph(theory, tmp_path, arguments, message):
    status, out, err = theory(*arguments.split())
    assert (status, out) == (2, "")
    assert message in re.sub(r"\s+", " ", err)
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_ranks_too_large_for_a_float_are_written_out():
    assert [_rank_text(value) for value in (None, -3.0, 2.0, 133.0, 1e6)] == [
        *("-", "≤ 1", "9", "2.87e63", "10^477121"),
    ]


def test_the_verbs_are_listed_before_anything_heavy_is_loaded():
    program = (
        "import interplay.verbs.theory, sys; print(*{'numpy', 'scipy', 'pandas', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
