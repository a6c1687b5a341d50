"""The spec: what it accepts, what it refuses and with which words, and what overrides do."""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.runs.tokens import NEAR_LEVEL, SAME_RATIO
from core.errors import InputError
from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.frontier import shapes
from study.spec.resources import MinWidth
from study.spec.study import StudySpec, load_spec, parse_spec
from study.spec.training import APART, ROUNDING
from study.spec.yaml_file import preset_names
from tests.named import assert_named
from tests.study.small import SMALL
from tests.trainables.data.tokenizer_files import save
from trainables.cell import Shape
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.kinds.hops import HopsData
from trainables.data.kinds.hub import HubData
from trainables.data.kinds.mixture import MixtureData
from trainables.data.kinds.python_source import PythonSourceData

MINIMAL: dict[str, Any] = {
    "name": "mine",
    "data": {"kind": "hierarchy"},
    "frontier": {"budgets": [3000], "depths": [1, 2], "heads": 2, "tolerance": 0.2},
    "training": {"steps": 10, "batch": 4, "context": 32, "lr": {"rule": "fixed", "value": 0.01}},
}


def refusal(*overrides: str, source: str = SMALL) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec(source, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(folder: Path, text: str) -> str:
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_search_by_crossings_needs_the_depths_of_its_aim_and_rates_for_its_shapes() -> None:
    search = "search={sampler: crossing, max_cells: 9, objective: depth}"
    message = refusal(search, "frontier.depths=[1, 2]")
    assert_named(message, "3 depths", "`frontier.depths` has 2", "`search.objective: crossings`")
    two = load_spec(SMALL, [search, "search.objective=crossings", "frontier.depths=[1, 2]"])
    assert two.search.objective == "crossings"
    rates = {f"L{found.shape.depth}-d{found.shape.width}": 0.01 for found in shapes(two.frontier)}
    table = f"training.lr={{rule: table, values: {rates}}}".replace("'", "")
    chosen = [search, "search.objective=crossings", "frontier.depths=[1, 2]", table]
    assert "`search.new_budgets: none`" in refusal(*chosen)
    assert load_spec(SMALL, [*chosen, "search.new_budgets=none"]).search.new_budgets == "none"


def test_another_sampler_by_an_override_leaves_the_keys_of_the_old_one_behind(tmp_path: Path) -> None:
    crossing = load_spec(SMALL, ["search={sampler: crossing, max_cells: 9, objective: depth, max_seeds: 4}"])
    path = write(tmp_path, crossing.to_yaml())
    assert load_spec(path) == crossing
    assert load_spec(path, ["search.sampler=grid"]).search == load_spec(SMALL).search
    tpe = load_spec(path, ["search.sampler=tpe", "search.candidates=3"])
    again = load_spec(write(tmp_path, tpe.to_yaml()), ["search.sampler=crossing", "search.max_cells=9"])
    assert again.search.sampler == "crossing"


# Presets


def test_every_preset_loads_under_its_own_name_and_has_a_description() -> None:
    listed = preset_names()
    assert {"quickstart", "text", "levine2020", "levine2020-wikipedia"} <= set(listed)
    for name in listed:
        spec = load_spec(name)
        assert spec.name == name
        assert spec.description


WSD = ("training.schedule=wsd", "training.warmup_steps=50")


def test_a_change_of_the_schedule_replaces_the_keys_of_the_other(tmp_path: Path) -> None:
    wsd = load_spec(SMALL, [*WSD, "training.decay=0.3"])
    assert (wsd.recipe.warmup_end, wsd.recipe.decay_start) == (50, 840)
    written = write(tmp_path, wsd.to_yaml())
    assert load_spec(written) == wsd
    assert (
        load_spec(written, ["training.schedule=wsd", "training.decay=0.2"]).recipe
        == load_spec(SMALL, WSD).recipe
    )
    assert load_spec(written, ["training.schedule=cosine"]).recipe == load_spec(SMALL).recipe
    assert load_spec(SMALL, [*WSD, "training.warmup_steps=960"]).recipe.warmup_end == 960


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (WSD[:1], "`warmup_steps: 100`"),
        ((*WSD, "training.warmup=0.1"), "`warmup_steps`, a number of steps"),
        (WSD[1:], "`warmup`, a share of the steps"),
        (("training.decay=0.1",), "`schedule: wsd`"),
        ((*WSD, "training.warmup_steps=961"), "`training.warmup_steps: 960`"),
        ((*WSD, "training.decay=1"), "begins after 0; set a smaller `training.decay`"),
        ((*WSD, "training.tokens=[60k, 1M]"), "`training.warmup_steps: 47`"),
    ],
)
def test_keys_that_do_not_fit_the_schedule_are_refused_with_what_does(
    overrides: tuple[str, ...], fix: str
) -> None:
    assert_named(refusal(*overrides), fix)


@pytest.mark.parametrize("name", ["quickstart", "text", "levine2020", "levine2020-wikipedia"])
def test_a_written_spec_reads_back_the_same(name: str, tmp_path: Path) -> None:
    spec = load_spec(name, ["training.seeds=[3, 5]", "training.weight_decay=0.02"])
    assert load_spec(write(tmp_path, spec.to_yaml())) == spec


def test_a_spec_is_read_into_data_recipe_seeds_and_rates() -> None:
    spec = load_spec(SMALL)
    recipe = spec.recipe
    assert isinstance(spec.data, HierarchyData)
    grammar = spec.data
    assert (grammar.vocabulary, grammar.branching, grammar.levels, grammar.synonyms) == (8, 2, 5, 2)
    assert (recipe.steps, recipe.batch, recipe.context, recipe.tokens) == (1200, 16, 64, 1_228_800)
    assert (recipe.beta1, recipe.beta2, recipe.weight_decay, recipe.grad_clip) == (0.9, 0.95, 0.01, 1.0)
    assert (recipe.warmup, recipe.min_lr_ratio, recipe.init, recipe.precision) == (0.1, 0.0, "fan_in", "fp32")
    assert spec.training.seed_values == (0, 1, 2)
    rates = [spec.training.lr.rate(Shape(depth=2, width=d, heads=2)) for d in (8, 10, 12, 32)]
    assert rates == pytest.approx([0.04, 0.04, 0.4 / 12, 0.4 / 32])


