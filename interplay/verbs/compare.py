"""Compare studies or fits: crossings, slopes and best depths by the key in which they differ."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.fit.compared_studies import ComparedStudy, in_one_unit
from analysis.fit.measures import Value
from analysis.fit.recommendation import read_fit
from analysis.runs.files import is_table
from core.command_line import call, relative
from core.errors import InputError, shortened
from interplay.answer import Answer, refuse_report_folder
from interplay.fit_files import COMPARISON, FIT, RUNS, runs_beside
from interplay.result import VerbResult
from interplay.study_fit import StudyRuns, answer_of
from interplay.terminal import Sentence, pasteable, rich_table
from interplay.verbs.read import Source, name_of_source, runs_of
from study.errors import SpecError
from study.spec.recorded import differences
from study.spec.study import StudySpec, load_spec
from study.spec.yaml_file import PATHS, SPEC
from study.tracking.study_paths import study_paths

if TYPE_CHECKING:
    # It draws figures.
    from analysis.report.comparison_page import StudyComparison

#: Most keys and characters of a value that a sentence names.
MOST_KEYS, MOST_VALUE = 6, 60
#: Keys that change the data or the training tokens, so that losses are not compared.
NOT_COMPARABLE = (
    "data.",
    "frontier.flops",
    "frontier.minutes",
    *(f"training.{key}" for key in ("tokens", "tokens_per_parameter", "steps", "batch", "context")),
)


@dataclass(frozen=True, repr=False)
class ComparedStudies(VerbResult):
    """Studies compared with each other.

    Attributes:
        comparison: every number and sentence.
        page: the page that was written, if any.
    """

    comparison: "StudyComparison"
    page: Path | None = None

    @property
    def sentences(self) -> list[str]:
        """What the comparison shows, and what it cannot show."""
        return self.comparison.answers

    def to_json(self) -> dict[str, Any]:
        """Return the document of `interplay compare --json`, which is the content of `comparison.json`."""
        return self.comparison.to_json()

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [Sentence(sentence) for sentence in self.sentences]
        for table in self.comparison.tables():
            parts += [Text(), rich_table(table), *([Sentence(table.note, "dim")] if table.note else [])]
        if self.page is not None:
            parts.append(pasteable("Page: ", str(relative(self.page))))
        return Group(*parts)


@dataclass(frozen=True)
class _Read:
    """A source as it was read: `place` is its path, empty without one, and `folder` has its report, if any."""

    name: str
    place: str
    study: ComparedStudy
    spec: StudySpec | None
    folder: Path | None


def _refuse_equal_budgets(study: ComparedStudy) -> None:
    """Raise an `InputError` if a study has its crossings in FLOPs or minutes: those of others are in N."""
    if study.fit is None or study.fit.tokens.rule != "compute":
        return
    budget = "FLOPs" if study.fit.tokens.budget_unit == "FLOPs" else "training time"
    raise InputError(
        f"{study.value} compares depths at equal {budget}, and a comparison of studies has crossings in N, of studies "
        f"at equal training tokens. Leave it out, and read its crossings with `{call('fit', study.value)}`."
    )


def compare(
    *sources: Source | Answer, out: str | Path | None = None, results: str | Path = "results"
) -> ComparedStudies:
    """Compare two or more studies or fits: their crossings, slopes, best depths and measures.

        interplay.compare("small-300", "small-1200").sentences
        interplay.compare("ours/fit.json", "theirs.csv", out="compared").page

    If the specs of the studies differ in one key, the studies are named by its value; else by their names.

    Args:
        *sources: a study of `results` or a folder, as its last fit is there; a `fit.json`; a spec whose rows are in
            `results`, a run table or a DataFrame, which are fitted; or an answer.
        out: a folder for the page `report.html`, its figures and `comparison.json`; without it nothing is written.
        results: root of the results.

    Raises:
        SpecError: fewer than two sources, one of them given twice, or `out` is a file or the folder of a study.
        InputError: a source cannot be read or fitted.
        OSError: the folder cannot be written.
    """
    from analysis.report.comparison_page import StudyComparison, write_comparison

    if len(sources) < 2:
        raise SpecError(
            "A comparison needs two studies or more: give their names, folders, fit.json files or run tables."
        )
    folder = None if out is None else Path(out)
    if folder is not None:
        refuse_report_folder(folder, COMPARISON)
    for source, other in combinations(sources, 2):
        if source is other and not isinstance(source, str | Path):
            name = source.title if isinstance(source, Answer) else name_of_source(source)
            raise SpecError(f"{name} is given twice; a comparison needs different studies.")
    files = [file.resolve() for source in sources if (file := _file(source, Path(results)))]
    if twice := next((file for file in files if files.count(file) > 1), None):
        raise SpecError(f"{relative(twice)} is given twice; a comparison needs different studies.")
    sources_read = [_read(source, Path(results)) for source in sources]
    for item in sources_read:
        _refuse_equal_budgets(item.study)
    names = _distinct_names(sources_read)
    specs = [item.spec for item in sources_read if item.spec is not None]
    keys = _differing_keys(specs) if len(specs) == len(sources) else {}
    key, values, notes = _values(names, keys, has_specs=len(specs) == len(sources))
    studies = [
        replace(item.study, value=value, report=_link(item.folder, folder))
        for item, value in zip(sources_read, values, strict=True)
    ]
    stated, units = in_one_unit(studies)
    comparable = len(specs) == len(sources) and not any(name.startswith(NOT_COMPARABLE) for name in keys)
    facts = {"studies": ", ".join(names)}
    for name, texts in keys.items():
        facts[name] = "; ".join(f"{study}: {text}" for study, text in zip(names, texts, strict=True))
    comparison = StudyComparison(" and ".join(names), key, stated, comparable, [*notes, *units], facts)
    page = None if folder is None else write_comparison(comparison, folder)
    return ComparedStudies(comparison, page)


def _read(source: Source | Answer, results: Path) -> _Read:
    """Read a source: the fit and the run table that a folder has, or the fit of a run table."""
    if isinstance(source, Answer):
        return _Read(
            source.title,
            "",
            ComparedStudy(source.title, source.table, source.fit, None),
            None,
            None,
        )
    file = _fit_file(source, results)
    if file is None:
        runs = runs_of(source, results=results, verb="fit")
        try:
            fitted = answer_of(runs, level=0.95, tokens=None, unit="nats").fit
        except InputError:
            if len(runs.table.used):
                raise
            fitted = None
        spec = runs.plan.planner.spec if isinstance(runs, StudyRuns) else None
        folder = None if spec is None else study_paths(spec, results.resolve()).folder
        return _Read(
            runs.title,
            name_of_source(source) if isinstance(source, str | Path | StudySpec) else "",
            ComparedStudy(runs.title, runs.table, fitted, None),
            spec,
            folder,
        )
    folder = file.parent
    recorded = folder / SPEC
    is_folder = file.name == FIT
    fitted = read_fit(file).fit
    runs_table = None
    if is_folder and (folder / RUNS).is_file():
        runs_table = runs_beside(folder, fitted)
    spec = load_spec(str(recorded)) if is_folder and recorded.is_file() else None
    name = file.resolve().parent.name if is_folder else file.stem
    return _Read(
        name, str(source), ComparedStudy(name, runs_table, fitted, None), spec, folder if is_folder else None
    )


def _file(source: Source | Answer, results: Path) -> Path | None:
    """The file that a source is read from; None for a spec and for what is in memory."""
    if isinstance(source, str | Path) and is_table(str(source)):
        return Path(source)
    return None if isinstance(source, Answer) else _fit_file(source, results)


def _fit_file(source: Source, results: Path) -> Path | None:
    """The fit file that a source names: the file, its folder, or a study of `results`; None for any other source."""
    if not isinstance(source, str | Path):
        return None
    path = Path(source)
    folders = [path, *([results / path] if path.name == str(source) else [])]
    files = [*([path] if path.suffix == ".json" else []), *(folder / FIT for folder in folders)]
    return next((file for file in files if file.is_file()), None)


def _distinct_names(sources: Sequence[_Read]) -> list[str]:
    """The names of the sources; those that are equal by their paths, or by their place without one."""
    names = [item.name for item in sources]
    shown = [
        item.name if names.count(item.name) == 1 else item.place or f"{item.name.removeprefix('a ')} {place}"
        for place, item in enumerate(sources, 1)
    ]
    if twice := next((name for name in shown if shown.count(name) > 1), None):
        raise SpecError(f"{twice} is given twice; a comparison needs different studies.")
    return shown


def _differing_keys(specs: Sequence[StudySpec]) -> dict[str, list[str]]:
    """The keys in which the specs differ, with the value of each spec as text, `-` for none."""
    first, *others = specs
    each = [differences(first, other) for other in others]
    keys: dict[str, list[str]] = {}
    for name in dict.fromkeys(key for differing in each for key in differing):
        base = next(pair[name][0] for pair in each if name in pair)
        keys[name] = [base, *(pair[name][1] if name in pair else base for pair in each)]
    # Recorded specs may reach one file by different paths.
    return {
        name: texts
        for name, texts in keys.items()
        if name.split(".")[-1] not in PATHS or len({os.path.normpath(text) for text in texts}) > 1
    }


def _values(
    names: Sequence[str], keys: Mapping[str, Sequence[str]], *, has_specs: bool
) -> tuple[str, list[Value], list[str]]:
    """The key, the value of each study, and a sentence on the keys that differ."""
    if len(keys) == 1:
        ((key, texts),) = keys.items()
        shown = [Path(text).name for text in texts] if key.split(".")[-1] in PATHS else list(texts)
        if len(set(shown)) == len(texts):
            return key, [_value(text) for text in shown], []
    if not has_specs:
        return (
            "study",
            list(names),
            ["Without the specs of all studies, what differs between them is not known."],
        )
    if not keys:
        return "study", list(names), ["The specs of the studies do not differ in a key that changes cells."]
    listed = [
        f"{key} ({', '.join(shortened(text, MOST_VALUE) for text in texts)})"
        for key, texts in [*keys.items()][:MOST_KEYS]
    ]
    more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
    what = "one key" if len(keys) == 1 else f"{len(keys)} keys, whose effects cannot be told apart"
    return "study", list(names), [f"The studies differ in {what}: {'; '.join(listed)}{more}."]


def _value(text: str) -> Value:
    """The value of a key from its text in a list of differences."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) and not isinstance(value, bool) else text


def _link(folder: Path | None, out: Path | None) -> str | None:
    """The link from the page in `out` to the report in the folder of a study; None if one of them is missing."""
    if folder is None or out is None or not (folder / "report.html").is_file():
        return None
    return Path(os.path.relpath(folder.resolve() / "report.html", out.resolve())).as_posix()
