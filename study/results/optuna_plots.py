"""Optuna's own plots of a search, from an Optuna study rebuilt from the run table."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import optuna
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from analysis.design.history import rows_in_order
from analysis.report.figures import palette
from analysis.report.figures.canvas import WIDTH, count_axis
from analysis.report.figures.figure import Figure, Rows
from analysis.report.study_page import MORE
from analysis.runs.table import RunTable

#: Name of the value of a trial.
VALUE = "validation loss (nats per token)"
#: Inches.
HEIGHT = 3.6
#: Name of a figure -> its title and caption.
_WORDS = {
    "search_history": (
        "Optuna: history of the trials",
        "One point per trial (a cell), in the order of finishing, and the lowest loss so far. Losses of all sizes are "
        "mixed: a late trial of a small model is not worse.",
    ),
    "search_slices": (
        "Optuna: loss against each parameter",
        "The same trials against each of their parameters; darker is later.",
    ),
    "search_parallel": (
        "Optuna: all parameters of each trial",
        "One line per trial; darker is a lower loss.",
    ),
}
assert tuple(_WORDS) == MORE


def optuna_study(runs: RunTable) -> optuna.Study | None:
    """The trials of a searched study in the order of finishing; None if its table has no order.

    A trial is a cell with its depth and N and, if they vary, the multiple of the learning rate and the seed; its value
    is the loss. Cells without a loss are failed trials.
    """
    rows = rows_in_order(runs)
    if rows is None or rows.empty:
        return None
    frame = runs.frame.set_index("order")
    factors = frame["lr_factor"].astype(float).reindex(rows["order"]) if "lr_factor" in frame else None
    table = pd.DataFrame({"depth": rows["depth"], "N": rows["params"].astype(float)})
    if factors is not None and factors.nunique() > 1:
        table["lr_factor"] = factors.to_numpy()
    if rows["seed"].nunique() > 1:
        table["seed"] = rows["seed"]
    space = {name: _distribution(table[name]) for name in table.columns}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    for values, loss in zip(table.to_dict("records"), rows["loss"], strict=True):
        lost = not math.isfinite(loss)
        params = {str(name): value for name, value in values.items()}
        study.add_trial(
            optuna.trial.create_trial(
                params={
                    name: int(value) if isinstance(space[name], IntDistribution) else float(value)
                    for name, value in params.items()
                },
                distributions=space,
                value=None if lost else float(loss),
                state=TrialState.FAIL if lost else TrialState.COMPLETE,
            )
        )
    return study


def _distribution(column: pd.Series) -> BaseDistribution:
    low, high = column.min(), column.max()
    if column.name in ("depth", "seed"):
        return IntDistribution(int(low), int(high), log=column.name == "depth")
    return FloatDistribution(float(low), float(high), log=True)


def optuna_figures(runs: RunTable) -> list[Figure]:
    """Optuna's history, slices and parallel coordinates; empty without two trials that have a loss."""
    study = optuna_study(runs)
    if study is None or len(study.get_trials(states=(TrialState.COMPLETE,))) < 2:
        return []
    from optuna.visualization import matplotlib as plots

    draws: dict[str, Callable[..., Any]] = {
        "search_history": plots.plot_optimization_history,
        "search_slices": plots.plot_slice,
        "search_parallel": plots.plot_parallel_coordinate,
    }
    trials: pd.DataFrame = study.trials_dataframe(attrs=("number", "value", "params", "state"))
    return [Figure(name, *_WORDS[name], Rows(trials), _drawn(draw, study)) for name, draw in draws.items()]


def _drawn(draw: Callable[..., Any], study: optuna.Study) -> Callable[[], Canvas]:
    def make() -> Canvas:
        from matplotlib import pyplot

        # Optuna draws through pyplot, sets its style for the whole process, and warns that this is experimental.
        size = {"figure.figsize": (WIDTH, HEIGHT), "figure.constrained_layout.use": True}
        with mpl.rc_context(size), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            pyplot.switch_backend("agg")
            axes = draw(study, target_name=VALUE)
            first = axes.flat[0] if hasattr(axes, "flat") else axes
            canvas: Canvas = first.get_figure()
            pyplot.close(canvas)
        _in_our_style(canvas)
        return canvas

    return make


def _in_our_style(canvas: Canvas) -> None:
    """Set colours that have a dark edition, the width of the other figures, and no title (the page has it)."""
    canvas.set_size_inches(WIDTH, HEIGHT)
    canvas.suptitle("")
    canvas.patch.set_facecolor("none")
    for axes in canvas.axes:
        axes.set_title("")
        axes.patch.set_facecolor("none")
        axes.grid(color=palette.GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=palette.MUTED, labelcolor=palette.INK, labelsize=8.5)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                low, high = axis.get_view_interval()
                count_axis(axis, math.log10(high / low) + 2 * (axis is axes.xaxis))
        for spine in axes.spines.values():
            spine.set_edgecolor(palette.MUTED)
        legend = axes.get_legend()
        if legend is not None:
            legend.get_frame().set(facecolor="none", edgecolor="none")
    for text in canvas.findobj(Text):
        text.set(color=palette.INK, fontfamily="DejaVu Sans", fontsize=min(text.get_fontsize(), 9))
