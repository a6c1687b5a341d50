"""`interplay init`: a study that plans to the time that was asked for, and the schema beside it."""

import json
import math
import random
import statistics
from dataclasses import asdict
from pathlib import Path

import jsonschema
import pytest
import yaml

from analysis.runs.costs import read_costs
from core.numbers import duration
from interplay import study_file, timed_frontier
from interplay.verbs import init as module
from study.errors import SpecError
from study.plan import make_plan
from study.run import preparation
from study.run.preparation import is_worth_timing
from study.spec.frontier import FrontierSection, misses, shapes
from study.spec.study import load_spec
from study.spec.yaml_file import SpecLoader


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """The speed of the machine need not be measured, but in the tests of that."""
    monkeypatch.chdir(tmp_path)
    for where in (module, timed_frontier):
        monkeypatch.setattr(where, "is_worth_timing", lambda plan: False)


@pytest.fixture
def of_unknown_speed(in_an_empty_folder, tmp_path, monkeypatch):
    """A machine that has never timed a step."""
    for where in (module, timed_frontier):
        monkeypatch.setattr(where, "is_worth_timing", is_worth_timing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.usefixtures("of_unknown_speed")
def test_a_few_steps_are_timed_where_the_speed_is_unknown_and_the_study_fills_the_time(
    command, tmp_path, monkeypatch
):
    # On a busy machine the first `init` would give up, and the second measure again.
    monkeypatch.setattr(preparation, "LIMIT", 500.0)
    monkeypatch.setattr(preparation, "QUIET_SHARE", 0.0)
    (tmp_path / "text.txt").write_text("A text. " * 1000)
    assert command("init", "mine", "--data", "text.txt", "--hours", "0.5", "--device", "cpu")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "text.txt", "mine.yaml", study_file.SCHEMA}
    (speed,) = json.loads((tmp_path / "cache" / "interplay" / "speed.json").read_text())
    plan = make_plan(load_spec("mine.yaml"))
    assert speed["recipe"]["vocabulary"] == plan.vocabulary
    assert asdict(plan.planner.speed) == speed
    assert 0.85 * 0.5 <= plan.hours <= 0.5
    assert command("init", "again", "--data", "text.txt", "--hours", "0.5", "--device", "cpu")[0] == 0
    assert json.loads((tmp_path / "cache" / "interplay" / "speed.json").read_text()) == [speed]


@pytest.mark.usefixtures("of_unknown_speed")
def test_a_speed_that_cannot_be_measured_is_said_and_the_study_is_written(command, tmp_path, monkeypatch):
    def time_steps(plan, data, console):
        assert plan.planner.spec.data.kind == "hierarchy"
        raise SpecError("a cell took too long.")

    monkeypatch.setattr(module, "time_steps", time_steps)
    status, out, err = command("init", "mine", "--device", "cpu")
    assert (status, err) == (0, "")
    assert "could not be timed: a cell took too long." in out
    assert (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("options", "hours", "depths"),
    [
        ((), 1, (1, 2, 4)),
        (("--hours", "0.2"), 0.2, (1, 2, 4)),
        (("--hours", "24", "--device", "h100-80gb"), 24, None),
        (("--hours", "3000", "--device", "h100-80gb"), 3000, (4, 8, 16, 32)),
    ],
)
def test_the_study_fills_the_time(command, tmp_path, options, hours, depths):
    status, out, err = command("init", "mine", *options)
    assert (status, err) == (0, "")
    assert "interplay run mine.yaml" in out
    spec = load_spec(str(tmp_path / "mine.yaml"))
    plan = make_plan(spec)
    # Neighbouring budgets differ by 5 %, so that time differs by about 10 %.
    assert 0.85 * hours <= plan.to_json()["totals"]["hours"] <= hours
    assert depths in (None, spec.frontier.depths)
    assert len(spec.training.seed_values) == 3
    assert len({planned.budget for planned in plan.cells}) == module.POINTS
    assert plan.misses == ()


