"""The command `interplay`: one function a verb. Heavy libraries are imported by the verbs that need them."""

import errno
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from analysis.errors import InputError as AnalysisError
from study.cluster.cli import app as cluster_app
from study.commands.theory import app as theory_app
from study.errors import SpecError
from trainables.errors import InputError

if TYPE_CHECKING:
    from study.results.sources import Runs
    from study.spec.study import StudySpec

#: Exit statuses: 0 done, 1 some cells failed, 2 the input is wrong, 130 stopped by the user (128 + SIGINT).
FAILED, WRONG, STOPPED = 1, 2, 130

#: What a user can mend about a file or a disk; any other OSError is a defect and keeps its traceback.
_USER_ERRNO = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
}
RESULTS = Path("results")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="How deep and how wide should a language model be for your data and budget, and how sure can you be?",
)
app.add_typer(theory_app, name="theory")
app.add_typer(cluster_app, name="cluster")

SpecArgument = Annotated[str, typer.Argument(help="a preset's name or a YAML file")]
RunsArgument = Annotated[
    str, typer.Argument(help="a spec, mlflow:EXPERIMENT, or a table of runs (CSV, JSONL, Parquet)")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a key, e.g. training.seeds=5")
]
ResultsOption = Annotated[
    Path, typer.Option("--results", envvar="INTERPLAY_RESULTS", help="root of everything that is written")
]
UriOption = Annotated[
    str | None,
    typer.Option(
        "--uri", help="MLflow store; by default MLFLOW_TRACKING_URI, else that of the results folder"
    ),
]
LevelOption = Annotated[float, typer.Option("--level", help="of all intervals, between 0 and 1")]
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON document on stdout and nothing else")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="OURS=THEIRS", help="the name of a column in a foreign table"),
]
CountOption = Annotated[
    Literal["nonembedding", "table"],
    typer.Option("--count", help="how N is counted: 12·L·d², or the column params of a table"),
]
TokensOption = Annotated[
    float | None,
    typer.Option(
        "--tokens", help="compare checkpoints at these training tokens; by default the most all shapes have"
    ),
]


def main() -> None:
    """Run the command; an error in the input ends it with status 2 and one paragraph, never a traceback."""
    try:
        app()
    except BrokenPipeError:
        # The reader of a pipe (head, less) has gone: nothing is wrong, and there is nobody to tell.
        sys.stderr.close()
        sys.exit(0)
    except (SpecError, InputError, AnalysisError, ConnectionError) as error:
        # A ConnectionError is of a storage that cannot be reached: it says which, and nothing else of ours raises one.
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(WRONG)
    except OSError as error:
        if error.errno not in _USER_ERRNO and not _folder_has_gone(error):
            raise
        where = error.filename or "the results folder"
        text = (
            f"{where}: {error.strerror}. What was recorded is kept; mend this (or take another folder with --results) "
            "and run the same command again."
        )
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
        sys.exit(WRONG)


