"""`interplay export`: the kept weights of a cell as a HuggingFace folder with a model card, and as an MLflow model."""

import contextlib
import csv
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from study.errors import SpecError
from study.results.sources import existing_experiment
from study.spec.study import load_spec
from study.tracking.mlflow_client import CELL_RUNS, Experiment, first_line
from study.tracking.study_paths import StudyPaths, study_paths_of
from trainables.errors import InputError
from trainables.model.family import family
from trainables.record import RECORD, Record, RecordError, damage, read_record, refuse_filled
from trainables.storage.storage import open_storage, reason

CARD = "README.md"
CONFIG = "config.json"
#: Candidates that an error names at most.
LISTED = 8
#: A key's first digits are an abbreviation from here on; shorter ones are taken for typing errors.
SHORTEST = 4


@dataclass(frozen=True)
class Kept:
    """The kept weights of a cell of a study."""

    study: str
    folder: Path
    record: Record

    def __str__(self) -> str:
        return f"{self.record.key} ({self.record.cell.name} of {self.study}, loss {self.record.loss:.4f})"


@dataclass(frozen=True)
class Unread:
    """A folder of kept weights whose record cannot be read."""

    study: str
    folder: Path
    name: str
    """The cell's by the run table, empty where that has no row of it; its key is the folder's name."""
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.folder.name} ({self.name or 'no name known'} of {self.study}, its record cannot be read)"
        )


@dataclass(frozen=True)
class Exported:
    """What an export has written."""

    kept: Kept
    folder: Path
    mlflow_model: str | None
    """MLflow's address of the model, `models:/…`; None where it was not asked for."""

    @property
    def loading(self) -> tuple[str, str]:
        """Two lines of Python that load the model."""
        return loading(self.kept.record, str(self.folder))

    def to_json(self) -> dict[str, Any]:
        """Return what was written as one JSON document."""
        record = self.kept.record
        return {
            "cell": record.key,
            "name": record.cell.name,
            "study": self.kept.study,
            "folder": str(self.folder),
            "files": sorted(path.name for path in self.folder.iterdir()),
            "loss": record.loss,
            "step": record.step,
            "tokens": record.tokens,
            "params": record.params,
            "total_params": record.total_params,
            "vocabulary": record.vocabulary,
            "tokenizer": record.tokenizer,
            "revision": record.revision,
            "mlflow_model": self.mlflow_model,
            "python": list(self.loading),
        }


def export_cell(
    cell: str, out: Path, results: Path, *, study: str | None = None, mlflow: bool = False
) -> Exported:
    """Write the weights of a cell to a folder of their own, and log them to MLflow if asked to.

    Args:
        cell: its key, the first digits of it, or its name such as L2-d16-s0.
        out: a folder that is empty or not there yet.
        results: root of the results.
        study: a study's name, preset or YAML file, to look in this one only.
        mlflow: also log the folder as an MLflow model of the cell's own run.

    Raises:
        SpecError: no cell, or several, answer to `cell`, its weights were not kept, or MLflow has no run of it.
        InputError: `out` holds files, or the kept folder is damaged.
    """
    refuse_filled(out, "--out")
    # A link or `.` stands for a folder that is filled under its own name.
    target = Path(os.path.realpath(out))
    kept = find(cell, results.resolve(), study)
    run = _run_of(kept, results.resolve()) if mlflow else None
    _copy(kept, target)
    model = log_model(*run, kept, out) if run else None
    return Exported(kept, out, model)


def find(cell: str, results: Path, study: str | None = None) -> Kept:
    """Return the kept weights of a cell by its key, the first digits of it, or its name.

    Raises:
        InputError: they are there, but not what was written. Records of other cells that cannot be read are passed
            over.
        SpecError: none or several cells answer to it; names the candidates, or why there are no weights.
    """
    folders = [results / _study_name(study, results)] if study else _studies(results)
    kept, unread = _all_kept(folders)
    found = [k for k in kept if answers(cell, k.record.key, k.record.cell.name)]
    spoilt = [u for u in unread if answers(cell, u.folder.name, u.name)]
    keys = {k.record.key for k in found} | {u.folder.name for u in spoilt}
    if len(keys) == 1:
        return _whole(found, spoilt)
    where = f"study {folders[0].name!r} in {results}" if study else f"results folder {results}"
    if keys:
        raise SpecError(
            f"{len(keys)} cells of the {where} answer to {cell!r}: {_list([*found, *spoilt])}. Give the key, "
            "or its first digits" + ("." if study else "; --study SPEC looks in one study only.")
        )
    reason = _why_not_kept(cell, folders)
    if reason:
        raise SpecError(reason)
    there = f"It has weights of {_list(kept)}." if kept else "It has no weights of any cell."
    if unread:
        there += f" Whose weights these are is not known: {_list(unread)}; {unread[0].reason}."
    raise SpecError(
        f"the {where} has no weights of a cell {cell!r}; a cell has none before it is finished. "
        f"{there} `interplay status SPEC --json` lists the cells of a study with their keys, by which one at another "
        "learning rate (lr×) is asked for; --results DIR names another folder."
    )


