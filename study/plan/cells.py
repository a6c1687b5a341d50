"""A cell with its costs, and the outcome of a trained cell."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from trainables.cell import Cell
from trainables.layout import Layout
from trainables.model.family import Parameters


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell and its estimated cost."""

    cell: Cell
    budget: float
    """The target of N this shape was chosen for; with hand-written widths, the shape's own N."""
    lr_factor: float
    """The multiple of the learning-rate rule; the cell's `lr` includes it."""
    parameters: Parameters
    tokens: int
    flops: float
    """Training FLOPs of the whole cell, without evaluations."""
    memory_bytes: int
    """Peak of the tensors on one device, on the rank that holds most."""
    layout: Layout
    """How the cell is spread over devices."""
    seconds: float
    """Wall-clock seconds from start to end, all ranks in parallel."""
    cost: float | None
    """Price for all ranks, in the currency of `resources.price_per_hour`; None without a price."""
    flags: tuple[str, ...]
    """Warnings about the shape and reasons for its layout."""
    purpose: str = ""
    """Purpose of a cell outside the main study, such as `sensitivity`; empty for a cell of the main study."""

    @property
    def title(self) -> str:
        """The cell's name for people, with its learning-rate factor unless that is 1: `L2-d16-s0 lr×0.5`."""
        return self.cell.name if self.lr_factor == 1 else f"{self.cell.name} lr×{self.lr_factor:g}"

    @property
    def device_seconds(self) -> float:
        """Seconds summed over the cell's devices."""
        return self.seconds * self.layout.ranks

    def row(self) -> dict[str, Any]:
        """Return the cell as one flat record of a table."""
        cell = self.cell
        return {
            "cell": cell.key,
            "name": self.title,
            "budget": self.budget,
            **cell.shape.model_dump(),
            "seed": cell.seed,
            "lr": cell.lr,
            "lr_factor": self.lr_factor,
            "params": cell.shape.budget_params,
            "embedding_params": self.parameters.embedding,
            "position_params": self.parameters.position,
            "non_embedding_params": self.parameters.non_embedding,
            "total_params": self.parameters.total,
            "tokens": self.tokens,
            "flops": self.flops,
            "parametrisation": cell.recipe.parametrisation,
            "memory_bytes": self.memory_bytes,
            "micro_batch": self.layout.sequences(cell.recipe),
            "tensor_parallel": self.layout.tensor_parallel,
            "data_parallel": self.layout.data_parallel,
            "zero": self.layout.zero,
            "activation_checkpointing": self.layout.activation_checkpointing,
            "shard_vocabulary": self.layout.shard_vocabulary,
            "compiled": self.layout.compiled,
            "ranks": self.layout.ranks,
            "seconds": self.seconds,
            "cost": self.cost,
            "flags": list(self.flags),
        }


@dataclass(frozen=True)
class Outcome:
    """The result of a cell as a search needs it."""

    loss: float | None
    """None if the cell diverged or failed."""
    share: float = 1.0
    """Share of the steps that were trained."""
    status: Literal["done", "diverged", "failed"] = "done"

    @property
    def kind(self) -> str:
        """The status; `diverged` for a cell without a loss that is recorded as done."""
        lost = self.loss is None or not math.isfinite(self.loss)
        return "diverged" if lost and self.status == "done" else self.status
