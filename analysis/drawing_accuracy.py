"""How the accuracy of a task is drawn."""

from collections.abc import Mapping

from matplotlib.figure import Figure as Canvas

from analysis.accuracy import AccuracyData
from analysis.drawing import MAX_END_LABELS, end_labels, new_canvas, points_of_depths, size_axis


def draw_accuracy(data: AccuracyData, colours: Mapping[int, str], size_label: str) -> Canvas:
    """Accuracy against N, log axis, one line a depth; bars from the lowest to the highest seed."""
    many = len(colours) > MAX_END_LABELS
    canvas, axes = new_canvas(4.9 if many else 4.1)
    ends = points_of_depths(axes, data.points, "mean", colours, joined="-")
    low, high = data.points["params"].min(), data.points["params"].max()
    axes.set_xlim(low / 1.12, high * (1.12 if many else max(high / low, 4) ** 0.16))
    size_axis(axes)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("accuracy (share of targets)")
    axes.set_xlabel(size_label)
    if many:
        canvas.legend(loc="outside lower center", frameon=False, fontsize=8.5, ncols=6)
    else:
        end_labels(axes, ends)
    return canvas