def _whole(copies: Sequence[Kept], unread: Sequence[Unread]) -> Kept:
    """Return the first copy of a cell that is whole; a cell of two studies is one cell, so any of them will do."""
    reasons = []
    for kept in copies:
        _fetch(kept)
        reason = damage(kept.folder, kept.record)
        if reason is None:
            return kept
        reasons.append(reason)
    if copies:
        folder, key, name = copies[0].folder, copies[0].record.key, copies[0].record.cell.name
    else:
        folder, key, name = unread[0].folder, unread[0].folder.name, unread[0].name
    reasons += [one.reason for one in unread]
    where = study_paths_of(folder.parents[1])
    raise InputError(
        f"the weights of cell {key}{f' ({name})' if name else ''} of the study {where.name!r} are damaged: "
        f"{'; '.join(reasons)}. {_again(where, key)}"
    )


def answers(asked: str, key: str, name: str) -> bool:
    """Whether a cell is the one asked for: by its key, at least four first digits of it, or its name."""
    return asked in (key, name) or (len(asked) >= SHORTEST and key.startswith(asked))


def export_text(written: Exported) -> Text:
    """Return what a person is told of an export, the two lines to copy last."""
    record = written.kept.record
    lines = [
        f"Wrote {written.kept.study} {record.cell.name} ({record.key}) to {written.folder}.",
        f"Validation loss {record.loss:.6f} nats a token after {record.tokens:,} tokens.",
    ]
    if record.tokenizer is None:
        lines.append("Its tokens are symbols and no text, so there is no tokenizer.")
    if written.mlflow_model:
        lines.append(f"MLflow has it as {written.mlflow_model}.")
    return Text.assemble("\n".join(lines), "\n\n", ("\n".join(written.loading), "bold"))


def loading(record: Record, folder: str) -> tuple[str, str]:
    """Return two lines of Python that load an exported folder."""
    model = f"model = AutoModelForCausalLM.from_pretrained({folder!r})"
    if record.tokenizer is None:
        return "from transformers import AutoModelForCausalLM", model
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        f"{model}; tokenizer = AutoTokenizer.from_pretrained({folder!r})",
    )


def model_card(kept: Kept) -> str:
    """Return the README of an exported folder, with the metadata HuggingFace's hub reads at its head."""
    record, cell = kept.record, kept.record.cell
    shape, recipe = cell.shape, cell.recipe
    layout = record.layout
    facts = {
        "shape": f"depth {shape.depth}, width {shape.width}, {shape.heads} heads (GPT-2, tied embeddings)",
        "parameters": f"{record.params:,} by 12·L·d²; {record.total_params:,} in all",
        "context": f"{recipe.context} tokens",
        "data": f"{cell.data.describe()} (content {cell.data_key})",
        "tokens": f"{_tokenizer(record)}, {record.vocabulary:,} symbols",
        "training": f"{record.step:,} steps of {recipe.batch} sequences, {record.tokens:,} tokens, {recipe.precision}",
        "learning rate": f"{cell.lr:.6g} at its peak, seed {cell.seed}",
        "validation loss": f"{record.loss:.6f} nats a token{_beside(record)}",
        "layout": f"tensor_parallel {layout.tensor_parallel}, data_parallel {layout.data_parallel}, ZeRO {layout.zero}",
        "study": kept.study,
        "cell": record.key,
        "revision": record.revision or "unknown",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    metadata = ["---", "library_name: transformers"]
    if record.tokenizer:
        metadata.append("pipeline_tag: text-generation")
    metadata += ["tags:", "- interplay", "- gpt2", "---"]
    table = [
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell_of_table(value)} |" for name, value in facts.items()),
    ]
    note = (
        []
        if record.tokenizer
        else [
            "",
            f"Its tokens are {cell.data.describe_ids()} and no text, so there is no tokenizer.",
        ]
    )
    return "\n".join(
        [
            *metadata,
            "",
            f"# {cell.name}",
            "",
            "One cell of a study of depth against width, trained by Interplay.",
            "",
            *table,
            *note,
            "",
            "```python",
            *loading(record, "."),
            "```",
            "",
            f"`{RECORD}` holds the whole cell; `python -m trainables` trains its `cell` again.",
            "",
        ]
    )


