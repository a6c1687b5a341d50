"""`interplay export`: copy the kept weights of a cell as a HuggingFace folder with a model card."""

import contextlib
import csv
import math
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from analysis.units import bits_per_byte
from core.command_line import call, command, option
from core.errors import InputError, near_misses, some
from interplay.result import VerbResult
from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.study import load_spec
from study.spec.yaml_file import SPEC
from study.tracking.study_paths import StudyPaths, study_paths_of
from trainables.model.family import family
from trainables.record import RECORD, Record, RecordError, damage, read_record, refuse_filled
from trainables.storage.storage import open_storage, reason

CONFIG = "config.json"
CARD = "README.md"

TEMPLATE = """---
library_name: transformers
{pipeline}tags:
- interplay
- {network}
---

# {name}

One cell of a study of depth against width, trained by Interplay.

| | |
|---|---|
{table}
{note}
```python
{loading}
```

`{record}` holds the whole cell; `python -m trainables` trains its `cell` again.
"""

#: Candidates that an error lists at most.
LISTED = 40
#: The name of the cell of the lowest loss at the largest size.
BEST = "best"


@dataclass(frozen=True)
class Kept:
    """A folder of kept weights of a study; `problem` is why its record cannot be read."""

    study: StudyPaths
    folder: Path
    record: Record | None
    problem: str = ""

    @property
    def name(self) -> str:
        """The cell's name; empty without a record."""
        return self.record.cell.name if self.record else ""

    def __str__(self) -> str:
        if self.record is None:
            return f"{self.folder.name} (its record cannot be read)"
        return f"{self.name} ({self.record.tokens:,} tokens, loss {self.record.loss:.4f})"


@dataclass(frozen=True, repr=False)
class Exported(VerbResult):
    """A model that was written to a folder."""

    record: Record
    study: str
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """Return the document of `interplay export --json`."""
        copied = ("loss", "step", "tokens", "params", "total_params", "vocabulary", "tokenizer", "revision")
        return {
            "cell": self.record.key,
            "name": self.record.cell.name,
            "study": self.study,
            "folder": str(self.folder),
            "files": sorted(path.name for path in self.folder.iterdir()),
            **{name: getattr(self.record, name) for name in copied},
            "bits_per_byte": bits_per_byte(self.record.loss, self.record.bytes_per_token),
            "python": list(loading(self.record, str(self.folder))),
        }

    def __rich__(self) -> Text:
        """Return the message of the command; its last two lines load the model."""
        record, bits = self.record, bits_per_byte(self.record.loss, self.record.bytes_per_token)
        per_byte = "" if bits is None else f" ({bits:.6f} bits per byte of text)"
        text = (
            f"Wrote {self.study} {record.cell.name} ({record.key}) to {self.folder}.\n"
            f"Validation loss {record.loss:.6f} nats per token{per_byte} after {record.tokens:,} tokens."
        )
        if record.tokenizer is None:
            text += "\nIts tokens are symbols, not text: there is no tokenizer."
        return Text.assemble(text, "\n\n", ("\n".join(loading(record, str(self.folder))), "bold"))


def export(
    study: str, cell: str | None = None, *, out: str | Path | None = None, results: str | Path = "results"
) -> Exported:
    """Copy the weights of a trained cell to an empty or new folder, as a HuggingFace model with a card.

        interplay.export("quickstart", "best", out="model")

    Args:
        study: a name in the results folder, a preset or a YAML file.
        cell: its key, its name such as L2-d16-s0, or `best`: of the largest size the cell of the lowest loss.
        out: the folder; one that exists is filled, because it may be a mount or the working directory of a shell.
        results: root of the results.

    Raises:
        SpecError: `cell` or `out` is missing, none or several cells match, or the weights were not kept.
        InputError: `out` holds files, or the kept folder is damaged.
    """
    folder, results = None if out is None else Path(out), Path(results)
    if folder is not None:
        refuse_filled(folder, option("out", folder))
    kept = find(study, cell, results.resolve(), folder)
    if folder is None:
        name = f"{kept.study.name}-{kept.name}"
        again = call("export", study, cell or kept.name, out=name, results=results)
        raise SpecError(f"Name the folder of the model: `{again}`.")
    record = kept.record
    assert record is not None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).write_text(model_card(record, kept.study.name), encoding="utf-8")
    # The config comes last: without it nothing loads a copy that was killed.
    for path in sorted(kept.folder.iterdir(), key=lambda path: path.name == CONFIG):
        shutil.copy2(path, folder / path.name)
    return Exported(record, kept.study.name, folder)


