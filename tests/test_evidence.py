"""The study of English text: its page quotes what its run table gives."""

import json
from pathlib import Path

import pytest

import interplay
from core.command_line import in_shell
from study.plan.plan import make_plan
from study.spec.study import load_spec

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_quotes_the_answer_of_its_rows():
    quoted = (DOCS / "evidence.md").read_text().split("```text\n")[1].split("\n```")[0]
    with in_shell(["fit"]):
        sentences = interplay.fit(DOCS / "evidence" / "runs.csv").sentences
    assert " ".join(sentences).startswith(" ".join(quoted.split()))


def test_the_study_plans_the_rows_of_the_table(tmp_path):
    text = tmp_path / "docs.txt"
    text.write_text("a few words of English. " * 20_000)
    planned = interplay.plan(DOCS / "evidence" / "study.yaml", f"data.path={text}").cells
    rows = interplay.read(DOCS / "evidence" / "runs.csv").frame
    shapes = set(zip(planned["depth"], planned["width"], planned["seed"], strict=True))
    trained = set(zip(rows["depth"], rows["width"], rows["seed"], strict=True))
    assert trained <= shapes


def test_the_page_quotes_the_comparison_of_both_families():
    page = (DOCS / "evidence.md").read_text()
    section = page.split("# GPT-2 and Llama blocks on the same text")[1]
    quoted = section.split("```text\n")[1].split("\n```")[0].splitlines()
    folders = [DOCS / "evidence" / f"families-network-{network}" for network in ("gpt2", "llama")]
    compared = interplay.compare(*folders).to_json()
    assert compared["key"] == "training.network"
    assert quoted == compared["answers"][: len(quoted)]
    recorded = json.loads((DOCS / "evidence" / "families" / "comparison.json").read_text())
    assert recorded["answers"] == compared["answers"]
    losses = {}
    for network in ("gpt2", "llama"):
        runs = DOCS / "evidence" / f"families-network-{network}" / "runs.csv"
        fitted = interplay.fit(runs).to_json()
        (pair,) = [item for item in fitted["crossings"] if (item["shallow"], item["deep"]) == (1, 2)]
        (stated,) = [
            item for item in compared["crossings"] if (item["value"], item["shallow"]) == (network, 1)
        ]
        assert pair["status"] == stated["status"]
        assert pair["params"] == pytest.approx(stated["params"], rel=1e-6)
        losses[network] = interplay.read(runs).frame.groupby(["depth", "width"])["loss"].mean()
    gains = (losses["gpt2"] - losses["llama"]).groupby("depth").agg(["min", "max"]).round(2)
    assert gains.loc[1].tolist() == [-0.09, 0.08]
    assert gains.loc[2].tolist() == [0.10, 0.22]
    assert gains.loc[4].tolist() == [0.17, 0.27]


@pytest.mark.parametrize("network", ["gpt2", "llama"])
def test_the_study_of_each_family_plans_the_rows_of_its_table(tmp_path, network):
    text = tmp_path / "docs.txt"
    text.write_text("a few words of English. " * 60_000)
    changes = [f"data.path={text}", f"training.network={network}"]
    spec = load_spec(str(DOCS / "evidence" / "families.yaml"), changes)
    recorded = load_spec(str(DOCS / "evidence" / f"families-network-{network}" / "spec.yaml"), changes[:1])
    assert make_plan(recorded).protocol == make_plan(spec).protocol
    planned = {(p.cell.shape.depth, p.cell.shape.width, p.cell.seed, p.tokens) for p in make_plan(spec).cells}
    rows = interplay.read(DOCS / "evidence" / f"families-network-{network}" / "runs.csv").frame
    assert set(zip(rows["depth"], rows["width"], rows["seed"], rows["tokens"], strict=True)) == planned


def test_the_page_quotes_the_best_depth_in_a_minute_and_at_equal_tokens():
    """The study of a minute on two cores, and the same shapes on equal tokens."""
    section = (DOCS / "evidence.md").read_text().split("# The best depth in a minute of training")[1]
    in_time, at_tokens = (part.split("\n```")[0] for part in section.split("```text\n")[1:3])
    for quoted, table in ((in_time, "minutes"), (at_tokens, "minutes-equal-tokens")):
        with in_shell(["fit"]):
            sentences = interplay.fit(DOCS / "evidence" / f"{table}.csv").sentences
        assert " ".join(sentences).startswith(" ".join(quoted.split()))
    answer = interplay.fit(DOCS / "evidence" / "minutes.csv").fit.compute
    (timed,) = [item for item in answer.crossings if item.shallow == 1]
    assert (timed.status, round(60 * timed.params)) == ("ambiguous", 30)
    assert (round(60 * timed.params_interval[0]), timed.params_interval[1]) == (16, None)
    at = answer.at(0.5)
    tokens = {shape.depth: shape.tokens for shape in (at, *at.others)}
    assert tokens[1] / tokens[2] == pytest.approx(1.5, abs=0.05)
    equal = interplay.fit(DOCS / "evidence" / "minutes-equal-tokens.csv")
    (crossing,) = [item for item in equal.fit.crossings if item.shallow == 1]
    assert crossing.params == pytest.approx(63e3, rel=0.01)
