"""What the YAML of a spec may hold."""

import pytest
import yaml

from study.errors import SpecError
from study.spec.study import load_spec
from study.spec.yaml_file import load_yaml
from tests.study.small import SMALL


@pytest.mark.parametrize(
    "text",
    [
        *('!!int "x"', '!!int ""', '!!float ""', "!!bool x", "!!timestamp x", "!!binary é", "- !!map x", "!!seq x"),
        *("[" * 5000, "- " * 5000, "{a: " * 5000, "1" * 5000, "!x y", "&a [*b]", "!!omap x"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_yaml_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)


def test_a_date_is_text_and_a_number_is_one_as_in_yaml_1_2() -> None:
    assert load_yaml("[2026-11-23, 1e6, 1.5, 0x1f, =, !!str 3]") == ["2026-11-23", 1e6, 1.5, 31, "=", "3"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.steps=!!int x", "does not fit its type"),
        ("training.seeds=" + "[" * 900, "nested too deep"),
        ("training.optimizer=" + "9" * 5000, "digits"),
        ("a." * 5000 + "b=1", "section.key=value"),
        ("frontier.depths." + "9" * 5000 + "=1", "is a list of 3"),
        ("k" * 50_000 + "=1", "is not a key"),
        ("training.lr.rule=" + "x" * 50_000, "allowed: fixed, width, table"),
        ("training.batch=[" + ", ".join(["x"] * 9000) + "]", "`training.batch`"),
        ("training.seeds=[" + ", ".join(["x"] * 9000) + "]", "And 8995 more"),
    ],
)
def test_an_override_is_refused_in_one_short_paragraph(override: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(SMALL, [override])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 2000
