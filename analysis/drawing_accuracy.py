"""How the accuracy of a task is drawn."""

import itertools
from collections.abc import Mapping

from matplotlib.figure import Figure as Canvas

from analysis.accuracy import AccuracyData
from analysis.drawing import MARKS, MAX_END_LABELS, end_labels, new_canvas, size_axis
from analysis.figure_data import by_depth
from analysis.wording import layers


def draw_accuracy(data: AccuracyData, colours: Mapping[int, str], size_label: str) -> Canvas:
    """Accuracy against N, log axis, one line a depth; bars from the lowest to the highest seed."""
    many = len(colours) > MAX_END_LABELS
    canvas, axes = new_canvas(4.9 if many else 4.1)
    ends = []
    for (depth, rows), mark in zip(by_depth(data.points), itertools.cycle(MARKS), strict=False):
        colour = colours[depth]
        axes.vlines(rows["params"], rows["low"], rows["high"], color=colour, linewidth=1.6, alpha=0.45)
        axes.plot(
            rows["params"],
            rows["mean"],
            color=colour,
            marker=mark,
            markersize=5,
            linewidth=1.5,
            label=layers(depth),
        )
        ends.append((float(rows["params"].iloc[-1]), float(rows["mean"].iloc[-1]), layers(depth), colour))
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
