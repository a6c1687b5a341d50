"""Wrong verbs, options and values of the command line, in one paragraph: what is wrong, the nearest name, the help."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel
from typer.core import TyperGroup

from core.command_line import command
from core.errors import near_misses, shortened
from study.errors import SpecError

#: Other words for verbs.
VERBS = {
    **dict.fromkeys(("train", "start", "resume", "continue", "execute", "launch"), "run"),
    **dict.fromkeys(("show", "open", "dashboard", "web", "view", "serve"), "ui"),
    **dict.fromkeys(("new", "create", "make"), "init"),
    **dict.fromkeys(("list", "ls", "examples", "studies"), "presets"),
    **dict.fromkeys(("analyse", "analyze", "answer"), "fit"),
    **dict.fromkeys(("estimate", "price", "dry-run"), "plan"),
    **dict.fromkeys(("save", "download"), "export"),
    **dict.fromkeys(("predict", "suggest", "best"), "recommend"),
    **dict.fromkeys(("check", "evaluate"), "audit"),
    **dict.fromkeys(("page", "plot", "html"), "report"),
    **dict.fromkeys(("kill", "cancel"), "stop"),
    **dict.fromkeys(("time", "benchmark"), "try"),
    **dict.fromkeys(("measure", "costs", "latency"), "cost"),
    **dict.fromkeys(("progress", "ps"), "status"),
}
#: Other words for options.
OPTIONS = {
    **dict.fromkeys(("--time", "--hour", "--duration", "--budget"), "--hours"),
    **dict.fromkeys(("--output", "--folder", "--dir", "-o"), "--out"),
    **dict.fromkeys(("--text", "--corpus", "--path"), "--data"),
    **dict.fromkeys(("--gpu", "--gpus"), "--device"),
    **dict.fromkeys(("--jobs", "--slots", "--parallel", "--workers"), "-j"),
    **dict.fromkeys(("--confidence", "--alpha"), "--level"),
    **dict.fromkeys(("--compute", "--flop"), "--flops"),
    **dict.fromkeys(("--col", "--columns", "--rename"), "--column"),
}


class Verbs(TyperGroup):
    """A group of verbs that proposes the nearest one for one that it lacks."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that the arguments name.

        Raises:
            SpecError: there is no such verb.
        """
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            raise SpecError(_no_such_verb(word, _path(ctx), self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def _no_such_verb(word: str, path: Sequence[str], verbs: Sequence[str]) -> str:
    # Before spelling: `start` looks like `status`.
    other = VERBS.get(word.lower())
    near = [other] if other and other in verbs else near_misses(word, verbs)
    meant = "".join(f"; did you mean `{_with(word, verb)}`?" for verb in near) or "."
    return (
        f"There is no verb `{shortened(word)}`{meant} The verbs are {', '.join(verbs)}; see "
        f"`{command(*path, '--help')}`."
    )


def usage_text(error: Any) -> str:
    """Return the message of an error of Typer about arguments, its `UsageError`."""
    context = error.ctx
    path = _path(context) if context else sys.argv[1:2]
    help_ = f"See `{command(*path, '--help')}`."
    if option := getattr(error, "option_name", None):
        if context is not None and option not in _options(context.command):
            return f"{_no_such_option(option, context, path)} {help_}"
        return f"{_sentence(error.format_message())} {help_}"
    flags = getattr(getattr(error, "param", None), "opts", [])
    value = _value_of(flags)
    if value is not None:
        message = error.message.removeprefix("Value error, ")
        expected = message.removeprefix("Input should be").partition(", unable to parse")[0].strip()
        text = f"it should be {expected}" if message.startswith("Input should be") else expected
        return f"{flags[0]} {shortened(value)}: {_sentence(text)} {help_}"
    return f"{_sentence(error.format_message())} {help_}"


def _sentence(text: str) -> str:
    return f"{' '.join(text.split()).rstrip('.')}."


def _path(context: Any) -> list[str]:
    """The verb with its group, without the name of the program."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return names


def _options(verb: Any) -> list[str]:
    return ["--help", *(name for parameter in verb.params for name in parameter.opts if name.startswith("-"))]


def _value_of(flags: Iterable[str]) -> str | None:
    """The value of an option in the arguments of this process; None if it has none of its own."""
    words = sys.argv[1:]
    for index, word in enumerate(words):
        for flag in flags:
            if word == flag and flag.startswith("-") and index + 1 < len(words):
                return words[index + 1]
            if flag.startswith("--") and word.startswith(f"{flag}="):
                return word.partition("=")[2]
    return None


def _no_such_option(option: str, context: Any, path: Sequence[str]) -> str:
    text = f"`{command(*path) if path else 'interplay'}` has no option {shortened(option)}"
    allowed, other = _options(context.command), OPTIONS.get(option)
    if other in allowed:
        return f"{text}; did you mean `{_with(option, str(other))}`?"
    if near := near_misses(option, allowed, cutoff=0.75):
        return f"{text}; did you mean `{_with(option, near[0])}`?"
    if any(parameter.name == "changes" for parameter in context.command.params) and (key := _key(option)):
        return f"{text}; it is a key of the spec: `{_with_key(option, key)}`."
    verbs = getattr(context.find_root().command, "commands", {})
    wanted = {option, *filter(None, [other])}
    having = [name for name, verb in verbs.items() if wanted & set(_options(verb))]
    if having:
        (flag, *_) = sorted(wanted & set(_options(verbs[having[0]])))
        return f"{text}; {flag} is an option of {', '.join(f'`{name}`' for name in having)}."
    return f"{text}."


def _with(word: str, other: str) -> str:
    """The command of this process with another word."""
    words = [
        other
        if argument == word
        else f"{other}={argument.partition('=')[2]}"
        if argument.startswith(f"{word}=")
        else argument
        for argument in sys.argv[1:]
    ]
    return command(*words)


def _with_key(option: str, key: str) -> str:
    """The command of this process with a key of the spec in place of an option and its value."""
    words = sys.argv[1:]
    at = next((at for at, word in enumerate(words) if word.startswith(option)), 0)
    value = words[at].removeprefix(option).removeprefix("=")  # --seeds=5, -j8
    rest = words[:at] + words[at + 1 :]
    if not value and at < len(rest):
        value = rest.pop(at)
    return command(*rest, f"{key}={value or 'VALUE'}")


def _key(option: str) -> str | None:
    """The key of the spec that is named like an option: `--seeds` -> `training.seeds`."""
    from study.spec.frontier import FrontierSection
    from study.spec.resources import ResourcesSection
    from study.spec.training import TrainingSection

    name = option.lstrip("-").replace("-", "_")
    sections: dict[str, type[BaseModel]] = {
        "training": TrainingSection,
        "frontier": FrontierSection,
        "resources": ResourcesSection,
    }
    keys = {
        field: f"{section}.{field}" for section, model in sections.items() for field in model.model_fields
    }
    keys |= {field[:-1]: key for field, key in keys.items() if field.endswith("s") and field[:-1] not in keys}
    return keys.get(name) or {"-j": "resources.slots"}.get(option)
