"""The command `interplay`: one function per verb. Heavy libraries are imported by the verbs that need them."""

import errno
import inspect
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

import interplay
from analysis.law.near_optimal import WITHIN
from core.command_line import command, in_shell
from core.errors import LONGEST_MESSAGE, InputError, printable, shortened
from interplay.cluster.cli import app as cluster_app
from interplay.result import View
from interplay.terminal import show, to_reader, working
from study.errors import SpecError
from study.spec.recorded import difference_note, file_note
from study.spec.study import load_spec
from study.usage import Verbs, usage_text

#: Exit status for wrong input; `interplay.verbs.run` has those of a run.
WRONG = 2

#: Errors of files and disks that the user can fix; any other OSError is a defect and keeps its traceback.
_USER_ERRNO = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
}
RESULTS = Path("results")
#: Typer's error of wrong arguments, which it does not export under this name in all versions.
UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
theory = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show what the theory predicts for a shape. Bounds, and separation ranks of random networks.",
)
app.add_typer(theory, name="theory")
app.add_typer(cluster_app, name="cluster")


def _print_version(value: bool) -> None:
    if value:
        print(f"interplay {version('interplay')}")
        raise typer.Exit


@app.callback(
    help="How deep and how wide should a language model be for your data and budget, and how sure can you be?"
)
def options(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version")
    ] = False,
) -> None:
    """Options of the program itself."""


SpecArgument = Annotated[str, typer.Argument(metavar="SPEC", help="a preset, a study, or a YAML file")]
RunsArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUNS",
        help="a spec, mlflow:EXPERIMENT, a run table (CSV, JSONL, Parquet), or one that comes with Interplay: "
        "gemstones, gemstones-lr, english, english-gpt2, english-llama",
    ),
]
ChangesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="keys of the spec with other values: training.seeds=5", show_default=False
    ),
]
ResultsOption = Annotated[Path, typer.Option(envvar="INTERPLAY_RESULTS", help="folder of all results")]
UriOption = Annotated[
    str | None, typer.Option(help="MLflow store; default: MLFLOW_TRACKING_URI, else the results folder")
]
LevelOption = Annotated[float, typer.Option(help="level of all intervals, between 0 and 1")]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON document only")]
ColumnOption = Annotated[
    list[str] | None, typer.Option(metavar="OURS=THEIRS", help="name of a column in a foreign table")
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(metavar="HEADING=VALUE", help="read only the rows of a table with this value"),
]
CountOption = Annotated[
    Literal["nonembedding", "table"], typer.Option(help="N is 12·L·d², or the column params of a table")
]
TokensOption = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENS",
        help="compare at these training tokens, as 5e10 or 50B; default: the most all shapes have",
    ),
]
WithinOption = Annotated[
    str | None,
    typer.Option(
        metavar="NATS",
        help=f"what a depth may lose: nats per token, or a share of the loss as 0.5%; default: {WITHIN}",
    ),
]
WithinOfFitOption = Annotated[
    str | None,
    typer.Option(
        metavar="LOSS",
        help="what a depth may lose: nats per token, or in the unit of --fit, or a share of the loss as 0.5%; default: "
        f"{WITHIN} nats",
    ),
]
UnitOption = Annotated[
    Literal["nats", "bpb"],
    typer.Option(help="state losses in nats per token, or in bits per byte of the text"),
]
ClusterOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="the cluster file, such as cluster/aws.yaml")
]
AddressOption = Annotated[
    str | None, typer.Option(metavar="URL", help="a reachable dashboard, instead of a tunnel")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="ID of a job; `interplay jobs` lists them")]
FitOption = Annotated[
    Path | None, typer.Option("--fit", help="the fit.json of a study, its folder, or the name of the study")
]


DepthOption = Annotated[int, typer.Option("--depth", help="L, number of layers")]
WidthOption = Annotated[int, typer.Option("--width", help="d, width of the model")]
HeadsOption = Annotated[int, typer.Option("--heads", help="H; divides the width for `rank`")]


def main() -> None:
    """Run the command; wrong input ends it with status 2 and one paragraph, never a traceback."""
    try:
        with in_shell(sys.argv[1:]):
            sys.exit(app(standalone_mode=False))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(WRONG)
        _fail(usage_text(error))
    except typer.Abort:
        _fail("Stopped.")
    except (InputError, ConnectionError) as error:
        # Our code raises a ConnectionError only for a storage that cannot be reached, and names it.
        _fail(str(error))
    except OSError as error:
        if error.errno not in _USER_ERRNO and not _folder_is_missing(error):
            raise
        where = shortened(str(error.filename or "the results folder"), 200)
        _fail(
            f"{where}: {error.strerror}. What was recorded is kept; fix this (or choose another folder with --results) "
            "and run the same command again."
        )