def test_levine2020_marks_every_value_that_is_not_the_papers() -> None:
    text = (
        Path(sys.modules[StudySpec.__module__].__file__ or "").parent.parent / "presets/levine2020.yaml"
    ).read_text()
    of_the_paper = {"depths", "heads", "vocabulary", "steps", "batch", "context", "warmup"}
    of_the_paper |= {"min_lr_ratio", "sampler", "seeds"}
    of_the_paper |= {"name", "description", "kind", "tokenizer", "validation_tokens", "optimizer"}
    for line in text.splitlines():
        key, colon, value = line.split("#")[0].strip().lstrip("- ").partition(":")
        if colon and value.strip() and key not in of_the_paper:
            assert "ours" in line, line


def test_levine2020_brackets_every_fitted_transition_from_both_depths() -> None:
    import math

    frontier = load_spec("levine2020").frontier
    assert frontier.widths is not None
    for shallow, deep in [(6, 12), (12, 18), (18, 24), (24, 30), (30, 36), (36, 48)]:
        transition = 12 * shallow * math.exp(2 * (5.039 + 0.0555 * shallow))
        for depth in (shallow, deep):
            sizes = [12 * depth * width**2 for width in frontier.widths[depth]]
            assert min(sizes) < transition / 2.5
            assert max(sizes) > 2.5 * transition
            assert len(sizes) == 8
            assert all(width % 16 == 0 for width in frontier.widths[depth])


# Defaults


def test_a_spec_of_data_depths_and_budgets_runs(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("words and more words. " * 2000)
    path = tmp_path / "my study.yaml"
    path.write_text("data: {path: corpus.txt}\nfrontier:\n  depths: [1, 2]\n  budgets: [8k, 0.03M]\n")
    spec = load_spec(str(path))
    assert spec.name == "my-study"
    assert (spec.data.kind, spec.frontier.heads, spec.frontier.budget_values) == ("files", 2, (8e3, 3e4))
    assert (spec.training.batch, spec.training.context, spec.training.tokens) == (32, 128, 6e5)
    assert spec.training.seed_values == (0, 1, 2)
    assert [spec.training.lr.rate(Shape(depth=1, width=d, heads=2)) for d in (16, 300)] == [0.01, 0.001]
    assert spec.resources.device == "cpu"
    assert load_spec(write(tmp_path, spec.to_yaml())) == spec
    assert make_plan(spec).cell_count == 12


def test_short_forms_are_the_long_ones(tmp_path: Path) -> None:
    assert load_spec(SMALL, ["training.lr=0.01"]) == load_spec(
        SMALL, ["training.lr={rule: fixed, value: 0.01}"]
    )
    sizes = load_spec(SMALL, ["frontier.budgets=[2k, 1.5M, 7B]"]).frontier.budget_values
    assert sizes == (2e3, 1.5e6, 7e9)
    assert load_spec(SMALL, ["training.steps=null", "training.tokens=3M"]).training.tokens == 3e6
    raw = {**MINIMAL, "training": {"optimizer": "muon"}}
    assert parse_spec(raw).training.lr.rate(Shape(depth=1, width=8, heads=2)) == 0.02


# What is refused, and how


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("data.alphabet=2", ["`data.alphabet` is 2", "3"]),
        ("data.hop=3", ["`data.hop`", "allowed: kind, ", "`hops`?"]),
        ("data.hops=[1, two]", ["hops: `data.hops.1` is 'two'"]),
        ("data.hops=2000", ["`data.hops` is 2000", "1000", "; or it should be a list"]),
        ("data.hops=[2, 2]", ["In `data`: `hops`", "[2, 2]"]),
    ],
)
def test_a_task_that_is_called_like_one_of_its_keys_is_not_taken_for_it(
    change: str, named: list[str]
) -> None:
    assert_named(refusal(change, source="hops"), *named)


INTEGER = "it should be a valid integer"
#: For each kind of mistake an override, and the whole message about it.
KINDS = [
    # A key that is not one, in a section and in a member of a union; one that is missing.
    ("resources.data_parallel={min_width: {2: 8}, max_width: 8}",
     "`resources.data_parallel.max_width` is not a key; allowed: min_width; did you mean `min_width`?"),
    ("training.lr.bas=1", "`training.lr.bas` is not a key; allowed: rule, base, exponent, cap; did you mean `base`?"),
    ("frontier.budgets={min: 5}", "`frontier.budgets.max` is missing. `frontier.budgets.points` is missing."),
    ("search.sampler=tpe", "`search.candidates` is missing."),
    # A word, a word or a number, the name of a member.
    ("training.init=fanin", "`training.init` is 'fanin'; allowed: fan_in, gpt2; did you mean `fan_in`?"),
    ("resources.slots=some",
     f"`resources.slots` is 'some'; allowed: auto; or {INTEGER}, unable to parse string as an integer."),
    ("training.lr.rule=widht", "`training.lr.rule` is 'widht'; allowed: fixed, width, table; did you mean `width`?"),
    # A bound: of a key, in the section of a sampler, of an item.
    ("training.batch=0", "`training.batch` is 0; it should be greater than or equal to 1."),
    ("search={sampler: crossing, halfwidth: 0}", "`search.halfwidth` is 0; it should be greater than 0."),
    ("frontier.budgets=[1e300]",
     "`frontier.budgets.0` is 1e+300; it should be less than or equal to 1000000000000000."),
    # Another type of value.
    ("training.grad_clip=.inf", "`training.grad_clip` is inf; it should be a finite number."),
    ("training.seeds=true", "In `training`: `seeds` is true, and no key here is true or false."),
    ("resources.tensor_parallel={min_width: {2: true}}",
     f"`resources.tensor_parallel.min_width.2` is True; {INTEGER}."),
    ("training.seeds=[0, a]", f"`training.seeds.1` is 'a'; {INTEGER}, unable to parse string as an integer."),
    ("training.seeds=[]", "In `training.seeds`: the list is empty; give at least one value."),
    ("frontier.depths=3", "`frontier.depths` is 3; it should be a list such as [1, 2]."),
    ("frontier=3", "`frontier` is 3; it should be a section with keys."),
    ("name=../up", "`name` is '../up'; allowed: letters, digits, `.`, `_`, `-`, first a letter or digit."),
    # Python writes no number of so many digits.
    (f"claim=0x{'f' * 4000}",
     "`claim` is a value with a number of more than 4,300 digits; it should be a valid string."),
]  # fmt: skip