def find(study: str, cell: str | None, results: Path, out: Path | None = None) -> Kept:
    """Return the kept weights of a cell by its key, its name such as L2-d16-s0, or as `best`.

    `study` is a name in the results folder, a preset or a YAML file. `out` is of the commands that errors propose.

    Raises:
        InputError: the weights are damaged. Unreadable records of other cells are ignored.
        SpecError: none or several cells match; lists the candidates, or why there are no weights.
    """
    # A spec that cannot be read any more has weights all the same.
    name = study if (results / study / SPEC).is_file() else load_spec(study, (), results).name
    paths = study_paths_of(results / name)
    kept = _all_kept(paths)
    where = f"study {name!r} in {results}"

    def again(other: str) -> str:
        return call("export", study, other, out=str(out or f"{name}-{other}"), results=results)

    if cell is None and kept:
        raise SpecError(f"Name a cell of the {where}: {BEST}, {_list(kept)}. For example: `{again(BEST)}`.")
    if cell == BEST and kept and (best := _best(paths, kept)):
        matches = [best]
    else:
        matches = [item for item in kept if cell in (item.folder.name, item.name)]
    if len(matches) > 1:
        # Cells of one name differ in their tokens or in their learning rate.
        keys = some([f"{item.folder.name} = {item}" for item in matches], LISTED)
        raise SpecError(f"{len(matches)} cells of the {where} have the name {cell!r}: {keys}. Give the key.")
    if not matches:
        names = [item.name for item in kept]
        near = cell and ([name for name in names if name.startswith(cell)] or near_misses(cell, names))
        meant = f"; did you mean `{again(near[0])}`?" if near else "."
        asked = f"a cell {cell!r}" if kept and cell else "any cell"
        listed = f"It has weights of {_list(kept)}. " if kept else ""
        raise SpecError(
            (cell and _why_not_kept(cell, paths))
            or f"the {where} has no weights of {asked}{meant} {listed}Cells in training have none. "
            f"`{call('status', study, results=results)}` lists all cells."
        )
    (match,) = matches
    if problem := _problem(match):
        raise InputError(
            f"the weights of cell {match.folder.name} of the study {name!r} are damaged: {problem}. "
            f"{_train_again(paths, match.folder.name)}"
        )
    return match


def _best(paths: StudyPaths, kept: Sequence[Kept]) -> Kept | None:
    """The cell of the lowest loss among those of the largest size, or compute, that have weights."""
    plan = make_plan(load_spec(str(paths.folder / SPEC)))
    budgets = {planned.cell.key: planned.compared_at for planned in plan.pool}
    sized = [
        (budgets[item.folder.name], item) for item in kept if item.record and item.folder.name in budgets
    ]
    largest = max((budget for budget, _ in sized), default=None)
    return min(
        (item for budget, item in sized if budget == largest),
        key=lambda item: item.record.loss if item.record else math.inf,
        default=None,
    )


def _list(kept: Sequence[Kept]) -> str:
    def place(item: Kept) -> tuple[bool, int, str]:
        return item.record is None, item.record.params if item.record else 0, str(item)

    return some([str(item) for item in sorted(kept, key=place)], LISTED)


def _all_kept(study: StudyPaths) -> list[Kept]:
    """Return the weights of a study; of an object store, download the records only."""
    storage, kept = open_storage(study.models), []
    models = study.folder / "models" if storage.is_remote else storage.local
    try:
        for tag in sorted(tag for tag in storage.tags() if not tag.startswith(".")):
            folder = models / tag
            if storage.is_remote:
                record = storage.read(tag, RECORD)
                if record is None:
                    continue
                folder.mkdir(parents=True, exist_ok=True)
                (folder / RECORD).write_bytes(record)
            try:
                kept.append(Kept(study, folder, read_record(folder)))
            except RecordError as error:
                kept.append(Kept(study, folder, None, error.what))
    except OSError as error:
        raise SpecError(
            f"the weights of the study {study.name!r} are in {storage.name}, which cannot be read: {reason(error)} "
            "Export on a machine with access (the head of the cluster), or set credentials here (for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile)."
        ) from error
    return kept


