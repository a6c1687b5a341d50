"""Studies that are compared: by the key in which their specs differ, from rows, fits and tables; the real command."""

import json
import math

import pytest

import interplay
from analysis.units import bits_per_byte
from core.errors import InputError
from study.errors import SpecError
from study.plan.plan import make_plan
from study.run.recorder import cell_fields
from study.spec.study import load_spec
from study.tracking.ledger import Row
from study.tracking.study_paths import study_paths
from tests.study.run.test_study import Laptop
from tests.study.small import SMALL

#: True crossing of depths 1 and 2, by steps: the deeper model needs the longer training.
CROSSING = {300: 16_000.0, 1200: 4_000.0}
NAMES = [f"small-{steps}" for steps in CROSSING]


def loss(planned, crossing):
    """Two straight lines of ln N that meet at the crossing, and a seed's own shift."""
    distance = math.log(planned.cell.shape.budget_params / crossing)
    shallow = planned.cell.shape.depth == 1
    return 2.0 - 0.1 * distance + (0.05 * distance if shallow else 0.0) + 0.002 * planned.cell.seed


def leave_rows(results, crossing, *changes, bytes_per_token=None, source=SMALL):
    """Rows and spec of a study, as a run would leave them; return the spec."""
    spec = load_spec(source, ["frontier.depths=[1, 2]", *changes])
    plan, paths = make_plan(spec), study_paths(spec, results)
    for rank, planned in enumerate(plan.cells):
        value = loss(planned, crossing)
        paths.ledger.put(
            Row(
                cell=planned.cell.key, name=planned.cell.name, **cell_fields(plan, planned),
                protocol=plan.protocol, status="done", ended=rank + 1.0, loss=value, measures={"accuracy": 0.5},
                bits_per_byte=bits_per_byte(value, bytes_per_token),
            )
        )  # fmt: skip
    paths.folder.mkdir(parents=True, exist_ok=True)
    (paths.folder / "spec.yaml").write_text(spec.to_yaml())
    return spec


@pytest.fixture
def results(tmp_path):
    """Two studies that differ in their steps."""
    for steps, crossing in CROSSING.items():
        leave_rows(tmp_path, crossing, f"training.steps={steps}", f"name=small-{steps}")
    return tmp_path


