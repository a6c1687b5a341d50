"""Commands, options and paths as messages show them: those of the shell, or the arguments of Python."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Options whose argument in Python has another name.
_ARGUMENTS = {"column": "columns", "json": "to_json()"}
#: Verbs whose function in Python has another name.
_FUNCTIONS = {"try": "try_steps"}
#: Options with a value NAME=VALUE, whose argument is a mapping.
_MAPPINGS = ("assume", "column", "where")

#: The words after `interplay` of the command that runs in this process; None where Python calls the functions.
_words: Sequence[str] | None = None


@contextmanager
def in_shell(words: Sequence[str]) -> Iterator[None]:
    """Let the messages of this process name options of the command `interplay WORDS` instead of arguments."""
    global _words
    before, _words = _words, tuple(words)
    try:
        yield
    finally:
        _words = before


def is_shell() -> bool:
    """Whether messages are for the reader of a shell, who runs the command, rather than for a caller in Python."""
    return _words is not None


def option(name: str, value: object = None) -> str:
    """Return an option as the reader writes it: `--level 0.9` in a shell, `level=0.9` in Python.

    Args:
        name: without dashes, as of the command.
        value: None for the name alone. A text in capitals stands for a value. An option that can be given several
            times has `NAME=VALUE`, in Python an entry of a mapping: `columns={'loss': 'val_loss'}`.
    """
    if _words is not None:
        shown = f"{value:g}" if isinstance(value, float) else value
        return f"--{name}" if value is None else f"--{name} {shown}"
    argument = _ARGUMENTS.get(name, name.replace("-", "_"))
    if value is None:
        return argument if argument.endswith(")") else f"{argument}="
    if name in _MAPPINGS:
        key, _, entry = str(value).partition("=")
        return f"{argument}={{{key!r}: {_written(entry) if name == 'assume' else repr(entry)}}}"
    return f"{argument}={_written(value)}"


def options(**values: object) -> str:
    """Return several options, as `option` does."""
    return (", " if _words is None else " ").join(option(name, value) for name, value in values.items())


def try_with(given: Sequence[tuple[str, str]] = (), changes: Sequence[str] = ()) -> str:
    """Return ` Try: ` with what may help: the whole command to paste in a shell, the arguments in Python.

    `given` are options and their values; `changes` are keys of a spec, such as "training.seeds=5".
    """
    if _words is not None:
        flags = [part for name, value in given for part in (f"--{name}", value)]
        return f" Try: {command(*_words, *flags, *changes)}"
    pairs: dict[str, dict[str, str]] = {}
    for name, value in given:
        key, _, entry = value.partition("=")
        pairs.setdefault(_ARGUMENTS.get(name, name), {})[key] = entry
    return f" Try: {', '.join([*map(repr, changes), *(f'{name}={value}' for name, value in pairs.items())])}"


def _written(value: object) -> str:
    """A value in Python: a text is quoted unless it is a number or stands for a value; a list of one is its value."""
    if isinstance(value, list):
        return ", ".join(map(_written, value)) if len(value) == 1 else f"[{', '.join(map(_written, value))}]"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, str | Path) and not (text.isupper() and text.isalpha()):
        try:
            float(text)
        except ValueError:
            return repr(text)
    return text


def relative(path: Path) -> Path:
    """Return a path relative to the working folder if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def command(verb: str, *words: str, results: Path | None = None) -> str:
    """Return a command of `interplay` with its arguments, quoted for a shell.

    `results`, the root of the results, is added as an option unless it is the default one.
    """
    where: list[str] = []
    if results is not None and results.resolve() != Path("results").resolve():
        where = ["--results", str(relative(results.resolve()))]
    return shlex.join(["interplay", verb, *words, *where])


def call(verb: str, *arguments: object, results: Path | None = None, **given: object) -> str:
    """Return the call of a verb: `interplay fit a.csv --out b` or, in Python, `interplay.fit('a.csv', out='b')`.

    Args:
        verb: one that is a function of `interplay` too.
        arguments: the words after the verb.
        results: as of `command`.
        given: options and their values. One of None is left out; a list gives an option several times; True is
            an option without a value.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if _words is not None:
        several = ((name, value if isinstance(value, list) else [value]) for name, value in named.items())
        flags = [
            part
            for name, values in several
            for value in values
            for part in ((_option_name(name),) if value is True else (_option_name(name), value))
        ]
        return command(verb, *map(_in_shell, [*arguments, *flags]), results=results)
    if results is not None and results.resolve() != Path("results").resolve():
        named["results"] = str(relative(results.resolve()))
    words = [*map(_written, arguments), *(f"{name}={_written(value)}" for name, value in named.items())]
    return f"interplay.{_FUNCTIONS.get(verb, verb)}({', '.join(words)})"


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _in_shell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