@app.command()
def plan(
    spec: SpecArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    cell: Annotated[
        str | None,
        typer.Option("--cell", metavar="KEY", help="print one cell as JSON, for `python -m trainables`"),
    ] = None,
    power: Annotated[
        bool, typer.Option("--power", help="also: how wide the intervals will be, and what would halve them")
    ] = False,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            "--assume",
            metavar="NAME=VALUE",
            help="for --power: a, b, noise, slope, exponent, shared, lack or loss",
        ),
    ] = None,
    pilot: Annotated[
        Path | None, typer.Option("--from", help="for --power: the fit.json of a pilot study to assume")
    ] = None,
    studies: Annotated[
        int | None, typer.Option("--studies", help="for --power: how many studies to simulate (72)")
    ] = None,
) -> None:
    """Show every cell of a study: parameters, tokens, FLOPs, memory, time and cost. Runs nothing."""
    from study.plan.plan import by_hand, make_plan
    from study.plan.table import plan_table
    from study.spec.study import load_spec

    given = {"--assume": assume, "--from": pilot, "--studies": studies}
    alone = [name for name, value in given.items() if value is not None]
    if alone and not power:
        raise SpecError(
            f"{' and '.join(alone)} only goes with --power, which simulates the study; add --power."
        )
    if cell and power:
        raise SpecError("--cell prints one cell and --power looks at the whole study; take one of them out.")
    loaded = load_spec(spec, overrides or ())
    if loaded.vary is not None:
        from study.commands import series

        if cell or power:
            series.refuse_series(loaded, "--cell" if cell else "--power")
        plans = series.plans(loaded)
        if as_json:
            _print_json(series.plan_json(loaded, plans))
        else:
            Console().print(series.plan_view(loaded, plans))
        return
    made = make_plan(loaded)
    if cell:
        planned = made.planned(cell)
        print(planned.cell.model_dump_json(indent=2))
        print(f"{by_hand(planned.layout)}  # trains it, with the cell above in CELL.json", file=sys.stderr)
        return
    if not power:
        if as_json:
            _print_json(made.to_json())
        else:
            Console().print(plan_table(made))
        return
    from study.commands.power import plan_power, power_view

    found = plan_power(made, assume or (), pilot, studies, Console(stderr=True, quiet=as_json))
    if as_json:
        _print_json(made.to_json() | {"power": found.to_json()})
    else:
        Console().print(plan_table(made))
        Console(highlight=False).print(power_view(found))


