"""The well-known models: their configs against the published sizes, and what each law says of them."""

import importlib.util
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import yaml

from analysis.audit.evidence import published_evidence
from analysis.audit.known_models import known_models
from analysis.law.published import LIU2026
from core.errors import InputError
from interplay.verbs.audit import known_view
from tests.command import interplay

ROOT = Path(__file__).parents[3]
ENTRIES = yaml.safe_load((resources.files("analysis") / "audit" / "known_models.yaml").read_text())


@pytest.fixture(scope="module")
def models():
    return known_models()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_the_config_has_the_published_number_of_parameters(entry, models):
    """Matrices of the blocks, token and position tables; biases and norms are below 0.1 %."""
    (known,) = (one for one in models if one.audit.model.name == entry["name"])
    config, model = entry["config"], known.audit.model
    tables = 1 if config.get("tie_word_embeddings") else 2
    rows = tables * config["vocab_size"] + config.get("max_position_embeddings", 0)
    counted = model.block_params + rows * model.width
    assert counted == pytest.approx(known.parameters, rel=1e-3)
    assert counted <= known.parameters


def test_models_have_their_own_names_and_are_ordered_by_size(models):
    assert len({known.audit.model.name for known in models}) == len(models) == len(ENTRIES)
    sizes = [known.audit.model.law_params for known in models]
    assert sizes == sorted(sizes)


def test_what_a_model_loses_is_its_loss_over_the_lowest_of_all_whole_depths(models):
    for known in models:
        near = known.audit.findings[1].near_optimal
        params, depth = known.audit.model.law_params, known.audit.model.depth
        assert (near is None) == (params > 1.6e11)
        if near is not None:
            lowest = min(LIU2026.loss(params, layers) for layers in range(3, 1000))
            assert near.lost == pytest.approx(LIU2026.loss(params, depth) - lowest, abs=1e-12)
            assert (near.depths[0] <= depth <= near.depths[1]) == (near.lost <= 0.005)


def test_no_law_answers_beyond_ten_times_its_sizes_and_those_inside_their_data_decide(models):
    for known in models:
        found = known.audit
        for finding, law in zip(found.findings, published_evidence(), strict=True):
            inside = law.sizes[0] / 1.1 < found.model.law_params < law.sizes[1] * 1.1
            assert finding.inside == (inside and law.depths[0] <= found.model.depth <= law.depths[1])
            assert (finding.best.depth is None) == (finding.beyond > 10)
        # The law of Levine et al. gives no losses.
        assert found.findings[0].near_optimal is None
        inside = [finding for finding in found.findings[1:] if finding.inside]
        reached = [finding for finding in found.findings[1:] if finding.beyond <= 10]
        assert list(found.deciding) == (inside or reached)
        assert (found.verdict == "no verdict") == (not reached)


def test_the_verdict_is_the_common_one_of_the_deciding_laws(models):
    llama = next(known.audit for known in models if known.audit.model.name == "Llama 3.2 1B")
    levine, liu, table = llama.findings

    def joined(lost, inside):
        changed = [
            replace(item, inside=is_inside, near_optimal=replace(item.near_optimal, lost=nats))
            for item, nats, is_inside in zip((liu, table), lost, inside, strict=True)
        ]
        return replace(llama, findings=(levine, *changed)).verdict

    assert joined((0.02, 0.02), (True, True)) == "too shallow"
    assert joined((0.02, 0.001), (True, True)) == "laws disagree"
    assert joined((0.02, 0.001), (True, False)) == "too shallow"
    assert joined((0.02, 0.001), (False, False)) == "laws disagree"
    assert joined((0.001, 0.001), (False, False)) == "near the best"


def test_the_figure_of_the_page_has_every_model(models):
    spec = importlib.util.spec_from_file_location("drawing", ROOT / "docs" / "known_models.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    figure = drawing.known_figure(models, 0.005)
    points = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert list(points.get_ydata()) == [known.audit.model.depth for known in models]


def test_the_command_prints_one_line_per_model_at_80_columns_and_strict_json(tmp_path):
    done = interplay(tmp_path, "audit", "--known", columns=80)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("×" in line for line in lines) == len(ENTRIES) + 1
    page = (ROOT / "docs" / "known-models.md").read_text()
    assert [line.rstrip() for line in lines] == page.split("```text\n")[1].split("\n```")[0].splitlines()
    document = json.loads(interplay(tmp_path, "audit", "--known", "--json").stdout)
    assert [one["name"] for one in document] == [line.split("  ")[0] for line in lines[1 : len(ENTRIES) + 1]]
    refused = interplay(tmp_path, "audit", "--known", "--law", "liu2026")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--known" in refused.stderr


def test_a_wider_range_takes_more_depths(models):
    for narrow, wide in zip(models, known_models(within=0.02), strict=True):
        near, wider = (known.audit.findings[1].near_optimal for known in (narrow, wide))
        if near is None:
            continue
        (low, high), (lowest, highest) = near.depths, wider.depths
        assert lowest < low
        assert high < highest
    with pytest.raises(InputError):
        known_models(within=0)
    assert known_view(models, 0.005)
