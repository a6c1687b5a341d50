"""From a run table to the answer: noise, crossings, law, rivals and best shapes, as one JSON document."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.crossings import Crossing, find_crossings
from analysis.curves import build_curves, learning_rate_choice
from analysis.errors import InputError
from analysis.files import strict
from analysis.frontier import BestShape, best_shapes
from analysis.projection import Law, law_of
from analysis.runs import RunTable
from analysis.threshold import ThresholdFit, fit_threshold


@dataclass(frozen=True)
class Fit:
    """What a run table says.

    Attributes:
        crossings: of every pair of depths; those of adjacent depths are flagged.
        law: ln d = a + b·L through the bracketed adjacent crossings, or why there is none.
        rivals: other forms through the same points.
        best: the best depth of each measured budget, which needs no law.
        noise: the seed noise, see `analysis.curves.Noise.to_json`.
        used, left_out: number of rows used, and every other row with its reason.
        warnings: sentences a reader must see.
        level, draws, seed: of the intervals and the bootstrap.
    """

    crossings: tuple[Crossing, ...]
    law: ThresholdFit
    rivals: tuple[ThresholdFit, ...]
    best: tuple[BestShape, ...]
    noise: Mapping[str, Any]
    used: int
    left_out: tuple[Mapping[str, Any], ...]
    warnings: tuple[str, ...]
    level: float
    draws: int
    seed: int

    def projection_law(self) -> Law | None:
        """The law to `recommend` with, or None; then `best` is what the data say."""
        return law_of(self.law)

    def to_json(self) -> dict[str, Any]:
        """The fit file: strict JSON types, no NaN."""
        document: dict[str, Any] = strict(
            {
                "crossings": [item.to_json() for item in self.crossings],
                "law": self.law.to_json(),
                "rivals": [item.to_json() for item in self.rivals],
                "best": [item.to_json() for item in self.best],
                "noise": self.noise,
                "rows": {"used": self.used, "left_out": self.left_out},
                "warnings": self.warnings,
                "level": self.level,
                "draws": self.draws,
                "seed": self.seed,
            }
        )
        return document

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Fit":
        """The inverse of `to_json`.

        Raises:
            InputError: not a fit file.
        """
        try:
            return cls(
                crossings=tuple(Crossing.from_json(item) for item in value["crossings"]),
                law=ThresholdFit.from_json(value["law"]),
                rivals=tuple(ThresholdFit.from_json(item) for item in value["rivals"]),
                best=tuple(BestShape.from_json(item) for item in value.get("best", ())),
                noise=value.get("noise", {}),
                used=int(value["rows"]["used"]),
                left_out=tuple(value["rows"]["left_out"]),
                warnings=tuple(value.get("warnings", ())),
                level=float(value.get("level", value["law"]["level"])),
                draws=int(value.get("draws", 0)),
                seed=int(value.get("seed", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"This is not a fit file: {type(error).__name__} at {error}. "
                "Make one with `interplay fit RUNS --json`."
            ) from error


def fit(runs: RunTable, *, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Fit:
    """Fit a run table; the answer depends neither on the order of the rows nor on duplicates.

    Args:
        runs: see `analysis.runs`.
        level: of all intervals, between 0 and 1.
        draws: of the bootstrap over seeds.
        seed: of the bootstrap.

    Raises:
        InputError: no usable rows, or a level or number of draws out of range.
    """
    if not 0 < level < 1:
        raise InputError(f"The level is {level:g}; it must lie between 0 and 1, as 0.95.")
    if draws < 100:
        raise InputError(f"The number of draws is {draws}; an interval needs at least 100.")
    rows, unchosen = compared_rows(runs)
    curves = build_curves(rows)
    found = find_crossings(curves, level=level, draws=draws, seed=seed)
    left_out = [*runs.left_out]
    for row, reason in unchosen.items():
        cell = runs.frame.at[row, "cell"]
        left_out.append({"row": row, **({"cell": cell} if cell else {}), "reason": reason})
    return Fit(
        crossings=found.items,
        law=fit_threshold(found, "log-linear", level=level),
        rivals=(fit_threshold(found, "power", level=level),),
        best=best_shapes(rows, curves),
        noise=curves.noise.to_json(),
        used=len(rows),
        left_out=tuple(left_out),
        warnings=tuple(_warnings(rows, unchosen, curves.noise.seeds, curves.noise.known)),
        level=level,
        draws=draws,
        seed=seed,
    )


def compared_rows(runs: RunTable) -> tuple[pd.DataFrame, dict[int, str]]:
    """The rows that are compared, one learning rate a shape, and the reason of each usable row that is not.

    Raises:
        InputError: no usable rows.
    """
    if runs.used.empty:
        reasons = sorted({str(item["reason"]) for item in runs.left_out})
        more = " ..." if len(reasons) > 5 else ""
        raise InputError(
            f"{runs.source} has no usable row: {len(runs.left_out)} left out "
            f"({'; '.join(reasons[:5])}{more}). "
            "A usable row has the status done, a depth, a width and a finite loss."
        )
    return learning_rate_choice(runs.used)


def _warnings(rows: pd.DataFrame, unchosen: Mapping[int, str], seeds: int, known: bool) -> list[str]:
    found = []
    if seeds < 2:
        found.append("One seed: there is no noise estimate, so no interval, no test and no law.")
    elif not known:
        found.append(
            "All seeds of a shape have the same loss; that is no estimate of noise. Are the seeds real?"
        )
    per_shape = rows.groupby(["depth", "params"])["seed"].nunique()
    if per_shape.nunique() > 1:
        found.append(f"Shapes have between {per_shape.min()} and {per_shape.max()} seeds.")
    tokens = rows["tokens"].dropna()
    if tokens.nunique() > 1:
        found.append(
            f"Rows differ in training tokens ({tokens.min():.4g} to {tokens.max():.4g}); "
            "losses are comparable only at equal tokens."
        )
    protocols = sorted(set(rows["protocol"]) - {""}) if "protocol" in rows else []
    if len(protocols) > 1:
        found.append(
            f"Rows come from {len(protocols)} protocols ({', '.join(protocols[:5])}), that is other data, another "
            "recipe or another rule of the learning rate; losses are comparable only within one."
        )
    if unchosen:
        found.append(
            "Some shapes have several learning rates; the one with the lowest mean loss is used. "
            "The lowest of several is biased down, more for the shapes with more rates."
        )
    expected = 12 * rows["depth"] * rows["width"] ** 2
    off = float(np.max(np.abs(rows["params"] / expected - 1)))
    if off > 0.05:
        found.append(
            f"The column params differs from 12·L·d² by up to {off:.0%}; crossings are in the given params, "
            "widths follow from 12·L·d²."
        )
    if "vocabulary" in rows:
        wide = rows[rows["width"] > rows["vocabulary"]]
        if len(wide):
            widths = sorted(set(wide["width"]))
            found.append(
                f"{len(wide)} runs are wider ({', '.join(map(str, widths))}) than the vocabulary "
                f"({wide['vocabulary'].min():g}): the rank of the embedding is a bottleneck there (Wies et "
                "al. 2021), and a crossing among them is not safe."
            )
    return found
