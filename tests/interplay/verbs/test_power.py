"""`interplay power SPEC`: the assumptions, their sources, and what is printed."""

import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

from analysis.design.assumed_truth import MEANINGS, assumed_truth
from analysis.fit.document import fit
from analysis.fit.recommendation import read_fit
from analysis.law.threshold_law import LEVINE2020
from analysis.runs.table import RunTable
from core.errors import InputError
from interplay.verbs.power import parse_assumptions, plan_power, power_view, shapes_of_plan
from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.study import load_spec
from tests.simulated_study import Truth, shapes_of, simulate
from tests.study.small import SMALL


def planned(*overrides, spec=SMALL):
    return make_plan(load_spec(spec, overrides))


def pairs(texts):
    """What is assumed, of `name=value`."""
    return dict(text.split("=") for text in texts)


def assumptions(plan, *given, pilot=None):
    fit = None if pilot is None else read_fit(pilot).fit
    return assumed_truth(shapes_of_plan(plan), parse_assumptions(pairs(given)), fit, plan.entropy)


def power_of(plan, *given):
    return plan_power(plan, pairs(given), None, 5)


def means(truth, shapes):
    return [float(truth.loss(depth, np.array([12.0 * depth * width**2]))[0]) for depth, width, _ in shapes]


@pytest.fixture(scope="module")
def pilot(tmp_path_factory):
    """The fit of a study simulated from a known truth."""
    truth = Truth(2.2, 0.32, (1, 2, 4), noise=0.001, slope=0.06, exponent=0.5, shared=0.2)
    shapes = shapes_of(truth.depths, np.geomspace(600, 60_000, 7))
    found = fit(RunTable.from_frame(simulate(truth, shapes, 4, np.random.default_rng(3))))
    assert found.law.status == "open"
    path = tmp_path_factory.mktemp("pilot") / "fit.json"
    path.write_text(json.dumps(found.to_json()))
    return truth, path


@pytest.fixture
def columns():
    return 80


def test_a_shape_counts_once_whatever_its_seeds_and_rates():
    plan = planned("search.lr_factors=[0.5, 1, 2]")
    shapes = shapes_of_plan(plan)
    assert len(plan.cells) == 9 * len(shapes)
    assert [shape[:2] for shape in shapes] == sorted(
        {(p.cell.shape.depth, p.cell.shape.width) for p in plan.cells}
    )
    assert shapes == shapes_of_plan(planned())


def test_the_published_law_is_assumed_where_the_plan_could_measure_it():
    truth, items = assumptions(planned(spec="levine2020"))
    # The line through the published crossings, each at the depth between its two and not at the shallower one.
    for depth in truth.depths[:-1]:
        published = LEVINE2020.transition(depth).params
        assert math.log(truth.crossing(depth) / published) == pytest.approx(0, abs=0.2)
    assert items["a"].source == f"default: law of {LEVINE2020.source}"
    assert items["noise"].value == 0.005
    assert items["slope"].value == 0.04


def test_elsewhere_a_law_is_placed_so_that_the_plan_can_resolve_it():
    plan = planned()
    truth, items = assumptions(plan)
    assert "which the grid can resolve" in items["a"].source
    params = [12 * depth * width**2 for depth, width, _ in shapes_of_plan(plan)]
    low, high = math.log(min(params)), math.log(max(params))
    places = [(math.log(truth.crossing(depth)) - low) / (high - low) for depth in (1, 2)]
    assert places == pytest.approx([0.25, 0.75])


def test_without_feed_forward_networks_a_third_of_the_sizes_has_the_same_power(pilot):
    _, path = pilot
    given = planned("frontier.budgets=[3000, 9000, 27_000]", "frontier.tolerance=0.4")
    third = planned("frontier.budgets=[1000, 3000, 9000]", "frontier.tolerance=0.4", "frontier.d_ff=0")
    assert [shape[:2] for shape in shapes_of_plan(third)] == [shape[:2] for shape in shapes_of_plan(given)]
    for one in ("a=2", "b=0.3"), ():
        first, second = (plan_power(plan, pairs(one), None, 5) for plan in (given, third))
        for pair, other in zip(first.estimate.crossings, second.estimate.crossings, strict=True):
            assert other.params == pytest.approx(pair.params / 3)
            assert other.width == pytest.approx(pair.width)
            assert other.statuses == pair.statuses
        assert second.estimate.ahead_params == pytest.approx(first.estimate.ahead_params / 3)
        assert second.estimate.ahead_depth == pytest.approx(first.estimate.ahead_depth)
    # The law of a pilot with feed-forward networks keeps its N, so its widths are those of that N.
    fitted = read_fit(path).fit.law
    law, _ = assumed_truth(shapes_of_plan(third), {}, read_fit(path).fit, third.entropy, 4.0)
    assert law.size_of(3) == pytest.approx(fitted.transition(3).params)
    assert law.a == pytest.approx(fitted.a + math.log(3) / 2)