def test_studies_that_differ_in_one_key_are_compared_by_its_value(results, command):
    compared = interplay.compare(*NAMES, results=results)
    document = compared.to_json()
    assert document["key"] == "training.steps"
    assert [study["value"] for study in document["studies"]] == list(CROSSING)
    for row in document["crossings"]:
        assert row["status"] == "bracketed"
        assert row["params"] == pytest.approx(CROSSING[row["value"]], rel=0.05)
    (shift,) = document["shifts"]
    (pair,) = shift["pairs"]
    low, high = pair["shift_interval"]
    assert low < math.log(4_000 / 16_000) < high
    assert not any("differ in" in line for line in compared.sentences)
    status, out, err = command("compare", *NAMES, "--results", str(results), "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(document))
    assert not (results / "report.html").exists()
    assert "crossings by value" in command("compare", *NAMES, "--results", str(results))[1]


def test_without_feed_forward_networks_a_preset_is_compared_at_equal_numbers_of_weights(tmp_path):
    """Losses that depend on N alone cross at one N, at widths that are sqrt(3) apart."""
    for name, *changes in (("with",), ("without", "frontier.d_ff=0")):
        spec = leave_rows(tmp_path, 4_000.0, *changes, f"name={name}", source="low-resource")
        for planned in make_plan(spec).cells:
            shape = planned.cell.shape
            assert abs(shape.budget_params / planned.budget - 1) <= spec.frontier.tolerance
    compared = interplay.compare("with", "without", results=tmp_path).to_json()
    assert compared["key"] == "frontier.d_ff"
    rows = {row["value"]: row for row in compared["crossings"]}
    assert len(rows) == 2
    for row in rows.values():
        assert row["params"] == pytest.approx(4_000, rel=0.05)
    assert rows[0]["width"] / math.sqrt(rows[0]["params"] / 4) == pytest.approx(1)
    other = next(row for value, row in rows.items() if value != 0)
    assert other["width"] / math.sqrt(other["params"] / 12) == pytest.approx(1)
    (shift,) = compared["shifts"]
    (pair,) = shift["pairs"]
    assert pair["shift_interval"][0] < 0 < pair["shift_interval"][1]
    assert abs(pair["shift"]) < 0.05


@pytest.mark.slow
def test_the_page_links_the_reports_and_has_the_numbers(results, command):
    for name in NAMES:
        assert command("report", name, "--results", str(results))[0] == 0
    status, out, err = command(
        "compare", *NAMES, "--results", str(results), "--out", str(results / "compared")
    )
    assert (status, err) == (0, "")
    assert "report.html" in out
    document = json.loads((results / "compared" / "comparison.json").read_text())
    # Both have a fit now, which is read from its file.
    fresh = interplay.compare(*(results / name for name in NAMES)).to_json()
    assert document["crossings"] == json.loads(json.dumps(fresh["crossings"]))
    for study in document["studies"]:
        assert (results / "compared" / study["report"]).resolve().is_file()
    assert set(document["measures"]) == {"accuracy", "loss"}
    assert document["facts"]["training.steps"] == "small-300: 300; small-1200: 1200"
    again = interplay.compare(*NAMES, results=results, out=results / "compared")
    assert again.page == results / "compared" / "report.html"


def test_studies_that_differ_in_several_keys_are_named_and_so_are_the_keys(results):
    leave_rows(results, 5_000.0, "training.steps=300", "training.lr.base=0.2", "name=other")
    compared = interplay.compare("small-1200", "other", results=results)
    document = compared.to_json()
    assert document["key"] == "study"
    assert [study["value"] for study in document["studies"]] == ["small-1200", "other"]
    (line,) = [line for line in compared.sentences if "differ in 2 keys" in line]
    assert "training.steps (1200, 300)" in line
    assert "training.lr.base" in line


def test_losses_are_compared_only_for_the_same_data_and_tokens(results):
    def compares_losses(*names):
        return any(
            line.startswith("Mean loss") for line in interplay.compare(*names, results=results).sentences
        )

    leave_rows(results, 5_000.0, "training.steps=300", "training.lr.base=0.2", "name=other")
    assert compares_losses("small-300", "other")
    assert not compares_losses("small-300", "small-1200")


def test_fits_tables_and_answers_are_compared_by_their_names(results, tmp_path):
    first, second = (interplay.fit(name, results=results) for name in NAMES)
    for name, answer in zip(("one", "two"), (first, second), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(answer.to_json()))
        answer.table.frame.to_csv(tmp_path / f"{name}.csv", index=False)
    by_answers = interplay.compare(first, second).to_json()
    by_files = interplay.compare(tmp_path / "one.json", tmp_path / "two.csv").to_json()
    assert [study["value"] for study in by_files["studies"]] == ["one", "two.csv"]
    assert "not known" in by_files["answers"][0]
    for row, again in zip(by_answers["crossings"], by_files["crossings"], strict=True):
        assert again["params"] == pytest.approx(row["params"], rel=1e-9)


def test_tables_and_answers_of_one_name_are_told_apart_by_their_place(results):
    first, second = (interplay.fit(name, results=results) for name in NAMES)
    frames = [answer.table.frame for answer in (first, second)]
    by_frames = interplay.compare(*frames)
    assert [study["value"] for study in by_frames.to_json()["studies"]] == ["table 1", "table 2"]
    answers = [interplay.fit(frame) for frame in frames]
    by_answers = interplay.compare(*answers)
    expected = interplay.compare(first, second).to_json()["crossings"]
    for compared in (by_frames, by_answers):
        for row, other in zip(compared.to_json()["crossings"], expected, strict=True):
            assert row["params"] == pytest.approx(other["params"], rel=1e-9)
    file = results / "elsewhere" / "fit.json"
    interplay.fit(NAMES[0], results=results, out=file)
    frames[0].to_csv(file.with_name("runs.csv"))
    for twice in (
        (frames[0], frames[0]),
        (answers[0], answers[0]),
        (file, file.parent),
        (file.with_name("runs.csv"), results / "elsewhere" / ".." / "elsewhere" / "runs.csv"),
    ):
        with pytest.raises(SpecError, match="given twice"):
            interplay.compare(*twice)


def test_what_cannot_be_compared_is_in_the_answer(results):
    answers = [
        interplay.fit(name, results=results, level=level)
        for name, level in zip(NAMES, (0.9, 0.95), strict=True)
    ]
    compared = interplay.compare(*answers)
    assert compared.to_json()["shifts"] == []
    assert [line for line in compared.sentences if "small-1200 is not compared" in line and "95 %" in line]
    leave_rows(results, 5_000.0, "training.lr.base=0.2", "name=bytes", bytes_per_token=2.0)
    leave_rows(results, 1e9, "training.lr.base=0.1", "name=far")
    units = interplay.compare(
        interplay.fit("bytes", results=results, unit="bpb"), interplay.fit("far", results=results)
    )
    document = units.to_json()
    assert document["unit"] == "nats per token"
    assert any("bits per byte and in nats per token" in line for line in units.sentences)
    assert any(line.startswith("far has no settled crossing") for line in units.sentences)
    plain = interplay.compare(*(interplay.fit(name, results=results) for name in ("bytes", "far"))).to_json()
    assert document["best"] == plain["best"]


@pytest.mark.parametrize(
    ("sources", "error", "words"),
    [
        ([], SpecError, "two studies or more"),
        (["small-300"], SpecError, "two studies or more"),
        (["small-300", "small-300"], SpecError, "given twice"),
        (["small-300", "absent.csv"], InputError, "absent.csv"),
        (["small-300", "small-30"], SpecError, "small-300"),
    ],
)
def test_wrong_sources_are_refused(results, sources, error, words):
    with pytest.raises(error, match=words):
        interplay.compare(*sources, results=results)


def test_the_page_does_not_replace_the_report_of_a_study(results):
    with pytest.raises(SpecError, match="folder of a study"):
        interplay.compare(*NAMES, results=results, out=results / "small-300")


def test_a_comparison_and_a_report_do_not_replace_each_others_page(results, tmp_path):
    table = tmp_path / "runs.csv"
    interplay.read(NAMES[0], results=results).write_csv(table)
    for write in ("compare", "report"):
        for _ in range(2):  # its own page is replaced
            if write == "compare":
                interplay.compare(*NAMES, results=results, out=tmp_path / write)
            else:
                interplay.report(table, out=tmp_path / write)
    with pytest.raises(SpecError, match=r"comparison\.json"):
        interplay.report(table, out=tmp_path / "compare")
    with pytest.raises(SpecError, match=r"fit\.json"):
        interplay.compare(*NAMES, results=results, out=tmp_path / "report")


def test_a_study_without_rows_is_refused_with_the_command_that_trains_it(results):
    with pytest.raises(SpecError, match=r"interplay\.run"):
        interplay.compare("small-300", SMALL, results=results)


@pytest.mark.slow
def test_a_loop_and_a_comparison_by_the_real_command(tmp_path):
    laptop = Laptop(tmp_path)
    for steps in (40, 80):
        done = laptop.run("run", "tiny.yaml", f"training.steps={steps}", f"name=tiny-{steps}")
        assert done.returncode == 0, done.stdout + done.stderr
    compared = laptop.run("compare", "tiny-40", "tiny-80", "--out", str(laptop.results / "compared"))
    assert compared.returncode == 0, compared.stdout + compared.stderr
    document = json.loads((laptop.results / "compared" / "comparison.json").read_text())
    assert (document["key"], [study["value"] for study in document["studies"]]) == (
        "training.steps",
        [40, 80],
    )
    for line in document["answers"]:
        assert line.split()[0] in compared.stdout
