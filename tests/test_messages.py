"""Every command that a message proposes is one that the program takes: its verb, arguments and options."""

import ast
import re
from pathlib import Path

import pytest
import typer

from interplay.cli import app

ROOT = Path(__file__).parent.parent
#: A command inside a message; a placeholder is written `{}`. It ends where the sentence or its quotation does.
PROPOSED = re.compile(r"(?<![\w./-])interplay((?: (?:--?[\w-]+(?:=\S+)?|[\w.{}:'\[\]=,/*-]+))+)")
#: Words that follow the name of the program in prose.
PROSE = {
    "is",
    "has",
    "and",
    "of",
    "needs",
    "fits",
    "trains",
    "writes",
    "the",
    "was",
    "in",
    "for",
    "as",
    "does",
}


def messages():
    """Each text of the program that names a command, with its place."""
    for folder in ("analysis", "interplay", "study", "trainables"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            inside = {
                id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
            }
            for node in ast.walk(tree):
                if id(node) in documentation or id(node) in inside:
                    continue
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def commands():
    found = [(place, match[1].split()) for place, text in messages() for match in PROPOSED.finditer(text)]
    return [(place, words) for place, words in found if words[0] not in PROSE and "{" not in words[0]]


def test_messages_propose_commands():
    assert len(commands()) > 15


@pytest.mark.parametrize(
    ("place", "words"), commands(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_proposed_command_is_one_that_the_program_takes(place, words):
    command = typer.main.get_command(app)
    # A number is a size, a name and a file.
    rest = [word.replace("{}", "1e9") for word in words]
    while hasattr(command, "commands") and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    if len(words) > 1:  # else the sentence is about the verb
        command.make_context(f"{place}: interplay {' '.join(words)}", rest)
