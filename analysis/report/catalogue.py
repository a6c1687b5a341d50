"""The figures of a study's report, in order. To add one, write its file and list it here."""

from collections.abc import Callable, Mapping

from analysis.report.extras import accuracy, diagnostics, search, shifts
from analysis.report.figures import (
    depth_profile,
    frontier_map,
    gaps,
    loss,
    rivals,
    run_health,
    transition,
)
from analysis.report.figures.figure import Absent, Context, Figure

#: Makes a figure, gives the reason why the data do not allow it, or returns None for a figure that only some studies
#: have.
Maker = Callable[[Context], Figure | Absent | None]

#: Section of the page -> name of the figure -> its maker.
FIGURES: Mapping[str, Mapping[str, Maker]] = {
    "pictures": {
        "loss": loss.figure,
        "accuracy": accuracy.figure,
        "accuracy_graded": accuracy.graded_figure,
        "gaps": gaps.figure,
        "depth_profile": depth_profile.figure,
        "frontier": frontier_map.figure,
    },
    "law": {"transition": transition.figure},
    "laws": {"rivals": rivals.figure},
    "runs": {"health": run_health.figure},
    "training": {"training": run_health.training_figure},
    "inside": {"diagnostics": diagnostics.figure},
    "sensitivity": {"sensitivity": shifts.sensitivity_figure},
    "search": {"search": search.figure},
}
#: Names of all figures.
NAMES = tuple(name for makers in FIGURES.values() for name in makers)


def make_figures(context: Context) -> dict[str, list[Figure | Absent]]:
    """The figures by section, each drawn or absent with its reason.

    Raises:
        ValueError: the fit was read from a file and has no evidence.
    """
    made = {section: [make(context) for make in makers.values()] for section, makers in FIGURES.items()}
    return {section: [item for item in items if item is not None] for section, items in made.items()}