def _fail(text: str) -> None:
    # A name of a file may hold bytes that are no text, a heading of a table what a terminal obeys.
    text = printable(shortened(text, LONGEST_MESSAGE).encode("utf-8", "backslashreplace").decode(), kept="\n")
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
    sys.exit(WRONG)


@app.command()
def plan(
    spec: SpecArgument,
    changes: ChangesArgument = None,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
    cell: Annotated[
        str | None, typer.Option(metavar="KEY", help="print one cell as JSON, for `python -m trainables`")
    ] = None,
) -> None:
    """Show the cells of a study with size, memory, time and cost. Trains nothing."""
    _note_other_values("plan", spec, changes or (), results)
    if cell:
        _show_cell(spec, changes or (), cell, results)
    else:
        show(interplay.plan(spec, *(changes or ()), results=results), as_json=as_json)


def _show_cell(spec: str, changes: Sequence[str], cell: str, results: Path) -> None:
    """Print one cell as JSON, and on stderr the command that trains it."""
    from study.plan.plan import by_hand, make_plan

    planned = make_plan(interplay.load_spec(spec, *changes, results=results)).planned(cell)
    with to_reader():
        print(planned.cell.model_dump_json(indent=2))
    print(f"{by_hand(planned.layout)}  # trains it, with the cell above in CELL.json", file=sys.stderr)


@app.command()
def power(
    spec: SpecArgument,
    changes: ChangesArgument = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="a, b, noise, slope, exponent, shared, misfit_sd, scatter or loss"
        ),
    ] = None,
    pilot: Annotated[
        Path | None,
        typer.Option("--fit", metavar="FILE", help="assume what the fit.json of a pilot study has"),
    ] = None,
    # Shares of 72 have a standard error of 6 points, and a preset takes at most half a minute.
    studies: Annotated[int, typer.Option(help="number of simulated studies", min=5, max=10_000)] = 72,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Simulate a study to see how wide its intervals will be. Also with more seeds or sizes. Trains nothing."""
    _note_other_values("power", spec, changes or (), results)
    assumed = _pairs(assume, "assume", "NAME=VALUE", "noise=0.005")
    with Console(stderr=True, quiet=as_json).status("simulating studies"):
        simulated = interplay.power(
            spec, *(changes or ()), assume=assumed, fit=pilot, studies=studies, results=results
        )
    show(simulated, as_json=as_json)


@app.command("try")
def try_(
    spec: SpecArgument,
    changes: ChangesArgument = None,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Time a few steps of a study's cells on this machine. Its plans use the times from then on."""
    _note_other_values("try", spec, changes or (), results)
    progress = Console(stderr=True, quiet=as_json)
    show(
        interplay.try_steps(spec, *(changes or ()), results=results, progress=progress),
        as_json=as_json,
    )


