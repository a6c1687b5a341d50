"""A published table nobody here made: read by options alone, compared at equal tokens, and as the docs quote it."""

import json
import re
from pathlib import Path

import pytest

from tests.command import interplay

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "analysis" / "audit" / "tables" / "gemstones.jsonl"
NAMES = ("--column", "params=params_active_precise", "--column", "loss=final_loss")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gemstones")


def answer(folder, *arguments):
    done = interplay(folder, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def fitted(folder):
    return answer(folder, "fit", str(TABLE), *NAMES, "--out", "fit.json", "--json")


def test_checkpoints_are_compared_at_equal_tokens(fitted):
    assert fitted["rows"]["used"] == 22
    assert len(fitted["rows"]["left_out"]) == 44
    assert all("at other training tokens" in row["reason"] for row in fitted["rows"]["left_out"])
    assert fitted["tokens"]["compared"] == pytest.approx(3.5e11, rel=0.01)
    assert fitted["tokens"]["rule"] == "level"


def test_no_pair_is_bracketed_by_one_seed_and_one_size_a_depth(fitted):
    statuses = {item["status"] for item in fitted["crossings"]}
    assert "bracketed" not in statuses
    assert fitted["law"]["status"] == "insufficient"
    assert fitted["noise"]["known"] is False


def test_the_docs_quote_what_the_laws_say(folder, fitted):
    assert fitted["law"]["a"] is None
    asked = ("1e8", "1e9", "--json")
    ours = answer(folder, "recommend", "--fit", "fit.json", *asked)
    published = answer(folder, "recommend", "--law", "levine2020", *asked)
    quoted = re.search(
        r"best depths are (\d+) \((\d+) to (\d+)\) at N = 1e8 and (\d+) \((\d+) to (\d+)\) at 1e9; the law of Levine "
        r"et al. gives (\d+) and (\d+)",
        " ".join((ROOT / "docs" / "answer.md").read_text().split()),
    )
    assert quoted is not None
    said = [shape for item in ours for shape in (item["depth"], *item["depth_interval"])]
    said += [item["depth"] for item in published]
    assert [int(number) for number in quoted.groups()] == [round(number) for number in said]
    assert [item["extrapolated"] for item in ours] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", ["1e11", "2e11"])
def test_another_level_of_tokens_can_be_asked_for(folder, tokens):
    found = answer(folder, "fit", str(TABLE), *NAMES, "--tokens", tokens, "--json")
    assert found["tokens"]["compared"] == pytest.approx(float(tokens), rel=0.01)
    assert found["rows"]["used"] == 22
