"""The fit of a run table: noise, crossings, law, alternatives and best shapes, as one JSON document."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import PlainValidator

from analysis.curves.best_shapes import BestShape
from analysis.curves.shape_means import shape_means
from analysis.errors import InputError
from analysis.files import from_json, to_json
from analysis.fit.answer import NextDepth, next_depth
from analysis.fit.rate_check import RateCheck, widened
from analysis.fit.study import Study, estimates_of, study_of
from analysis.law.crossings import Crossing
from analysis.law.held_out import HeldOut, held_out
from analysis.law.loss_surfaces import SurfaceFit, fit_surfaces, points_of
from analysis.law.near_optimal import WITHIN, near_optimal
from analysis.law.prediction import predict
from analysis.law.shape import Law, NearOptimal, Shape
from analysis.law.threshold_law import ThresholdLaw
from analysis.runs.epochs import Epochs, epochs_of
from analysis.runs.table import RunTable, why_not
from analysis.runs.tokens import TokenRule
from analysis.threads import single_threaded

_NAME = "fit file (`interplay fit RUNS --json` writes one)"
#: Defaults of an alternative whose file has only the form.
_UNKNOWN_LAW = {"status": "insufficient", "reason": "not in the file", "level": 0.95}


@dataclass(frozen=True)
class Fit:
    """The fit of a run table.

    Attributes:
        crossings: of neighbouring depths. If sensitivity runs were trained, the intervals include the shift to the best
            learning rates.
        law: ln d = a + b·L through the crossings of adjacent depths, or the reason why there is none.
        alternatives: other forms through the same crossings.
        surfaces: laws of the loss itself, through the same points.
        held_out: the regret of each law at held-out sizes.
        best: the best depth of each measured budget; needs no law.
        noise, curves: the seed noise and the curves, see `Noise.summary` and `Curves.summary`.
        tokens: which training tokens were compared.
        epochs: how often training read its data; None if no row has it.
        diverged: shapes with diverged runs: depth, width, params, diverged, of.
        count: how N is counted, see `RunTable.count`.
        used, left_out: number of rows used, and every other row with its reason.
        merged: number of the rows of `left_out` whose losses are part of a loss that is compared: repeated runs, and
            the rates of a parabola.
        warnings: sentences for the reader.
        level: of the intervals.
        learning_rate: whether the learning rate was checked; None if no pair of depths can be compared.
        next_depth: what to train next if the deepest model is the best at the largest size.
        study: what the figures are drawn from; None if read from a file.
    """

    crossings: tuple[Crossing, ...]
    law: ThresholdLaw
    alternatives: tuple[ThresholdLaw, ...]
    surfaces: tuple[SurfaceFit, ...]
    tokens: TokenRule
    used: int
    left_out: tuple[dict[str, Any], ...]
    level: float
    merged: int = 0
    held_out: tuple[HeldOut, ...] = ()
    best: tuple[BestShape, ...] = ()
    noise: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    diverged: tuple[dict[str, Any], ...] = ()
    count: str = "nonembedding"
    epochs: Epochs | None = None
    warnings: tuple[str, ...] = ()
    learning_rate: RateCheck | None = None
    next_depth: NextDepth | None = None
    # A file has no study: data frames are not read.
    study: Annotated[Study | None, PlainValidator(lambda _: None)] = field(
        default=None, compare=False, repr=False
    )

    def predict(self, params: float) -> Shape:
        """The best depth at N = `params` by all laws that the data do not reject."""
        laws, refusal = (self.law, *self.alternatives), self.tokens.no_extrapolation
        return predict(laws, self.surfaces, self.crossings, params, refusal)

    def near_optimal(self, found: Shape, depth: float | None, within: float = WITHIN) -> NearOptimal | None:
        """What a depth loses at the N of `found`, see `analysis.law.near_optimal`, by the first surface of `found`.

        `found` is that of `predict`. None where it states no depth, or all surfaces are excluded from it: their losses
        then contradict its depth.
        """
        surface = next((item for form in found.laws for item in self.surfaces if item.form == form), None)
        if surface is None or found.depth_exact is None:
            return None
        return near_optimal(surface, found.params, depth, f"{surface.form} surface of this study", within)

    def to_json(self) -> dict[str, Any]:
        """The fit file: strict JSON types, no NaN."""
        document: dict[str, Any] = to_json(replace(self, study=None))
        del document["study"]
        document["alternatives"] += document.pop("surfaces")
        document["rows"] = {name: document.pop(name) for name in ("used", "merged", "left_out")}
        return document

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Fit":
        """The inverse of `to_json`.

        Raises:
            InputError: not a fit file.
        """
        if not isinstance(value, Mapping) or not {"crossings", "law", "alternatives", "rows"} <= value.keys():
            raise InputError(
                f"This is not a {_NAME}: `crossings`, `law`, `alternatives` and `rows` are needed."
            )
        try:
            known = {name: item for name, item in value.items() if item is not None}
            alternatives = [dict(item) for item in known.pop("alternatives")]
            document = {
                "tokens": {"rule": "unknown", "compared": None, "levels": (), "sentence": ""},
                "level": known["law"]["level"],
                **known,
                **known.pop("rows"),
                "alternatives": [_UNKNOWN_LAW | item for item in alternatives if "points" not in item],
                "surfaces": [item for item in alternatives if "points" in item],
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"This is not a {_NAME}: {type(error).__name__} at {error}.") from error
        return from_json(cls, document, _NAME)


@single_threaded
def fit(runs: RunTable, *, level: float = 0.95, tokens: float | None = None) -> Fit:
    """Fit a run table, see `study_of`."""
    return fit_of(study_of(runs, level=level, tokens=tokens))


@single_threaded
def fit_of(study: Study) -> Fit:
    """The fit of a study: its laws with their held-out regret, best shapes, checks and warnings."""
    comparison, curves, found = study.comparison, study.curves, study.crossings
    law, *alternatives = study.laws
    epochs = epochs_of(study.rows)
    repeated = [epochs.warning] if epochs and epochs.warning else []
    return Fit(
        crossings=widened(found.items, study.learning_rate),
        law=law,
        alternatives=tuple(alternatives),
        surfaces=study.surfaces,
        held_out=_held_out(study),
        best=study.best,
        noise=curves.noise.summary(),
        curves=curves.summary(),
        tokens=comparison.tokens,
        epochs=epochs,
        diverged=tuple({str(key): row[key] for key in row} for row in comparison.diverged.to_dict("records")),
        count=study.runs.count,
        used=len(study.rows),
        merged=len(comparison.merged),
        left_out=(*study.runs.left_out, *why_not(study.runs.frame, comparison.left_out)),
        warnings=(*study.runs.notes, *comparison.warnings, *repeated, *_warnings(study)),
        level=found.level,
        learning_rate=study.learning_rate,
        next_depth=next_depth(study.rows, study.best),
        study=study,
    )


def _held_out(study: Study) -> tuple[HeldOut, ...]:
    # The median, not the mean square: the misfit of the smallest models can be many times that of the others.
    misfit_sd = float(np.median(study.curves.misfit_sd))

    def train(seen: pd.DataFrame) -> dict[str, Law]:
        points = points_of(shape_means(seen), misfit_sd)
        laws: dict[str, Law] = {law.form: law for law in estimates_of(seen).laws}
        return laws | {item.form: item for item in fit_surfaces(points, equal_tokens=study.equal_tokens)}

    return held_out(study.rows, train)


def _warnings(study: Study) -> list[str]:
    rows, curves, crossings = study.rows, study.curves, study.crossings.items
    found = []
    source = curves.noise.source
    if source == "residuals":
        found.append(
            "One seed: noise is estimated from residuals. An error common to all sizes of one depth leaves none, so no "
            "interval includes it; more seeds show it."
        )
    elif source == "none" and curves.noise.seeds < 2:
        found.append(
            "One seed and too few sizes: there is no noise estimate, so no interval, no test and no law."
        )
    elif source == "none":
        found.append(
            "All seeds of a shape have the same loss, so there is no noise estimate. Check the seed column."
        )
    per_shape = rows.groupby(["depth", "params"])["seed"].nunique()
    if per_shape.nunique() > 1:
        found.append(f"Shapes have between {per_shape.min()} and {per_shape.max()} seeds.")
    if curves.misfit_p is not None and curves.misfit_p < 0.01:
        found.append(
            f"The losses deviate from power laws by {curves.misfit_rms:.2g} nats beyond the seed noise "
            f"(p = {curves.misfit_p:.1g}); the intervals include this misfit."
        )
    turned = [f"{item.shallow} → {item.deep}" for item in crossings if item.non_monotone]
    if turned:
        found.append(
            f"At the largest sizes the lead of the deeper model shrinks again, or its loss rises ({', '.join(turned)} "
            "layers). Deep models may be trained too little there: do not project from these crossings."
        )
    lost = sorted({item for crossing in crossings for item in crossing.diverged})
    if lost:
        shapes = ", ".join(f"{depth} layers at N = {params:,.0f}" for depth, params, _ in lost[:5])
        found.append(
            f"Every row of {shapes}{' and others' if len(lost) > 5 else ''} diverged; these shapes count as worse."
        )
    return found
