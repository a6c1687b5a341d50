"""The tables that come with Interplay: unchanged, licensed, and fitted by their names."""

import hashlib
import re
from pathlib import Path

import pytest

import interplay
from analysis.audit.shipped_tables import TABLES
from tests.named import assert_named

DOCS = Path(__file__).parents[3] / "docs" / "evidence"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_file_of_its_hash_and_names_its_licence(name):
    table = TABLES[name]
    assert hashlib.sha256(table.path.read_bytes()).hexdigest() == table.sha256
    assert "licence" in table.about
    assert table.path.stat().st_size < 60_000
    assert len(interplay.fit(name).table.used) == len(table.read().used) > 0


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("english", "runs.csv"),
        ("english-gpt2", "families-network-gpt2/runs.csv"),
        ("english-llama", "families-network-llama/runs.csv"),
    ],
)
def test_our_tables_are_those_of_the_docs(name, file):
    assert TABLES[name].path.read_bytes() == (DOCS / file).read_bytes()


def test_a_near_miss_of_a_name_names_the_table_and_the_help_names_all(command):
    for verb in ("fit", "report"):
        status, out, err = command(verb, "gemstone")
        assert (status, out) == (2, "")
        assert_named(err, "did you mean `gemstones`?", *TABLES)
    # Only a table can be meant by a plain name, and a run needs a spec.
    assert "english-gpt2" not in command("fit", "folder/gemstone.yaml")[2]
    assert "english-gpt2" not in command("plan", "gemstone")[2]
    assert "did you mean `quickstart`?" in command("fit", "quickstar")[2]
    shown = " ".join(command("fit", "--help")[1].replace("│", " ").split())
    named = re.search(r"comes with Interplay: ([\w, -]+?)[ .]*\[required\]", shown)[1]
    assert named.split(", ") == [*TABLES]
    page = (DOCS.parent / "tables.md").read_text(encoding="utf-8")
    assert [name for name in TABLES if f"`{name}`" not in page] == []


def test_the_command_fits_a_table_by_its_name(command, tmp_path):
    status, out, err = command("fit", "gemstones", "--json")
    assert (status, err) == (0, "")
    assert '"used": 22' in out
    # A study of this name comes first.
    (tmp_path / "results" / "gemstones").mkdir(parents=True)
    (tmp_path / "results" / "gemstones" / "spec.yaml").write_text(
        interplay.load_spec("quickstart", "name=gemstones").to_yaml()
    )
    assert "has no rows" in command("fit", "gemstones")[2]
