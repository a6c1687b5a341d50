"""Hostile input, drawn at random: specs, overrides and run tables. Only an answer or a user's error may come of it.

A case may take 10 s of processor time and 1 GiB of memory, and a message 2,000 characters. The gate has fixed seeds.
`make test-all` goes on with others for `INTERPLAY_FUZZ_SECONDS`, a minute, and `make fuzz` for an hour.
"""

import io
import itertools
import json
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.console import Console

from analysis.fit.document import fit
from analysis.runs.table import read_runs
from core.errors import InputError
from core.errors import InputError as AnalysisError
from interplay.terminal import fit_table
from study.plan.plan import make_plan
from study.plan.table import plan_table
from study.spec.study import load_spec
from study.spec.yaml_file import preset_names
from tests.study.small import SMALL
from tests.tables import foreign_runs
from trainables.data.kinds import python_source

#: Bounds of a case: seconds of processor time, bytes beyond what the process holds, characters of a message.
SECONDS, MEMORY, CHARACTERS = 10, 1 << 30, 2000
#: Address space that ends a case at once; Arrow reserves a gigabyte of it and fills little.
ADDRESSES = 4 << 30
#: Seconds of the long run, shared by the kinds of input.
LONG = float(os.environ.get("INTERPLAY_FUZZ_SECONDS", "60"))
#: Cases of the gate.
CASES = {"specs": 150, "overrides": 400, "tables": 50}

BASES = (
    "quickstart",
    "frontier-search",
    "quickstart-search",
    "text",
    "hops",
    "connectivity",
    "kaplan",
    "very-deep",
    SMALL,
)


def entries(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All dotted keys of a document with their values, sections included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{prefix}{key}", inner
            yield from entries(inner, f"{prefix}{key}.")


#: The keys of the presets, with the values they have there.
KNOWN: dict[str, list[Any]] = {
    **{"data.path": ["corpus.txt", "folder", ["*.txt", "folder"]]},
    **{"sensitivity.lr_factors": [[0.5, 2]], "search.max_seeds": [9]},
}
for preset in preset_names():
    for name, found in entries(load_spec(preset).model_dump(mode="json")):
        KNOWN.setdefault(name, []).append(found)
KEYS = sorted(KNOWN)


# Values, as YAML

# fmt: off
LEVELS = ", ".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))
LAUGHS = f"{{a0: &a0 [x, x, x], {LEVELS}}}"
ODD = (
    *('!!int "x"', '!!int ""', '!!float ""', "!!bool x", "!!timestamp x", "!!binary é", "!!binary aGk=", "!!set {a}"),
    *("!!omap [a: 1]", "!!map x", "!!seq x", "!!str [1]", "!!null x", "!!python/object:os.system x", "!x y"),
    *("2026-11-23", "2026-11-23 10:00:00", "1:30", "1:2:3.5", "0b11", "0o17", "017", "=", "<<", "~", "yes", ""),
    *("&a [*a]", "&a {b: *a}", "[&a 1, *a, *b]", "{<<: {a: 1}}", "{<<: [{a: 1}, {a: 2}]}", "{<<: 3}", "!!int [1]"),
    *("{a: 1, a: 2}", "{.nan: 1}", "{1.5: 2}", "{1: 2, 01: 3}", "[1", "}", "a: b: c", "'", "\t", "\0", "? [a]\n: 1"),
    *("[" * 400, "[" * 400 + "]" * 400, "- " * 400, "{a: " * 400, "? " * 400, LAUGHS, "9" * 5000, "0x" + "f" * 5000),
    *("1" + ":59" * 3000, "1." + "0" * 5000, "x" * 50_000, f"'{'y' * 50_000}'", "é\u2028\u202e\x1b[31m\udcff"),
)
NUMBERS = (
    *str.split("0 1 2 3 -1 0.0 -0.0 1e-323 1e-320 1e-9 0.5 1e6 1e12 1e15 1e16 1e300 1e308 -1e308 .inf -.inf .nan"),
    *str.split("10000 99999 720720 8648640 100000000 1073741824 999999999999 1000000000000000003"),
    *(str(2**31), str(2**53 + 1), str(2**63), "9" * 99),
)
WORDS = (
    *str.split("auto cpu h100-80gb grid tpe crossing width table fixed mup completep bytes bpe bf16 hierarchy files"),
    *str.split("hub mixture python-source hops repeats connectivity expressions stairs / .. ~ ~nobody *.txt [a folder"),
    *("corpus.txt", "nowhere/x.txt", "a/../b", "x" * 300, "http://[::1"),
)
# fmt: on


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**9).removesuffix("...\n").strip()