@pytest.mark.parametrize(("override", "message"), KINDS)
def test_each_kind_of_mistake_has_its_sentence(override: str, message: str) -> None:
    assert refusal(override) == f"{SMALL}: {message}"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("frontier.depth=[1]", ["`frontier.depth`", "`depths`?", "budgets, depths, widths, flops, spread, minutes"]),
        ("depths=[1]", ["`depths`", "`frontier.depths`?"]),
        ("trainning.steps=3", ["`trainning`", "`training`?"]),
        ("data.kind=file", ["`data.kind`", "'file'", "files, hierarchy, hops, hub", "`files`?"]),
        ("search={sampler: crossing, halfwidth: 0.1, halfwidht: 1}", ["`search.halfwidht`", "`halfwidth`?"]),
        ("resources.device=a100", ["`resources.device`", "'a100'", "cpu, l4-24gb", "`a100-80gb`?"]),
        # A bare `yes` of YAML 1.1.
        ("resources.shard_vocabulary=yes", ["`resources.shard_vocabulary`", "never, always, auto"]),
        ("resources.measure=[train, decoding]", ["`resources.measure.1`", "'decoding'", "train, prefill, decode"]),
        ("resources.measure=decode", ["`resources.measure`", "a list"]),
        # Repeated values, which every list refuses.
        ("training.seeds=[1, 2, 1]", ["`training.seeds`", ": 1 "]),
        ("frontier.depths=[2, 1, 2]", ["`frontier.depths`", ": 2 "]),
        ("frontier.budgets=[3e3, 3e3]", ["`frontier.budgets`", ": 3000 "]),
        ("frontier.widths={2: [8, 8]}", ["`frontier.widths.2`", ": 8 "]),
        ("resources.measure=[decode, decode]", ["`resources.measure`", ": decode "]),
        ("search.lr_factors=[0.5, 0.5]", ["`search.lr_factors`", ": 0.5 "]),
        # The rules of `training`
        ("training={optimizer: muon, steps: 9, lr: {rule: width, base: 0.3}}",
         ["`optimizer: muon`", "`lr: {rule: fixed, value: 0.02}`"]),
        ("training={optimizer: muon, parametrisation: mup, steps: 9, lr: 1}",
         ["`optimizer: muon`", "`parametrisation: mup`", "`parametrisation: sp`"]),
        ("training.lr=fast", ["`training.lr`", "'fast'", "0.01", "`rule: width`"]),
        ("training.deepspeed={overlap_comm: true}", ["`training.deepspeed`", "`overlap_comm`", "`zero_opt"]),
        ("training.deepspeed.gradient_clipping=2", ["`gradient_clipping`", "`training.grad_clip`"]),
        ("training.deepspeed.zero_optimization.stage=2", ["`zero_optimization.stage`", "`resources.zero`"]),
        # of `data`, alone and with the context
        ("training.context=65", ["`training.context` 65", "32", "2^5", "64 or 96"]),
        ("data.levels=7", ["2^7", "`training.context` 64", "6 `levels`"]),
        ("data.levels=1000000", ["2^1000000", "6 `levels`"]),
        ("data.synonyms=9", ["9 `synonyms`", "8 symbols", "72", "64", "8 synonyms"]),
        ("data={kind: repeats, alphabet: 30}", ["`training.context` 64", "`repeats`", "`alphabet` of 31"]),
        ("data={kind: hops, hops: 30}", ["`training.context` 64", "`hops`", "90", "135"]),
        ("data={kind: connectivity, vertices: 30, names: 99}", ["`training.context` 64", "30 `vertices`", "69"]),
        ("data={kind: connectivity, diameter: [2, 10]}", ["`diameter` 10", "24 `vertices`", "40 vertices"]),
        ("data={kind: connectivity, questions: 25}", ["25 `questions`", "24 `vertices`"]),
        ("data={kind: expressions, arguments: 70}", ["`training.context` 64", "70 `arguments`", "73"]),
        # of `frontier`
        ("frontier.budgets=[10]", ["`frontier`", "depth 1", "width 2", "N = 48", "to 48"]),
        ("frontier.budgets={min: 5, max: 4, points: 2}", ["`frontier.budgets`", "`min` 5", "`max` 4"]),
        ("frontier.budgets=[5q]", ["`frontier.budgets.0`", "5q", "2k or 7B"]),
        ("frontier.heads=64", ["`frontier`", "64 heads", "to 49152"]),
        ("frontier.tolerance=0.001", ["`frontier`", "tolerance 0%", "`tolerance` to 0.01"]),
        ("frontier.widths={2: [9]}", ["width 9", "depth 2", "multiple of 2 (2 heads)", "8 or 10"]),
        # of `search`
        ("search.sampler=best", ["`search.sampler`", "best", "grid, crossing, frontier", "optuna.samplers."]),
        ("search.candidates=4", ["`candidates`", "`frontier`", "`grid`", "`sampler: frontier`"]),
        ("search={halfwidth: 0.1, max_flops: 1e12}",
         ["`halfwidth`, `max_flops`", "`crossing`", "`grid`", "`sampler: crossing`"]),
        ("search={sampler: crossing, max_cells: 9, candidates: 3}", ["`candidates`", "`crossing`"]),
        ("search.sampler=crossing", ["`search`", "`halfwidth`, `max_flops` and `max_cells`", "`halfwidth: 0.3`"]),
        ("search={sampler: crossing, max_cells: 9, lr_factors: [0.5, 1]}",
         ["`crossing`", "`lr_factors` has 2", "`sampler: grid`"]),
        ("search={sampler: frontier, candidates: 2, lr_factors: [0.5, 1]}",
         ["`frontier`", "`lr_factors` has 2", "`tpe` or `gp`"]),
        ("search={sampler: crossing, halfwidth: 0.1, objective: crossings, target_params: 1e6}",
         ["`target_params`", "depth", "crossings"]),
        ("search={sampler: crossing, max_cells: 9, max_seeds: 2}", ["`search.max_seeds` is 2", "3 of `training."]),
        # of addresses
        ("resources.storage=s3://me:hunter2@b/c", ["`storage`", "AWS_SECRET_ACCESS_KEY"]),
        ("resources.storage=abfs://b/c?account_key=hunter2", ["`storage`", "(`account_key`)"]),
        ("tracking.uri=https://me:hunter2@host", ["`uri`", "MLFLOW_TRACKING_PASSWORD"]),
        ("tracking.uri=postgresql://host/db?sslpassword=hunter2", ["`uri`", "(`sslpassword`)", "PGPASSWORD"]),
        ("tracking.uri=https://host/?access_token=hunter2", ["`uri`", "(`access_token`)"]),
        *((f"tracking.uri=http://{host}", ["`tracking`", "`uri`", "65535", "http://host:5000"])
          for host in ("localhost:abc", "localhost:70000", "[::1", "")),
        *((f"name={name}", [f"`name` is '{name}'", "data, mlartifacts, mlflow.db"])
          for name in ("data", "MLartifacts", "mlflow.db")),
        # of overrides
        ("name.first=x", ["`name.first`", "`name`", "'small'"]),
        ("frontier.depths.7=1", ["`frontier.depths`", "a list of 3", "`7`"]),
        ("training.seeds", ["`training.seeds`", "section.key=value"]),
        ("=3", ["`=3`", "section.key=value"]),
        ("training.seeds=[1", ["`training.seeds=[1`", "line 1, column 3"]),
    ],
)  # fmt: skip
def test_each_rule_of_a_spec_refuses_with_key_value_and_way_out(override: str, named: list[str]) -> None:
    message = refusal(override)
    assert_named(message, *named)
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("section", "keys", "named"),
    [
        ("frontier", {"head_dim": 5}, ["`frontier.head_dim"]),
        ("frontier", {"budgets": None}, ["`budgets`"]),
        ("frontier", {"widths": {1: [8]}}, ["`budgets` and `widths`"]),
        ("frontier", {"widths": {1: [8]}, "budgets": None}, ["`depths` has [2]", "`widths`", "[1]"]),
        ("training", {"tokens": 4096}, ["`steps` and `tokens`"]),
        ("training", {"lr": {"rule": "table", "values": {"2x16": 0.1}}}, ["`2x16`"]),
        ("training", {"lr": {"rule": "table", "values": {"L1-d16": 0.1}}}, ["L2-d12"]),
        ("data", {"kind": None}, ["`data.kind` is"]),
        ("data", {"kind": "python-source", "tokenizer": "bpe"}, ["`bpe`", "`vocabulary`"]),
        ("data", {"kind": "python-source", "vocabulary": 999}, ["`bytes`", "257"]),
    ],
)
def test_what_excludes_or_needs_another_is_refused(
    section: str, keys: dict[str, Any], named: list[str]
) -> None:
    raw = {**MINIMAL, section: {**MINIMAL[section], **keys}}
    with pytest.raises(SpecError) as caught:
        parse_spec(raw)
    assert_named(str(caught.value), *named)


