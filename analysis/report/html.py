"""Pages: the template environment, and figures as files."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.files import write_bytes, write_text
from analysis.numbers import digits, duration
from analysis.report.figures.figure import Figure, inline_svg


def write_page(
    folder: Path,
    template: str,
    figures: Sequence[Figure],
    earlier: Collection[str],
    colours: Mapping[str, tuple[str, str]],
    **values: Any,
) -> Path:
    """Write figures as SVG, PNG and CSV, then the page `report.html`; remove figures of an earlier page.

    Args:
        folder: made if missing; the figures are in its folder `figures`.
        template: of this package.
        figures: the template gets them as `figures` by name, and as `drawn` their `<svg>` elements by name.
        earlier: patterns of the names of figures that are removed if they are not written now.
        colours: CSS name -> (light, dark), see `analysis.report.figures.palette.variables`.
        values: for the template.

    Raises:
        OSError: the folder cannot be written.
    """
    drawn = {}
    for figure in figures:
        path = folder / "figures" / figure.name
        svg, png = figure.render()
        write_bytes(path.with_suffix(".svg"), svg)
        write_bytes(path.with_suffix(".png"), png)
        write_text(path.with_suffix(".csv"), figure.table.to_csv(index=False, lineterminator="\n"))
        # Safe to mark: matplotlib escapes every text, and the texts are numbers and words of this package.
        drawn[figure.name] = Markup(inline_svg(svg, figure.title, colours))
    by_name = {figure.name: figure for figure in figures}
    page = (
        environment().get_template(template).render(drawn=drawn, figures=by_name, colours=colours, **values)
    )
    write_text(folder / "report.html", page)
    # Last: the old page needs its figures until it is replaced.
    for old in [path for name in earlier for path in (folder / "figures").glob(f"{name}.*")]:
        if old.stem not in drawn and old.suffix in (".svg", ".png", ".csv"):
            old.unlink(missing_ok=True)
    return folder / "report.html"


def environment() -> Environment:
    """The templates of this package with their filters."""
    made = Environment(
        loader=PackageLoader("analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"digits": digits, "duration": duration, "unbroken": _unbroken}
    return made


def _unbroken(text: str) -> str:
    """`text` without line breaks before a percent sign or around `N ≈`."""
    return text.replace(" %", "\u00a0%").replace("N ≈ ", "N\u00a0≈\u00a0")
