"""`interplay export`: find the kept weights of a cell and copy them as a HuggingFace folder with a model card."""

import contextlib
import csv
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from study.errors import SpecError
from study.results.mlflow_model import find_run, log_model
from study.results.model_card import CARD, loading, model_card
from study.spec.study import load_spec
from study.tracking.study_paths import StudyPaths, study_paths_of
from trainables.errors import InputError
from trainables.model.family import family
from trainables.record import RECORD, Record, RecordError, damage, read_record, refuse_filled
from trainables.storage.storage import open_storage, reason

CONFIG = "config.json"
#: Candidates that an error lists at most.
LISTED = 8
#: Fewest digits that abbreviate a key; fewer are taken for a typing error.
SHORTEST = 4


@dataclass(frozen=True)
class Kept:
    """A folder of kept weights of a study."""

    study: StudyPaths
    folder: Path
    loaded: Record | RecordError

    @property
    def record(self) -> Record:
        """The record of the weights.

        Raises:
            RecordError: it cannot be read.
        """
        if isinstance(self.loaded, RecordError):
            raise self.loaded
        return self.loaded

    @property
    def name(self) -> str:
        """The cell's name; empty if the record cannot be read."""
        return "" if isinstance(self.loaded, RecordError) else self.loaded.cell.name

    def __str__(self) -> str:
        if isinstance(self.loaded, RecordError):
            return f"{self.folder.name} (of {self.study.name}, its record cannot be read)"
        return f"{self.folder.name} ({self.name} of {self.study.name}, loss {self.loaded.loss:.4f})"


@dataclass(frozen=True)
class Exported:
    """An exported model."""

    kept: Kept
    folder: Path
    mlflow_model: str | None
    """MLflow's address of the model, `models:/…`; None without --mlflow."""

    @property
    def loading(self) -> tuple[str, str]:
        """Two lines of Python that load the model."""
        return loading(self.kept.record, str(self.folder))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document of `interplay export --json`."""
        record = self.kept.record
        copied = ("loss", "step", "tokens", "params", "total_params", "vocabulary", "tokenizer", "revision")
        return {
            "cell": record.key,
            "name": record.cell.name,
            "study": self.kept.study.name,
            "folder": str(self.folder),
            "files": sorted(path.name for path in self.folder.iterdir()),
            **{name: getattr(record, name) for name in copied},
            "mlflow_model": self.mlflow_model,
            "python": list(self.loading),
        }


def export_cell(
    cell: str, out: Path, results: Path, *, study: str | None = None, mlflow: bool = False
) -> Exported:
    """Copy the weights of a cell (see `find`) to an empty or new folder, and log them to MLflow on request.

    Raises:
        SpecError: no cell, or several, match `cell`, its weights were not kept, or MLflow has no run of it.
        InputError: `out` holds files, or the kept folder is damaged.
    """
    refuse_filled(out, "--out")
    results = results.resolve()
    kept = find(cell, results, study)
    run = find_run(kept.study.name, kept.record.key, results) if mlflow else None
    # `out` may be a link, also one whose target does not exist yet.
    _copy(kept, Path(os.path.realpath(out)))
    model = log_model(*run, kept.record, kept.study.name, out) if run else None
    return Exported(kept, out, model)


def find(cell: str, results: Path, study: str | None = None) -> Kept:
    """Return the kept weights of a cell by its key, its first digits, or its name such as L2-d16-s0.

    Args:
        cell: key, digits or name.
        results: root of the results.
        study: a study's name, preset or YAML file; None searches all studies.

    Raises:
        InputError: the weights are damaged. Unreadable records of other cells are ignored.
        SpecError: none or several cells match; lists the candidates, or why there are no weights.
    """
    if study is None:
        folders = sorted(path.parent for path in results.glob("*/spec.yaml"))
        where = f"results folder {results}"
    else:
        name = study if (results / study / "spec.yaml").is_file() else load_spec(study).name
        folders = [results / name]
        where = f"study {name!r} in {results}"
    studies = [study_paths_of(folder) for folder in folders]
    kept = [Kept(paths, path, _load(path)) for paths in studies for path in _model_folders(paths)]
    found = [one for one in kept if answers(cell, one.folder.name, one.name)]
    keys = {one.folder.name for one in found}
    if len(keys) == 1:
        return _first_intact(found)
    if keys:
        raise SpecError(
            f"{len(keys)} cells of the {where} match {cell!r}: {_list(found)}. Give the key or its first digits"
            + ("." if study else ", or choose a study with --study SPEC.")
        )
    reason = next(filter(None, (_why_not_kept(cell, paths) for paths in studies)), None)
    if reason:
        raise SpecError(reason)
    raise SpecError(
        f"the {where} has no weights of a cell {cell!r}. It has weights of {_list(kept) or 'no cell'}; cells in "
        "training have none. `interplay status SPEC --json` lists the keys of a study's cells; --results DIR names "
        "another folder."
    )


def answers(asked: str, key: str, name: str) -> bool:
    """Whether a cell is the requested one: by its key, at least four first digits of it, or its name."""
    return asked in (key, name) or (len(asked) >= SHORTEST and key.startswith(asked))


def export_text(written: Exported) -> Text:
    """Return the message of `interplay export`; its last two lines load the model."""
    record = written.kept.record
    lines = [
        f"Wrote {written.kept.study.name} {record.cell.name} ({record.key}) to {written.folder}.",
        f"Validation loss {record.loss:.6f} nats per token after {record.tokens:,} tokens.",
    ]
    if record.tokenizer is None:
        lines.append("Its tokens are symbols, not text: there is no tokenizer.")
    if written.mlflow_model:
        lines.append(f"MLflow model: {written.mlflow_model}.")
    return Text.assemble("\n".join(lines), "\n\n", ("\n".join(written.loading), "bold"))


def _copy(kept: Kept, out: Path) -> None:
    """Copy the kept files and add the card; on an error remove what was copied.

    An existing folder is filled, not replaced, because it may be a mount or a shell's working directory. The config
    comes last: without it nothing loads a copy that was killed.
    """
    made = not out.is_dir()
    out.mkdir(parents=True, exist_ok=True)
    try:
        (out / CARD).write_text(model_card(kept.record, kept.study.name), encoding="utf-8")
        for path in sorted(kept.folder.iterdir(), key=lambda path: path.name == CONFIG):
            shutil.copy2(path, out / path.name)
    except OSError:
        for path in out.iterdir():
            path.unlink()
        if made:
            out.rmdir()
        raise


def _load(folder: Path) -> Record | RecordError:
    try:
        return read_record(folder)
    except RecordError as error:
        return error


def _model_folders(study: StudyPaths) -> list[Path]:
    """Return the folders of a study's weights; of an object store, download the records only."""
    storage = open_storage(study.models)
    if not storage.is_remote:
        return [storage.local / tag for tag in sorted(storage.tags()) if not tag.startswith(".")]
    folders = []
    try:
        for tag in sorted(storage.tags()):
            record = storage.read(tag, RECORD)
            if record is not None:
                folder = study.folder / "models" / tag
                folder.mkdir(parents=True, exist_ok=True)
                (folder / RECORD).write_bytes(record)
                folders.append(folder)
    except OSError as error:
        raise SpecError(
            f"the weights of the study {study.name!r} are in {storage.name}, which cannot be read: {reason(error)} "
            "Export on a machine with access (the head of the cluster), or set credentials here (for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile)."
        ) from error
    return folders