def _problem(kept: Kept) -> str | None:
    """Return how a folder is damaged; of an object store, download it first."""
    if kept.record is None:
        return kept.problem
    storage = open_storage(kept.study.models)
    if storage.is_remote:
        # `damage` reports a missing file by its name.
        with contextlib.suppress(FileNotFoundError):
            storage.fetch(kept.folder.name, kept.record.files, kept.folder.parent)
    return damage(kept.folder, kept.record)


def _why_not_kept(cell: str, study: StudyPaths) -> str | None:
    """Return why a finished cell of a study has no weights; None if the study has no such row."""
    if not study.runs.is_file():
        return None
    with study.runs.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        key, name = row["cell"], f"L{row['depth']}-d{row['width']}-s{row['seed']}"
        if cell not in (key, name):
            continue
        subject = f"cell {key} ({name}) of the study {study.name!r} is {row['status']} and has no weights"
        if row["status"] != "done":
            return f"{subject}: {row.get('reason') or 'no reason given'}"
        recipe = load_spec(str(study.folder / SPEC)).recipe
        if not family(recipe.network).is_huggingface(recipe):
            return f"{subject}: HuggingFace has no class for its `training.network` or `training.residual`."
        return (
            f"{subject}: `resources.keep_weights` was none, the disk was full, or they were removed. "
            f"{_train_again(study, key)}"
        )
    return None


def _train_again(study: StudyPaths, key: str) -> str:
    """Return how to make lost weights again; `interplay run` skips cells that have their row."""
    plan, data = command("plan", str(study.folder / SPEC), "--cell", key), shlex.quote(str(study.data))
    return (
        f"Train it again by hand: `{plan} > cell.json`, then "
        f"`python -m trainables cell.json --data {data} --weights DIR`; DIR is then the model."
    )


def loading(record: Record, folder: str) -> tuple[str, str]:
    """Return two lines of Python that load an exported folder."""
    model = f"model = AutoModelForCausalLM.from_pretrained({folder!r})"
    if record.tokenizer is None:
        return "from transformers import AutoModelForCausalLM", model
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        f"{model}; tokenizer = AutoTokenizer.from_pretrained({folder!r})",
    )


def model_card(record: Record, study: str) -> str:
    """Return the README of a cell's exported folder."""
    cell, layout = record.cell, record.layout
    shape, recipe = cell.shape, cell.recipe
    tokenizer = {
        None: "symbols",
        "bytes": "bytes and end of text",
        "bpe": "byte-level BPE",
        "file": "those of the tokenizer in this folder, of which training added none but the end of a document",
    }[record.tokenizer]
    bits = bits_per_byte(record.loss, record.bytes_per_token)
    per_byte = "" if bits is None else f", {bits:.6f} bits per byte of text"
    bound = "" if record.entropy is None else f"; no model can do better than {record.entropy:.6f}"
    facts = {
        "network": family(recipe.network).describe([shape], recipe),
        "shape": f"depth {shape.depth}, width {shape.width}, {shape.heads} heads of {shape.head_width}"
        + ("" if shape.kv_heads is None else f", {shape.kv_heads} key-value heads"),
        "parameters": f"{record.params:,} by {shape.layer_weights}·L·d²; {record.total_params:,} in total",
        "context": f"{recipe.context} tokens",
        "data": f"{cell.data.describe()} (content {cell.data_key})",
        "tokens": f"{tokenizer}, {record.vocabulary:,} symbols",
        "training": f"{record.step:,} steps of {recipe.batch} sequences, {record.tokens:,} tokens, {recipe.precision}",
        "learning rate": f"peak {cell.lr:.6g}, seed {cell.seed}",
        "validation loss": f"{record.loss:.6f} nats per token{per_byte}{bound}",
        "layout": f"tensor_parallel {layout.tensor_parallel}, data_parallel {layout.data_parallel}, ZeRO {layout.zero}",
        "study": study,
        "cell": record.key,
        "revision": record.revision or "unknown",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    note = ""
    if record.tokenizer is None:
        note = f"\nIts tokens are {cell.data.describe_ids()}, not text: there is no tokenizer.\n"
    return TEMPLATE.format(
        pipeline="pipeline_tag: text-generation\n" if record.tokenizer else "",
        name=cell.name,
        network=recipe.network,
        table="\n".join(
            "| {} | {} |".format(fact, value.replace("|", "\\|").replace("\n", " "))
            for fact, value in facts.items()
        ),
        note=note,
        loading="\n".join(loading(record, ".")),
        record=RECORD,
    )
