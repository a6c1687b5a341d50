"""A sampler is one class: a new one is registered and searches, with no other module changed."""

import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest
from pydantic import Field

from study.errors import SpecError
from study.plan import make_plan
from study.plan.table import plan_table
from study.search import Outcome, Search
from study.search.source import make_search
from study.spec.search import REGISTRY, Sampler, register, samplers
from study.spec.study import load_spec
from tests.study.small import SMALL


class InTurn(Search):
    """Cells in a given order, until `most` were taken."""

    def __init__(self, cells: list[Any], most: int) -> None:
        self.cells, self.most, self.told = cells[:most], most, 0

    def take(self) -> Any:
        return self.cells.pop(0) if self.cells else None

    def tell(self, key: str, outcome: Outcome) -> None:
        self.told += 1

    @property
    def done(self) -> bool:
        return not self.cells

    @property
    def total(self) -> int:
        return self.most


class Shuffled(Sampler):
    """Train some of the cells in a random order."""

    sampler: Literal["shuffled"] = "shuffled"
    share: float = Field(gt=0, le=1, description="share of the cells")

    def check(self, spec: Any) -> None:
        if len(spec.training.seed_values) < 2:
            raise ValueError("`shuffled` needs two seeds")

    def trained_shares(self, plan: Any) -> dict[float, float]:
        return dict.fromkeys((planned.budget for planned in plan.cells), self.share)

    def plan_notes(self, plan: Any) -> list[str]:
        return [f"shuffles {plan.cell_count} of {len(plan.cells)} cells"]

    def make_search(
        self, plan: Any, spec: Any, known: Mapping[str, Outcome], begun: Any, workers: int
    ) -> Search:
        left = [planned for planned in plan.cells if planned.cell.key not in known]
        random.Random(self.seed).shuffle(left)
        return InTurn(left, plan.cell_count - len(known))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(Shuffled)
    yield
    del REGISTRY["shuffled"]


OVERRIDES = ["search={sampler: shuffled, share: 0.2}"]


def test_a_new_sampler_is_read_checked_planned_and_searched() -> None:
    spec = load_spec(SMALL, OVERRIDES)
    assert isinstance(spec.search, Shuffled)
    plan = make_plan(spec)
    assert plan.cell_count == 9
    assert plan.to_json()["sampler"] == "shuffled"
    assert any("shuffles 9 of 45 cells" in str(line) for line in plan_table(plan).renderables)
    search = make_search(spec, plan, {})
    taken = [search.take() for _ in range(search.total)]
    assert search.done
    assert search.take() is None
    assert len({planned.cell.key for planned in taken if planned}) == 9
    resumed = make_search(spec, plan, {taken[0].cell.key: Outcome(1.0)} if taken[0] else {})
    assert resumed.total == 8


def test_a_new_sampler_survives_being_written_and_read(tmp_path: Any) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(load_spec(SMALL, OVERRIDES).to_yaml())
    assert load_spec(str(path)).search == load_spec(SMALL, OVERRIDES).search
    assert load_spec(str(path), ["search.sampler=grid"]).search == load_spec(SMALL).search


@pytest.mark.parametrize(
    ("override", "pieces"),
    [
        ("search={sampler: shuffled}", ["`search.share` is missing"]),
        ("search={sampler: shuffled, share: 2}", ["`search.share` is 2", "less than or equal to 1"]),
        ("search={sampler: shuffled, shar: 1}", ["`search.shar`", "did you mean `share`?"]),
        ("search.share=0.5", ["`share` is for the sampler `shuffled`", "the sampler is `grid`"]),
        ("search.sampler=shuffle", ["`search.sampler`", "shuffled", "did you mean `shuffled`?"]),
    ],
)
def test_mistakes_in_the_keys_of_a_new_sampler_are_explained(override: str, pieces: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(SMALL, [override])
    for piece in pieces:
        assert piece in str(caught.value)


def test_a_new_sampler_checks_the_study() -> None:
    with pytest.raises(SpecError, match="needs two seeds"):
        load_spec(SMALL, [*OVERRIDES, "training.seeds=1"])


def test_the_built_in_samplers_are_found() -> None:
    assert {"grid", "tpe", "gp", "crossing"} <= set(samplers())
