import json

import pytest

#: Two checkpoints of six shapes, with a count of parameters that holds more than 12·L·d².
HEADER = "depth,width,n_params,tokens,final_loss"
ROWS = [
    f"{depth},{width},{12 * depth * width**2 + 1000 * width},{tokens},{3 - depth / 10 - width / 1000 - tokens / 1e11}"
    for depth in (1, 2)
    for width in (16, 32, 64)
    for tokens in (10**10, 2 * 10**10)
]
NAMES = ("--column", "loss=final_loss", "--column", "params=n_params")


@pytest.fixture(autouse=True)
def their_runs(tmp_path):
    (tmp_path / "runs.csv").write_text("\n".join([HEADER, *ROWS]) + "\n")


@pytest.mark.parametrize("count", ["nonembedding", "table"])
def test_a_foreign_table_is_fitted_in_either_count_and_at_the_tokens_asked_for(command, count):
    status, out, _ = command(
        "fit", "runs.csv", *NAMES, "--count", count, "--tokens", "1e10", "--out", "f.json", "--json"
    )
    assert status == 0
    document = json.loads(out)
    assert document["count"] == count
    assert document["tokens"]["compared"] == 1e10
    assert document["rows"]["used"] == 6
    assert len(document["rows"]["left_out"]) == 6
    assert any("differs from 12·L·d²" in text for text in document["warnings"]) == (count == "table")
    # Without the option the most tokens that all shapes have are compared.
    assert json.loads(command("fit", "runs.csv", *NAMES, "--json")[1])["tokens"]["compared"] == 2e10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs.csv", *NAMES, "--tokens", "5e10"], "The table has 1e+10, 2e+10"),
        (["runs.csv", *NAMES, "--tokens", "-1"], "positive number"),
        (["runs.csv", "--column", "loss=final_loss", "--count", "table"], "--column params=n_params"),
        (["quickstart", "--count", "table"], "quickstart is a spec"),
        (["no_tokens.csv", "--tokens", "1e10"], "--column tokens=THEIRS"),
    ],
)
def test_a_count_or_tokens_that_are_not_there_are_one_paragraph(command, tmp_path, words, said):
    (tmp_path / "no_tokens.csv").write_text("depth,width,loss\n1,8,2\n2,8,1.9\n")
    for verb in (["fit"], ["report", "--out", "report"]):
        status, out, err = command(*verb, *words)
        assert status == 2
        assert not out
        assert said in err
        assert "\n" not in err.strip()
        assert not (tmp_path / "report").exists()