def _first_intact(copies: Sequence[Kept]) -> Kept:
    """Return the first undamaged copy of a cell; several studies may have one.

    Raises:
        InputError: all are damaged.
    """
    problems = []
    for kept in copies:
        if isinstance(kept.loaded, RecordError):
            problems.append(kept.loaded.what)
            continue
        storage = open_storage(kept.study.models)
        if storage.is_remote:
            storage.local = kept.folder.parent
            # `damage` reports a missing file by its name.
            with contextlib.suppress(FileNotFoundError):
                storage.fetch(kept.folder.name, kept.record.files)
        problem = damage(kept.folder, kept.record)
        if problem is None:
            return kept
        problems.append(problem)
    study, key = copies[0].study, copies[0].folder.name
    raise InputError(
        f"the weights of cell {key} of the study {study.name!r} are damaged: {'; '.join(problems)}. "
        f"{_train_again(study, key)}"
    )


def _why_not_kept(cell: str, study: StudyPaths) -> str | None:
    """Return why a cell of a study has no weights; None if the study has no such cell."""
    spec = study.folder / "spec.yaml"
    for row in _read_table(study.runs):
        key, name = row["cell"], _name(row)
        if not answers(cell, key, name):
            continue
        subject = f"cell {key} ({name}) of the study {study.name!r}"
        if row["status"] != "done":
            return (
                f"{subject} is {row['status']} and has no weights: {row.get('reason') or 'no reason given'}"
            )
        recipe = load_spec(str(spec)).recipe
        if not family(recipe.network).is_huggingface(recipe):
            return (
                f"{subject} has no weights: HuggingFace has no class for a model with its `training.network` or "
                "`training.residual`."
            )
        return (
            f"the weights of {subject} were not kept (`resources.keep_weights` was none, the disk was full, or they "
            f"were removed). {_train_again(study, key)}"
        )
    checkpoints = open_storage(study.checkpoints)
    for key in sorted(() if checkpoints.is_remote else checkpoints.tags()):
        if answers(cell, key, ""):
            return (
                f"cell {key} of the study {study.name!r} is not finished, and only finished cells have weights; "
                f"resume with `interplay run {spec}`."
            )
    return None


def _train_again(study: StudyPaths, key: str) -> str:
    """Return how to make lost weights again; `interplay run` skips cells that have their row."""
    spec, data = shlex.quote(str(study.folder / "spec.yaml")), shlex.quote(str(study.data))
    return (
        f"Train it again by hand: `interplay plan {spec} --cell {key} > cell.json`, then "
        f"`python -m trainables cell.json --data {data} --weights DIR`; DIR is then the model."
    )


def _read_table(runs: Path) -> list[dict[str, str]]:
    if not runs.is_file():
        return []
    with runs.open(newline="") as file:
        return list(csv.DictReader(file))


def _name(row: dict[str, str]) -> str:
    return f"L{row['depth']}-d{row['width']}-s{row['seed']}"


def _list(kept: Sequence[Kept]) -> str:
    more = f" and {len(kept) - LISTED} more" if len(kept) > LISTED else ""
    return "; ".join(map(str, kept[:LISTED])) + more
