"""What the presets came out as when they were run: recorded from their results, never typed in.

`python -m study.commands.preset_outcomes NAME ... --results DIR` reads the rows of presets that were run and writes what they say into
`presets/outcomes.json`, which `interplay presets` shows.
"""

import argparse
import datetime
import json
import math
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.spec.study import StudySpec, load_spec, studies
from trainables.cell import digest

FILE = "outcomes.json"


class Outcome(BaseModel):
    """What a preset came out as.

    Attributes:
        identity: of the preset that was run (`identity`); where it has another by now, this is of an earlier form.
        date: of the last row, ISO.
        seeds: that every shape was trained with.
        cells: rows with a loss.
        train_seconds: in training steps and evaluations, all cells together.
        seconds: in which cells were trained, on the slots there were; breaks between runs are not counted.
        words: the answer of the report, a sentence each.
        revision: of the code.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    date: str
    seeds: tuple[int, ...]
    cells: int
    train_seconds: float
    seconds: float
    words: tuple[str, ...]
    revision: str


def identity(spec: StudySpec) -> str:
    """Sixteen hex digits of what a study asks and how it is trained; not of its words or of where it runs.

    Nor of its diagnostics, which change no row, nor of keys left as they are, of which there will be more.
    """
    told = {"name", "description", "claim", "resources", "tracking", "diagnostics"}
    return digest(spec.model_dump(mode="json", exclude=told, exclude_defaults=True))


def outcomes() -> dict[str, Outcome]:
    """The outcomes that come with the package, by preset."""
    text = (resources.files("study") / "presets" / FILE).read_text(encoding="utf-8")
    return {name: Outcome.model_validate(value) for name, value in json.loads(text).items()}


def preset_plans(name: str) -> list[Plan]:
    """The plan of a preset, or of each study of a series; as if for a machine that holds it."""
    return [make_plan(one, to_read=True) for one in studies(load_spec(name))]


def read_outcome(name: str, results: Path) -> Outcome:
    """What the rows of a preset say.

    Raises:
        SpecError: it has no rows, or some of its cells have none.
    """
    from study.tracking.ledger import study_rows
    from study.tracking.provenance import revision
    from study.tracking.study_paths import study_paths

    spec = load_spec(name)
    rows = []
    for one in studies(spec):
        plan = make_plan(one, to_read=True)
        found = study_rows(plan, study_paths(one, results.resolve()).ledger.rows())
        if plan.sampler == "grid" and (missing := len(plan.cells) - len(found)):
            raise SpecError(
                f"{missing} cells of {one.name} have no row in {results}; run `interplay run {name}` first."
            )
        rows += list(found.values())
    if not rows:
        raise SpecError(f"the preset {name} has no rows in {results}; run `interplay run {name}` first.")
    spent = {row.cell: row.metrics.get("train_seconds", 0.0) for row in rows}
    times = [(row.ended - spent[row.cell], row.ended) for row in rows]
    return Outcome(
        identity=identity(spec),
        date=datetime.datetime.fromtimestamp(max(times)[1], datetime.UTC).date().isoformat(),
        seeds=spec.training.seed_values,
        cells=sum(row.loss is not None for row in rows),
        train_seconds=round(sum(spent.values()), 1),
        seconds=round(_covered(times), 1),
        words=tuple(_words(spec, results)),
        revision=revision(),
    )


def _covered(times: Iterable[tuple[float, float]]) -> float:
    """Seconds that are in one of these spans (start, end) or more."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(times):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _words(spec: StudySpec, results: Path) -> list[str]:
    """The answer of a study's or a series' own page."""
    if spec.vary is not None:
        from study.commands.series import page_words
        from study.tracking.study_paths import SERIES

        folder = results / spec.name
        if identity(load_spec(str(folder / SERIES))) != identity(spec):
            raise SpecError(
                f"the page in {folder} is of another form of the series {spec.name}; run `interplay run {spec.name}`."
            )
        return page_words(folder / "report.html")
    from analysis.fit.document import fit
    from analysis.report.answers import answers
    from analysis.report.extras.diagnostics import diagnostics_data
    from analysis.report.extras.wording_diagnostics import rank_sentence
    from analysis.report.extras.wording_kaplan import kaplan_sentences
    from study.results.sources import study_runs

    source = study_runs(spec, results)
    inside = rank_sentence(diagnostics_data(source.table, source.known["measures"]))
    fitted = source.compared(fit(source.table, entropy=source.known["entropy"]))
    about = kaplan_sentences(fitted.kaplan)
    # Every report answers Kaplan et al. too, and of most studies that is not what was asked.
    first, last = (about, []) if "Kaplan" in spec.claim else ([], about)
    return [*([inside] if inside else []), *first, *answers(fitted), *last]


def main() -> None:
    """Record the outcomes of presets that were run."""
    parser = argparse.ArgumentParser(prog="python -m study.commands.preset_outcomes", description=__doc__)
    parser.add_argument("presets", nargs="+", metavar="NAME")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where they were run")
    options = parser.parse_args()
    path = Path(__file__).parent.parent / "presets" / FILE
    # As they are written, because those to be replaced may lack what is recorded by now.
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known |= {name: read_outcome(name, options.results).model_dump(mode="json") for name in options.presets}
    document = {name: known[name] for name in sorted(known)}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