@st.composite
def long_lists(draw: st.DrawFn) -> str:
    """Lists of up to 20,000 numbers or words."""
    count = draw(st.sampled_from([0, 1, 2, 7, 150, 201, 3000, 20_000]))
    form = draw(st.sampled_from(["{}", "{}.5", "1e{}", "x{}", "{}e-8", "7"]))
    return "[" + ", ".join(form.format(i + 1) for i in range(count)) + "]"


@st.composite
def sections(draw: st.DrawFn) -> str:
    """Sections with keys that exist or do not."""
    names = st.sampled_from([key.rpartition(".")[2] for key in KEYS]) | st.text(max_size=5).map(flow)
    pairs = draw(st.dictionaries(names, plain_values, max_size=4))
    return "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"


SPANS = (
    "{min: 1e3, max: 1e9, points: 10000}",
    "{min: 1, max: 1e15, points: 2}",
    "{min: 1e-300, max: 1, points: 3}",
)
numbers = (
    st.sampled_from(NUMBERS) | st.integers().map(str) | st.floats().map(flow) | st.integers(1, 64).map(str)
)
plain_values = numbers | st.sampled_from(WORDS) | st.text(max_size=20).map(flow)
values = st.one_of(
    numbers,
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.sampled_from(ODD),
    st.sampled_from(ODD[-20:]),
    st.text(max_size=40),
    st.lists(plain_values, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
    st.sampled_from(SPANS),
    long_lists(),
    sections(),
)


def like(value: Any) -> st.SearchStrategy[Any]:
    """Values of the type of another one, from usual to absurd."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return st.just(value)
    if isinstance(value, int):
        near = [value, value + 1, 2 * value, 10 * value, 1000 * value, 10**7, 10**9]
        return st.sampled_from(near) | st.integers(1, 9)
    if isinstance(value, float):
        return st.integers(-12, 12).map(lambda power: value * 10.0**power) | st.floats(1e-300, 1e300)
    if isinstance(value, list):
        return st.lists(st.sampled_from([*value, 1]).flatmap(like), max_size=4) | st.just(value * 2)
    return st.fixed_dictionaries({key: like(inner) for key, inner in value.items()})


@st.composite
def overrides(draw: st.DrawFn) -> str:
    """An override of a key, often with a value of its type."""
    kind = draw(st.sampled_from(["usual", "usual", "absurd", "absurd", "absurd", "text"]))
    if kind == "text":
        return draw(st.text(max_size=30))
    key = draw(keys)
    usual = kind == "usual" and key in KNOWN
    return f"{key}={flow(draw(st.sampled_from(KNOWN[key]).flatmap(like))) if usual else draw(values)}"


keys = st.sampled_from(KEYS) | st.sampled_from(
    ["a" * 9000, "a." * 9000 + "b", "frontier.depths.0", "data.parts.0.x"]
)
override_cases = st.tuples(
    st.sampled_from(BASES),
    st.sampled_from([1, 1, 2, 3]).flatmap(lambda most: st.lists(overrides(), min_size=1, max_size=most)),
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """The text of a spec in which some values are replaced, and perhaps some lines."""
    raw = yaml.safe_load(load_spec(draw(st.sampled_from(BASES))).to_yaml())
    marks = {}
    for number in range(draw(st.sampled_from([0, 1, 1, 2]))):
        key = draw(st.sampled_from(KEYS))
        *parents, last = key.split(".")
        section = raw
        for parent in parents:
            section = (
                section[parent]
                if isinstance(section.get(parent), dict)
                else section.setdefault(f"{parent}_", {})
            )
        section[last] = mark = f"MARK{number}"
        usual = st.sampled_from(KNOWN[key]).flatmap(like).map(flow)
        marks[mark] = draw(usual if draw(st.booleans()) else values)
    text = yaml.safe_dump(raw, default_flow_style=None, width=200, sort_keys=False)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    lines = text.splitlines()
    odd = ["- x", "<<: *a", "a: &a {b: 1}", "...", "---", "#" * 600_000]
    if draw(st.sampled_from([False, False, True])):
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(odd)))
    return "\n".join(lines)


# Tables

# fmt: off
CELLS = (
    *str.split("nan inf -inf 0 -1 0.5 2 3.0 1e200 1e-200 1e308 -1e308 1e400 1e-320 1e15 1e16 NA x true done diverged"),
    *str.split("10M 1,156 3,5 $7 1.5T RUNNING c4"),
    *("stopped", "failed", "", '"', "\0", str(2**53), str(2**63), "9" * 5000, "x" * 9000),
)
HEADINGS = (
    *str.split("loss depth width seed lr tokens heads params budget status reason cell purpose protocol"),
    *("vocabulary", "total_params", "train_seconds", "own", "run", "row", "", "x" * 3000),
    *str.split("State dataset positions step batch_size val_ppl eval/loss config.n_layer"),
    "tokens (M)",
)
# fmt: on


@dataclass(frozen=True)
class TableCase:
    """A file and the options of `fit`."""

    text: str
    suffix: str
    options: dict[str, Any]
    columns: dict[str, str]
    count: str


@st.composite
def tables(draw: st.DrawFn) -> TableCase:
    """A table with known crossings in which cells, headings and scales are replaced."""
    lines = foreign_runs("loss").splitlines()
    heading, *rows = [line.split(",") for line in lines]
    more = [[]] * 3 + [[name] for name in HEADINGS] + [["tokens", "lr"]]
    for name in draw(st.sampled_from(more)):
        heading.append(name)
        cell = draw(st.sampled_from(CELLS) | st.floats(1e-3, 1e12).map(str))
        for row in rows:
            row.append(cell)
    scale = draw(st.sampled_from([1, 1, 1, 1e-200, 1e-14, 1e-9, 1e6, 1e200, 1e300]))
    for row in rows:
        row[2] = repr(float(row[2]) * scale)
    if draw(st.booleans()):
        rows = draw(st.lists(st.sampled_from(rows), max_size=60))
    for _ in range(draw(st.integers(0, 4))):
        if rows:
            row = [*draw(st.sampled_from(rows))]
            row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from(CELLS) | st.floats().map(repr))
            rows = [*rows, row]
    suffix = draw(st.sampled_from([".csv"] * 6 + [".tsv", ".jsonl", ".jsonl", ".json", ".parquet"]))
    separator = "\t" if suffix == ".tsv" else draw(st.sampled_from(",,,,;|"))
    if suffix in (".jsonl", ".json"):
        objects = [json.dumps(dict(zip(heading, map(json_value, row), strict=True))) for row in rows]
        text = "\n".join(objects) if suffix == ".jsonl" else f"[{','.join(objects)}]"
    else:
        text = "\n".join(separator.join(row) for row in [heading, *rows])
    if draw(st.sampled_from([False] * 6 + [True])):
        at = draw(st.integers(0, len(text)))
        text = (
            text[:at]
            + draw(st.sampled_from(['"', "[" * 5000, "\0", "\ufeff", "{}", ",,,,", "\r"]))
            + text[at:]
        )
    odd = [{"tokens": 1e300}, {"level": 1e-9}, {"level": 1 - 1e-12}]
    options = draw(st.sampled_from([{}] * 6 + odd))
    columns = draw(st.sampled_from([{}] * 9 + [{"loss": "own"}, {"depth": "x" * 3000}, {"y" * 3000: "loss"}]))
    return TableCase(
        text, suffix, options, columns, draw(st.sampled_from(["nonembedding", "nonembedding", "table"]))
    )


def json_value(cell: str) -> Any:
    """A number if it is one, else the text."""
    try:
        return float(cell)
    except ValueError:
        return cell


# Running a case


class TooLongError(BaseException):
    """A case took too long; no `except Exception` catches it."""


@dataclass
class Tally:
    """What came of the cases of a kind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    memory: int = 0
    characters: int = 0

    def __str__(self) -> str:
        found = ", ".join(f"{count} {name}" for name, count in self.outcomes.items())
        most = f"{self.seconds:.1f} s, {self.memory / 1e6:.0f} MB and {self.characters} characters at most"
        return f"{found}; {most}"


def peak_memory() -> int:
    """Most bytes that the process held since the last call."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@contextmanager
def bounds() -> Iterator[None]:
    """Bound processor time and address space; the timer of pytest-timeout is another one."""

    def stop(*_: object) -> None:
        raise TooLongError(f"{SECONDS} s of processor time")

    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    former = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESSES, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, former)


def plan_of(source: str, changes: list[str]) -> None:
    """What `interplay plan` does, with and without `--json`."""
    spec = load_spec(source, changes)
    plan = make_plan(spec).trainable()
    json.dumps(plan.to_json(), allow_nan=False)
    Console(file=io.StringIO(), width=120).print(plan_table(plan))


def run_spec(text: str) -> None:
    Path("spec.yaml").write_text(text, encoding="utf-8", errors="surrogateescape")
    plan_of("spec.yaml", [])


def run_overrides(case: tuple[str, list[str]]) -> None:
    plan_of(*case)


def run_table(case: TableCase) -> None:
    path = Path(f"runs{case.suffix}")
    path.write_text(case.text, encoding="utf-8")
    found = fit(read_runs(path, case.columns, count=case.count), **case.options)  # type: ignore[arg-type]
    json.dumps(found.to_json(), allow_nan=False)
    Console(file=io.StringIO(), width=120).print(fit_table(found))


KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], None]]] = {
    "specs": (documents(), run_spec),
    "overrides": (override_cases, run_overrides),
    "tables": (tables(), run_table),
}


def check(run: Callable[[Any], None], case: Any, tally: Tally) -> None:
    """Run a case within its bounds; only an answer or a user's error of one paragraph may come of it."""
    began = time.process_time()
    peak_memory()
    held = peak_memory()
    try:
        with bounds():
            run(case)
        tally.outcomes["answered"] += 1
    except (InputError, AnalysisError) as error:
        tally.outcomes["refused"] += 1
        message = str(error)
        tally.characters = max(tally.characters, len(message))
        assert 0 < len(message) < CHARACTERS
        assert "0 or fewer" not in message
        assert "at most 0 " not in message
    seconds, memory = time.process_time() - began, peak_memory() - held
    tally.seconds, tally.memory = max(tally.seconds, seconds), max(tally.memory, memory)
    assert seconds < SECONDS
    assert memory < MEMORY


def fuzz(kind: str, first: int, cases: int, tally: Tally) -> None:
    """Draw cases of a kind, the same for the same seed."""
    strategy, run = KINDS[kind]

    @seed(first)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def case(drawn: Any) -> None:
        check(run, drawn, tally)

    case()


@pytest.fixture(autouse=True)
def _sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with text; other folders of the machine are not read, because their size is not bounded."""
    (tmp_path / "folder").mkdir()
    for name in ("corpus.txt", "folder/a.txt", "folder/b.jsonl", "folder/[c].md"):
        (tmp_path / name).write_text('{"text": "words"}\n' * 50)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(python_source, "roots", lambda: (("folder", tmp_path),))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_answered_or_refused(kind: str) -> None:
    tally = Tally()
    fuzz(kind, 15, CASES[kind], tally)
    print(f"{kind}: {tally}")
    assert tally.outcomes["answered"] > 0.02 * CASES[kind]
    assert tally.outcomes["refused"] > 0.1 * CASES[kind]


@pytest.mark.extended
@pytest.mark.timeout(3600 + LONG)
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_of_new_seeds(kind: str) -> None:
    tally, end = Tally(), time.monotonic() + LONG / len(KINDS)
    for number in itertools.count(time.time_ns() % 2**32):
        if time.monotonic() > end:
            break
        print(f"seed {number}")
        fuzz(kind, number, 100, tally)
    print(f"{kind}: {tally}")