@app.command()
def cost(
    spec: SpecArgument,
    changes: ChangesArgument = None,
    again: Annotated[
        bool, typer.Option("--again", help="measure also what was measured on this machine")
    ] = False,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Measure training speed and latency of each shape, alone. The rows go to the costs.csv of the study."""
    _note_other_values("cost", spec, changes or (), results)
    progress = Console(stderr=True, quiet=as_json)
    show(
        interplay.cost(spec, *(changes or ()), results=results, again=again, progress=progress),
        as_json=as_json,
    )


@app.command()
def run(
    spec: SpecArgument,
    changes: ChangesArgument = None,
    slots: Annotated[
        int | None, typer.Option("-j", metavar="N", help="devices used at a time: resources.slots=N")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="D", help="cpu, or a GPU such as a100-80gb: resources.device=D")
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Train what a study lacks, fit, and write its report. Run it again to resume."""
    from interplay.verbs.run import train

    keys = {"resources.slots": slots, "resources.device": device}
    more = [f"{key}={value}" for key, value in keys.items() if value is not None]
    _note_other_values("run", spec, [*(changes or ()), *more], results)
    console = Console(highlight=False)
    ended = train(spec, *(changes or ()), *more, results=results, console=console)
    ended.say(console)
    raise typer.Exit(ended.status)


@app.command()
def presets(as_json: JsonOption = False) -> None:
    """List the built-in studies: question, cost and recorded result."""
    with working("planning"):
        listed = interplay.presets()
    show(listed, as_json=as_json)


@app.command()
def submit(
    spec: SpecArgument,
    changes: ChangesArgument = None,
    cluster: ClusterOption = None,
    address: AddressOption = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="do not follow the log")] = False,
    submission_id: Annotated[
        str | None, typer.Option(metavar="ID", help="ID of the job; default: generated")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="agree to a price above $50 or unknown")] = False,
    max_dollars: Annotated[
        float | None, typer.Option(metavar="D", help="refuse a study that costs more", min=0)
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Run a study on a cluster, as a Ray job, and follow its log. Asks before it costs more than $50."""
    import interplay.cluster.submit

    status = interplay.cluster.submit.submit(
        spec,
        changes or (),
        cluster,
        address,
        submission_id,
        wait=not no_wait,
        yes=yes,
        most=max_dollars,
        results=results,
    )
    raise typer.Exit(status)


@app.command()
def jobs(cluster: ClusterOption = None, address: AddressOption = None, as_json: JsonOption = False) -> None:
    """List the jobs of a cluster: study, status and times."""
    import interplay.cluster.submit

    records = interplay.cluster.submit.jobs(cluster, address)
    show(View(records, interplay.cluster.submit.jobs_view(records)), as_json=as_json)


@app.command()
def logs(job: JobArgument, cluster: ClusterOption = None, address: AddressOption = None) -> None:
    """Print the log of a job and follow it to its end. The exit status is that of the study."""
    import interplay.cluster.submit

    raise typer.Exit(interplay.cluster.submit.logs(job, cluster, address))


@app.command()
def stop(job: JobArgument, cluster: ClusterOption = None, address: AddressOption = None) -> None:
    """Stop a job of a cluster. Its finished cells are kept."""
    import interplay.cluster.submit

    interplay.cluster.submit.stop(job, cluster, address)


@app.command()
def status(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="SPEC", help="a preset, a study, or a YAML file; default: all studies of the folder"
        ),
    ] = None,
    changes: ChangesArgument = None,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Show what of a study is done, running, failed or missing. Without a spec, list all studies."""
    if spec is not None:
        _note_other_values("status", spec, changes or (), results)
    show(interplay.status(spec, *(changes or ()), results=results), as_json=as_json)


@app.command()
def mirror(
    spec: SpecArgument,
    changes: ChangesArgument = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Send MLflow and other trackers the rows they lack. An empty one gets all; `interplay run` does so as well."""
    from study.tracking.targets import mirror_study

    _note_other_values("mirror", spec, changes or (), results)
    loaded = interplay.load_spec(spec, *(changes or ()), results=results)
    Console().print(mirror_study(loaded, results), markup=False, soft_wrap=True)


@app.command()
def fit(
    runs: RunsArgument,
    changes: ChangesArgument = None,
    column: ColumnOption = None,
    where: WhereOption = None,
    count: CountOption = "nonembedding",
    tokens: TokensOption = None,
    results: ResultsOption = RESULTS,
    uri: UriOption = None,
    level: LevelOption = 0.95,
    unit: UnitOption = "nats",
    out: Annotated[Path | None, typer.Option(help="also write the fit to this file")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the crossings of a run table and fit the threshold law."""
    with working("fitting"):
        answer = interplay.fit(
            runs,
            *(changes or ()),
            results=results,
            count=count,
            uri=uri,
            level=level,
            tokens=tokens,
            unit=unit,
            where=_pairs(where, "where", "HEADING=VALUE", "dataset=c4"),
            columns=_pairs(column, "column", "OURS=THEIRS", "loss=final_loss"),
            out=out,
        )
    _note_of_runs("fit", runs, changes or (), results)
    show(answer, as_json=as_json)


@app.command()
def report(
    runs: RunsArgument,
    changes: ChangesArgument = None,
    column: ColumnOption = None,
    where: WhereOption = None,
    count: CountOption = "nonembedding",
    tokens: TokensOption = None,
    level: LevelOption = 0.95,
    unit: UnitOption = "nats",
    results: ResultsOption = RESULTS,
    uri: UriOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder of the report; of a spec by default its results folder"),
    ] = None,
) -> None:
    """Write the page, figures and tables of a study or run table. Those of a study are written anew."""
    with working("writing the report"):
        page = interplay.report(
            runs,
            *(changes or ()),
            results=results,
            count=count,
            uri=uri,
            level=level,
            tokens=tokens,
            unit=unit,
            where=_pairs(where, "where", "HEADING=VALUE", "dataset=c4"),
            columns=_pairs(column, "column", "OURS=THEIRS", "loss=final_loss"),
            out=out,
        )
    _note_of_runs("report", runs, changes or (), results)
    show(page, as_json=False)


@app.command()
def compare(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="STUDY", help="studies, their folders, fit.json files, specs or run tables"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="also write a page with figures into this folder")
    ] = None,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Compare two or more studies: crossings, slopes, best depths. By the key in which their specs differ."""
    with working("comparing"):
        compared = interplay.compare(*sources, out=out, results=results)
    show(compared, as_json=as_json)


def _note_other_values(verb: str, source: str, overrides: Sequence[str], results: Path) -> None:
    """Print in one line on stderr how a study was run if its spec is another one, and the command that takes that."""
    spec = load_spec(source, overrides, results)
    given = {text.partition("=")[0].strip() for text in overrides}
    note = file_note(source, overrides, spec, results) or difference_note(spec, given, results)
    if note:
        words, other = note
        text = f"note: {words}. To take these: {command(verb, other, results=results)}"
        Console(stderr=True, highlight=False).print(Text(text, style="yellow"), soft_wrap=True)


def _note_of_runs(verb: str, runs: str, changes: Sequence[str], results: Path) -> None:
    from analysis.runs.files import is_table
    from interplay.verbs.read import shipped

    if not runs.startswith("mlflow:") and not is_table(runs) and not shipped(runs, results):
        _note_other_values(verb, runs, changes, results)


def _pairs(texts: Sequence[str] | None, name: str, form: str, example: str) -> dict[str, str]:
    """The pairs of an option that may be given several times."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, _, value = text.partition("=")
        if not (key and value):
            raise SpecError(f"--{name} {text!r} is not {form}; write it as --{name} {example}.")
        if key in pairs:
            raise SpecError(f"--{name} gives `{key}` more than once; write each name once.")
        pairs[key] = value
    return pairs