@pytest.mark.parametrize(
    ("hours", "depths", "seeds", "least_share"), [("0.05", [1, 2, 4], 2, 0.5), ("0.02", [1, 2], 2, 0.3)]
)
def test_a_study_of_minutes_has_fewer_seeds_sizes_and_depths(
    command, tmp_path, hours, depths, seeds, least_share
):
    status, out, err = command("init", "mine", "--device", "cpu", "--hours", hours)
    assert (status, err) == (0, "")
    plan = make_plan(load_spec("mine.yaml"))
    assert least_share * float(hours) <= plan.hours <= float(hours)
    assert sorted({planned.cell.shape.depth for planned in plan.cells}) == depths
    assert plan.planner.spec.training.seed_values == tuple(range(seeds))
    (left_out,) = [line for line in out.splitlines() if "Left out" in line]
    assert ("depth 4" in left_out) == (4 not in depths)
    # The hours that it names have room for all.
    enough = left_out.split("--hours ")[1].split()[0]
    assert "Left out" not in command("init", "whole", "--device", "cpu", "--hours", enough)[1]


@pytest.mark.parametrize("hours", ["0.0001", "1e-9"])
def test_where_no_study_fits_the_smallest_is_written_and_its_time_is_said(command, tmp_path, hours):
    status, out, err = command("init", "mine", "--device", "cpu", "--hours", hours)
    assert (status, err) == (0, "")
    plan = make_plan(load_spec("mine.yaml"))
    assert float(hours) < plan.hours < 0.02
    assert sum(duration(plan.hours * 3600) in line for line in out.splitlines()) >= 2
    assert plan.misses == ()


@pytest.mark.parametrize("network", ["gpt2", "llama"])
def test_every_study_that_can_be_written_has_each_depth_at_each_size_and_takes_longer_than_the_one_before(
    network,
):
    choices = module.sizes(network)
    spent = []
    for size in choices:
        frontier = FrontierSection(
            budgets=yaml.safe_load(size.budgets_yaml),
            depths=size.depths,
            heads=size.heads,
            tolerance=size.tolerance,
            width_multiple=1 if network == "gpt2" else 2 * size.heads,
        )
        assert list(misses(frontier)) == [], size
        assert len(shapes(frontier)) == module.POINTS * len(size.depths)
        spent.append(sum(frontier.budget_values))
    cost = [s.seeds * len(s.depths) * s.tokens * params for s, params in zip(choices, spent, strict=True)]
    assert cost[:7] == sorted(cost[:7])
    assert choices[0].largest == max(load_spec("quickstart").frontier.budget_values)


def test_data_can_be_a_pattern(command, tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / "texts" / name).write_text("A text. " * 1000)
    status, _, err = command("init", "mine", "--data", "texts/*.txt", "--device", "cpu")
    assert (status, err) == (0, "")
    assert load_spec("mine.yaml").data.text_bytes(tmp_path) == 2 * 8000
    status, _, err = command("init", "other", "--data", "texts/*.tex", "--device", "cpu")
    assert status == 2
    assert "*.tex" in err


