"""The README of an exported model, with the metadata that HuggingFace's hub reads."""

from pathlib import Path

from trainables.data.spec import DataSpec, HierarchyData, MixtureData
from trainables.data.tasks.spec import TaskData
from trainables.record import RECORD, Record

CARD = "README.md"

TEMPLATE = """---
library_name: transformers
{pipeline}tags:
- interplay
- gpt2
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
    tokenizer = {None: "symbols", "bytes": "bytes and end of text", "bpe": "byte-level BPE"}[record.tokenizer]
    bound = "" if record.entropy is None else f"; no model can do better than {record.entropy:.6f}"
    facts = {
        "shape": f"depth {shape.depth}, width {shape.width}, {shape.heads} heads (GPT-2, tied embeddings)",
        "parameters": f"{record.params:,} by 12·L·d²; {record.total_params:,} in total",
        "context": f"{recipe.context} tokens",
        "data": f"{_data(cell.data)} (content {cell.data_key})",
        "tokens": f"{tokenizer}, {record.vocabulary:,} symbols",
        "training": f"{record.step:,} steps of {recipe.batch} sequences, {record.tokens:,} tokens, {recipe.precision}",
        "learning rate": f"peak {cell.lr:.6g}, seed {cell.seed}",
        "validation loss": f"{record.loss:.6f} nats per token{bound}",
        "layout": f"tensor_parallel {layout.tensor_parallel}, data_parallel {layout.data_parallel}, ZeRO {layout.zero}",
        "study": study,
        "cell": record.key,
        "revision": record.revision or "unknown",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    note = f"\nIts tokens are {_symbols(cell.data, record.vocabulary)}, not text: there is no tokenizer.\n"
    return TEMPLATE.format(
        pipeline="pipeline_tag: text-generation\n" if record.tokenizer else "",
        name=cell.name,
        table="\n".join(f"| {fact} | {_table_cell(value)} |" for fact, value in facts.items()),
        note="" if record.tokenizer else note,
        loading="\n".join(loading(record, ".")),
        record=RECORD,
    )


def _table_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _symbols(data: DataSpec, vocabulary: int) -> str:
    """What the ids of a model without a tokenizer are."""
    if isinstance(data, TaskData) and len(data.parts) > 1:
        starts = (f"{data.first_start + place} of {part}" for place, part in enumerate(data.parts))
        return (
            f"the ids 0 to {data.first_start - 1} of a task (a sequence begins with an id that tells its "
            f"{data.graded_by}: {', '.join(starts)})"
        )
    whose = "a task" if isinstance(data, TaskData) else "a random grammar"
    return f"symbols 0 to {vocabulary - 2} of {whose} (a sequence begins with the id {vocabulary - 1})"


def _data(data: DataSpec) -> str:
    """What the data is, in words; of files only the last part of a path, which may tell about its owner."""
    if isinstance(data, MixtureData):
        total = sum(part.weight for part in data.parts)
        return "a mixture: " + ", ".join(
            f"{part.weight / total:.0%} {_data(part.data)}" for part in data.parts
        )
    if isinstance(data, HierarchyData):
        return (
            f"a random hierarchy of {data.levels} levels, {data.vocabulary} symbols, {data.synonyms} synonyms of "
            f"{data.branching} symbols, grammar {data.grammar_seed}"
        )
    if isinstance(data, TaskData):
        told = data.model_dump(exclude={"kind", "sequences", "validation_sequences"})
        words = (
            f"{key} {' and '.join(map(str, value)) if isinstance(value, tuple) else value}"
            for key, value in told.items()
        )
        return f"the task {data.kind} ({', '.join(words)})"
    if data.kind == "files":
        paths = (data.path,) if isinstance(data.path, str) else data.path
        return "files " + ", ".join(Path(path).name for path in paths)
    if data.kind == "hub":
        return " ".join(filter(None, (data.name, data.config, data.split, data.revision)))
    return data.kind