def log_model(store: Experiment, run_id: str, kept: Kept, folder: Path) -> str:
    """Log an exported folder as an MLflow model of a run and return its address.

    A model of text is one of MLflow's flavor `transformers`, a pipeline that writes text; a model of symbols is a
    python function from sequences of ids to the probabilities of the next one. Both open with `mlflow.pyfunc`.

    Raises:
        SpecError: MLflow could not take it; what is in `folder` stays.
    """
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model

    record = kept.record
    try:
        logged = store.client.create_logged_model(
            store.experiment_id,
            name=record.cell.name,
            source_run_id=run_id,
            tags={"interplay.cell": record.key, "interplay.study": kept.study},
            params={"loss": f"{record.loss:.10g}", "tokens": str(record.tokens)},
            model_type="text" if record.tokenizer else "symbols",
        )
        # Saved here and sent, because `log_model` would work in a run of MLflow's global state and set it running.
        with tempfile.TemporaryDirectory() as scratch:
            made = Model(artifact_path=logged.artifact_location, model_id=logged.model_id, run_id=run_id)
            _save_model(record, folder.resolve(), Path(scratch) / "model", made)
            store.client.log_model_artifacts(logged.model_id, str(Path(scratch) / "model"))
        store.client.finalize_logged_model(logged.model_id, "READY")
        store.client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, record.step)])
    except MlflowException as error:
        raise SpecError(
            f"the model is in {folder}, but MLflow did not take it: {first_line(error)} Mend that and export again to "
            "another folder, or leave --mlflow out."
        ) from error
    return str(logged.model_uri)


def _save_model(record: Record, folder: Path, target: Path, made: Any) -> None:
    """Write MLflow's own folder of a model; nothing is looked for on the network."""
    requirements = [
        f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in ("torch", "transformers")
    ]
    if record.tokenizer is None:
        import mlflow.pyfunc

        code = importlib.util.find_spec("study.results.symbols_model")
        assert code is not None
        mlflow.pyfunc.save_model(
            str(target),
            python_model=code.origin,
            artifacts={"model": str(folder)},
            pip_requirements=requirements,
            mlflow_model=made,
        )
        return
    import mlflow.transformers
    from huggingface_hub import ModelCard
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder)
    # MLflow asks the hub for the licence of what is called so. No repository can have a name with spaces.
    model.name_or_path = f"Interplay cell {record.key}"
    mlflow.transformers.save_model(
        {"model": model, "tokenizer": AutoTokenizer.from_pretrained(folder)},
        str(target),
        task="text-generation",
        model_card=ModelCard((folder / CARD).read_text(encoding="utf-8")),
        pip_requirements=requirements,
        mlflow_model=made,
    )
    # It sends the reader to the hub's page of a model that is not there.
    (target / "LICENSE.txt").unlink(missing_ok=True)


def _copy(kept: Kept, out: Path) -> None:
    """Copy the kept folder and add the card, so that a kill leaves either all of it or nothing that loads.

    A folder that is there is filled, not replaced: a shell may stand in it, or it may be a mount. Its files are moved
    in when all are written, the config last, without which nothing loads them.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        shutil.copytree(kept.folder, part, dirs_exist_ok=True)
        (part / CARD).write_text(model_card(kept), encoding="utf-8")
        if out.is_dir():
            _fill(out, sorted(part.iterdir(), key=lambda path: path.name == CONFIG))
        else:
            part.chmod(kept.folder.stat().st_mode)
            part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fill(folder: Path, files: Sequence[Path]) -> None:
    """Move files into an empty folder in this order, over devices if need be; all of them, or none."""
    try:
        for path in files:
            shutil.move(path, folder / path.name)
    except OSError:
        for path in files:
            (folder / path.name).unlink(missing_ok=True)
        raise


def _run_of(kept: Kept, results: Path) -> tuple[Experiment, str]:
    """Return the MLflow experiment of a study and the run of a cell in it.

    Raises:
        SpecError: there is no experiment, or it has no run of the cell.
    """
    experiment, problem = existing_experiment(load_spec(str(results / kept.study / "spec.yaml")), results)
    if experiment is not None:
        for run in experiment.runs(f"{CELL_RUNS} AND tags.`interplay.cell` = '{kept.record.key}'"):
            return experiment, str(run.info.run_id)
    why = problem or f"MLflow has no run of cell {kept.record.key} in the study {kept.study!r}"
    raise SpecError(
        f"{why}, so the model cannot be logged to it. `interplay run` sends the rows that MLflow lacks; "
        "without --mlflow the folder is written all the same."
    )


def _studies(results: Path) -> list[Path]:
    """The folders of all studies."""
    return sorted(path.parent for path in results.glob("*/spec.yaml"))


def _study_name(study: str, results: Path) -> str:
    """The name of a study by its own name, or by its preset or YAML file."""
    if (results / study / "spec.yaml").is_file():
        return study
    return load_spec(study).name


def _all_kept(folders: Sequence[Path]) -> tuple[list[Kept], list[Unread]]:
    """The kept weights of studies, and the folders of which it cannot be read what they are."""
    kept, unread = [], []
    for folder in folders:
        where = study_paths_of(folder)
        for path in _models(where):
            try:
                kept.append(Kept(folder.name, path, read_record(path)))
            except RecordError as error:
                names = {line["cell"]: _name(line) for line in _lines(where.runs)}
                unread.append(Unread(folder.name, path, names.get(path.name, ""), error.what))
    return kept, unread


def _models(where: StudyPaths) -> list[Path]:
    """The folders of a study's weights; of weights that lie in an object store, folders with their records alone."""
    storage = open_storage(where.models)
    if not storage.is_remote:
        return [storage.local / tag for tag in sorted(storage.tags()) if not tag.startswith(".")]
    result = []
    try:
        for tag in sorted(storage.tags()):
            record = storage.read(tag, RECORD)
            if record is not None:
                folder = _copies(where) / tag
                folder.mkdir(parents=True, exist_ok=True)
                (folder / RECORD).write_bytes(record)
                result.append(folder)
    except OSError as error:
        raise SpecError(
            f"the weights of the study {where.name!r} lie in {storage.name}, which cannot be read: {reason(error)} "
            "Export from a machine that may read it (the head of the cluster), or give this one the keys (for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile)."
        ) from error
    return result