def test_a_spec_error_is_an_input_error() -> None:
    assert issubclass(SpecError, InputError)


def test_a_misspelt_required_key_is_one_mistake_not_two() -> None:
    raw = {**MINIMAL, "training": {**MINIMAL["training"]}}
    raw["training"]["bacth"] = raw["training"].pop("batch")
    with pytest.raises(SpecError) as caught:
        parse_spec(raw)
    assert "did you mean `batch`?" in str(caught.value)
    assert "missing" not in str(caught.value)


def test_at_most_five_mistakes_are_listed_and_the_rest_counted() -> None:
    message = refusal(*(f"training.wrong{i}=1" for i in range(8)))
    assert message.count("is not a key") == 5
    assert message.endswith("And 3 more.")


def test_missing_sections_are_named() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"name": "mine"}, "mine.yaml")
    assert str(caught.value) == ("mine.yaml: `data` is missing. `frontier` is missing.")


# Files


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("name: x\n  data: 3\n", ["not YAML at line 2, column 7"]),
        ("name: [1, 2\n", ["not YAML at line"]),
        ("name: a\nname: b\n", ["line 2, column 1", "the key `name` is written twice"]),
        ("", ["is empty"]),
        ("- a\n- b\n", ["has no keys"]),
        ("name: !!python/object/apply:os.getcwd []\n", ["not YAML at line 1"]),
    ],
)
def test_a_file_that_is_no_spec_is_refused(text: str, pieces: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, text)
    message = refusal(source=path)
    assert path in message
    for piece in pieces:
        assert piece in message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"name: \xff\xfe")
    assert "not a text file in UTF-8" in refusal(source=str(path))


def test_unknown_sources_are_refused_with_presets_and_a_near_miss(tmp_path: Path) -> None:
    message = refusal(source="quikstart")
    assert "did you mean `quickstart`?" in message
    assert f"Presets: {', '.join(preset_names())}." in message
    assert "There is no file" in refusal(source="nowhere/mine.yaml")
    assert "is a folder" in refusal(source=str(tmp_path))


def test_numbers_are_read_as_in_yaml_1_2(tmp_path: Path) -> None:
    raw = yaml.safe_dump(MINIMAL).replace("steps: 10", "tokens: 1e4").replace("value: 0.01", "value: 3e-4")
    spec = load_spec(write(tmp_path, raw))
    assert spec.training.tokens == 10_000
    assert spec.training.length == round(10_000 / (4 * 32)) == 78
    assert spec.training.lr.rate(Shape(depth=1, width=8, heads=2)) == 3e-4