def test_the_loss_is_that_of_the_middle_size_and_the_noise_in_proportion():
    plan = planned()
    truth, items = assumptions(plan)
    assert items["loss"].value == pytest.approx(1.2 * plan.entropy)
    shapes = shapes_of_plan(plan)
    middle = math.exp(np.mean([math.log(12 * depth * width**2) for depth, width, _ in shapes]))
    assert float(truth.loss(1, np.array([middle]))[0]) == pytest.approx(1.2 * plan.entropy)
    far, _ = assumptions(plan, "a=6", "b=1", "loss=3")
    assert float(far.loss(1, np.array([middle]))[0]) == pytest.approx(3)
    assert all(1 < loss < 100 for loss in means(far, [s for s in shapes if s[0] == 1]))


def test_what_is_given_wins_over_the_pilot_and_the_pilot_over_defaults(pilot):
    truth, path = pilot
    _, items = assumptions(planned(), "noise=0.02", "misfit_sd=0.001", pilot=path)
    assert (items["noise"].value, items["noise"].source) == (0.02, "given")
    assert (items["misfit_sd"].value, items["misfit_sd"].source) == (0.001, "given")
    assert (items["a"].source, items["shared"].source) == (
        "pilot: law, of status open",
        "pilot: correlation of its seeds",
    )
    document = json.loads(path.read_text())
    own, items = assumptions(planned(), pilot=path)
    assert (own.a, own.b) == (document["law"]["a"], document["law"]["b"])
    assert own.noise == document["noise"]["sd_relative"]
    assert own.shared == document["noise"]["seed_correlation"]
    assert own.misfit_sd == document["curves"]["misfit"]
    assert items["loss"].value == document["noise"]["loss"]
    assert (own.scatter, document["law"]["scatter_dof"]) == (0.0, 1)
    defaults = {name for name, item in items.items() if item.source == "not in the pilot; default"}
    assert defaults == {"scatter"}, "two crossings have no scatter"
    # What the file does not hold is worked out from its gaps; the truth is known.
    assert own.slope == pytest.approx(truth.slope, rel=0.1)
    assert own.exponent == pytest.approx(truth.exponent, rel=0.2)