def _fetch(kept: Kept) -> None:
    """Bring the weights themselves from where all machines share them."""
    where = study_paths_of(kept.folder.parents[1])
    storage = open_storage(where.models)
    if storage.is_remote:
        storage.local = _copies(where)
        # What is missing there is told, by name, when the files are compared with the record.
        with contextlib.suppress(FileNotFoundError):
            storage.fetch(kept.folder.name, kept.record.files)


def _copies(where: StudyPaths) -> Path:
    """Where weights are brought to that lie in an object store."""
    return where.folder / "models"


def _why_not_kept(cell: str, folders: Sequence[Path]) -> str | None:
    """Why a cell that a study knows has no weights; None for a cell that none knows."""
    for folder in folders:
        where = study_paths_of(folder)
        spec = where.folder / "spec.yaml"
        for line in _lines(where.runs):
            key, name = line["cell"], _name(line)
            if not answers(cell, key, name):
                continue
            called = f"cell {key} ({name}) of the study {folder.name!r}"
            if line["status"] != "done":
                return f"{called} is {line['status']} and has no weights: {line.get('reason') or 'no reason given'}"
            recipe = load_spec(str(spec)).recipe
            if not family(recipe.network).is_huggingface(recipe):
                return (
                    f"{called} has no weights: HuggingFace has no class for a model with its `training.network` or "
                    "`training.residual`."
                )
            return (
                f"the weights of {called} were not kept (`resources.keep_weights` was none, the disk was full, or they "
                f"were removed). {_again(where, key)}"
            )
        checkpoints = open_storage(where.checkpoints)
        for key in sorted(() if checkpoints.is_remote else checkpoints.tags()):
            if answers(cell, key, ""):
                return (
                    f"cell {key} of the study {folder.name!r} is not finished, and only finished cells have "
                    f"weights; go on with `interplay run {spec}`."
                )
    return None


def _again(where: StudyPaths, key: str) -> str:
    """How the weights of a cell that has its row are made again: `interplay run` passes over it."""
    spec, data = shlex.quote(str(where.folder / "spec.yaml")), shlex.quote(str(where.data))
    return (
        f"Train it again by hand: `interplay plan {spec} --cell {key} > cell.json`, then "
        f"`python -m trainables cell.json --data {data} --weights DIR`; DIR is then the model."
    )


def _lines(runs: Path) -> list[dict[str, str]]:
    if not runs.is_file():
        return []
    with runs.open(newline="") as file:
        return list(csv.DictReader(file))


def _name(line: dict[str, str]) -> str:
    return f"L{line['depth']}-d{line['width']}-s{line['seed']}"


def _list(kept: Sequence[Kept | Unread]) -> str:
    shown = "; ".join(str(k) for k in kept[:LISTED])
    return shown + (f" and {len(kept) - LISTED} more" if len(kept) > LISTED else "")


def _tokenizer(record: Record) -> str:
    return {None: "symbols", "bytes": "bytes and end of text", "bpe": "byte-level BPE"}[record.tokenizer]


def _beside(record: Record) -> str:
    """What a loss is to be compared with, where it is known."""
    if record.entropy is not None:
        return f"; no model can do better than {record.entropy:.6f}"
    return ""


def _cell_of_table(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