@app.command()
def recommend(
    sizes: Annotated[
        list[str] | None,
        typer.Argument(metavar="N", help="sizes in non-embedding parameters: 1e9 7B", show_default=False),
    ] = None,
    fit: FitOption = None,
    law: Annotated[
        str | None,
        typer.Option(
            "--law",
            help="levine2020, liu2026, or log3: the least depth by theory; default: all published evidence",
        ),
    ] = None,
    flops: Annotated[
        list[str] | None,
        typer.Option("--flops", metavar="C", help="a budget of training FLOPs, instead of sizes; repeatable"),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="a limit per decoded token, as 5ms, by the costs of a study"),
    ] = None,
    train_time: Annotated[
        str | None, typer.Option("--train-time", metavar="TIME", help="a limit of the training, as 2h")
    ] = None,
    kv: Annotated[
        str | None, typer.Option("--kv", metavar="BYTES", help="a limit of the cache per token, as 64k")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="B", help="sequences decoded at a time, of --latency")] = 1,
    device: Annotated[
        str | None, typer.Option(metavar="D", help="whose costs count, if several were measured")
    ] = None,
    within: WithinOfFitOption = None,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Give the best depth and width for a size, a compute or a cost.

    From a study's fit or a law, else by all published evidence. Limits of cost need the fit and the costs of a study.
    """
    from interplay.verbs.recommend import recommend_each

    if latency or train_time or kv:
        shape = interplay.recommend(
            sizes[0] if sizes else None,
            flops=flops[0] if flops else None,
            latency=latency,
            train_time=train_time,
            kv=kv,
            batch=batch,
            device=device,
            law=law,
            fit=fit,
            within=within,
            results=results,
        )
        show(shape, as_json=as_json)
        return
    show(
        recommend_each(sizes or (), flops=flops or (), law=law, fit=fit, within=within, results=results),
        as_json=as_json,
    )


@app.command()
def audit(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CONFIG", help="HuggingFace config.json files, or their folders"),
    ] = None,
    depth: Annotated[int | None, typer.Option(help="layers, instead of a config")] = None,
    width: Annotated[int | None, typer.Option(help="width, instead of a config")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="with --depth and --width: number of tokens")] = None,
    law: Annotated[
        str | None, typer.Option(help="levine2020 or liu2026 alone; default: all published evidence")
    ] = None,
    fit: FitOption = None,
    well_known: Annotated[
        bool, typer.Option("--known", help="well-known models by both laws and the Gemstones table instead")
    ] = False,
    rules: Annotated[
        bool,
        typer.Option("--rules", help="published rules of shape on the measured tables instead of models"),
    ] = False,
    within: WithinOption = None,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Say whether models are too deep or too shallow. By all published evidence, or by one law or fit."""
    from interplay.verbs.audit import audit_each, audit_known

    if rules:
        if well_known or any(
            value is not None for value in (configs, depth, width, vocabulary, law, fit, within)
        ):
            raise InputError("--rules judges rules and no models; leave out every other option but --json.")
        with working("judging"):
            judged = interplay.audit_rules()
        show(judged, as_json=as_json)
        return
    if well_known:
        if any(value is not None for value in (configs, depth, width, vocabulary, law, fit)):
            raise InputError(
                "--known compares a list of models with all laws; leave out every other model and law."
            )
        show(audit_known(within), as_json=as_json)
        return
    show(
        audit_each(
            configs or (),
            depth=depth,
            width=width,
            vocabulary=vocabulary,
            law=law,
            fit=fit,
            within=within,
            results=results,
        ),
        as_json=as_json,
    )


