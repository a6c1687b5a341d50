"""What the pages of this package share: the template environment with its filters, and figures as files."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.files import write_bytes, write_text
from analysis.fit.crossing_shift import LEARNING_RATE
from analysis.fit.measures import label
from analysis.fit.sentences import ends, percent, short_range
from analysis.intervals import Interval
from analysis.numbers import digits, human, short
from analysis.report.catalogue import Figure, inline_svg
from analysis.report.extras.shifts import factor_interval
from analysis.report.tables import hours, named_depth


@dataclass(frozen=True)
class DrawnFigure:
    """A figure on the page: plain words and the `<svg>` element."""

    name: str
    title: str
    caption: str
    svg: Markup


def write_figure(figure: Figure, folder: Path, colours: Mapping[str, tuple[str, str]]) -> DrawnFigure:
    """Write a figure as SVG, PNG and CSV into a folder, and return it for a page.

    Args:
        figure: what to write.
        folder: where, made when missing.
        colours: CSS name -> (light, dark), see `analysis.report.figures.palette.variables`.

    Raises:
        OSError: the folder cannot be written.
    """
    svg, png = figure.render()
    write_bytes(folder / f"{figure.name}.svg", svg)
    write_bytes(folder / f"{figure.name}.png", png)
    write_text(folder / f"{figure.name}.csv", figure.data.table().to_csv(index=False, lineterminator="\n"))
    # Safe to mark: made by matplotlib, which escapes every text, from numbers and words of this package only.
    return DrawnFigure(
        figure.name, figure.title, figure.caption, Markup(inline_svg(svg, figure.title, colours))
    )


def environment() -> Environment:
    """The templates of this package with the filters they use."""
    made = Environment(
        loader=PackageLoader("analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "human": human,
        "short_range": short_range,
        "short": short,
        "digits": digits,
        "percent": percent,
        "span": _span,
        "hours": hours,
        "named": named_depth,
        "unbroken": _unbroken,
        "label": label,
        "times": _times,
        "factors": _factors,
        "ends": ends,
        "scale": _scale,
    }
    made.globals["learning_rate"] = LEARNING_RATE
    return made


def _scale(value: float | None) -> str:
    """N_c, which may be of any size."""
    if value is None:
        return "–"
    return digits(value) if 1e-2 < value < 1e4 else re.sub(r"e([-+])0*", _exponent_sign, f"{value:.1e}")


def _exponent_sign(match: re.Match[str]) -> str:
    return "e-" if match[1] == "-" else "e"


def _unbroken(text: str) -> str:
    """`text` with no line break before a per cent sign or around `N ≈`."""
    return text.replace(" %", "\u00a0%").replace("N ≈ ", "N\u00a0≈\u00a0")


def _times(shift: float | None) -> str:
    """A shift of ln N as a factor of N."""
    return "–" if shift is None else f"× {digits(math.exp(shift), 3)}"


def _factors(interval: Interval | None) -> str:
    """An interval of a shift of ln N as one of factors of N; open ends are said."""
    found = factor_interval(interval)
    return "none" if found is None else ends(found, 3)


def _span(interval: Sequence[float | None] | None) -> str:
    """An interval of widths or depths, `15–18`; open ends are said."""
    if interval is None:
        return "–"
    low, high = interval
    if low is None:
        return "open" if high is None else f"below {digits(high)}"
    return f"above {digits(low)}" if high is None else f"{digits(low)}–{digits(high)}"
