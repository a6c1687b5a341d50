"""The bounds of a document, and what YAML of a spec may hold."""

from typing import Any

import pytest
import yaml

from study.errors import SpecError
from study.spec.bounded_yaml import MOST_DIGITS, MOST_LEVELS, MOST_VALUES, BoundedLoader, SpecLoader
from study.spec.study import load_spec
from tests.study.small import SMALL


def read(text: str) -> Any:
    return yaml.load(text, Loader=SpecLoader)


def growing(levels: int, aliases: int) -> str:
    """A list of lists: aliases^levels items."""
    lines = ["a0: &a0 [1]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * aliases)}]" for i in range(1, levels + 1)
    ]
    return "\n".join(lines)


def test_aliases_count_as_what_they_stand_for() -> None:
    small = read(growing(3, 5))
    assert small["a3"] == [[[[1]] * 5] * 5] * 5
    for levels, aliases in ((40, 2), (9, 9), (2, 300)):
        with pytest.raises(yaml.YAMLError, match=f"more than {MOST_VALUES:,} keys and values"):
            read(growing(levels, aliases))
    merged = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9)
    )
    with pytest.raises(yaml.YAMLError, match="keys and values"):
        read(merged)


def test_the_bounds_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.spec.bounded_yaml.MOST_VALUES", 200)
    monkeypatch.setattr("study.spec.bounded_yaml.MOST_CHARACTERS", 1000)
    assert len(read(f"[{', '.join('1' * 199)}]")) == 199
    with pytest.raises(yaml.YAMLError, match="more than 200 keys and values"):
        read(f"[{', '.join('1' * 200)}]")
    assert read("{a: &a [1, 2], b: [" + ", ".join(["*a"] * 64) + "]}")["b"] == [[1, 2]] * 64
    with pytest.raises(yaml.YAMLError, match="keys and values"):
        read("{a: &a [1, 2], b: [" + ", ".join(["*a"] * 65) + "]}")
    read("[" * MOST_LEVELS + "]" * MOST_LEVELS)
    with pytest.raises(yaml.YAMLError, match=f"more than {MOST_LEVELS} deep"):
        read("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1))
    assert read("1" * MOST_DIGITS) == int("1" * MOST_DIGITS)
    with pytest.raises(yaml.YAMLError, match=f"more than {MOST_DIGITS} digits"):
        read("1" * (MOST_DIGITS + 1))
    assert len(read("x" * 1000)) == 1000
    with pytest.raises(yaml.YAMLError, match="more than 1,000 characters"):
        read("x" * 1001)


def test_an_alias_is_as_deep_as_what_it_stands_for() -> None:
    chain = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 80))
    with pytest.raises(yaml.YAMLError, match=f"more than {MOST_LEVELS} deep"):
        read(chain)


@pytest.mark.parametrize("text", ["&a [*a]", "x: &a {y: [*a]}", "&a {<<: *a}"])
def test_a_document_that_contains_itself_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="contains it"):
        read(text)


@pytest.mark.parametrize("loader", [SpecLoader, BoundedLoader])
@pytest.mark.parametrize(
    "text",
    [
        *('!!int "x"', '!!int ""', '!!float ""', "!!bool x", "!!timestamp x", "!!binary é", "- !!map x", "!!seq x"),
        *("[" * 5000, "- " * 5000, "{a: " * 5000, "1" * 5000, "1" + ":59" * 2000, "!x y", "&a [*b]", "!!omap x"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_yaml_error(loader: type[yaml.SafeLoader], text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        yaml.load(text, Loader=loader)


def test_a_date_is_text_and_a_number_is_one_as_in_yaml_1_2() -> None:
    assert read("[2026-11-23, 1e6, 1.5, 0x1f, =, !!str 3]") == ["2026-11-23", 1e6, 1.5, 31, "=", "3"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.steps=!!int x", "not of the type `!!int`"),
        ("training.seeds=" + "[" * 900, f"more than {MOST_LEVELS} deep"),
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
