"""Pages: the template environment, and figures as files."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.files import write_bytes, write_text
from analysis.numbers import digits, duration
from analysis.report.figures.figure import Figure, inline_svg

KINDS = ("svg", "png", "csv")


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
        folder: made if missing.
        colours: CSS name -> (light, dark), see `analysis.report.figures.palette.variables`.

    Raises:
        OSError: the folder cannot be written.
    """
    svg, png = figure.render()
    write_bytes(folder / f"{figure.name}.svg", svg)
    write_bytes(folder / f"{figure.name}.png", png)
    write_text(folder / f"{figure.name}.csv", figure.data.table().to_csv(index=False, lineterminator="\n"))
    # Safe to mark: matplotlib escapes every text, and the texts are numbers and words of this package.
    inlined = Markup(inline_svg(svg, figure.title, colours))
    return DrawnFigure(figure.name, figure.title, figure.caption, inlined)


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Render a template of this package into a file."""
    return write_text(path, environment().get_template(template).render(**values))


def remove_figures(folder: Path, patterns: Collection[str], kept: Collection[str]) -> None:
    """Remove the figure files of an earlier page whose names match a pattern and are not kept."""
    for path in [path for name in patterns for kind in KINDS for path in folder.glob(f"{name}.{kind}")]:
        if path.stem not in kept:
            path.unlink(missing_ok=True)


def environment() -> Environment:
    """The templates of this package with their filters."""
    made = Environment(
        loader=PackageLoader("analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "digits": digits,
        "duration": duration,
        "unbroken": _unbroken,
    }
    return made


def _unbroken(text: str) -> str:
    """`text` without line breaks before a percent sign or around `N ≈`."""
    return text.replace(" %", "\u00a0%").replace("N ≈ ", "N\u00a0≈\u00a0")
