"""Table 1 of Levine et al. 2020 (arXiv 2006.12467, third version): printed shapes and recomputed ones.

Provenance. The rows are recalled from the paper, not copied from it, and checked: the law's a and b, which others
quote (BloombergGPT, BigScience), give them back with the rule N := 12·L·d² of the *trained* shape. Two rows are
printed otherwise than the rule gives and a third differs by one in the last digit; `note` gives the difference. a and
b were not tuned to remove that. Nominal sizes ("125M") do not enter: for the small models they are far from 12·L·d².
"""

from dataclasses import dataclass
from typing import Any

from analysis.law.projection import LEVINE2020, recommend

PROVENANCE = (
    "Printed values are recalled from the paper's Table 1 and checked against its law; they are not a copy. "
    "Its caption gives 2 % uncertainty in the optimal values (recalled; recomputed at 175B: 1.5 % in depth and 0.8 % "
    "in width)."
)


@dataclass(frozen=True)
class PublishedShape:
    """One row of the table.

    Attributes:
        model, nominal: its name, and the number of parameters it is known by.
        trained: depth and width as trained; None for the projected model.
        depth, width: the optimal shape as printed.
        note: the result of the rule where it differs, with the cause.
    """

    model: str
    nominal: float
    trained: tuple[int, int] | None
    depth: int
    width: int
    note: str = ""

    @property
    def params(self) -> float:
        """N = 12·L·d² of the trained shape; the nominal size of the projected model."""
        return 12.0 * self.trained[0] * self.trained[1] ** 2 if self.trained else self.nominal


# fmt: off
TABLE_1 = (
    PublishedShape("GPT-3 Small", 125e6, (12, 768), 23, 555),
    PublishedShape("GPT-3 Medium", 350e6, (24, 1024), 32, 886, "the rule gives 886.8, which rounds to 887"),
    PublishedShape("GPT-3 Large", 760e6, (24, 1536), 38, 1220,
                   "the rule gives L* = 37.41, so 37 × 1237; 38 × 1220 is a shape of the same N"),
    PublishedShape("GPT-3 XL", 1.3e9, (24, 2048), 42, 1550),
    PublishedShape("GPT-3 2.7B", 2.7e9, (32, 2560), 47, 2110),
    PublishedShape("GPT-3 6.7B", 6.7e9, (32, 4096), 54, 3150),
    PublishedShape("GPT-3 13B", 13e9, (40, 5140), 60, 4200, "the trained width 5140 is a typo of the GPT-3 paper"),
    PublishedShape("GPT-3 175B", 175e9, (96, 12288), 80, 13500),
    PublishedShape("Optimal 1-Trillion", 1e12, None, 95, 30100,
                   "printed is exp(a + 95·b) = 30077, rounded; sqrt(N/(12·95)) is 29617"),
)
# fmt: on


def published_table() -> list[dict[str, Any]]:
    """Return each row of Table 1 with the result of the law and the rule of `recommend` for the same N.

    Returns:
        One dict per row: `model`, `nominal`, `trained_depth`, `trained_width` (None where not trained), `params`,
        `printed_depth`, `printed_width` (recalled and checked, see `PROVENANCE`), `depth`, `width`, `depth_exact`,
        `depth_interval`, `width_interval`, `agrees` (same depth, and width within what the printed digits hold) and
        `note`.
    """
    rows = []
    for shape, found in zip(TABLE_1, recommend(LEVINE2020, [row.params for row in TABLE_1]), strict=True):
        depth, width = shape.trained or (None, None)
        rows.append(
            {
                "model": shape.model,
                "nominal": shape.nominal,
                "trained_depth": depth,
                "trained_width": width,
                "params": shape.params,
                "printed_depth": shape.depth,
                "printed_width": shape.width,
                **{key: found[key] for key in ("depth", "width", "depth_exact")},
                **{key: found[key] for key in ("depth_interval", "width_interval")},
                "agrees": found["depth"] == shape.depth and _same(found["width"], shape.width),
                "note": shape.note,
            }
        )
    return rows


def _same(width: int, printed: int) -> bool:
    """Whether a width rounds to a printed one, of which the closing zeros are not digits that were given."""
    unit = 1
    while printed % (10 * unit) == 0:
        unit *= 10
    return abs(width - printed) <= unit / 2