def test_the_file_names_the_schema_which_accepts_it_and_has_the_users_text(command, tmp_path):
    (tmp_path / "my text.txt").write_text("A text. " * 1000)
    assert command("init", "mine.yaml", "--data", "my text.txt", "--hours", "0.1")[0] == 0
    text = (tmp_path / "mine.yaml").read_text()
    assert text.startswith(f"# yaml-language-server: $schema={study_file.SCHEMA}\n")
    schema = json.loads((tmp_path / study_file.SCHEMA).read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.load(text, Loader=SpecLoader))
    assert load_spec("mine.yaml").data.path == str(tmp_path / "my text.txt")
    # Each choice has its reason.
    assert text.count("# ") >= 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("taken",), "exists"),
        (("mine", "--hours", "0"), "--hours"),
        (("mine", "--hours", "nan"), "--hours"),
        (("mine", "--minutes", "0"), "--minutes"),
        (("mine", "--minutes", "5", "--hours", "1"), "exclude each other"),
        (("mine", "--minutes", "5", "--device", "h100-80gb"), "leave out --device"),
        (("mine", "--minutes", "5", "--device", "h100"), "h100-80gb"),
        (("mine", "--data", "nowhere.txt"), "nowhere.txt"),
        (("mine", "--device", "h100"), "h100-80gb"),
        (("a b",), "`name`"),
    ],
)
def test_a_wrong_option_writes_nothing(command, tmp_path, arguments, said):
    (tmp_path / "taken.yaml").write_text("mine: 1")
    status, out, err = command("init", *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["taken.yaml"]
    assert (tmp_path / "taken.yaml").read_text() == "mine: 1"


def test_the_network_is_in_the_file_and_in_the_command_that_wrote_it(command):
    assert command("init", "mine", "--network", "qwen3", "--hours", "0.1", "--device", "cpu")[0] == 0
    spec = load_spec("mine.yaml")
    assert (spec.training.network, spec.frontier.width_multiple) == ("qwen3", 4)
    assert make_plan(spec).misses == ()
    assert "--network qwen3" in Path("mine.yaml").read_text()
    status, _, err = command("init", "other", "--network", "qwen4")
    assert status == 2
    assert "did you mean `qwen3`" in err


# Equal training time


@pytest.mark.slow
@pytest.mark.usefixtures("of_unknown_speed")
def test_a_study_of_minutes_measures_each_shape_and_trains_each_depth_for_each_time(
    command, tmp_path, monkeypatch
):
    """The speed in the file is that of the machine: each shape is measured again, by another command."""
    monkeypatch.setattr(preparation, "LIMIT", 500.0)
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefgh", k=generator.randint(1, 9))) for _ in range(500)]
    (tmp_path / "text.txt").write_text(
        "\n".join(" ".join(generator.choices(words, k=12)) for _ in range(20_000))
    )
    monkeypatch.setattr(timed_frontier, "TIMED", {"cpu": ((1, 2), 2, 8)})
    status, out, err = command("init", "mine", "--data", "text.txt", "--minutes", "1.5", "--device", "cpu")
    assert (status, err.count("Traceback")) == (0, 0)
    frontier = load_spec("mine.yaml").frontier
    assert frontier.compute_values == pytest.approx((0.09375, 0.1875, 0.375, 0.75, 1.5), rel=1e-3)
    speeds = {name: speed for shapes in frontier.minutes.values() for name, speed in shapes.items()}
    assert all(shapes[name] == speeds[name] for shapes in frontier.minutes.values() for name in shapes)
    plan = make_plan(load_spec("mine.yaml"))
    assert f"{len(plan.cells)} cells" in out
    assert min(planned.cell.recipe.steps for planned in plan.cells) >= 51
    for time in frontier.compute_values:
        for depth in (1, 2):
            cells = [
                p for p in plan.cells if (p.compute, p.cell.shape.depth, p.cell.seed) == (time, depth, 0)
            ]
            ratios = sorted(p.tokens / p.cell.shape.budget_params for p in cells)
            # The best number of tokens per parameter lies inside the sizes, so that the least loss can.
            assert 3 <= len(cells) <= 5
            assert ratios[0] < 30 < ratios[-1]
    status, _, err = command("cost", "mine.yaml", "--json")
    assert status == 0, err
    again = {
        f"L{row.depth}-d{row.width}": row.train_tokens_per_second
        for row in read_costs(tmp_path / "results" / "mine" / "costs.csv")
        if row.batch == 1
    }
    assert set(again) == set(speeds)
    # Both are medians of steps on a machine that may be busy; a unit of time or a factor of the batch would be far off.
    assert 0.5 < math.exp(statistics.fmean(math.log(speeds[name] / again[name]) for name in speeds)) < 2


def test_a_time_too_short_for_a_hundred_steps_names_one_that_is_not(command, tmp_path):
    status, _, err = command("init", "mine", "--minutes", "0.0001", "--device", "cpu")
    assert (status, list(tmp_path.iterdir())) == (2, [])
    enough = float(err.partition("Give --minutes ")[2].rstrip(".\n"))
    assert 0.0001 < enough < 1