@app.command()
def run(
    spec: SpecArgument,
    overrides: SetOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Run the missing cells of a study, then fit and write the report. Running it again goes on where it ended."""
    from study.spec.study import load_spec

    loaded = load_spec(spec, overrides or ())
    from analysis.report.answers import answers
    from study.run.runner import run_study
    from study.tracking.mlflow_client import tracking_uri

    _refuse_file(results, "--results")
    tracking_uri(loaded.tracking.uri, results)  # refuses a folder MLflow cannot use before anything is made
    console = Console(highlight=False)
    again = _command("run", spec, overrides or (), results)
    if loaded.vary is not None:
        _run_series(loaded, results, console, again, _command("status", spec, overrides or (), results))
        return
    summary = run_study(loaded, results, console)
    if not summary.finished:
        _say(console, "Stopped. Nothing is lost; go on with: ", again)
        raise typer.Exit(STOPPED)
    if summary.fit and summary.report:
        for line in answers(summary.fit):
            console.print(Text(line))
        _say(console, "Report: ", str(_relative(summary.report)))
        if summary.copy:
            _say(console, "A copy of all results: ", summary.copy)
    failed = len(summary.failed)
    if failed:
        _say_failed(console, summary.failed, again)
    if not summary.fit:
        left = "all others diverged" if failed else "every cell diverged"
        why = "Nothing to fit: no cell has a loss that can be used; " + left + ". Each with its reason: "
        _say(console, why, _command("status", spec, overrides or (), results))
    if failed or not summary.fit:
        raise typer.Exit(FAILED)


def _run_series(spec: "StudySpec", results: Path, console: Console, again: str, status: str) -> None:
    """Run the studies of a series; ends with status 1 if cells failed or none has a loss, 130 if it was stopped."""
    from study.commands.series import page_words, run_series

    summaries, page, copy = run_series(spec, results, console)
    if not all(summary.finished for summary in summaries):
        _say(console, "Stopped. Nothing is lost; go on with: ", again)
        raise typer.Exit(STOPPED)
    failed = {key: reason for summary in summaries for key, reason in summary.failed.items()}
    if page:
        for line in page_words(page):
            console.print(Text(line))
        _say(console, "Series: ", str(_relative(page)))
        if copy:
            _say(console, "A copy of its page: ", copy)
    if failed:
        _say_failed(console, failed, again)
    if not page:
        why = "No page: no cell of the series has a loss that can be used. Each with its reason: "
        _say(console, why, status)
    if failed or not page:
        raise typer.Exit(FAILED)


def _say_failed(console: Console, failed: Mapping[str, str], again: str) -> None:
    text = "1 cell" if len(failed) == 1 else f"{len(failed)} cells"
    _say(console, f"{text} failed, the first because: {_first(failed)}. Try again with: ", again)


@app.command()
def presets(as_json: JsonOption = False) -> None:
    """List the built-in studies: question, cost and recorded result."""
    from study.commands.presets import catalogue, catalogue_view

    records = catalogue()
    if as_json:
        _print_json(records)
    else:
        Console(highlight=False).print(catalogue_view(records))


@app.command()
def submit(
    spec: SpecArgument,
    overrides: SetOption = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="FILE", help="the cluster's file, such as cluster/aws.yaml"),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="URL", help="a dashboard that can be reached, instead of a tunnel"),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="do not follow the log")] = False,
    submission_id: Annotated[
        str | None, typer.Option("--submission-id", metavar="ID", help="of the job; by default one is made")
    ] = None,
) -> None:
    """Send a study to a cluster and follow it: `interplay run` there, as a job of Ray."""
    from study.submit.job import submit as send

    status = send(
        spec,
        overrides or (),
        Console(highlight=False),
        file=cluster,
        address=address,
        submission=submission_id,
        wait=not no_wait,
    )
    raise typer.Exit(status)


@app.command()
def status(
    spec: SpecArgument,
    overrides: SetOption = None,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Show which cells of a study are done, running, failed (and why) or missing."""
    from study.results.status import status_json, status_table, study_status
    from study.spec.study import load_spec

    loaded = load_spec(spec, overrides or ())
    if loaded.vary is not None:
        from study.commands import series

        found = series.statuses(loaded, results)
        if as_json:
            _print_json(series.status_json(loaded, found))
        else:
            Console().print(series.status_view(found))
        return
    state = study_status(loaded, results)
    if as_json:
        _print_json(status_json(state))
    else:
        Console().print(status_table(state))


@app.command()
def fit(
    runs: RunsArgument,
    overrides: SetOption = None,
    column: ColumnOption = None,
    count: CountOption = "nonembedding",
    tokens: TokensOption = None,
    results: ResultsOption = RESULTS,
    uri: UriOption = None,
    level: LevelOption = 0.95,
    parametric_bootstrap: Annotated[
        int,
        typer.Option(
            "--parametric-bootstrap", metavar="K", help="repeat the whole pipeline on K simulated studies"
        ),
    ] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="also write the fit to this file")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the crossings of a table of runs and fit the threshold law."""
    from analysis.files import write_json
    from analysis.fit.document import fit as fit_runs
    from study.results.answer import bootstrap_text, fit_table

    if out and out.is_dir():
        raise SpecError(f"--out {out} is a folder; name the file to write, such as {out / 'fit.json'}.")
    series = _series(runs, overrides, column, uri, count)
    if series is not None:
        _fit_series(series, results, level, tokens, parametric_bootstrap, out, as_json=as_json)
        return
    source = _runs(runs, overrides, column, results, uri, count)
    result = source.compared(
        fit_runs(
            source.table,
            level=level,
            tokens=tokens,
            parametric_bootstrap=parametric_bootstrap,
            entropy=source.known.get("entropy"),
        )
    )
    document = result.to_json()
    if out:
        write_json(out, document)
    if as_json:
        _print_json(document)
    else:
        Console().print(fit_table(result))
        if parametric_bootstrap:
            Console(highlight=False).print(bootstrap_text(result))


@app.command()
def report(
    runs: RunsArgument,
    out: Annotated[Path, typer.Option("--out", help="folder of the report")],
    overrides: SetOption = None,
    column: ColumnOption = None,
    count: CountOption = "nonembedding",
    tokens: TokensOption = None,
    level: LevelOption = 0.95,
    results: ResultsOption = RESULTS,
    uri: UriOption = None,
) -> None:
    """Write `report.html`, figures, CSVs and `fit.json` of a table of runs."""
    from analysis.fit.document import fit as fit_runs
    from analysis.report.study_page import write_report

    _refuse_file(out, "--out")
    series = _series(runs, overrides, column, uri, count)
    if series is not None:
        from study.commands.series import report_series

        page = report_series(series, results, out, level=level, tokens=tokens)
        _say(Console(highlight=False), "Series: ", str(_relative(page)))
        return
    source = _runs(runs, overrides, column, results, uri, count)
    result = source.compared(
        fit_runs(source.table, level=level, tokens=tokens, entropy=source.known.get("entropy"))
    )
    known = {**source.known, **source.searched()}
    path = write_report(source.table, result, out, title=Path(runs).name, **known)
    _say(Console(highlight=False), "Report: ", str(_relative(path)))


@app.command()
def recommend(
    params: Annotated[
        list[float] | None,
        typer.Option("--params", metavar="N ...", help="sizes in non-embedding parameters: 1e9 7e9"),
    ] = None,
    more: Annotated[list[float] | None, typer.Argument(hidden=True)] = None,
    fit_file: Annotated[Path | None, typer.Option("--fit", help="a fit.json of a study")] = None,
    law: Annotated[str | None, typer.Option("--law", help="a published law: levine2020")] = None,
    published_table: Annotated[
        bool, typer.Option("--published-table", help="the paper's own table beside the recomputed one")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Give the best depth and width for a size, with a band, from a study's fit or a published law."""
    from study.results import answer

    sizes = [*(params or ()), *(more or ())]
    if published_table:
        rows = answer.published_shapes(law, fit_file, sizes)
        shown = answer.published_table_view(rows)
    else:
        source, rows = answer.recommend(fit_file, law, sizes)
        shown = answer.recommendation_table(source, rows)
    if as_json:
        _print_json(rows)
    else:
        Console().print(shown)


@app.command()
def audit(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CONFIG]...", help="HuggingFace config.json files, or folders that hold one"),
    ] = None,
    depth: Annotated[int | None, typer.Option("--depth", help="layers, instead of a config")] = None,
    width: Annotated[int | None, typer.Option("--width", help="width, instead of a config")] = None,
    vocabulary: Annotated[
        int | None, typer.Option("--vocabulary", help="with --depth and --width: number of tokens")
    ] = None,
    law: Annotated[str | None, typer.Option("--law", help="a published law; by default levine2020")] = None,
    fit_file: Annotated[Path | None, typer.Option("--fit", help="a fit.json of a study")] = None,
    count: Annotated[
        str, typer.Option("--count", help="which N enters the law: nonembedding (12·L·d²) or exact")
    ] = "nonembedding",
    as_json: JsonOption = False,
) -> None:
    """Say where an existing model stands on the law: too deep, too shallow, or within the interval."""
    from study.commands.audit import audit_json, audit_models, audit_view

    audits = audit_models(configs or (), (depth, width, vocabulary), law, fit_file, count)
    if as_json:
        _print_json(audit_json(audits))
    else:
        Console(highlight=False).print(audit_view(audits))