# Overrides


def test_overrides_replace_values_at_any_depth() -> None:
    spec = load_spec(
        SMALL,
        ["training.seeds=[7]", "training.lr.cap=0.02", "frontier.budgets.points=9", "frontier.depths.0=3"],
    )
    assert spec.training.seed_values == (7,)
    assert spec.training.lr.rate(Shape(depth=1, width=2, heads=2)) == 0.02
    assert len(spec.frontier.budget_values) == 9
    assert spec.frontier.depth_values == (2, 3, 4)


@pytest.mark.parametrize(
    ("override", "gone", "stays"),
    [
        ("training.tokens=1e6", "steps", "tokens"),
        ("frontier.head_dim=4", "heads", "head_dim"),
        ("frontier.widths={1: [8]}", "budgets", "widths"),
    ],
)
def test_an_override_replaces_what_it_excludes(override: str, gone: str, stays: str) -> None:
    overrides = [override, "frontier.tolerance=0.5"]
    section = getattr(load_spec(SMALL, overrides), override.split(".")[0])
    assert getattr(section, gone) is None
    assert getattr(section, stays) is not None


def test_two_overrides_that_exclude_each_other_are_refused() -> None:
    assert "`steps` and `tokens`" in refusal("training.tokens=1e6", "training.steps=9")


def test_a_path_on_text_turns_it_into_files_and_keeps_the_tokenizer() -> None:
    preset = load_spec("text").data
    data = load_spec("text", ["data.path=/a.txt"]).data
    assert isinstance(preset, PythonSourceData)
    assert isinstance(data, FilesData)
    assert data.path == "/a.txt"
    shared = ("tokenizer", "vocabulary", "validation_fraction", "validation_tokens", "max_tokens")
    assert [getattr(data, key) for key in shared] == [getattr(preset, key) for key in shared]


def test_a_path_on_a_grammar_does_not_keep_its_vocabulary() -> None:
    data = load_spec(SMALL, ["data.path=[/a.txt, /b.txt]"]).data
    assert data == FilesData(path=("/a.txt", "/b.txt"))


def test_a_new_kind_keeps_what_both_kinds_know() -> None:
    data = load_spec(
        "text", ["data.kind=hub", "data.name=some/set", "data.tokenizer=bpe", "data.vocabulary=300"]
    )
    assert isinstance(data.data, HubData)
    assert data.data.validation_tokens == 65_536
    assert "`data.name` is missing" in refusal("data.kind=hub")
    assert "`data.path` is not a key" in refusal("data.kind=hub", "data.name=x", "data.path=y")


def test_going_back_to_bytes_drops_the_presets_vocabulary() -> None:
    data = load_spec("levine2020", ["data.tokenizer=bytes"]).data
    assert data.vocabulary is None


def test_a_new_learning_rate_rule_drops_the_old_ones_keys() -> None:
    spec = load_spec(SMALL, ["training.lr.rule=fixed", "training.lr.value=0.01"])
    assert spec.training.lr.model_dump() == {"rule": "fixed", "value": 0.01}


def test_another_device_brings_its_own_gpus_and_precision() -> None:
    spec = load_spec("levine2020")
    assert (spec.resources.gpus_per_trial, spec.precision) == (1, "bf16")
    spec = load_spec(SMALL, ["resources.device=h100-80gb", "training.precision=auto"])
    assert (spec.resources.gpus_per_trial, spec.precision) == (1, "bf16")
    spec = load_spec(SMALL, ["training.precision=auto"])
    assert (spec.resources.gpus_per_trial, spec.precision) == (0, "fp32")


def test_a_subset_of_the_depths_of_widths_by_hand() -> None:
    spec = load_spec("levine2020", ["frontier.depths=[6, 12]"])
    assert spec.frontier.depth_values == (6, 12)
    assert len(spec.frontier.budget_values) == 16


def test_overrides_leave_the_preset_itself_alone() -> None:
    before = load_spec(SMALL)
    load_spec(SMALL, ["frontier.depths.0=3", "data.path=x", "training.lr.cap=1"])
    assert load_spec(SMALL) == before


# Paths of data


WITH_FILES = """
name: mine
data: {kind: mixture, parts: [
  {weight: 1, data: {kind: files, path: a.txt}},
  {weight: 2, data: {kind: files, path: [sub/*.txt, ../up.txt, /b.txt, ~/c.txt]}},
  {weight: 3, data: {kind: python-source}}]}
frontier: {budgets: [3000], depths: [1, 2], heads: 2, tolerance: 0.2}
training: {steps: 10, batch: 4, context: 32, lr: {rule: fixed, value: 0.01}}
"""


def paths_of(spec: StudySpec) -> list[object]:
    assert isinstance(spec.data, MixtureData)
    return [part.data.path for part in spec.data.parts if isinstance(part.data, FilesData)]


def test_paths_of_a_file_start_from_its_folder_and_those_of_an_override_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "study[1]", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    write(home, WITH_FILES)
    monkeypatch.chdir(here)
    one, many = paths_of(load_spec("../study[1]/spec.yaml"))
    assert one == f"{home}/a.txt"
    assert many == (f"{tmp_path}/study[[]1]/sub/*.txt", f"{home}/../up.txt", "/b.txt", "~/c.txt")
    one, many = paths_of(load_spec("../study[1]/spec.yaml", ["data.parts.0.data.path=x.txt"]))
    assert one == f"{here}/x.txt"
    assert many[1] == f"{home}/../up.txt"  # type: ignore[index]
    alone = load_spec("text", ["data.path=[x.txt, y/]"]).data
    assert isinstance(alone, FilesData)
    assert alone.path == (f"{here}/x.txt", f"{here}/y")


