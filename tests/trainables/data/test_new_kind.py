"""A kind of data is one class: these are defined, registered, packed, planned and trained here alone."""

from typing import Literal

import numpy as np
import pytest
from pydantic import ValidationError

from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.study import load_spec
from tests.study.small import SMALL
from trainables.data.kind import KINDS, RowData, TextData, register
from trainables.data.kinds.mixture import MixtureData
from trainables.data.sources.source import Stretch, TextSource
from trainables.data.store.open import open_store
from trainables.train.loop import train


class CountData(RowData):
    """Numbers that count up from a random one, modulo `size`."""

    too_few = "there are too few different rows"

    kind: Literal["count"] = "count"
    size: int = 100

    @property
    def vocabulary_size(self):
        return self.size

    @property
    def boundaries(self):
        return None, None

    def draw_piece(self, context, piece):
        start = np.random.default_rng(piece).integers(0, self.size, (200, 1))
        return (start + np.arange(context + 1)) % self.size

    def describe(self):
        return "numbers"


class PoemData(TextData):
    """Lines that differ by their number."""

    kind: Literal["poem"] = "poem"
    lines: int = 2000

    def source_identity(self, base):
        return {"kind": self.kind, "lines": self.lines}

    def source(self, base):
        text = "".join(f"verse {line} of a long poem\n" for line in range(self.lines))
        return TextSource("poem", lambda: iter([Stretch(text, last=True)]), len(text), {"kind": self.kind})

    def describe(self):
        return "a poem"


@pytest.fixture(autouse=True)
def _registered():
    for kind in (CountData, PoemData):
        register(kind)
    yield
    for name in ("count", "poem"):
        del KINDS[name]


@pytest.mark.parametrize(
    ("overrides", "vocabulary"),
    [
        (["data={kind: count, size: 50, sequences: 400, validation_sequences: 20}"], 50),
        (["data={kind: poem, lines: 3000}"], 257),
    ],
)
def test_a_new_kind_is_planned_packed_and_trained(tmp_path, overrides, vocabulary):
    spec = load_spec(SMALL, [*overrides, "training.steps=2"])
    plan = make_plan(spec)
    cell = plan.cells[0].cell
    assert plan.vocabulary == vocabulary
    store = open_store(cell.data, context=cell.recipe.context, root=tmp_path, key=cell.data_key)
    assert (store.vocabulary, store.path.name) == (vocabulary, cell.data_key)
    result = train(cell, data_root=tmp_path)
    assert (result.step, np.isfinite(result.loss)) == (2, True)


def test_a_new_kind_of_text_may_be_a_part_of_a_mixture(tmp_path):
    (tmp_path / "notes.jsonl").write_text(
        "".join(f'{{"text": "note {note}, in prose"}}\n' for note in range(2000))
    )
    notes = {"kind": "files", "path": str(tmp_path / "notes.jsonl")}
    parts = [{"weight": 3, "data": {"kind": "poem"}}, {"weight": 1, "data": notes}]
    store = open_store(MixtureData(parts=parts), context=64, root=tmp_path)
    tokens = [part["tokens"]["train"] for part in store.manifest["sources"]]
    assert tokens[0] / sum(tokens) == pytest.approx(0.75, abs=0.02)
    for kind in ("count", "mixture"):
        with pytest.raises(ValidationError, match=kind):
            MixtureData(parts=[{"weight": 1, "data": {"kind": kind}}])


def test_mistakes_in_a_new_kind_are_explained_and_a_name_is_registered_once():
    with pytest.raises(SpecError, match="did you mean `lines`"):
        load_spec(SMALL, ["data={kind: poem, line: 3}"])
    with pytest.raises(ValueError, match="'poem' is registered already, by PoemData"):
        register(PoemData)
