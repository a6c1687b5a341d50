"""The study of English text: its page quotes what its run table gives."""

from pathlib import Path

import interplay

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_quotes_the_answer_of_its_rows():
    quoted = (DOCS / "evidence.md").read_text().split("```text\n")[1].split("\n```")[0]
    answer = interplay.fit(DOCS / "evidence" / "runs.csv")
    assert " ".join(answer.sentences).startswith(" ".join(quoted.split()))


def test_the_study_plans_the_rows_of_the_table(tmp_path):
    text = tmp_path / "docs.txt"
    text.write_text("a few words of English. " * 20_000)
    planned = interplay.plan(DOCS / "evidence" / "study.yaml", f"data.path={text}").cells
    rows = interplay.read(DOCS / "evidence" / "runs.csv").frame
    shapes = set(zip(planned["depth"], planned["width"], planned["seed"], strict=True))
    trained = set(zip(rows["depth"], rows["width"], rows["seed"], strict=True))
    assert trained <= shapes
