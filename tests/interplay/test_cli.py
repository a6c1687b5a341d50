"""The command as a user meets it: what it prints, where, and with which exit status."""

import io
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import interplay
import study.run.runner
from analysis.law.threshold_law import solve_depth
from interplay import cli
from interplay.verbs.run import program
from study.plan import make_plan
from study.run.runner import Summary
from study.spec.study import load_spec
from study.tracking.mlflow_store import Experiment, tracking_uri
from study.tracking.study_paths import study_paths
from tests.isoflop import DEPTHS, isoflop_table, least_loss
from tests.simulated_study import Truth, shapes_of, simulate
from tests.study.small import SMALL
from tests.study.tracking import examples
from tests.tables import CROSSINGS, foreign_runs, one_size_a_depth
from trainables.cell import Cell

ROOT = Path(__file__).parents[2]


def table(folder, text):
    path = folder / "runs.csv"
    path.write_text(text)
    return str(path)


RUNS = foreign_runs("loss")


def test_plan_prints_a_table_or_one_json_document(command):
    status, out, err = command("plan", SMALL)
    assert (status, err) == (0, "")
    assert "L4 d22" in out
    status, out, err = command("plan", SMALL, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["totals"]["cells"] == len(document["cells"])


def test_plan_writes_one_cell_for_training_by_hand(command):
    key = json.loads(command("plan", SMALL, "--json")[1])["cells"][7]["cell"]
    status, out, _ = command("plan", SMALL, "--cell", key)
    assert status == 0
    assert Cell.model_validate_json(out).key == key
    by_name = command("plan", SMALL, "--cell", "L2-d16-s1")
    assert Cell.model_validate_json(by_name[1]).shape.width == 16
    status, out, err = command("plan", SMALL, "--cell", "nobody")
    assert (status, out) == (2, "")
    assert "called 'nobody'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "quickstrat"], "did you mean `quickstart`?"),
        (["plan", "quickstart", "frontier.depth=3"], "did you mean `depths`?"),
        (["run", "quickstart", "training.steps=many"], "training.steps"),
        (["run", "absent.yaml"], "absent.yaml"),
        (["fit", "absent.csv"], "absent.csv"),
        (["fit", "mlflow:nothing"], "no MLflow store"),
        (["fit", "quickstart"], "interplay run quickstart"),
        (["report", "quickstart", "--out", "x"], "interplay run quickstart"),
        (["recommend", "1e9", "--law", "liu2026", "--fit", "f.json"], "not both"),
        (["recommend", "1e9", "--law", "levine"], "levine2020"),
        (["recommend", "0", "--law", "levine2020"], "positive"),
        (["recommend", "1e9", "--fit", "absent.json"], "absent.json"),
        (["ui"], "interplay run quickstart"),
        (["plan", "quickstart", "--bogus"], "--bogus"),
        (["plan"], "SPEC"),
        (["run", "text", "data.path=absent.txt"], "absent.txt"),
        (["run", "quickstart", "tracking.uri=http://localhost:abc"], "a port from 0 to 65535"),
        (["run", "quickstart", "--results", "a?b"], "has a `?` or a `%` code in its path"),
        (["ui", "--port", "70000"], "less than or equal to 65535"),
        (["ui", "--uri", "sqlite:///absent.db"], "no MLflow store"),
        (["fit", "mlflow:x", "--uri", "sqlite:///absent.db"], "no MLflow store"),
        (["fit", "mlflow:x", "--uri", "http://127.0.0.1:9"], "does not answer"),
        (["fit", "quickstart", "--uri", "sqlite:///absent.db"], "write tracking.uri=URI"),
        (
            ["fit", "quickstart", "tracking.uri=sqlite:///absent.db"],
            "quickstart/rows yet",
        ),
        (["report", "quickstart", "tracking.uri=sqlite:///absent.db", "--out", "x"], "no rows"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_ends_with_status_2_and_one_paragraph_on_stderr(command, tmp_path, arguments, message):
    status, out, err = command(*arguments)
    assert status == 2
    assert out == ""
    assert message in re.sub(r"\s+", " ", err)
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing is written for a command that is wrong"


def test_options_that_do_not_go_with_their_source_are_refused(command, tmp_path):
    path = table(tmp_path, RUNS)
    assert "a.b=1 changes a spec" in command("fit", path, "a.b=1")[2]
    assert "--column renames" in command("fit", "quickstart", "--column", "loss=x")[2]
    assert "OURS=THEIRS" in command("fit", path, "--column", "loss")[2]


def test_fit_of_a_foreign_table_with_renamed_columns(command, tmp_path):
    path = table(tmp_path, foreign_runs("measured_nats"))
    status, _, err = command("fit", path, "--json")
    assert status == 2
    # The refusal ends with the whole command, ready to paste.
    again = shlex.split(err.split("Try: interplay ")[1])
    assert again == ["fit", str(path), "--json", "--column", "loss=measured_nats"]
    status, out, err = command(*again)
    assert (status, err) == (0, "")
    document = json.loads(out)
    crossings = {(c["shallow"], c["deep"]): c for c in document["crossings"]}
    assert set(crossings) == {(1, 2), (2, 4)}
    for pair, params in CROSSINGS.items():
        assert crossings[pair]["params"] == pytest.approx(params, rel=0.05)
    assert document["rows"]["used"] == 45
    status, out, _ = command("fit", path, "--column", "loss=measured_nats")
    assert status == 0
    assert "1 → 2" in out


def test_report_of_a_table_is_written_where_asked_and_its_path_printed_as_it_is(command, tmp_path):
    status, out, err = command("report", table(tmp_path, RUNS), "--out", "[red]there[x]")
    assert (status, err) == (0, "")
    assert "Report: [red]there[x]/report.html" in out
    assert (tmp_path / "[red]there[x]" / "fit.json").is_file()


def test_fit_in_bits_per_byte_and_what_follows_from_it(command, tmp_path):
    frame = pd.read_csv(io.StringIO(foreign_runs("val_loss")))
    bits = frame.assign(val_bpb=frame["val_loss"] / math.log(2) / 4)
    path = table(tmp_path, bits.to_csv(index=False))
    status, _, err = command("fit", path, "--unit", "bpb")
    assert status == 2
    assert "--column bits_per_byte=HEADING" in err
    named = ("--column", "bits_per_byte=val_bpb")
    nats = json.loads(command("fit", path, *named, "--json")[1])
    status, out, err = command("fit", path, *named, "--unit", "bpb", "--out", "fit.json")
    assert (status, err) == (0, "")
    assert "bits per byte" in out
    assert f"{frame['val_loss'].min():.4f} nats per token" in out
    document = json.loads((tmp_path / "fit.json").read_text())
    assert (nats["unit"], document["unit"]) == ("nats per token", "bits per byte")
    for one, other in zip(nats["crossings"], document["crossings"], strict=True):
        assert one["params"] == other["params"]
        assert one["params_interval"] == other["params_interval"]
    assert document["best"][0]["loss"] == pytest.approx(nats["best"][0]["loss"] / math.log(2) / 4)
    (shape,) = json.loads(command("recommend", "--fit", "fit.json", "1e6", "--json")[1])
    assert shape["unit"] == "bits per byte"
    assert shape["near_optimal"]["within"] == pytest.approx(0.005 / math.log(2) / 4)
    (wide,) = json.loads(command("recommend", "--fit", "fit.json", "1e6", "--within", "0.01", "--json")[1])
    assert wide["near_optimal"]["within"] == pytest.approx(0.01)
    out = command("recommend", "--fit", "fit.json", "1e6", "--within", "0.01")[1]
    assert "within 0.01 bits per byte" in out
    assert "nats" not in out
    assert command("report", path, *named, "--unit", "bpb", "--out", "page")[0] == 0
    assert json.loads((tmp_path / "page" / "fit.json").read_text())["unit"] == "bits per byte"


def test_fit_of_the_rows_with_one_value(command, tmp_path):
    header, *rows = foreign_runs("loss").splitlines()
    others = [row.replace(",2.", ",2.9") for row in rows]
    both = [f"{row},{kind}" for kind, part in (("c4", rows), ("pile", others)) for row in part]
    path = table(tmp_path, "\n".join([f"{header},dataset", *both]))
    status, _, err = command("fit", path, "--json")
    assert status == 2
    again = shlex.split(err.split("Try: interplay ")[1])
    assert again == ["fit", str(path), "--json", "--where", "dataset=c4"]
    status, out, _ = command(*again)
    assert (status, json.loads(out)["rows"]) == (0, {"used": 45, "merged": 0, "left_out": []})
    for wrong, said in (("dataset", "is not HEADING=VALUE"), ("dataset=x", "it has c4: 45 rows")):
        status, _, err = command("fit", path, "--where", wrong)
        assert status == 2
        assert said in err
    status, _, err = command("fit", "quickstart", "--where", "dataset=c4")
    assert (status, "chooses rows of a table" in err) == (2, True)


def test_fit_at_another_level(command, tmp_path):
    status, _, err = command("fit", table(tmp_path, RUNS), "--level", "0.8", "--out", "fit.json")
    assert (status, err) == (0, "")
    document = json.loads((tmp_path / "fit.json").read_text())
    assert document["level"] == 0.8
    status, _, err = command("fit", "runs.csv", "--level", "1")
    assert status == 2
    assert err.startswith("error: ")


def test_recommend_gives_the_published_shapes(command):
    status, out, _ = command("recommend", "--law", "levine2020", "5e9", "1.7395e11", "--json")
    assert status == 0
    inside, beyond = json.loads(out)
    assert (inside["depth"], inside["width"], round(inside["width_exact"])) == (52, 2816, 2821)
    assert (beyond["depth"], beyond["source"]) == (None, "none")


@pytest.mark.parametrize(
    ("arguments", "flops"),
    [
        (("--law", "liu2026", "1e20"), True),
        (("--law", "levine2020", "70e9"), False),
        (("1e20",), True),
        (("100",), False),
    ],
)
def test_no_law_states_a_depth_beyond_ten_times_its_largest_size(command, arguments, flops):
    status, out, err = command("recommend", *arguments)
    assert (status, out) == (2, "")
    assert "states no depth" in err
    assert ("FLOPs" in err) == flops
    # The command that it proposes has an answer.
    proposed = err.strip().rpartition("interplay ")[2].split()
    assert command(*proposed)[0] == 0


def test_recommend_without_a_source_compares_all_published_evidence(command):
    status, out, err = command("recommend", "1e9", "7e9", "--json")
    assert status == 0, err
    small, large = json.loads(out)
    assert [shape["depth"] for shape in small["shapes"]] == [40, 27, 37]
    assert [shape["depth"] for shape in large["shapes"]] == [None, 48, 70]
    for found in (small, large):
        ranges = [shape["near_optimal"]["depths"] for shape in found["shapes"] if shape["near_optimal"]]
        assert len(ranges) == 2
        assert found["depths"] == [max(low for low, _ in ranges), min(high for _, high in ranges)]
        assert found["widths"] == sorted(found["widths"])
    status, out, _ = command("recommend", "1e9", "7e9")
    assert status == 0
    assert "22 to 34 layers" in out
    assert sum("Liu et al. 2026" in line and "1B" in line for line in out.splitlines()) == 1


def test_the_least_depth_by_theory_is_no_best_depth_and_has_no_interval(command):
    status, out, err = command("recommend", "--law", "log3", "1e6", "1e9", "1e12")
    assert status == 0, err
    assert [line.split()[1] for line in out.splitlines() if line.strip()[:2] in ("1M", "1B", "1T")] == [
        "5",
        "8",
        "11",
    ]
    assert "no interval and no limit" in out
    assert "FLOPs" in command("recommend", "--law", "log3", "1e20")[1]
    (shape,) = json.loads(command("recommend", "--law", "log3", "1e9", "--json")[1])
    assert (shape["source"], shape["depth"], shape["depth_interval"]) == ("theory", 8, [None, None])


AT_COMPUTE = {
    "flops",
    "depth",
    "width",
    "params",
    "tokens",
    "depth_interval",
    "extrapolated",
    "source",
    "reason",
}


def test_recommend_answers_at_budgets_of_flops(command, tmp_path):
    assert command("fit", table(tmp_path, isoflop_table().to_csv(index=False)), "--out", "fit.json")[0] == 0
    asked = ("recommend", "--fit", "fit.json", "--flops", "1e17", "--flops", "1e18")
    status, out, err = command(*asked, "--json")
    assert status == 0, err
    shapes = json.loads(out)
    assert [shape["flops"] for shape in shapes] == [1e17, 1e18]
    for shape in shapes:
        assert set(shape) >= AT_COMPUTE
        log_size, least = least_loss(shape["flops"], shape["depth"])
        assert least - min(least_loss(shape["flops"], depth)[1] for depth in DEPTHS) < 0.003
        assert shape["params"] == pytest.approx(np.exp(log_size), rel=0.25)
        assert 6 * shape["params"] * shape["tokens"] == pytest.approx(shape["flops"])
    status, out, _ = command(*asked)
    assert status == 0
    assert all(f"{shape['depth']} layers × {shape['width']} wide" in out for shape in shapes)
    status, out, err = command("recommend", "--fit", "fit.json", "--flops", "1e25")
    assert (status, out) == (2, "")
    assert "reach from" in err
    assert "best shapes at equal compute" in command("fit", "runs.csv")[1]


def test_recommend_at_flops_by_published_evidence(command):
    (shape,) = json.loads(command("recommend", "--flops", "1e20", "--json")[1])
    assert set(shape) >= AT_COMPUTE
    assert (shape["depth"], shape["source"]) == (25, "published")
    assert [shape] == json.loads(command("recommend", "--law", "liu2026", "--flops", "1e20", "--json")[1])
    assert "25 layers × 1536 wide" in command("recommend", "--flops", "1e20", "--flops", "1e28")[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--flops", "1e28"),
        ("--law", "levine2020", "--flops", "1e20"),
        ("--law", "log3", "--flops", "1e20"),
        ("--flops", "1e20", "1e21"),
        ("--flops", "1e20", "--within", "0.01"),
    ],
)
def test_a_refusal_at_flops_proposes_a_command_with_an_answer(command, arguments):
    status, out, err = command("recommend", *arguments)
    assert (status, out) == (2, "")
    proposed = err.strip().rpartition("interplay ")[2].rstrip("`.").split()
    assert command(*proposed)[0] == 0


SHAPE = {"params", "depth", "width", "depth_interval", "width_interval", "extrapolated", "source", "reason"}


def test_recommend_from_a_fit_whose_laws_agree_says_what_was_measured_too(command, tmp_path):
    truth = Truth(2.5, 0.3, (1, 2, 3, 4, 5), noise=0.002)
    shapes = shapes_of(truth.depths, np.geomspace(2000, 400_000, 7))
    rows = simulate(truth, shapes, 3, np.random.default_rng(0))
    assert command("fit", table(tmp_path, rows.to_csv(index=False)), "--out", "fit.json")[0] == 0
    status, out, err = command("recommend", "--fit", "fit.json", "4e5", "1e6", "--within", "10%", "--json")
    assert status == 0, err
    inside, outside = json.loads(out)
    assert set(inside) >= SHAPE
    assert set(outside) >= SHAPE
    # Inside the sizes the losses measured there are the answer, beyond them the laws.
    assert (inside["source"], inside["depth"]) == ("measured", inside["measured"]["depth"])
    assert inside["depth"] in (4, 5)
    assert (outside["source"], outside["reason"], outside["measured"]) == ("law", None, None)
    low, high = outside["depth_interval"]
    assert low <= solve_depth(2.5, 0.3, outside["params"]) <= high
    assert 0 < outside["near_optimal"]["most"] < outside["near_optimal"]["within"] < 0.5
    for shape in (inside, outside):
        assert shape["depth"] < shape["width"]


def test_recommend_gives_the_measured_shape_and_no_depth_where_no_law_is_left(command, tmp_path):
    assert command("fit", table(tmp_path, RUNS), "--out", "fit.json")[0] == 0
    status, out, err = command("recommend", "--fit", "fit.json", "3e4", "3e6", "--json")
    assert status == 0, err
    near, far = json.loads(out)
    assert set(near) >= SHAPE
    assert set(far) >= SHAPE
    assert (near["source"], far["source"]) == ("measured", "none")
    assert near["depth"] == near["measured"]["depth"]
    # 1, 2 and 4 layers are measured, and 2 are best: 1 and 4 are excluded, 3 are not.
    assert near["measured"]["near"] == [2]
    assert near["depth_interval"] == [2, 3]
    assert (far["depth"], far["width"]) == (None, None)
    assert "need 4 depths" in far["reason"]
    status, out, _ = command("recommend", "--fit", "fit.json", "3e4", "3e6")
    assert status == 0
    assert " ".join(out.split()).count("need 4 depths") == 1


def test_recommend_without_a_law_answers_inside_the_measured_sizes_and_refuses_outside(command, tmp_path):
    two_depths = "".join(line for line in RUNS.splitlines(keepends=True) if not line.startswith("4,"))
    assert command("fit", table(tmp_path, two_depths), "--out", "fit.json")[0] == 0
    assert json.loads((tmp_path / "fit.json").read_text())["law"]["status"] == "insufficient"
    status, out, err = command("recommend", "--fit", "fit.json", "1e5", "--json")
    assert status == 0, err
    assert json.loads(out)[0]["extrapolated"] is False
    status, _, err = command("recommend", "--fit", "fit.json", "1e9")
    assert status == 2
    assert "has no answer at N = 1e+09" in err
    status, out, err = command("recommend", "--fit", "fit.json", "1e5", "1e9", "--json")
    assert status == 0, err
    inside, outside = json.loads(out)
    assert (inside["source"], outside["source"], outside["depth"]) == ("measured", "none", None)
    assert outside["reason"]
    assert (
        "At 1.0 billion parameters no depth is stated"
        in command("recommend", "--fit", "fit.json", "1e5", "1e9")[1]
    )


def test_recommend_without_a_law_answers_from_the_laws_of_the_gaps_and_says_so(command, tmp_path):
    assert command("fit", table(tmp_path, one_size_a_depth()), "--out", "fit.json")[0] == 0
    assert json.loads((tmp_path / "fit.json").read_text())["law"]["status"] == "insufficient"
    status, out, err = command("recommend", "--fit", "fit.json", "3e6", "1e9", "1e10", "--json")
    assert status == 0, err
    inside, outside, far = json.loads(out)
    # Of 1.8 + 30·d^-0.9 + 2·L^-1.1 the least loss is at 11.5 layers at N = 3e6 and at 62 at 1e9.
    for shape, best in ((inside, 11.5), (outside, 61.8)):
        assert shape["depth_interval"][0] <= best <= shape["depth_interval"][1]
        assert shape["depth"] == pytest.approx(best, rel=0.2)
        low, high = shape["near_optimal"]["depths"]
        assert low < shape["depth"] < high
        assert shape["near_optimal"]["lost"] <= shape["near_optimal"]["most"] < 0.005
    assert (inside["extrapolated"], outside["extrapolated"]) == (False, True)
    # The largest size measured is 1.5e8: beyond ten times that nothing is stated.
    assert (far["source"], far["depth"]) == ("none", None)
    status, out, _ = command("recommend", "--fit", "fit.json", "1e9")
    assert "laws of fit.json" in out
    assert "depths within 0.005 nats of the best" in out


def test_sizes_that_grow_with_tokens_are_answered_inside_and_refused_outside_with_the_reason(
    command, tmp_path
):
    header, *lines = RUNS.splitlines()
    grown = [f"{header},tokens"]
    for line in lines:
        depth, width = (int(text) for text in line.split(",")[:2])
        grown.append(f"{line},{(12 * depth * width**2) ** 1.2}")
    assert command("fit", table(tmp_path, "\n".join(grown)), "--out", "fit.json")[0] == 0
    status, out, err = command("recommend", "--fit", "fit.json", "5e4", "--json")
    assert status == 0, err
    assert json.loads(out)[0]["extrapolated"] is False
    for verb in (("recommend", "1e9"), ("audit", "--depth", "2", "--width", "4096")):
        status, _, err = command(verb[0], "--fit", "fit.json", *verb[1:])
        assert status == 2
        assert "grow together (correlation of their logarithms 1.00)" in err


@pytest.mark.parametrize("name", ["levine2020", "liu2026"])
def test_a_published_answer_has_the_depths_that_lose_next_to_nothing(command, name):
    asked = ("recommend", "--law", name, "5e9", "--json")
    (narrow,) = json.loads(command(*asked)[1])
    (wide,) = json.loads(command(*asked, "--within", "0.02")[1])
    assert narrow["near_optimal"]["depths"] == [33, 59]
    assert (narrow["near_optimal"]["lost"] > 1e-4) == (name == "levine2020")
    assert "Liu et al. 2026" in narrow["near_optimal"]["losses"]
    low, high = wide["near_optimal"]["depths"]
    assert low < 33 < 59 < high
    status, out, err = command(*asked[:-1], "--within", "0")
    assert (status, out) == (2, "")
    assert "--within is 0" in err


def test_the_answer_for_one_size_does_not_depend_on_the_others_asked_with_it(command, tmp_path):
    assert command("fit", table(tmp_path, one_size_a_depth()), "--out", "fit.json")[0] == 0
    alone = [json.loads(command("recommend", "--fit", "fit.json", n, "--json")[1])[0] for n in ("5e6", "1e9")]
    together = json.loads(command("recommend", "--fit", "fit.json", "5e6", "1e9", "--json")[1])
    assert together == alone
    assert [shape["params"] for shape in alone] == [5e6, 1e9]


def test_a_measured_shape_without_noise_has_no_band_and_is_none_for_a_far_size(command, tmp_path):
    rows = "depth,width,loss\n" + "".join(
        f"{depth},{width},{loss}\n"
        for depth, width, loss in ((1, 16, 3.0), (2, 12, 3.1), (1, 32, 2.7), (2, 22, 2.5))
    )
    assert command("fit", table(tmp_path, rows), "--out", "fit.json")[0] == 0
    fitted = json.loads((tmp_path / "fit.json").read_text())
    assert (fitted["law"]["status"], fitted["noise"]["known"]) == ("insufficient", False)
    size = fitted["best"][1]["params"]
    status, out, err = command("recommend", "--fit", "fit.json", str(0.9 * size), "--json")
    assert status == 0, err
    (shape,) = json.loads(out)
    assert (shape["params"], shape["depth"], shape["depth_interval"]) == (0.9 * size, 2, [None, None])
    assert shape["unbounded"] is True
    assert command("recommend", "--fit", "fit.json", str(0.9 * size))[0] == 0
    # Beyond the largest size nothing was measured.
    status, _, err = command("recommend", "--fit", "fit.json", str(1.9 * size))
    assert status == 2
    assert "has no answer" in err


@pytest.mark.parametrize("verbs", [(), ("theory",), ("cluster",)])
def test_the_help_says_what_each_verb_does_in_a_whole_sentence_at_80_columns(command, monkeypatch, verbs):
    monkeypatch.setenv("COLUMNS", "80")
    lines = command(*verbs, "--help")[1].split("Commands:")[1].strip().splitlines()
    assert len(lines) >= 2
    assert all(len(line) <= 80 and line.endswith(".") and not line.endswith("...") for line in lines)


def test_help_names_every_verb_and_every_verb_has_help(command):
    status, out, _ = command("--help")
    assert status == 0
    for verb in ("plan", "run", "status", "fit", "report", "recommend", "ui"):
        assert verb in out
        assert command(verb, "--help")[0] == 0


def outcome(monkeypatch, **changes):
    """Let `run` end in a given way without training."""
    values = {"failed": {}, "finished": True, "conclusion": None} | changes

    def run_study(spec, results, console, conclude):
        return Summary(recorder=None, copy=None, **values)

    monkeypatch.setattr(study.run.runner, "run_study", run_study)


def test_a_run_ends_with_the_commands_for_its_trackers(command, monkeypatch):
    outcome(monkeypatch, hints=(("TensorBoard: ", "tensorboard --logdir 'a [b]/tensorboard'"),))
    _, out, _ = command("run", "quickstart")
    assert after("TensorBoard: ", out) == ["tensorboard", "--logdir", "a [b]/tensorboard"]


ODD = ["data.path=['a [b].txt','it''s.txt']", "data.validation_tokens=100", "frontier.depths=[1, 2]"]


def after(marker, out):
    """The command line a sentence ends with; it must be whole on one line."""
    return shlex.split(next(line for line in out.splitlines() if marker in line).partition(marker)[2])


@pytest.mark.parametrize("results", [[], ["--results", "my [bold]results"]])
def test_a_stopped_run_says_how_to_go_on_word_for_word(command, tmp_path, monkeypatch, results):
    for name in ("a [b].txt", "it's.txt"):
        (tmp_path / name).write_text("some text. " * 400)
    outcome(monkeypatch, finished=False)
    arguments = ["run", "text", *ODD, *results]
    status, out, err = command(*arguments)
    assert (status, err) == (130, "")
    assert after("resume with: ", out) == ["interplay", *arguments]


def test_a_run_without_a_usable_row_says_so_and_ends_with_status_1(command, monkeypatch):
    outcome(monkeypatch)
    status, out, err = command("run", SMALL)
    assert (status, err) == (1, "")
    assert "no cell has a loss that can be used; every cell diverged" in out
    assert after("reason: ", out) == ["interplay", "status", SMALL]
    outcome(monkeypatch, failed={"abc": "out of [memory]."})
    status, out, _ = command("run", SMALL)
    assert status == 1
    assert "1 cell failed, the first because: out of [memory]. Try again with: " in out
    assert "all others diverged" in out


def test_the_program_is_named_as_it_was_started(command, tmp_path, monkeypatch):
    outcome(monkeypatch, finished=False)

    def named(started):
        monkeypatch.setattr("sys.argv", [started])
        return program()

    on_path = tmp_path / "bin" / "interplay"
    on_path.parent.mkdir()
    on_path.write_text("#!/bin/sh\n")
    on_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert named(str(on_path)) == ["bin/interplay"]
    assert named("bin/interplay") == ["bin/interplay"]
    assert named("/elsewhere/bin/interplay") == ["/elsewhere/bin/interplay"]
    assert named(str(Path(cli.__file__).with_name("__main__.py"))) == [sys.executable, "-m", "interplay"]
    monkeypatch.setenv("PATH", f"{on_path.parent}:{Path(sys.executable).parent}")
    assert named(str(on_path)) == ["interplay"]
    assert named(str(Path(cli.__file__).with_name("__main__.py")))[0] == Path(sys.executable).name


def test_a_fit_is_written_into_folders_that_are_missing_and_never_over_a_folder(command, tmp_path):
    path = table(tmp_path, RUNS)
    assert command("fit", path, "--out", "no/such/fit.json")[0] == 0
    assert json.loads((tmp_path / "no/such/fit.json").read_text())["law"]["status"] == "open"
    status, _, err = command("fit", path, "--out", "no")
    assert status == 2
    assert "--out no is a folder" in err
    status, _, err = command("fit", path, "--out", f"runs.csv/{'x' * 10}.json")
    assert (status, "runs.csv" in err) == (2, True)
    status, _, err = command("fit", path, "--out", "x" * 300)
    assert (status, "Traceback" in err) == (2, False)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_results_that_are_a_file_are_refused(command, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    status, out, err = command("run", SMALL, "--results", place)
    assert (status, out) == (2, "")
    assert "file" in err
    assert (tmp_path / "file").read_text() == "mine"
    status, _, err = command("report", table(tmp_path, RUNS), "--out", "file")
    assert (status, "--out file is a file" in err) == (2, True)


def test_a_heading_that_a_terminal_would_obey_is_printed_escaped(command, tmp_path):
    path = table(tmp_path, "\x1b[31mred,loss\n1,2\n")
    status, _, err = command("fit", path)
    assert (status, "\x1b[31mred" in err, "\\x1b[31mred" in err) == (2, False, True)


def test_a_defect_keeps_its_traceback(monkeypatch):
    def missing(**_):
        raise FileNotFoundError(2, "No such file", str(Path(cli.__file__).with_name("absent.py")))

    monkeypatch.setattr(cli, "app", missing)
    with pytest.raises(FileNotFoundError):
        cli.main()


@pytest.mark.parametrize("suffix", [".tsv", ".ndjson", ".pq", ".CSV", ".Parquet"])
def test_every_ending_of_a_table_is_known(tmp_path, suffix):
    import pandas as pd

    source = pd.read_csv(table(tmp_path, RUNS))
    path = tmp_path / f"table{suffix}"
    match suffix.lower():
        case ".tsv":
            source.to_csv(path, sep="\t", index=False)
        case ".csv":
            source.to_csv(path, index=False)
        case ".ndjson":
            source.to_json(path, orient="records", lines=True)
        case _:
            source.to_parquet(path)
    assert len(interplay.read(path).frame) == 45


@pytest.fixture
def elsewhere(tmp_path, template):
    """An MLflow store that is not the results folder's, with one trial."""
    shutil.copy(template, tmp_path / "other.db")
    uri = f"sqlite:///{tmp_path / 'other.db'}"
    store = Experiment(uri, "mine")
    tags = {"interplay.kind": "trial", "interplay.cell": "c", "interplay.status": "done"}
    run = store.client.create_run(store.id, tags=tags)
    for name, value in {"depth": 1, "width": 8, "seed": 0}.items():
        store.client.log_param(run.info.run_id, name, value)
    store.client.log_metric(run.info.run_id, "loss", 1.0)
    store.client.set_terminated(run.info.run_id)
    return uri


def test_an_experiment_is_read_from_the_store_that_is_named(command, elsewhere, monkeypatch):
    status, out, err = command("fit", "mlflow:mine", "--uri", elsewhere, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["rows"]["used"] == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", elsewhere)
    assert command("fit", "mlflow:mine", "--json")[1] == out
    status, _, err = command("fit", "mlflow:mine", "--uri", "sqlite:///absent.db")
    assert (status, "absent.db" in err) == (2, True)


def test_no_password_of_the_environment_is_shown(command, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:9")
    for arguments in (["fit", "mlflow:x"], ["ui"]):
        _, out, err = command(*arguments)
        assert "127.0.0.1:9" in out + err
        assert "hunter2" not in out + err


def test_asking_for_a_status_makes_nothing(command, tmp_path):
    for uri in ("auto", "sqlite:///absent.db", "http://127.0.0.1:9"):
        status, out, err = command("status", SMALL, "--json", f"tracking.uri={uri}")
        assert (status, err) == (0, "")
        assert json.loads(out)["counts"] == {"missing": 45}
    assert list(tmp_path.iterdir()) == []


def test_the_rows_are_mirrored_to_mlflow_again_and_not_twice(command, tmp_path, template):
    spec = load_spec(SMALL)
    plan, paths = make_plan(spec), study_paths(spec, tmp_path / "results")
    assert "no rows" in command("mirror", SMALL)[2]
    for planned, end in zip(plan.cells[:3], (1.0, 2.0, 3.0), strict=True):
        row = examples.row(
            planned.cell.key, name=planned.title, study=spec.name, protocol=plan.protocol, ended=end
        )
        paths.ledger.put(row)
    seen = []
    lost = shutil.ignore_patterns("mlflow.db")  # another place, because MLflow keeps connections to a file
    shutil.copytree(tmp_path / "results", tmp_path / "copy", ignore=lost)
    for folder in ("results", "results", "copy"):
        if not (tmp_path / folder / "mlflow.db").exists():
            shutil.copy(template, tmp_path / folder / "mlflow.db")
        status, out, err = command("mirror", SMALL, "--results", folder)
        assert (status, err) == (0, "")
        assert "3 rows of small" in out
        experiment = Experiment(tracking_uri("auto", tmp_path / folder), spec.experiment)
        runs = list(experiment.runs("attributes.status != 'nothing'"))
        assert len(runs) == 4
        cells = {run.data.tags["interplay.cell"]: run for run in runs if "interplay.cell" in run.data.tags}
        curves = {
            name: [one.step for one in experiment.client.get_metric_history(run.info.run_id, name)]
            for run in cells.values()
            for name in run.data.metrics
        }
        seen.append(
            (
                {cell: (run.data.metrics, run.data.params, run.info.end_time) for cell, run in cells.items()},
                curves,
            )
        )
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][1]["train_loss"] == [10, 20]
    assert [end for _, _, end in sorted(seen[0][0].values(), key=lambda one: one[2])] == [1000, 2000, 3000]
    assert command("mirror", SMALL, "tracking.uri=http://127.0.0.1:9")[0] == 2


def test_a_hash_in_the_results_path_is_fine(tmp_path, template):
    folder = tmp_path / "a #b"
    folder.mkdir()
    shutil.copy(template, folder / "mlflow.db")
    store = Experiment(tracking_uri("auto", folder), "x").client
    assert store.get_experiment_by_name("template") is not None
    assert [path.name for path in tmp_path.iterdir()] == ["a #b"]


def test_make_keeps_a_results_path_with_a_space_in_one_piece():
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    root = Path(cli.__file__).parent.parent
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", "study", "RESULTS=my results"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shlex.split(done.stdout.splitlines()[-1])[-2:] == ["--results", "my results"]


def test_overrides_follow_the_spec_with_or_without_an_option(command):
    plain = command("plan", SMALL, "training.seeds=1", "frontier.depths=[1, 2]", "--json")
    option = command("plan", SMALL, "training.seeds=1", "frontier.depths=[1, 2]", "--json")
    mixed = command("plan", "--json", SMALL, "training.seeds=1", "frontier.depths=[1, 2]")
    assert plain == option == mixed
    assert len(json.loads(plain[1])["cells"]) == 2 * 5
    status, out, err = command("plan", SMALL, "training.seeds")
    assert (status, out) == (2, "")
    assert "`training.seeds` is not of the form section.key=value" in err


def test_sizes_have_units_and_nonsense_is_refused(command):
    plain = command("recommend", "--law", "levine2020", "7e9", "1.5e6", "--json")
    assert command("recommend", "7B", "1.5M", "--law", "levine2020", "--json") == plain
    status, out, err = command("recommend", "big", "--law", "levine2020")
    assert (status, out) == (2, "")
    assert "'big' is no size" in err


def test_the_version_is_that_of_the_package(command):
    assert command("--version") == (0, f"interplay {version('interplay')}\n", "")


def test_the_page_of_the_command_is_made_from_its_help():
    made = (
        sys.executable,
        "-m",
        "typer",
        "interplay.cli",
        "utils",
        "docs",
        "--name",
        "interplay",
        "--title",
        "The command",
    )
    page = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "cli.md").read_text() == page, (
        f"run `python {shlex.join(made[1:])} > docs/cli.md`"
    )


def test_short_options_of_a_run_are_keys_of_its_spec(command, monkeypatch):
    outcome(monkeypatch, finished=False)
    status, out, err = command("run", SMALL, "training.steps=100", "-j", "1", "--device", "cpu")
    assert (status, err) == (130, "")
    again = ["interplay", "run", SMALL, "training.steps=100", "resources.slots=1", "resources.device=cpu"]
    assert after("resume with: ", out) == again
    status, _, err = command("run", SMALL, "--device", "abacus")
    assert status == 2
    assert "`resources.device`" in err


def test_the_report_of_a_table_needs_a_folder(command, tmp_path):
    status, out, err = command("report", table(tmp_path, RUNS))
    assert (status, out) == (2, "")
    assert "--out DIR" in err
