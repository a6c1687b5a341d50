"""How the accuracy of a task is drawn."""

from collections.abc import Mapping

from matplotlib.figure import Figure as Canvas

from analysis.report.extras.accuracy import AccuracyData
from analysis.report.figures.canvas import (
    MAX_END_LABELS,
    name_depths,
    new_canvas,
    points_of_depths,
    size_limits,
)


def draw_accuracy(data: AccuracyData, colours: Mapping[int, str], size_label: str) -> Canvas:
    """Accuracy against N, log axis, one line a depth; bars from the lowest to the highest seed."""
    many = len(colours) > MAX_END_LABELS
    canvas, axes = new_canvas(4.9 if many else 4.1)
    ends = points_of_depths(axes, data.points, "mean", colours, joined="-")
    size_limits(axes, data.points, many=many)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("accuracy (share of what is asked)")
    axes.set_xlabel(size_label)
    name_depths(canvas, axes, ends, many=many)
    return canvas
