"""What the functions of `interplay` return: the plan of a study, and the answer of a fit."""

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.fit.document import Fit
from analysis.law.shape import Shape
from analysis.report.answers import answers
from analysis.runs.table import RunTable
from study.plan.plan import Plan
from study.plan.table import duration, short


@dataclass(frozen=True, repr=False)
class StudyPlan:
    """The plan of a study."""

    plan: Plan

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell: key, shape, seed, parameters, tokens, FLOPs, bytes of memory and seconds."""
        return pd.json_normalize(self.plan.to_json()["cells"])

    @cached_property
    def totals(self) -> dict[str, Any]:
        """Cells, tokens, FLOPs, hours of a device, hours and cost of the study."""
        totals: dict[str, Any] = self.plan.to_json()["totals"]
        return totals

    def __repr__(self) -> str:
        cells, flops, time = (self.totals[name] for name in ("cells", "flops", "hours"))
        cost = f"{short(flops)} FLOPs, about {duration(time * 3600)} on {self.plan.device}"
        return f"{self.plan.name}: {cells} cells, {cost}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.cells.to_html(index=False, max_rows=20)}"


@dataclass(frozen=True, repr=False)
class Answer:
    """The answer of a fit.

    Attributes:
        title: of the report.
        table: the run table.
        fit: every number, as in `fit.json`.
        known: what a report adds for a study, such as its provenance.
    """

    title: str
    table: RunTable
    fit: Fit
    known: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """What was found, and what to do next."""
        return answers(self.fit)

    @cached_property
    def best(self) -> pd.DataFrame:
        """The shape of lowest loss at each size, and the depths that are statistically tied with it."""
        columns = ["params", "depth", "width", "loss", "tied"]
        rows = [(one.params, one.depth, one.width, one.loss, one.near) for one in self.fit.best]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def crossings(self) -> pd.DataFrame:
        """Where each depth overtakes the next shallower one: N and its interval."""
        columns = ["shallow", "deep", "status", "params", "low", "high"]
        rows = [
            (one.shallow, one.deep, one.status, one.params, *(one.params_interval or (None, None)))
            for one in self.fit.crossings
        ]
        return pd.DataFrame(rows, columns=columns)

    def recommend(self, params: float, within: float = 0.005) -> Shape:
        """Return the best shape of N non-embedding parameters; InputError if the fit has no answer there."""
        from study.results.recommend import shapes_by

        (shape,) = shapes_by(self.fit, Path(self.title), [params], within)
        return shape

    def figures(self) -> dict[str, Figure]:
        """Return the figures that the data allow, by name."""
        from analysis.report.figures import best_depth, gaps, loss, transition
        from analysis.report.figures.figure import Context

        context = Context(self.table, self.fit, self.known.get("entropy"), self.known.get("curves"))
        makers = (best_depth.profile_figure, best_depth.figure, loss.figure, transition.figure, gaps.figure)
        made = [one for maker in makers if (one := maker(context)) is not None]
        return {one.name: one.canvas() for one in made}

    def report(self, out: str | Path) -> Path:
        """Write `report.html`, `fit.json`, `runs.csv` and the figures into a folder; return the page."""
        from analysis.report.study_page import write_report

        return write_report(self.table, self.fit, out, title=self.title, **self.known)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `fit.json`."""
        return self.fit.to_json()

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences)
        return sentences + self.best.to_html(index=False)