def test_a_tokenizer_starts_from_the_file_of_its_spec_and_another_one_has_its_own_size(
    tmp_path: Path,
) -> None:
    for name in ("llama", "byte-level"):
        save(tmp_path / name, name)
    text = WITH_FILES.replace("kind: mixture", "kind: mixture, tokenizer: llama")
    assert text != WITH_FILES
    file = write(tmp_path, text)

    def data_of(*overrides: str, source: str = str(file)) -> tuple[object, object]:
        data = load_spec(source, overrides).data
        assert isinstance(data, MixtureData)
        return data.tokenizer, data.vocabulary

    llama, other = str(tmp_path / "llama"), str(tmp_path / "byte-level")
    assert data_of() == (llama, 700)
    # Also of the spec in the folder of a study, which has the size of its tokenizer.
    recorded = tmp_path / "recorded.yaml"
    recorded.write_text(load_spec(str(file)).to_yaml())
    assert data_of(source=str(recorded)) == (llama, 700)
    assert data_of(f"data.tokenizer={other}", source=str(recorded)) == (other, 600)
    assert data_of("data.tokenizer=bytes", source=str(recorded)) == ("bytes", None)
    assert data_of("data.tokenizer=bpe", "data.vocabulary=300", source=str(recorded)) == ("bpe", 300)
    with pytest.raises(SpecError, match="needs `vocabulary`"):
        data_of("data.tokenizer=bpe", source=str(recorded))


def test_a_written_spec_reads_the_same_files_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from study.plan.plan import make_plan

    for folder in ("there", "elsewhere"):
        (tmp_path / folder).mkdir()
    for name in ("1.txt", "2.txt"):
        (tmp_path / "there" / name).write_text(f"text {name} " * 500)
    monkeypatch.chdir(tmp_path / "there")
    cut = ["data.path=*.txt", "data.validation_tokens=500"]
    spec = load_spec("text", cut)
    written = write(tmp_path, spec.to_yaml())
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = load_spec(written)
    assert again == spec
    keys = [planned.cell.key for planned in make_plan(spec).cells]
    assert [planned.cell.key for planned in make_plan(again).cells] == keys
    # The key is of the content: the same texts at another place are the same cells.
    for name in ("1.txt", "2.txt"):
        (tmp_path / "elsewhere" / name).write_bytes((tmp_path / "there" / name).read_bytes())
    assert [planned.cell.key for planned in make_plan(load_spec("text", cut)).cells] == keys


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("/my #1 file.txt", "/my #1 file.txt"),
        (" /my #1: file.txt ", "/my #1: file.txt"),
        ("'/a #1.txt'", "/a #1.txt"),
        ("*.txt", str(Path.cwd() / "*.txt")),
        ("[/a.txt, '/b #2.txt']", ("/a.txt", "/b #2.txt")),
    ],
)
def test_a_name_that_is_odd_yaml_is_taken_literally(text: str, value: object) -> None:
    data = load_spec("text", [f"data.path={text}"]).data
    assert isinstance(data, FilesData)
    assert data.path == value


# Properties


RAW = yaml.safe_load(load_spec(SMALL).to_yaml())


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(
        [
            *("name", "data", "data.parts", "frontier", "frontier.budgets", "frontier.widths", "search"),
            *(
                "training",
                "training.lr",
                "training.seeds",
                "training.betas",
                "training.deepspeed",
                "tracking",
            ),
            *("resources", "resources.slots", "resources.tensor_parallel", "resources.data_parallel"),
            "resources.zero",
        ]
    ),
)
def test_nonsense_anywhere_is_either_a_spec_or_one_paragraph(value: Any, key: str) -> None:
    raw = copy.deepcopy(RAW)
    *parents, last = key.split(".")
    section = raw
    for parent in parents:
        section = section[parent]
    section[last] = value
    message = ""
    try:
        parse_spec(raw)
    except SpecError as error:
        message = str(error)
    assert message == "" or message.startswith("the spec: ")
    assert "\n" not in message


@pytest.mark.parametrize("value", ["auto", "2", "{min_width: {2: 2048, 4: 8192}}"])
def test_how_cells_are_spread_survives_being_written_and_read(value: str) -> None:
    overrides = [f"resources.tensor_parallel={value}", f"resources.data_parallel={value}"]
    words = [
        "resources.zero=3",
        "resources.micro_batch=4",
        "resources.activation_checkpointing=auto",
        "resources.slots=8",
    ]
    options = ["training.deepspeed.zero_optimization={overlap_comm: true, reduce_bucket_size: 500000}"]
    spec = load_spec(SMALL, [*overrides, *words, *options])
    assert parse_spec(yaml.safe_load(spec.to_yaml())) == spec
    assert spec.resources.zero == 3
    assert spec.training.deepspeed["zero_optimization"] == {
        "overlap_comm": True,
        "reduce_bucket_size": 500_000,
    }


def test_options_of_deepspeed_may_be_true_or_false_though_no_key_of_a_section_may() -> None:
    options = {"overlap_comm": True, "contiguous_gradients": False}
    spec = load_spec(
        SMALL, ["training.deepspeed.zero_optimization={overlap_comm: true, contiguous_gradients: false}"]
    )
    assert spec.recipe.deepspeed == spec.training.deepspeed == {"zero_optimization": options}


def test_a_degree_by_width_can_be_set_one_at_a_time() -> None:
    spec = load_spec(SMALL, ["resources.tensor_parallel.min_width.2=64"])
    assert isinstance(spec.resources.tensor_parallel, MinWidth)
    assert [spec.resources.tensor_parallel.degree(width) for width in (63, 64, 6400)] == [1, 2, 2]


def test_tokens_round_to_whole_steps_and_never_to_none() -> None:
    for tokens, steps in [(1, 1), (191, 1), (193, 2), (128 * 50, 50)]:
        raw = {**MINIMAL, "training": {**MINIMAL["training"], "steps": None, "tokens": tokens}}
        assert parse_spec(raw).training.length == steps