@app.command()
def export(
    spec: SpecArgument,
    cell: Annotated[
        str | None,
        typer.Argument(
            metavar="CELL",
            help="a cell's name, such as L2-d16-s0, its key, or `best`: of the largest size the one "
            "of the lowest loss; without it, list the cells",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the model, empty or new")] = None,
    results: ResultsOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Write a trained cell as a HuggingFace folder. It has safetensors, config, tokenizer and model card."""
    show(interplay.export(spec, cell, out=out, results=results), as_json=as_json)


@app.command()
def ui(
    results: ResultsOption = RESULTS,
    host: Annotated[
        str, typer.Option(help="address to bind; anything but loopback opens it to others")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port of the page", min=1, max=65535)] = 5000,
    uri: UriOption = None,
) -> None:
    """Open MLflow's web page on a results folder or another store."""
    from interplay.verbs.ui import serve

    serve(results, host, port, Console(), uri)


@app.command()
def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="name of the study; NAME.yaml is written into this folder")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="your text: a file, a folder or a pattern; default: Python sources"
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(metavar="H", help="time that the study may take; default: 1", show_default=False),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", help="instead: training time of one model, for the best shape in it"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="D", help="cpu, or a GPU such as a100-80gb; default: that of this machine"),
    ] = None,
    network: Annotated[
        str, typer.Option(metavar="N", help="family of the models: gpt2, llama or qwen3")
    ] = "gpt2",
) -> None:
    """Write the file of a new study, planned to a given time. It has a comment for each choice.

    The first time on a machine it trains a few steps for up to 30 s, because the time follows from its speed. With
    --minutes it measures the speed of every shape, 7 s each.
    """
    progress = Console(stderr=True)
    show(
        interplay.init(
            name, data, hours=hours, minutes=minutes, device=device, network=network, progress=progress
        ),
        as_json=False,
    )


@app.command()
def schema() -> None:
    """Print the JSON schema of a spec, for editors."""
    from study.spec.schema import json_schema

    with to_reader():
        print(json.dumps(json_schema(), indent=1))


@theory.command()
def bounds(
    depth: DepthOption, width: WidthOption, heads: HeadsOption = 1, as_json: JsonOption = False
) -> None:
    """Bound the separation rank of a shape (Theorems 1 and 2)."""
    from interplay.verbs.theory import theory_bounds

    show(theory_bounds(depth, width, heads), as_json=as_json)


@theory.command()
def example(as_json: JsonOption = False) -> None:
    """Show the width by which a shallower model matches a deeper. The example of Corollary 1."""
    from interplay.verbs.theory import theory_example

    show(theory_example(), as_json=as_json)


@theory.command()
def rank(
    depth: DepthOption,
    width: WidthOption,
    heads: HeadsOption = 1,
    tokens: Annotated[int | None, typer.Option(help="positions, even; 2·(d + 1) if not given")] = None,
    grid: Annotated[int, typer.Option(min=1, help="most inputs on each side, doubled from 32 on")] = 2048,
    as_json: JsonOption = False,
) -> None:
    """Compute the exact separation rank of a random network. It is shown between its bounds."""
    from interplay.verbs.theory import theory_rank

    with Console(stderr=True).status("computing"):
        computed = theory_rank(depth, width, heads, tokens=tokens, grid=grid)
    show(computed, as_json=as_json)


# The list of verbs has whole first sentences; Click would cut them at 45 characters.
for registered in app.registered_commands:
    registered.short_help = (inspect.getdoc(registered.callback) or "").partition(".")[0] + "."
for group in app.registered_groups:
    if group.typer_instance:
        group.short_help = str(group.typer_instance.info.help).partition(".")[0] + "."


def _folder_is_missing(error: OSError) -> bool:
    """Whether a file could not be made because the folder that the user named does not exist."""
    name = error.filename
    is_path = error.errno == errno.ENOENT and isinstance(name, str | bytes | os.PathLike)
    return is_path and not Path(os.fsdecode(name)).parent.is_dir()
