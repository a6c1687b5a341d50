"""The recommended shape of one size or compute."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType

from analysis.audit.recommend import Comparison
from analysis.law.at_limit import AtLimit
from analysis.law.shape import ComputeShape, Recommendation
from core.files import to_json
from interplay.result import Wrapped
from interplay.terminal import comparison_table, compute_shapes_table, limit_table, recommendation_table


@dataclass(frozen=True, repr=False)
class Recommended(Wrapped):
    """The best shape of one size or compute; it has every attribute of the shape.

    Attributes:
        shape: a `Recommendation` by a law or a fit, a `Comparison` by all published evidence, a `ComputeShape`, or
            `AtLimit` at a limit of cost.
        source: what it follows from, in words.
    """

    WRAPPED = "shape"

    shape: Recommendation | Comparison | ComputeShape | AtLimit
    source: str = field(compare=False)

    def to_json(self) -> Any:
        """Return the record that `interplay recommend --json` has for this size."""
        return to_json(self.shape)

    def __rich__(self) -> RenderableType:
        return shapes_view(self.source, [self.shape])


def shapes_view(
    source: str, shapes: Sequence[Comparison | Recommendation | ComputeShape | AtLimit]
) -> RenderableType:
    """The table of shapes of one kind, for a terminal."""
    if comparisons := [shape for shape in shapes if isinstance(shape, Comparison)]:
        return comparison_table(comparisons)
    if at_compute := [shape for shape in shapes if isinstance(shape, ComputeShape)]:
        return compute_shapes_table(source, at_compute)
    if at_limits := [shape for shape in shapes if isinstance(shape, AtLimit)]:
        return Group(*(limit_table(source, answer) for answer in at_limits))
    return recommendation_table(source, [shape for shape in shapes if isinstance(shape, Recommendation)])
