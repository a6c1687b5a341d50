"""`interplay audit`, and the errors that `interplay recommend` quotes, as a user meets them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers as hf

from tests.tables import foreign_runs


@pytest.fixture
def columns():
    return 200


@pytest.fixture
def models(tmp_path):
    """Two folders as `save_pretrained` makes them."""
    hf.GPT2Config().save_pretrained(tmp_path / "gpt2")
    hf.LlamaConfig().save_pretrained(tmp_path / "llama")
    return tmp_path


def test_configs_and_a_shape_are_audited_together_in_order(command, models):
    status, out, err = command(
        "audit", "llama", "gpt2/config.json", "--depth", "80", "--width", "13461", "--json"
    )
    assert (status, err) == (0, "")
    documents = json.loads(out)
    assert [item["depth"] for item in documents] == [32, 12, 80]
    assert [item["verdict"] for item in documents] == ["too shallow", "near the best", "no verdict"]
    names = ["Levine 2020", "Liu 2026", "Gemstones"]
    assert [[law["law"] for law in item["laws"]] for item in documents] == [names] * 3
    assert [law["ratio"] for law in documents[2]["laws"]] == [None] * 3
    assert round(documents[1]["laws"][0]["ratio"], 2) == 0.52
    assert documents[0]["lost"] == [documents[0]["laws"][1]["near_optimal"]["lost"]] * 2


def test_a_sentence_comes_before_the_table(command, models):
    status, out, err = command("audit", "llama")
    assert (status, err) == (0, "")
    said, _, table = out.partition("\n\n")
    said = " ".join(said.split())
    for part in (
        "llama is too shallow",
        "loses 0.0077 nats per token against the best depth of its size, by Liu 2026",
        "more than 10 times the largest size of its models, 559 million",
        "32 lies above log3(width) = 7.6",
    ):
        assert part in said
    levine, liu, gemstones = (line.split() for line in table.splitlines()[1:4])
    # 6,738,415,616 less the two tables of tokens are 6.48e9.
    shape = ["llama", "32", "×", "4096", "6.44B", "6.48B"]
    assert levine == [*shape, "Levine", "2020", "-", "-", "-", "-", "-", "(no", "verdict)"]
    assert liu[:11] == [*shape, "Liu", "2026", "47", "×", "3,392"]
    assert liu[-4:] == ["35–65", "0.0077", "too", "shallow"]
    assert gemstones[-2:] == ["(not", "settled)"]


def test_a_study_s_fit_answers_as_recommend_does(command, tmp_path):
    (tmp_path / "runs.csv").write_text(foreign_runs("loss"))
    assert command("fit", "runs.csv", "--out", "fit.json")[0] == 0
    status, out, err = command("audit", "--depth", "2", "--width", "48", "--fit", "fit.json", "--json")
    assert status == 0, err
    (document,) = json.loads(out)
    (shape,) = json.loads(command("recommend", "--fit", "fit.json", str(12 * 2 * 48**2), "--json")[1])
    (law,) = document["laws"]
    assert (law["best"]["source"], law["law"], law["transition"]) == ("measured", "fit.json", None)
    assert {**law["best"], "learning_rate": shape["learning_rate"]} == shape
    # Four layers are the best, and two lose less than 0.005 nats.
    assert (shape["depth"], document["verdict"]) == (4, "near the best")
    assert 0 < law["near_optimal"]["lost"] < law["near_optimal"]["within"]
    assert "is near the best" in command("audit", "--depth", "2", "--width", "48", "--fit", "fit.json")[1]
    # Beyond the sizes three depths give no law.
    status, _, err = command("audit", "--depth", "2", "--width", "300", "--fit", "fit.json")
    assert status == 2
    assert "need 4 depths" in err


def test_a_fit_without_a_law_is_refused_with_a_way_out(command, tmp_path):
    two_depths = [
        line for line in foreign_runs("loss").splitlines(keepends=True) if not line.startswith("4,")
    ]
    (tmp_path / "runs.csv").write_text("".join(two_depths))
    assert command("fit", "runs.csv", "--out", "fit.json")[0] == 0
    # Far from every measured size.
    status, out, err = command("audit", "--depth", "2", "--width", "16000", "--fit", "fit.json")
    assert (status, out) == (2, "")
    assert "has no answer at" in err
    assert "--law levine2020" in err


def test_an_absurd_shape_has_no_share_of_a_depth_of_less_than_a_layer(command):
    status, out, err = command("audit", "--depth", "3", "--width", "3", "--law", "levine2020")
    assert (status, err) == (0, "")
    said, _, table = out.partition("\n\n")
    said = " ".join(said.split())
    assert "is too deep" in said
    assert "no depth of one layer or more at N = 324" in said
    assert table.splitlines()[1].split()[-5:] == ["-", "-", "-", "(too", "deep)"]


def test_the_law_of_the_loss_reverses_a_verdict_and_gives_what_is_at_stake(command):
    """24 layers of 2048: too shallow by Levine et al.; by Liu et al. they lose 0.003 nats of the best depth."""
    shape = ("audit", "--depth", "24", "--width", "2048")
    levine, liu = (
        json.loads(command(*shape, "--law", law, "--json")[1])[0] for law in ("levine2020", "liu2026")
    )
    assert (levine["verdict"], levine["lost"]) == ("too shallow", None)
    assert levine["laws"][0]["near_optimal"] is None
    assert (liu["verdict"], liu["laws"][0]["best"]["depth"]) == ("near the best", 29)
    assert liu["lost"] == pytest.approx([0.003] * 2, abs=5e-4)
    status, out, _ = command(*shape, "--law", "liu2026")
    assert status == 0
    assert f"{liu['lost'][0]:.4f}" in out
    (known,) = (
        model
        for model in json.loads(command("audit", "--known", "--json")[1])
        if model["name"] == "Pythia 1.4B"
    )
    (every,) = json.loads(command(*shape, "--json")[1])
    assert all(known[key] == every[key] for key in ("verdict", "lost", "laws"))
    status, _, err = command("audit", "--depth", "2", "--width", "64", "--law", "liu2026")
    assert status == 2
    assert "above 2 layers" in err


def test_a_byte_vocabulary_is_warned_of(command):
    status, out, _ = command("audit", "--depth", "6", "--width", "512", "--vocabulary", "256")
    assert status == 0
    assert "exceeds the rank 256 of its vocabulary" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no model to audit"),
        (("--depth", "3"), "--depth and --width name a shape together"),
        (("--vocabulary", "256"), "--depth and --width name a shape together"),
        (("--depth", "0", "--width", "3"), "--depth is 0"),
        (("--depth", "3", "--width", "4", "--law", "levine"), "levine2020"),
        (("--depth", "3", "--width", "4", "--law", "levine2020", "--fit", "f.json"), "not both"),
        (("--depth", "3", "--width", "4", "--fit", "absent.json"), "absent.json"),
        (("absent",), "absent cannot be read"),
    ],
)
def test_wrong_input_ends_with_one_paragraph(command, arguments, said):
    status, out, err = command("audit", *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_kind_of_model_the_law_does_not_know_is_refused(command, tmp_path):
    hf.T5Config().save_pretrained(tmp_path / "t5")
    status, out, err = command("audit", "t5", "--json")
    assert (status, out) == (2, "")
    assert "interplay audit --depth 6 --width 512" in err


def test_a_recommendation_says_which_error_it_quotes(command):
    status, out, _ = command("recommend", "--law", "levine2020", "5e9")
    assert status == 0
    assert "at fixed N" in out
    assert "3.8B–6B" in out
    assert "outside" in out
    inside = command("recommend", "--law", "levine2020", "2e8")[1]
    assert "inside" in inside
    assert "outside" not in inside


def test_a_recommendation_needs_a_size(command):
    status, out, err = command("recommend", "--law", "levine2020")
    assert (status, out) == (2, "")
    assert "interplay recommend 7e9" in err


def test_an_audit_loads_no_model_library(models):
    heavy = {"numpy", "pandas", "matplotlib", "mlflow", "ray", "torch", "transformers", "scipy"}
    program = (
        f"import sys; sys.argv = ['interplay', 'audit', {str(models / 'llama')!r}, '--law', 'liu2026', '--json']\n"
        "from interplay.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        f"print(*sorted(set(sys.modules) & {heavy!r}), file=sys.stderr)"
    )
    root = Path(__file__).parent.parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    assert json.loads(done.stdout)[0]["verdict"] == "too shallow"
    assert done.stderr.split() == []