def test_whole_steps_that_miss_the_tokens_per_parameter_are_refused_with_a_batch_that_does_not() -> None:
    given = ("training.tokens_per_parameter=20", "training.batch=160")
    message = refusal(*given)
    batch = re.search(r"`training\.batch: (\d+)` or less", message)
    assert "3.38 steps of 160 × 64" in message
    assert batch
    spec = load_spec(SMALL, [given[0], f"training.batch={batch[1]}"])
    sizes = [found.shape for found in shapes(spec.frontier)]
    tokens = [
        spec.training.step_counts(shape)[0] * int(batch[1]) * 64 / shape.budget_params for shape in sizes
    ]
    assert max(tokens) / min(tokens) <= 1 + SAME_RATIO
    assert (1 + ROUNDING) / (1 - ROUNDING) <= 1 + SAME_RATIO


def test_too_few_tokens_per_parameter_are_refused_with_a_number_that_is_enough() -> None:
    message = refusal("training.tokens_per_parameter=1e-6")
    fix = re.search(r"`training\.batch: 1` and `training\.tokens_per_parameter: (\d+)`", message)
    assert fix
    load_spec(SMALL, [f"training.tokens_per_parameter={fix[1]}", "training.batch=1"])


def test_tokens_per_parameter_replace_steps_and_exclude_them() -> None:
    spec = load_spec(SMALL, ["training.tokens_per_parameter=20"])
    assert (spec.training.steps, spec.training.tokens) == (None, None)
    assert spec.recipe.steps == round(20 * 24_576 / 1024)
    both = ("training.tokens_per_parameter=20", "training.steps=7")
    assert "`steps` and `tokens_per_parameter`" in refusal(*both)


def test_several_numbers_of_tokens_are_apart_and_need_a_grid() -> None:
    assert APART >= 1 + NEAR_LEVEL
    spec = load_spec(SMALL, ["training.tokens=[2M, 500k]"])
    assert spec.training.step_counts(Shape(depth=1, width=8, heads=2)) == (488, 1953)
    assert spec.recipe.steps == 1953
    assert "195 and 199 steps" in refusal("training.tokens=[200k, 204k]")
    assert "x is no size" in refusal("training.tokens=[200k, x]")
    for sampler in ("{sampler: crossing, max_cells: 9}", "{sampler: tpe, candidates: 2}"):
        assert "set `search.sampler: grid`" in refusal(f"search={sampler}", "training.tokens=[500k, 2M]")


AT_FLOPS = ("frontier.flops=[2e9, 8e9, 32e9]", "training.batch=4", "frontier.tolerance=0.25")


def test_flops_replace_budgets_and_steps_and_have_20_tokens_per_parameter_by_default(tmp_path: Path) -> None:
    spec = load_spec(SMALL, AT_FLOPS)
    assert (spec.frontier.budgets, spec.training.steps, spec.training.tokens_per_parameter) == (
        None,
        None,
        20,
    )
    assert spec.length == "C / FLOPs"
    assert parse_spec(yaml.safe_load(spec.to_yaml())) == spec
    back = load_spec(write(tmp_path, spec.to_yaml()), ["frontier.budgets=[3000]", "training.tokens=1M"])
    assert (back.frontier.flops, back.frontier.spread) == (None, None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("training.steps=10", "`training.steps`"),
        ("training.tokens=1M", "`training.tokens`"),
        ("search={sampler: crossing, max_cells: 9}", "set `search.sampler: grid`"),
        ("search={sampler: tpe, candidates: 2}", "set `search.sampler: grid`"),
        ("sensitivity={}", "`search.lr_factors: [0.5, 1, 2]`"),
    ],
)
def test_flops_exclude_other_lengths_searches_and_runs_at_crossings_in_n(change: str, named: str) -> None:
    assert named in refusal(*AT_FLOPS, change)


def test_whole_steps_that_miss_the_flops_are_refused_with_a_batch_that_does_not() -> None:
    text = refusal(AT_FLOPS[0], AT_FLOPS[2], "training.batch=64")
    batch = re.search(r"set `training.batch: (\d+)` or less", text)
    assert batch
    for size in (int(batch[1]), int(batch[1]) - 1):
        spec = load_spec(SMALL, [AT_FLOPS[0], AT_FLOPS[2], f"training.batch={size}"])
        for planned in make_plan(spec).cells:
            assert planned.flops == pytest.approx(planned.compute, rel=0.01)
    least = re.search(
        r"start `frontier.flops` at ([\d.e+]+)", refusal(*AT_FLOPS[1:], "frontier.flops=[1e7, 1e8]")
    )
    assert least


IN_TIME = ("frontier.minutes={0.1: {L1-d8: 9e5, L2-d8: 6e5}, 1: {L1-d8: 9e5, L2-d8: 6e5}}",)


def test_minutes_replace_budgets_and_every_length(tmp_path: Path) -> None:
    spec = load_spec(SMALL, IN_TIME)
    lengths = (spec.training.steps, spec.training.tokens, spec.training.tokens_per_parameter)
    assert (spec.frontier.budgets, spec.frontier.depths, *lengths) == (None,) * 5
    assert spec.length == "minutes · speed"
    assert parse_spec(yaml.safe_load(spec.to_yaml())) == spec
    back = load_spec(write(tmp_path, spec.to_yaml()), ["frontier.budgets=[3000]", "frontier.depths=[1]"])
    assert back.frontier.minutes is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("training.steps=10", "`training.steps`"),
        ("training.tokens_per_parameter=20", "`training.tokens_per_parameter`"),
        ("search={sampler: crossing, max_cells: 9}", "set `search.sampler: grid`"),
        ("sensitivity={}", "`frontier.minutes` compares depths at equal minutes"),
        ("training.batch=4096", "set `training.batch: 1113` or less"),
    ],
)
def test_minutes_exclude_other_lengths_and_need_whole_steps(change: str, named: str) -> None:
    assert named in refusal(*IN_TIME, change)