def test_a_pilot_without_a_law_gives_the_rest(pilot, tmp_path):
    _, path = pilot
    document = json.loads(path.read_text())
    document["law"] |= {"status": "insufficient", "a": None, "b": None, "reason": "one crossing only"}
    document["noise"] |= {"source": "residuals", "seed_correlation": 0.0}
    other = tmp_path / "fit.json"
    other.write_text(json.dumps(document))
    _, items = assumptions(planned(), pilot=other)
    assert items["a"].source.startswith("not in the pilot; default: crossings in the middle half")
    assert items["noise"].source == "pilot: noise"
    assert (items["shared"].value, items["shared"].source) == (0.3, "not in the pilot; default")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nois=0.1"], "there is no `nois` to assume; did you mean `noise`?"),
        (["colour=3"], "It can be one of: a (law"),
        (["noise=much"], "`noise` must be a number between 1e-09 and 0.5"),
        (["noise=0"], "`noise` must be a number between"),
        (["noise=nan"], "`noise` must be a number between"),
        (["shared=1"], "`shared` must be a number between 0 and 0.99"),
        (["a=2", "b=-1"], "`b` must be a number between 1e-06 and 10"),
        (["a=2"], "gives `a` alone"),
        (["b=0.3"], "gives `b` alone"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_assumption_is_refused_with_the_fix(given, message):
    with pytest.raises(SpecError) as error:
        parse_assumptions(pairs(given))
    assert message in str(error.value)


def test_a_law_that_no_model_could_follow_is_refused():
    with pytest.raises(InputError, match=r"a = 30, b = 10 puts the crossing of depth 4 at a width of e\^70"):
        assumptions(planned(), "a=30", "b=10")


def test_assumptions_that_make_a_loss_negative_are_refused():
    with pytest.raises(InputError, match="a loss is positive"):
        power_of(planned(), "slope=5", "loss=0.5")


def test_a_plan_of_one_depth_is_refused():
    with pytest.raises(SpecError, match="has depth 2 only, and a crossing is between two depths"):
        power_of(planned("frontier.depths=[2]"))


def test_a_plan_at_equal_flops_is_refused():
    with pytest.raises(SpecError, match=r"give `frontier\.budgets`"):
        power_of(planned("frontier.flops=[4e9, 8e9]", "training.batch=2"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fit", "absent.json"], "absent.json cannot be read"),
        (["--assume", "noize=0.1"], "did you mean `noise`?"),
        (["--assume", "noise"], "'noise' is not NAME=VALUE; write it as --assume noise=0.005"),
        (["--assume", "noise=0.1", "--assume", "noise=0.2"], "gives `noise` more than once"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_end_with_status_2_and_one_paragraph(command, arguments, message):
    status, out, err = command("power", SMALL, *arguments)
    assert (status, out) == (2, "")
    assert message in re.sub(r"\s+", " ", err)
    assert len(err.strip().splitlines()) == 1


def test_json_has_the_power_beside_the_plan(command, pilot):
    _, path = pilot
    arguments = ("--fit", str(path), "--assume", "noise=0.003", "--studies", "5", "--json")
    status, out, err = command("power", SMALL, *arguments)
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["totals"]["cells"] == len(document["cells"])
    power = document["power"]
    assert list(power["assumptions"]) == list(MEANINGS)
    assert power["assumptions"]["noise"] == {"value": 0.003, "source": "given"}
    assert (power["pilot"], power["studies"], power["seeds"]) == (str(path), 5, 3)
    assert [(pair["shallow"], pair["deep"]) for pair in power["crossings"]] == [(1, 2), (2, 4)]
    for pair in power["crossings"]:
        assert {"params", "width", "statuses", "closed", "ratio", "coverage"} <= set(pair)
    assert {"statuses", "b_width", "b_coverage", "ahead_depth", "band"} <= set(power)
    assert [(change["cost"], change["seeds"]) for change in power["changes"][:2]] == [(1, 3), (2, 6)]
    assert {"words", "shapes", "width", "closed"} <= set(power["changes"][2])
    assert len(power["notes"]) == 1  # three depths are one too few for a projection
    assert "b_widths" not in power


def test_people_get_tables_that_fit_80_columns(command):
    status, out, err = command("power", SMALL, "--studies", "5", "--assume", "noise=0.02")
    assert (status, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80
    for text in (
        "5 simulated studies",
        "given",
        "1 → 2",
        "2 → 4",
        "6 seeds for 3",
        "sizes between",
        "Medians over 5",
    ):
        assert text in out


def test_notes_name_what_is_left_out():
    plan = planned("search={sampler: tpe, candidates: 2, lr_factors: [0.5, 1]}", "frontier.depths=[1, 2]")
    notes = " ".join(power_of(plan).notes)
    assert "The search (tpe) chooses its own cells" in notes
    assert "has 2 learning rates" in notes
    assert "more seeds help less than shown" in notes
    assert "a law needs two crossings" in notes


def test_a_study_of_two_depths_is_shown_without_a_law():
    search = "search={sampler: crossing, max_cells: 9, objective: crossings}"
    power = power_of(planned(search, "frontier.depths=[1, 2]"))
    assert any("(crossing) chooses its own cells" in note for note in power.notes)
    power = power_of(planned("frontier.depths=[1, 2]"))
    assert not any("(crossing)" in note for note in power.notes)
    assert power.estimate.statuses["insufficient"] == 1
    console = Console(width=80, file=io.StringIO())
    console.print(power_view(power))
    text = console.file.getvalue()
    assert "none in 100%" in text
    assert re.search(r"the plan +x1.0 +open +- +0%", text)
    assert "plan a third depth" in text
