"""A page: its answer, its first figure, and sections; with every figure as files."""

import json
import re
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis.report.figures.figure import Figure, inline_svg
from analysis.tables import Column, Table
from core.files import write_bytes, write_text

#: Sentences of the answer on the first screen; the others are folded below it.
MOST_ANSWERS = 4


@dataclass(frozen=True)
class PageSection:
    """One section of a page; without any content it is left out.

    Attributes:
        title: heading, unique on the page.
        sentences: plain text, one paragraph each; an empty one is left out.
        figures: beside each other where there is room.
        tables: below the figures; None is left out.
        links: text -> address.
        text: printed as it is.
        folded: closed until a reader opens it.
    """

    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table | None] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    folded: bool = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (any(self.sentences) or self.figures or any(self.tables) or self.links or self.text)

    @property
    def anchor(self) -> str:
        """The id of the section."""
        return "section-" + re.sub(r"\W+", "-", self.title.lower())


@dataclass(frozen=True)
class Page:
    """What a page shows, in this order.

    Attributes:
        title: of the page.
        answers: sentences; the first is the headline.
        confidence: one word for the answer and its reason; None without a badge.
        unfinished: finished and planned cells of a study that is not finished.
        figures: the figures of the first screen.
        sizes: the numbers of the field `my size` in the first figure; None without the field.
        next_steps: sentences on what to do next.
        warnings: sentences.
        sections: the rest.
    """

    title: str
    answers: Sequence[str]
    sections: Sequence[PageSection]
    confidence: tuple[str, str] | None = None
    unfinished: tuple[int, int] | None = None
    figures: Sequence[Figure] = ()
    sizes: Mapping[str, Any] | None = None
    next_steps: Sequence[str] = ()
    warnings: Sequence[str] = ()


def write_page(
    folder: Path, page: Page, earlier: Collection[str], colours: Mapping[str, tuple[str, str]]
) -> Path:
    """Write figures as SVG, PNG and CSV into `figures`, then the page `report.html`.

    `earlier` has patterns of the names of figures that are removed if they are not written now; `colours` are those of
    `analysis.report.figures.palette.variables`. OSError if the folder cannot be written.
    """
    drawn: dict[str, list[Markup]] = {}
    sections = [section for section in page.sections if not section.empty]
    for figure in [*page.figures, *(figure for section in sections for figure in section.figures)]:
        path = folder / "figures" / figure.name
        svg, png = figure.render()
        write_bytes(path.with_suffix(".svg"), svg)
        write_bytes(path.with_suffix(".png"), png)
        write_text(path.with_suffix(".csv"), figure.table.to_csv(index=False, lineterminator="\n"))
        # Safe to mark: every text of a drawing is escaped.
        drawn[figure.name] = [Markup(inline_svg(svg, figure.title, colours))]
        if narrow := figure.render_narrow():
            drawn[figure.name].append(Markup(inline_svg(narrow, figure.title, colours)))
    first, rest = page.answers[:MOST_ANSWERS], page.answers[MOST_ANSWERS:]
    more = [PageSection("More findings", rest)] if rest else []
    template = _TEMPLATES.get_template("page.html.j2")
    # Safe to mark: numbers and fixed words, without `<`.
    sizes = Markup(json.dumps(page.sizes, separators=(",", ":"))) if page.sizes else None
    values = {"page": page, "answers": first, "sections": [*more, *sections], "sizes": sizes}
    values |= {"script": Markup(_SCRIPT), "script_hash": _SCRIPT_HASH}
    write_text(folder / "report.html", template.render(drawn=drawn, colours=colours, **values))
    # Last: the old page needs its figures until it is replaced.
    for old in [path for name in earlier for path in (folder / "figures").glob(f"{name}.*")]:
        if old.stem not in drawn and old.suffix in (".svg", ".png", ".csv"):
            old.unlink(missing_ok=True)
    return folder / "report.html"


def provenance(facts: Mapping[str, str], links: Mapping[str, str], text: str = "") -> PageSection:
    """The last section: facts, the files of the page, and a text printed as it is."""
    table = Table("facts", (Column("fact", right=False), Column("value", right=False)), list(facts.items()))
    return PageSection("Provenance", tables=[table] if facts else [], links=links, text=text)


def _prose(text: str) -> Markup:
    """`text` without line breaks before a percent sign or around `N ≈`, and with words in backticks as code."""
    unbroken = text.replace(" %", "\u00a0%").replace("N ≈ ", "N\u00a0≈\u00a0")
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(unbroken))))


_TEMPLATES = Environment(
    loader=PackageLoader("analysis.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["prose"] = _prose
#: The script of every page, and its hash, the only one that the page lets a browser run.
_SCRIPT = files("analysis.report").joinpath("templates/page.js").read_text(encoding="utf-8")
_SCRIPT_HASH = b64encode(sha256(_SCRIPT.encode()).digest()).decode()