def test_reading_a_spec_loads_no_training_library() -> None:
    code = (
        "import sys; from study.spec.study import load_spec\n"
        "import study.plan.plan, study.plan.table; load_spec('levine2020');"
        "print({'torch', 'ray', 'mlflow', 'optuna', 'transformers', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_task_is_not_trained_under_a_sharded_vocabulary() -> None:
    wide = ["data={kind: hops}", "resources.tensor_parallel=2"]
    message = refusal(*wide, "resources.shard_vocabulary=always")
    assert_named(message, "`resources.shard_vocabulary` is always", "`hops`", "never")
    assert load_spec(SMALL, wide).resources.shard_vocabulary == "auto"


def test_a_preset_takes_the_data_of_another_task_whole() -> None:
    spec = load_spec(SMALL, ["data.kind=hops", "data.hops=4"])
    assert spec.data == HopsData(hops=4)
    assert parse_spec(yaml.safe_load(spec.to_yaml())) == spec


@pytest.mark.parametrize("key", ["claim", "training.residual"])
def test_a_value_that_aliases_nest_is_quoted_in_brief(key: str) -> None:
    """Forty levels of three: a whole text would have 3^40 words."""
    lines = ["a0: &a0 [x, x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    message = refusal(f"{key}={{{', '.join(lines)}}}")
    assert f"`{key}` is " in message
    assert len(message) < 2000


def rotary(frontier, **training):
    return parse_spec(
        {
            "name": "x",
            "data": {"path": "corpus.txt"},
            "frontier": {"budgets": ["10k", "40k"], "depths": [1, 2], **frontier},
            "training": {"network": "llama", "steps": 10, "context": 32, **training},
        }
    )


def test_the_heads_of_a_rotary_family_have_an_even_width_unless_a_step_is_given():
    assert {one.shape.head_width % 2 for one in shapes(rotary({}).frontier)} == {0}
    assert rotary({"heads": 4}).frontier.width_multiple == 8
    assert rotary({"head_dim": 8}).frontier.width_multiple == 1
    assert rotary({"width_multiple": 12, "tolerance": 0.3}).frontier.step == 12
    with pytest.raises(SpecError, match=r"frontier.width_multiple: 4"):
        rotary({"width_multiple": 1, "budgets": None, "depths": None, "widths": {1: [22]}})


def test_no_feed_forward_network_is_an_inner_width_of_zero():
    none = load_spec(SMALL, ["frontier.d_ff=0"])
    assert {item.shape.d_ff for item in shapes(none.frontier)} == {0}
    for item in shapes(none.frontier):
        assert 4 * item.shape.depth * item.shape.width**2 == item.shape.budget_params
        assert abs(item.shape.budget_params / item.budget - 1) <= none.frontier.tolerance
    # The same widths as with feed-forward networks have a third of N.
    given = load_spec(SMALL)
    sizes = [budget / 3 for budget in given.frontier.budget_values]
    third = load_spec(SMALL, ["frontier.d_ff=0", f"frontier.budgets={sizes}"])
    widths = [
        [(item.shape.depth, item.shape.width) for item in shapes(one.frontier)] for one in (third, given)
    ]
    assert widths[0] == widths[1] != []
    by_widths = load_spec("one-wide-layer", ["frontier.d_ff=0"]).frontier
    assert all(item.budget == item.shape.budget_params for item in shapes(by_widths))
    # Another ratio is at least one value wide.
    narrow = rotary({"d_ff": 0.001})
    assert {item.shape.d_ff for item in shapes(narrow.frontier)} == {1}
    for residual in ("post", "admin"):
        named = ["`frontier.d_ff: 0`", residual]
        assert_named(refusal(f"training.residual={residual}", "frontier.d_ff=0"), *named)


def test_options_of_the_shapes_are_those_of_each_shape():
    spec = rotary({"kv_heads": 1, "d_ff": 3.5}, embeddings="untied", rope_theta=1e6)
    assert {(one.shape.kv_heads, one.shape.d_ff / one.shape.width) for one in shapes(spec.frontier)} == {
        (1, 3.5)
    }
    assert (spec.recipe.embeddings, spec.recipe.rope_theta) == ("untied", 1e6)
    spec = rotary({"head_dim": 4, "kv_heads": 2, "tolerance": 0.3})
    assert {one.shape.heads % 2 for one in shapes(spec.frontier)} == {0}
    fixed = rotary({"heads": 2, "head_dim": 12, "budgets": ["20k", "40k"]})
    assert {one.shape.heads * one.shape.head_width for one in shapes(fixed.frontier)} == {24}
    with pytest.raises(SpecError, match="2 `heads` cannot share 3 `kv_heads`"):
        rotary({"kv_heads": 3})


def test_an_override_of_the_heads_keeps_a_width_of_heads_beside_them(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(rotary({"heads": 2, "head_dim": 12, "budgets": ["20k", "40k"]}).to_yaml())
    assert load_spec(str(path), ["frontier.heads=1"]).frontier.head_dim == 12
    path.write_text(rotary({"head_dim": 8}).to_yaml())
    assert load_spec(str(path), ["frontier.heads=2", "frontier.width_multiple=4"]).frontier.head_dim is None


def test_w_and_b_is_named_among_the_trackers_before_its_keys_count() -> None:
    assert load_spec(SMALL).tracking.also == ()
    spec = load_spec(SMALL, ["tracking.also=[tensorboard, wandb]", "tracking.wandb.project=depth"])
    assert spec.tracking.also == ("tensorboard", "wandb")
    assert spec.tracking.wandb is not None
    assert (spec.tracking.wandb.project, spec.tracking.wandb.mode) == ("depth", "offline")
    assert "also: [tensorboard, wandb]" in refusal(
        "tracking.also=[tensorboard]", "tracking.wandb.mode=online"
    )
    assert "tracking.also" in refusal("tracking.also=[comet]")
    assert "tracking.wandb.project" in refusal("tracking.also=[wandb]", "tracking.wandb.project=a/b")
    assert "more than once" in refusal("tracking.also=[wandb, wandb]")


@pytest.mark.parametrize("change", ["training.network=analysed", "training.residual=post"])
def test_a_model_that_huggingface_lacks_generates_nothing_to_measure(change: str) -> None:
    overrides = [change, "resources.measure=[train, decode]"]
    with pytest.raises(SpecError, match=r"`resources\.measure` has decode,"):
        load_spec(SMALL, overrides)
    assert load_spec(SMALL, [change, "resources.measure=[train]"]).resources.measure == ("train",)
    assert load_spec(SMALL).resources.measure == ()
