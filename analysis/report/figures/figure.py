"""A figure of a report: its data, title and caption, and its rendering as SVG and PNG."""

import html
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

import matplotlib as mpl
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from analysis.design.objective import SearchInfo
from analysis.fit.document import Fit
from analysis.fit.measures import MeasureData
from analysis.fit.scores import graded_accuracy
from analysis.fit.study import Study
from analysis.report.figures import palette
from analysis.report.figures.canvas import FRAME, STYLE, VALUES
from analysis.runs.costs import ShapeCosts
from analysis.runs.table import RunTable


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: of its files.
        title, caption: plain text for the page.
        table: the numbers, for a CSV.
        draw: makes the drawing.
        narrow: makes the drawing for a small screen, of a figure as wide as the page.
    """

    name: str
    title: str
    caption: str
    table: pd.DataFrame
    draw: Callable[[], Canvas]
    narrow: Callable[[], Canvas] | None = None

    def canvas(self) -> Canvas:
        """The drawing in the style of the reports, as a figure of matplotlib."""
        with mpl.rc_context(STYLE):
            return self.draw()

    def render(self) -> tuple[bytes, bytes]:
        """(SVG, PNG) on white, the same bytes for the same data."""
        with mpl.rc_context({**STYLE, "svg.hashsalt": self.name}):
            canvas = self.draw()
            svg, png = _svg(canvas), io.BytesIO()
            # No date and no version, so that equal data give equal files.
            canvas.savefig(png, format="png", dpi=150, metadata={"Software": None}, facecolor="white")
        return svg, png.getvalue()

    def render_narrow(self) -> bytes | None:
        """The SVG for a small screen; None if `render` has the only one."""
        if self.narrow is None:
            return None
        # Ids are hashes with this salt, and both drawings are on one page.
        with mpl.rc_context({**STYLE, "svg.hashsalt": f"{self.name} narrow"}):
            return _svg(self.narrow())


def _svg(canvas: Canvas) -> bytes:
    """The SVG of a drawing, whose layout is then fixed."""
    FigureCanvasAgg(canvas)
    svg = io.BytesIO()
    # Compute the layout once for all files: each savefig would draw everything once more to find it.
    engine = canvas.get_layout_engine()
    if engine is not None:
        engine.execute(canvas)
        canvas.set_layout_engine(None)
    canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    return _with_titles(svg.getvalue().decode()).encode()


def study_of_fit(fit: Fit) -> Study:
    """The rows, curves and gaps that a fit was made from.

    Raises:
        ValueError: the fit was read from a file, which does not hold them.
    """
    if fit.study is None:
        raise ValueError("a fit that was read from a file has no curves to draw; fit the run table again")
    return fit.study


@dataclass(frozen=True)
class Context:
    """The input of the figures of a study.

    Attributes:
        runs: the run table.
        fit: its fit, with its study.
        entropy: entropy of the data in nats per token, where known.
        curves: training curves (cell, step, loss).
        search: the search that chose the rows, if any.
        measures: diagnostics of the layers (cell, step, name, layer, value).
        costs: of the shapes, each measured alone.
    """

    runs: RunTable
    fit: Fit
    entropy: float | None = None
    curves: pd.DataFrame | None = None
    search: SearchInfo | None = None
    measures: pd.DataFrame | None = None
    costs: Sequence[ShapeCosts] = ()

    @cached_property
    def colours(self) -> dict[int, str]:
        """Depth -> colour (light edition), ordered by depth."""
        depths = sorted(set(self.runs.used["depth"]))
        return {int(d): light for d, (light, _) in zip(depths, palette.sequence(len(depths)), strict=True)}

    @cached_property
    def graded(self) -> tuple[str, MeasureData] | None:
        """The key that makes a task harder, and the accuracy by its value; see `graded_accuracy`."""
        return graded_accuracy(self.fit)

    @property
    def size_label(self) -> str:
        """Label of an axis of N."""
        if self.fit.count == "table":
            return "parameters N, the table's count"
        return f"non-embedding parameters N = {self.fit.layer_weights:g}·L·d²"


def _with_titles(svg: str) -> str:
    """Move the values of `plot_values` into one `<title>` per mark, which browsers show under the pointer."""
    svg = re.sub(f'<g id="{FRAME}([^"]*)">', r'<g data-frame="\1">', svg)
    first, *groups = re.split(f'<g id="{VALUES}([^"]*)">', svg)
    parts = [first]
    for packed, rest in zip(groups[::2], groups[1::2], strict=True):
        texts = json.loads(unquote(packed))
        marks, following, after = rest.partition('<g id="')
        pieces = re.split(r"(<use [^>]*)/>", marks)
        # A mark outside the canvas is not in the SVG; without one mark per text no mark has a title.
        if len(pieces) == 2 * len(texts) + 1:
            titles = [f"><title>{html.escape(text)}</title></use>" for text in texts]
            marks = pieces[0] + "".join(
                use + title + more
                for use, title, more in zip(pieces[1::2], titles, pieces[2::2], strict=True)
            )
        parts += ["<g>", marks, following, after]
    return "".join(parts)


def inline_svg(svg: bytes, label: str, colours: Mapping[str, tuple[str, str]]) -> str:
    """The `<svg>` element for an HTML page, with a label for screen readers: no header, no fixed size, CSS colours."""
    text = svg.decode()
    head, _, body = text[text.index("<svg") :].partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    head = head.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
    # matplotlib's metadata block contains web addresses; the page must contain none.
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # Several drawings share a page, so only ids that are referred to (and are hashes) may stay.
    used = set(re.findall(r"[\"(]#([^\")]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", body)
    for name, (light, _) in colours.items():
        body = body.replace(light, f"var(--{name})")
    body = body.replace("fill: #ffffff", "fill: var(--paper)").replace("'DejaVu Sans'", "inherit")
    return f"{head}>{body}"
