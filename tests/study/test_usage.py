"""Wrong verbs, options and values: one paragraph, the nearest name, and a command that can be pasted."""

import shlex

import pytest
import typer

import interplay
from interplay import cli


def accepts(words):
    """Let Typer parse a command without running its verb."""
    verb, context = typer.main.get_command(cli.app), None
    while hasattr(verb, "commands"):
        context = verb.make_context("interplay", [], parent=context, resilient_parsing=True)
        verb, words = verb.commands[words[0]], words[1:]
    verb.make_context("verb", list(words), parent=context)


@pytest.mark.parametrize(
    ("arguments", "proposed"),
    [
        ("train quickstart -j 2", "run quickstart -j 2"),
        ("start quickstart", "run quickstart"),
        ("resume quickstart", "run quickstart"),
        ("dashboard", "ui"),
        ("statsu", "status"),
        ("cluster chek cluster/aws.yaml", "cluster check cluster/aws.yaml"),
        ("theory bonds --depth 3 --width 8", "theory bounds --depth 3 --width 8"),
        ("theory bounds --dept 3 --width 8", "theory bounds --depth 3 --width 8"),
        ("init mine --time=3", "init mine --hours=3"),
        ("plan -j 8 quickstart", "plan quickstart resources.slots=8"),
        ("plan -j8 quickstart", "plan quickstart resources.slots=8"),
        ("run quickstart --seeds 5", "run quickstart training.seeds=5"),
        ("plan quickstart --depths=[1,2]", "plan quickstart frontier.depths=[1,2]"),
        ("fit quickstart --output fit.json", "fit quickstart --out fit.json"),
    ],
)
def test_the_nearest_command_is_proposed_whole_and_is_accepted(command, arguments, proposed):
    status, out, err = command(*arguments.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    program, *words = shlex.split(
        err.split("did you mean `" if "did you mean" in err else "spec: `")[1].split("`")[0]
    )
    assert (program, words) == ("interplay", proposed.split())
    accepts(words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["init", "mine", "--hours", "ten"], ["--hours ten", "a valid number", "interplay init --help"]),
        (["plan"], ["'SPEC'", "interplay plan --help"]),
        (["ui", "--port"], ["--port", "interplay ui --help"]),
        (["plan", "quickstart", "--hours", "3"], ["option of `init`", "interplay plan --help"]),
        (["plan", "quickstart", "--bogus"], ["no option --bogus"]),
        (["cluster", "check"], ["'FILE'", "interplay cluster check --help"]),
        (["fit", "runs.csv", "--unit", "bits"], ["--unit bits: 'bits' is not one of 'nats', 'bpb'"]),
    ],
)
def test_wrong_arguments_are_one_line_with_the_help_of_the_verb(command, arguments, words):
    status, out, err = command(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert [word for word in words if word not in err] == []


def test_the_package_shows_its_public_names_only():
    assert {*dir(interplay)} == {*interplay.__all__, "__version__"}
    assert all(hasattr(interplay, name) for name in dir(interplay))
