"""`interplay plan` and `presets`: cost, how to time again, and recorded results."""

import datetime
import json
import shlex

from study.plan.plan import make_plan
from study.plan.prices import money
from study.plan.speed import Speed, keep, machine, timing_fields
from study.spec.devices import DEVICES
from study.spec.study import load_spec
from study.spec.yaml_file import preset_names


def test_presets_are_listed_with_cost_and_result(command):
    records = json.loads(command("presets", "--json")[1])
    assert sorted(record["name"] for record in records) == preset_names()
    status, out, err = command("presets")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80, "no line is broken"
    assert len(out.splitlines()) == 2 * len(records) + 2 * len({record["group"] for record in records}) + 1
    for record in records:
        assert record["cells"] > 0
        assert record["name"] in out
        assert record["description"]
        is_gpu = not record["device"].startswith("cpu")
        assert (record["cost_dollars"] is not None) == is_gpu
        if is_gpu:
            assert f", {money(record['cost_dollars'])}: " in out
        if result := record["result"]:
            assert datetime.date.fromisoformat(result["date"])
            assert result["text"].split()[0] in out
    assert {record["name"] for record in records if record["hours"] < 1} <= {
        record["name"] for record in records if record["result"]
    }, "every preset for a laptop has a recorded result"


def test_a_plan_by_measured_times_has_the_command_that_measures_again(command):
    changes = ["training.seeds=1", "frontier.depths=[1, 2]"]
    plan = make_plan(load_spec("quickstart", changes))
    assert "interplay try" not in command("plan", "quickstart", *changes)[1]
    keep(
        Speed(
            step=1e-3, layer=1e-3, work=1.0, machine=machine(DEVICES["cpu"]), device="cpu", workers=plan.slots,
            recipe=timing_fields(plan.planner.recipe, plan.vocabulary), cells=["L1-d8"], date="2026-11-28", busy=False,
        )
    )  # fmt: skip
    out = command("plan", "quickstart", *changes)[1]
    (again,) = [line for line in out.splitlines() if "interplay try" in line]
    assert shlex.split(again.partition(": ")[2]) == ["interplay", "try", "quickstart", *changes]
