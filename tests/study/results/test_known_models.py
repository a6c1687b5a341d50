"""The well-known models: their configs against the published sizes, and what each law says of them."""

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import yaml

from analysis.errors import InputError
from analysis.law.published import LIU2026
from study.commands.audit import known_view
from study.results.known_models import KnownModel, evidence, known_figure, known_models, write_figure
from tests.command import interplay

ROOT = Path(__file__).parents[3]
ENTRIES = yaml.safe_load((resources.files("analysis") / "audit" / "known_models.yaml").read_text())


@pytest.fixture(scope="module")
def models():
    return known_models()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_the_config_has_the_published_number_of_parameters(entry, models):
    """Matrices of the blocks, token and position tables; biases and norms are below 0.1 %."""
    (known,) = (one for one in models if one.model.name == entry["name"])
    config, model = entry["config"], known.model
    tables = 1 if config.get("tie_word_embeddings") else 2
    rows = tables * config["vocab_size"] + config.get("max_position_embeddings", 0)
    counted = model.block_params + rows * model.width
    assert counted == pytest.approx(known.parameters, rel=1e-3)
    assert counted <= known.parameters


def test_models_have_their_own_names_and_are_ordered_by_size(models):
    assert len({known.model.name for known in models}) == len(models) == len(ENTRIES)
    sizes = [known.model.law_params for known in models]
    assert sizes == sorted(sizes)


def test_what_a_model_loses_is_its_loss_over_the_lowest_of_all_whole_depths(models):
    for known in models:
        near = known.findings[1].near
        params, depth = known.model.law_params, known.model.depth
        lowest = min(LIU2026.loss(params, layers) for layers in range(3, 1000))
        assert near.lost == pytest.approx(LIU2026.loss(params, depth) - lowest, abs=1e-12)
        assert (near.depths[0] <= depth <= near.depths[1]) == (near.lost <= 0.005)


def test_no_verdict_goes_beyond_the_data_of_a_law(models):
    for known in models:
        for finding, law in zip(known.findings, evidence(), strict=True):
            inside = law.sizes[0] / 1.1 < known.model.law_params < law.sizes[1] * 1.1
            assert finding.inside == (inside and law.depths[0] <= known.model.depth <= law.depths[1])
        # The law of Levine et al. gives no losses, and its interval holds the error of two parameters only.
        assert known.findings[0].verdict is None
        inside = [finding for finding in known.findings[1:] if finding.inside]
        assert (known.verdict == "no evidence") == (not inside)
        table = known.findings[2]
        assert (table.best is None) == (table.beyond > 10)


def test_the_verdict_joins_those_of_the_laws_inside_their_data(models):
    llama = next(known for known in models if known.model.name == "Llama 3.2 1B")

    def joined(*pairs):
        levine, *others = llama.findings
        changed = [
            replace(finding, verdict=verdict, inside=inside)
            for finding, (verdict, inside) in zip(others, pairs, strict=True)
        ]
        return KnownModel(2024, 1, llama.model, (levine, *changed)).verdict

    assert joined(("too deep", True), ("too deep", True)) == "too deep"
    assert joined(("too deep", True), ("near the best", True)) == "laws disagree"
    assert joined(("too deep", True), ("near the best", False)) == "too deep"
    assert joined(("not settled", True), ("too deep", True)) == "not settled"
    assert joined(("too deep", False), ("too deep", False)) == "no evidence"


def test_the_figure_is_written_in_the_format_of_its_ending(models, tmp_path):
    figure = known_figure(models, 0.005)
    points = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert list(points.get_ydata()) == [known.model.depth for known in models]
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        write_figure(figure, tmp_path / f"known{ending}")
        assert (tmp_path / f"known{ending}").read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        write_figure(figure, tmp_path / "known.bmp")
    with pytest.raises(InputError, match="cannot be written"):
        write_figure(figure, tmp_path / "absent" / "known.png")


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
    for arguments in (("--known", "--law", "liu2026"), ("--depth", "3", "--width", "4", "--figure", "x.png")):
        refused = interplay(tmp_path, "audit", *arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "--known" in refused.stderr


def test_a_wider_range_takes_more_depths(models):
    for narrow, wide in zip(models, known_models(within=0.02), strict=True):
        (low, high), (lowest, highest) = narrow.findings[1].near.depths, wide.findings[1].near.depths
        assert lowest < low
        assert high < highest
    with pytest.raises(InputError):
        known_models(within=0)
    assert known_view(models, 0.005)
