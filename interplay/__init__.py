"""Interplay in Python: what the command does, on names, paths and DataFrames, with results as objects.

    import interplay
    answer = interplay.fit(frame, depth="n_layer", width="d_model", loss="val_loss")
    answer.recommend(1e9)
    interplay.recommend(flops=1e20)

Nothing is printed. A source of runs is the name of a preset, the path of a YAML file or a spec, for the rows of a study
in `results`; the path of a run table; the name `mlflow:EXPERIMENT`; or a DataFrame of any library or a list of dicts,
with one row per run.

Wrong input raises a ValueError, with one paragraph on what is wrong and the fix:

- `study.errors.SpecError`: a spec, a change of it or a folder cannot be used, a study has no rows, or an argument does
  not go with the source;
- `core.errors.InputError`: a run table, a column, a fit, a law, a size or a level cannot be used;
- `trainables.errors.InputError`: the data or a storage cannot be used (SpecError is one as well).

A storage that cannot be reached raises a ConnectionError, and a file that cannot be written another OSError.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.law.near_optimal import Within
from core.errors import InputError
from interplay.errors import explained

if TYPE_CHECKING:
    # Loaded when a function is called: each takes seconds.
    import pandas as pd

    from analysis.audit.recommend import Comparison
    from analysis.audit.verdict import Audit
    from analysis.fit.recommendation import NamedFit
    from analysis.law.shape import ComputeShape, Shape
    from analysis.runs.table import Count, RunTable
    from analysis.units import UnitOption
    from interplay.answer import Answer, StudyPlan
    from interplay.verbs.answer import Runs
    from study.spec.study import StudySpec

__all__ = ["audit", "fit", "load_spec", "plan", "read", "recommend", "report", "run"]
__version__ = version("interplay")


@explained()
def load_spec(spec: "str | Path | StudySpec", *changes: str, results: str | Path = "results") -> "StudySpec":
    """Read a preset, a YAML file or a study of `results`, with changes such as "training.seeds=5".

    Of a spec, only changes are applied.

    Raises:
        SpecError: there is no such preset or file, or a key or value is wrong.
    """
    from study.spec.study import StudySpec, parse_spec
    from study.spec.study import load_spec as loaded
    from study.spec.yaml_file import override

    if isinstance(spec, StudySpec):
        raw = spec.model_dump(mode="json", exclude_unset=True)
        return parse_spec(override(raw, changes), spec.name) if changes else spec
    return loaded(str(spec), changes, Path(results))


@explained()
def plan(spec: "str | Path | StudySpec", *changes: str) -> "StudyPlan":
    """Plan a study: every cell with its parameters, tokens, FLOPs, memory and time. Nothing is trained.

    Raises:
        SpecError: as of `load_spec`; the spec is a series, or no cell can be planned.
        DataError: the data cannot be used (an InputError of `trainables.errors`).
    """
    from interplay.answer import StudyPlan
    from study.plan.plan import make_plan

    return StudyPlan(make_plan(_one_study(spec, changes, "plan")))


@explained()
def run(spec: "str | Path | StudySpec", *changes: str, results: str | Path = "results") -> "Answer":
    """Train the missing cells of a study, write its report, and return the answer.

    A cell that fails ends neither the study nor this call: `Answer.failed` has the reasons.

    Raises:
        KeyboardInterrupt: the study was stopped by Ctrl-C or a signal; its finished cells are kept, and the same call
            trains the others.
        SpecError: as of `plan`; the folder belongs to another study, another process runs the study, or no cell has a
            usable loss: it names the cells that failed.
        DataError: as of `plan`.
    """
    from interplay.answer import Answer, reasons
    from interplay.terminal import refuse_file
    from interplay.verbs.answer import fit_and_report, study_runs
    from study.errors import SpecError
    from study.run.runner import run_study

    study, folder = _one_study(spec, changes, "run", results), Path(results)
    refuse_file(folder, "--results")
    summary = run_study(study, folder, conclude=fit_and_report)
    if not summary.finished:
        raise KeyboardInterrupt(
            f"the study {study.name!r} was stopped; its finished cells are kept, and the same call trains the others"
        )
    runs = study_runs(study, folder)
    if summary.fit is None:
        failed = reasons(runs.failed) or "every cell diverged"
        raise SpecError(f"no cell of the study {study.name!r} has a usable loss: {failed}.")
    return Answer(runs.title, runs.table, summary.fit, runs.known, runs.failed)


@explained()
def read(
    source: "str | Path | StudySpec | pd.DataFrame",
    *changes: str,
    results: str | Path = "results",
    count: "Count" = "nonembedding",
    uri: str | None = None,
    where: Mapping[str, object] | None = None,
    **columns: str,
) -> "RunTable":
    """Read the run table of a source.

    Args:
        source: see the module.
        changes: of a spec, such as "training.seeds=5".
        results: root of the results of a study or an experiment.
        count: `nonembedding` counts N as 12·L·d²; `table` takes the column `params` of a table.
        uri: of the MLflow store of an experiment.
        where: of a table, heading -> value of the rows that are read.
        columns: of a table, a column of the run table and its name in the source, such as loss="val_loss".

    Raises:
        SpecError: as of `load_spec`; the spec is a series, the study has no rows, there is no such MLflow store, or an
            argument does not go with the source.
        InputError: the table cannot be read, lacks a column or has no rows.
    """
    return _runs(source, changes, results, count, uri, where, columns).table


@explained()
def fit(
    source: "str | Path | StudySpec | pd.DataFrame",
    *changes: str,
    results: str | Path = "results",
    count: "Count" = "nonembedding",
    uri: str | None = None,
    level: float = 0.95,
    tokens: float | None = None,
    unit: "UnitOption" = "nats",
    where: Mapping[str, object] | None = None,
    **columns: str,
) -> "Answer":
    """Find the crossings of a source and fit the threshold law; the arguments are those of `read`.

    `level` is that of all intervals, between 0 and 1. `tokens` are the training tokens at which shapes are compared, by
    default the most that all shapes have. `unit` is that of the losses in the answer: `nats` per token, or `bpb`, bits
    per byte of the text; it changes no crossing and no shape.

    Raises:
        SpecError: as of `read`.
        InputError: as of `read`; no row can be used, the level, the tokens or the unit are wrong, or the unit needs
            bytes that are not known.
    """
    from interplay.answer import Answer
    from interplay.verbs.answer import StudyRuns, fit_source

    runs = _runs(source, changes, results, count, uri, where, columns)
    failed = runs.failed if isinstance(runs, StudyRuns) else {}
    found = fit_source(runs, level=level, tokens=tokens, unit=unit)
    return Answer(runs.title, runs.table, found, runs.known, failed)


@explained()
def recommend(
    params: float | str | None = None,
    *,
    flops: float | str | None = None,
    law: str | None = None,
    fit: "Answer | str | Path | None" = None,
    within: Within = None,
) -> "Shape | Comparison | ComputeShape":
    """Return the best shape of N non-embedding parameters, by a law or a fit, or by all published evidence.

    Without `law` and `fit` it is a `Comparison`: the shape by each published law, and the depths that are near-optimal
    by all laws of the loss. With `flops` it is the `ComputeShape`: depth, width, N and training tokens of least loss;
    of the published laws, liu2026 has a term of the tokens.

    Args:
        params: N, as a number or as text such as "7B".
        flops: a budget of training FLOPs instead of N, such as 1e20.
        law: levine2020, liu2026, or log3, the least depth by theory.
        fit: an answer, or the path of a `fit.json`.
        within: what a near-optimal depth may lose, in the unit of the fit, or a share of the loss such as "0.5%"; by
            default 0.005 nats per token.

    Raises:
        InputError: both `law` and `fit`, both or none of `params` and `flops`, one of these or the law is wrong, the
            file cannot be read, or there is no answer at N, which published laws have up to ten times the largest size
            that they were fitted on.
    """
    from analysis.audit.recommend import compare, recommend_one

    if params is not None and flops is None and law is None and fit is None:
        return compare([params], within)[0]
    return recommend_one(_named(fit), law, params, flops, within)


@explained()
def report(
    source: "str | Path | StudySpec | pd.DataFrame", out: str | Path, *changes: str, **options: Any
) -> Path:
    """Write the report of a source into a folder and return its page; all else is as of `fit` and `Answer.report`."""
    return fit(source, *changes, **options).report(out)


@explained()
def audit(
    config: str | Path | None = None,
    *,
    depth: int | None = None,
    width: int | None = None,
    vocabulary: int | None = None,
    law: str | None = None,
    fit: "Answer | str | Path | None" = None,
    within: Within = None,
) -> "Audit":
    """Compare a model, by its HuggingFace config or its shape, with all published evidence, or with one law or fit.

    Args:
        config: a `config.json` or its folder.
        depth: layers of a model without a config.
        width: of the same model.
        vocabulary: tokens of the same model, if known.
        law: levine2020 or liu2026, as the only evidence.
        fit: an answer, or the path of a `fit.json`, as the only evidence.
        within: nats per token within which a depth counts as near-optimal.

    Raises:
        InputError: no model or two of them, both `law` and `fit`, a model that cannot be compared, or a fit without an
            answer at its size.
    """
    from interplay.verbs.audit import audit_models

    if config is not None and depth is not None and width is not None:
        raise InputError(f"Give one model: the config {config}, or --depth {depth} and --width {width}.")
    configs = [] if config is None else [Path(config)]
    (found,) = audit_models(configs, (depth, width, vocabulary), law, _named(fit), within)
    return found


def _named(fit: "Answer | str | Path | None") -> "Path | NamedFit | None":
    from analysis.fit.recommendation import NamedFit
    from interplay.fit_files import fit_file

    if fit is None or isinstance(fit, str | Path):
        return None if fit is None else fit_file(Path(fit), Path("results"))
    return NamedFit(fit.title, fit.fit)


def _one_study(
    spec: "str | Path | StudySpec", changes: tuple[str, ...], doing: str, results: str | Path = "results"
) -> "StudySpec":
    from interplay.verbs.series import refuse_series

    loaded = load_spec(spec, *changes, results=results)
    refuse_series(loaded, doing)
    return loaded


def _frame(source: Any) -> "pd.DataFrame":
    """A table that is loaded as a DataFrame of pandas; polars, pyarrow and others have `to_pandas`."""
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source
    if hasattr(source, "to_pandas"):
        return pd.DataFrame(source.to_pandas())
    rows = list(source) if isinstance(source, list | tuple) else []
    if rows and all(isinstance(row, Mapping) for row in rows):
        return pd.json_normalize([dict(row) for row in rows])
    raise InputError(
        f"A {type(source).__name__} is no source of runs: give the name of a study, the path of a spec or a run table, "
        "mlflow:EXPERIMENT, a DataFrame, or a list with one dict per run."
    )


def _runs(
    source: "str | Path | StudySpec | pd.DataFrame",
    changes: tuple[str, ...],
    results: str | Path,
    count: "Count",
    uri: str | None,
    where: Mapping[str, object] | None,
    columns: dict[str, str],
) -> "Runs":
    from interplay.verbs.answer import Reading
    from interplay.verbs.series import refuse_series
    from study.spec.study import StudySpec

    if isinstance(source, StudySpec):
        source, changes = load_spec(source, *changes), ()
    named = [f"{ours}={theirs}" for ours, theirs in columns.items()]
    chosen = [f"{name}={value}" for name, value in (where or {}).items()]
    if isinstance(source, str | Path):
        runs: str | StudySpec | pd.DataFrame = str(source)
    else:
        runs = source if isinstance(source, StudySpec) else _frame(source)
    reading = Reading(runs, changes, named, chosen, count, None, Path(results), uri, 0.95)
    if spec := reading.spec:
        refuse_series(spec, "fit")
    return reading.source


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
