"""The README of an exported model, with the metadata that HuggingFace's hub reads."""

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
        "data": f"{cell.data.describe()} (content {cell.data_key})",
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
    note = ""
    if record.tokenizer is None:
        note = f"\nIts tokens are {cell.data.describe_ids()}, not text: there is no tokenizer.\n"
    return TEMPLATE.format(
        pipeline="pipeline_tag: text-generation\n" if record.tokenizer else "",
        name=cell.name,
        table="\n".join(f"| {fact} | {_table_cell(value)} |" for fact, value in facts.items()),
        note=note,
        loading="\n".join(loading(record, ".")),
        record=RECORD,
    )


def _table_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
