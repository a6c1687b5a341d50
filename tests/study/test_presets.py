"""Every preset plans with the real data layer, and without a network."""

import socket

import pytest

from study.plan import make_plan
from study.spec import load_spec
from trainables.cell import Cell


@pytest.mark.parametrize("preset", ["quickstart", "text", "levine2020", "levine2020-wikipedia"])
def test_every_preset_plans_without_a_network(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan must not open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    spec = load_spec(preset)
    plan = make_plan(spec)
    assert {planned.cell.shape.depth for planned in plan.cells} == set(spec.frontier.depth_values)
    restored = [Cell.model_validate_json(planned.cell.model_dump_json()) for planned in plan.cells]
    assert [cell.key for cell in restored] == [planned.cell.key for planned in plan.cells]
