"""The JSON schema accepts what loads and refuses nonsense, and docs/spec.md is made from it."""

from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

from study.spec.schema import HEADINGS, json_schema, reference
from study.spec.study import StudySpec
from study.spec.yaml_file import SpecLoader, preset_names
from trainables.data.kind import KINDS
from trainables.data.kinds.mixture import MixtureData

ROOT = Path(__file__).parents[3]
FOUR_LINES = "data: {path: corpus.txt}\nfrontier:\n  depths: [1, 2]\n  budgets: [2k, 5k]\n"


@pytest.fixture(scope="module")
def validator():
    document = json_schema()
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(validator, name):
    text = (resources.files("study") / "presets" / f"{name}.yaml").read_text()
    validator.validate(yaml.load(text, Loader=SpecLoader))


@pytest.mark.parametrize(
    "text",
    [
        FOUR_LINES,
        FOUR_LINES + "training: {lr: 0.01, seeds: [3, 4], tokens: 7B}",
        FOUR_LINES + "training: {lr: {rule: width, base: 0.3}}",
        FOUR_LINES + "search: {sampler: tpe, candidates: 2}",
        FOUR_LINES + "search: {sampler: optuna.samplers.CmaEsSampler, candidates: 2, arguments: {sigma0: 1}}",
        FOUR_LINES + "search: {sampler: crossing, max_flops: 1e13}",
        FOUR_LINES + "resources: {device: h100-80gb, tensor_parallel: {min_width: {2: 2048}}}",
        FOUR_LINES + "resources: {device: h100-80gb-1g.10gb}",
        "frontier: {widths: {1: [16, 32], 2: [12, 24]}}\n"
        "data: {kind: mixture, parts: [{weight: 1, data: {kind: files, path: a}}]}",
    ],
)
def test_what_users_write_is_valid(validator, text):
    validator.validate(yaml.load(text, Loader=SpecLoader))


@pytest.mark.parametrize(
    "text",
    [
        "frontier: {depths: [1], budgets: [2k]}",
        FOUR_LINES + "trainin: {seeds: 3}",
        FOUR_LINES + "training: {seeds: true}",
        FOUR_LINES + "training: {lr: {rule: width, value: 0.3}}",
        FOUR_LINES + "search: {sampler: grid, candidates: 2}",
        FOUR_LINES + "search: {sampler: tpee, candidates: 2}",
        FOUR_LINES + "search: {sampler: crossing, candidates: 2}",
        FOUR_LINES + "resources: {device: h100}",
        "data: {nonsense: 1}\nfrontier: {depths: [1], budgets: [2k]}",
        "data: {kind: grammar}\nfrontier: {depths: [1], budgets: [2k]}",
        "data: {kind: hierarchy, path: corpus.txt}\nfrontier: {depths: [1], budgets: [2k]}",
        "frontier: {depths: [1], budgets: [2k]}\n"
        "data: {kind: mixture, parts: [{weight: 1, data: {kind: mixture, parts: []}}]}",
    ],
)
def test_nonsense_is_not_valid(validator, text):
    assert not validator.is_valid(yaml.load(text, Loader=SpecLoader))


def test_the_page_of_keys_is_up_to_date_and_has_a_meaning_for_each():
    page = reference()
    assert (ROOT / "docs" / "spec.md").read_text() == page, "run `python -m study.spec.schema > docs/spec.md`"
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows if not row[-1].strip(" |")] == []
    models = {*HEADINGS.values(), "StudySpec", "MixturePart", *(kind.__name__ for kind in KINDS.values())}
    assert set(json_schema()["$defs"]) | {"StudySpec"} == models
    keys = {row[0].strip("|` ") for row in rows}
    assert keys >= {*StudySpec.model_fields, *MixtureData.model_fields} - {"kind"}
