"""Curves of small cells, written down: what each kind of training has come to, step by step.

A change of the code that changes a loss must say so: `python -m tests.trainables.train.golden --reason "..."` writes
the file anew, with the reason and the versions it was made with. A change of losses also needs another `CELL_VERSION`.
"""

import argparse
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainables.cell import Base, Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.kinds.hops import HopsData
from trainables.layout import Layout
from trainables.train.loop import train

FILE = Path(__file__).parents[2] / "data" / "golden.json"
VERSIONS = ("torch", "deepspeed", "transformers", "numpy")
STEPS, BATCH, CONTEXT = 30, 8, 16
DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=600, validation_sequences=20)
TASK = HopsData(hops=(1, 2), sequences=600, validation_sequences=20)
SHARED = Shape(depth=2, width=32, heads=4, kv_heads=2)
BASE = Base(depth=1, width=16, head_width=4)
#: At ten times the rate training magnifies rounding to 1e-4, and the norm of every gradient is clipped here.
RATE, CLIP = 0.002, 0.5


def cell(data: Any = DATA, depth: int = 2, shape: Shape | None = None, **recipe: Any) -> Cell:
    """A cell of the hierarchy or another data set."""
    return Cell(
        shape=shape or Shape(depth=depth, width=32, heads=4),
        recipe=Recipe(steps=STEPS, batch=BATCH, context=CONTEXT, grad_clip=CLIP, **recipe),
        data=data,
        data_key=data_key(data, CONTEXT),
        lr=RATE,
        seed=0,
    )


#: Every family, residual, parametrisation and kind of number, on one rank.
CELLS: dict[str, tuple[Cell, Layout]] = {
    "plain": (cell(), Layout()),
    "init gpt2": (cell(init="gpt2", weight_decay=0.5), Layout()),
    **{
        f"residual {name}": (cell(depth=4, residual=name), Layout())
        for name in ("sqrt", "linear", "scaled_norm", "post", "admin")
    },
    "network analysed": (cell(network="analysed"), Layout()),
    "network llama": (cell(shape=SHARED, network="llama"), Layout()),
    "network qwen3": (cell(shape=SHARED, network="qwen3", embeddings="untied", rope_theta=100.0), Layout()),
    "mup": (cell(parametrisation="mup", base=BASE, weight_decay=0.1), Layout()),
    "completep": (cell(parametrisation="completep", base=BASE, weight_decay=0.1, epsilon=1e-6), Layout()),
    "task hops": (cell(TASK), Layout()),
    "four pieces": (cell(), Layout(micro_batch=2)),
    "muon": (cell(optimizer="muon", weight_decay=0.1), Layout()),
    "dropout": (cell(dropout=0.1), Layout(zero=2)),
    "bf16": (cell(precision="bf16"), Layout()),
    "bf16 in four pieces": (cell(precision="bf16"), Layout(zero=1, micro_batch=2)),
}


def curve(name: str, root: Path) -> dict[str, Any]:
    """Train a cell on this rank; its key, losses and norms of all steps, and losses and measures of its evaluations.

    The learning rates are those of `schedule`, which has its own tests.
    """
    one, layout = CELLS[name]
    result = train(one, data_root=root, layout=layout, evaluations=2)
    return {
        "key": one.key,
        "losses": [point.train_loss for point in result.points],
        "norms": [point.grad_norm for point in result.points],
        "evaluations": [evaluation.loss for evaluation in result.evaluations],
        "measures": [dict(evaluation.measures) for evaluation in result.evaluations],
    }


def main(arguments: list[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainables.train.golden", description=__doc__)
    parser.add_argument("--reason", required=True, help="why the curves change; kept in the file")
    reason = parser.parse_args(arguments).reason.strip()
    if not reason:
        parser.error("--reason is empty; say why the curves change")
    with tempfile.TemporaryDirectory() as root:
        cells = {name: curve(name, Path(root)) for name in CELLS}
    header = {"reason": reason, "versions": {name: version(name) for name in VERSIONS}}
    lines = [f"{json.dumps(name)}: {json.dumps(cells[name])}" for name in cells]
    body = ",\n".join(lines)
    FILE.write_text(f'{{"header": {json.dumps(header)},\n"cells": {{\n{body}\n}}}}\n')
    print(f"wrote {len(cells)} curves to {FILE}", file=sys.stderr)


if __name__ == "__main__":
    main()