@app.command()
def export(
    cell: Annotated[
        str,
        typer.Argument(metavar="CELL", help="a cell's key, its first digits, or its name such as L2-d16-s0"),
    ],
    out: Annotated[Path, typer.Option("--out", help="folder of the model, empty or not there yet")],
    study: Annotated[
        str | None, typer.Option("--study", metavar="SPEC", help="look for the cell in this study only")
    ] = None,
    results: ResultsOption = RESULTS,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="also log it as an MLflow model of the cell's own run")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained cell as a plain HuggingFace folder: safetensors, config, tokenizer, model card."""
    from study.results.export import export_cell, export_text

    written = export_cell(cell, out, results, study=study, mlflow=mlflow)
    if as_json:
        _print_json(written.to_json())
    else:
        Console(highlight=False).print(export_text(written), soft_wrap=True)


@app.command()
def ui(
    results: ResultsOption = RESULTS,
    host: Annotated[
        str, typer.Option(help="address to bind; anything but loopback opens it to others")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port of the page")] = 5000,
    uri: UriOption = None,
) -> None:
    """Open MLflow's own web page on the studies of a results folder or another store."""
    from study.commands.ui import serve

    serve(results, host, port, Console(), uri)


def _runs(
    source: str,
    overrides: list[str] | None,
    column: list[str] | None,
    results: Path,
    uri: str | None,
    count: Literal["nonembedding", "table"],
) -> "Runs":
    """Return the run table of RUNS, and what a report may add where RUNS is a spec."""
    from study.results.sources import read_source

    return read_source(source, overrides or (), column or (), results, uri, count)


def _series(
    source: str, overrides: list[str] | None, column: list[str] | None, uri: str | None, count: str
) -> "StudySpec | None":
    """Return the spec of a series that RUNS names, if it names one."""
    from study.results.sources import series_of

    return series_of(source, overrides or (), column or (), uri, count)


def _fit_series(
    spec: "StudySpec",
    results: Path,
    level: float,
    tokens: float | None,
    parametric_bootstrap: int,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Fit every study of a series."""
    from analysis.files import write_json
    from study.commands.series import fits_json, read_series
    from study.results.answer import fit_table

    compared = read_series(
        spec, results, level=level, tokens=tokens, parametric_bootstrap=parametric_bootstrap
    )
    document = fits_json(spec, compared)
    if out:
        write_json(out, document)
    if as_json:
        _print_json(document)
        return
    console = Console()
    for one in compared:
        console.print(Text(one.member.spec.name, style="bold"))
        console.print(
            fit_table(one.fit) if one.fit else Text("nothing to fit: no row has a loss that can be used")
        )


def _refuse_file(folder: Path, option: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{option} {folder} is a file; name a folder, which is made where it is missing.")


def _first(reasons: Mapping[str, str]) -> str:
    return next(iter(reasons.values())).strip().rstrip(".")


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def _say(console: Console, text: str, value: str) -> None:
    """Print a sentence and what a user may copy from it: never as markup, never broken over lines."""
    console.print(Text.assemble(text, (value, "bold")), soft_wrap=True)


def _command(verb: str, spec: str, overrides: Sequence[str], results: Path) -> str:
    """Return the command line that does this again, in this folder and with this very program."""
    sets = [part for text in overrides for part in ("--set", text)]
    where = [] if results == RESULTS else ["--results", str(results)]
    return shlex.join([*_program(), verb, spec, *sets, *where])


def _program() -> list[str]:
    """How this program was started: by a name on PATH, by a path, or as `python -m study`."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return [*_program_at(Path(sys.executable)), "-m", "study"]
    return _program_at(started)


def _program_at(path: Path) -> list[str]:
    found = shutil.which(path.name)
    if path.parent == Path() and not path.exists():
        return [path.name]
    # Not resolved: the `python` of a virtual environment is a link to one that lacks the packages.
    if found and os.path.abspath(found) == os.path.abspath(path):  # noqa: PTH100
        return [path.name]
    shown = _relative(path.absolute())
    return [str(shown) if shown.is_absolute() or len(shown.parts) > 1 else f"./{shown}"]


def _folder_has_gone(error: OSError) -> bool:
    """Whether a file could not be made because its folder, which the user named, is not there (any more)."""
    return (
        error.errno == errno.ENOENT
        and isinstance(error.filename, str | bytes | os.PathLike)
        and not Path(os.fsdecode(error.filename)).parent.is_dir()
    )


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
