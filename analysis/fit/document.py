"""The fit of a run table: noise, crossings, law, alternatives and best shapes, as one JSON document."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import PlainValidator

from analysis.curves.curves import CurvesSummary
from analysis.curves.noise import NoiseSummary
from analysis.curves.unusual_runs import UnusualRun
from analysis.fit.compute import ComputeAnswer, compute_answer
from analysis.fit.next_runs import NextRuns, NextSizes, estimated_runs, next_depth, next_sizes
from analysis.fit.next_words import rate_document
from analysis.fit.rate_check import RateCheck
from analysis.fit.study import Study, refusal_of, study_of
from analysis.law.answer_words import short_answer
from analysis.law.crossings import Crossing
from analysis.law.decision import GapLaws
from analysis.law.near_optimal import WITHIN
from analysis.law.prediction import predict
from analysis.law.reading import AtSize, Reading
from analysis.law.reasons import Because, Reason
from analysis.law.shape import Projection, check_size
from analysis.law.threshold_law import ThresholdLaw
from analysis.runs.bytes import common_bytes, needed_bytes
from analysis.runs.epochs import Epochs, epochs_of
from analysis.runs.remarks import About, Remark
from analysis.runs.table import RunTable, why_not
from analysis.runs.tokens import TokenRule
from analysis.runs.words import text_of
from analysis.threads import single_threaded
from analysis.units import UNITS, LossUnit, UnitName, UnitOption, times
from core.errors import InputError
from core.files import from_json, to_json

_NAME = "fit file"
#: Defaults of an alternative whose file has only the form.
_NOT_IN_FILE = (Because(Reason.NOT_IN_FILE),)
_UNKNOWN_LAW = {"status": "insufficient", "reasons": _NOT_IN_FILE, "level": 0.95}


@dataclass(frozen=True)
class Answer:
    """Which depth is best at each measured size, and what is known at each budget."""

    reading: Reading
    best: tuple[AtSize, ...]


@dataclass(frozen=True)
class Fit:
    """The fit of a run table.

    All losses are in nats per token. The fit file, sentences and figures state them in `unit`.

    Attributes:
        crossings: of neighbouring depths. If sensitivity runs were trained, the intervals include the shift to the best
            learning rates.
        law: ln d = a + b·L through the crossings of adjacent depths, or the reason why there is none.
        alternatives: other forms through the same crossings.
        gap_laws: laws of the gaps between depths, for sizes beyond the measured ones.
        reading: which depth is best at each measured size; needs no law.
        best: the same at each budget.
        compute: the best depth, size and tokens at each compute; None without several budgets of compute.
        noise, curves: the seed noise and the curves, in numbers.
        tokens: which training tokens were compared.
        epochs: how often training read its data; None if no row has it.
        diverged: shapes with diverged runs: depth, width, params, diverged, of.
        count: how N is counted, see `RunTable.count`.
        used, left_out: number of rows used, and every other row with its reason.
        merged: number of the rows of `left_out` whose losses are part of a loss that is compared: repeated runs, and
            the rates of a parabola.
        unusual: runs whose loss lies far off the others, which are compared all the same.
        without_unusual: the answer without these runs; None if there are none.
        remarks: what a reader must know about the table, the losses compared and their noise.
        level: of the intervals.
        learning_rate: whether the learning rate was checked; None if no pair of depths can be compared.
        next_depth: the depth to train next if the deepest model is the best at the largest size.
        next_sizes: the sizes to train next in a study at equal FLOPs, if a depth has its least loss at an end of them.
        unit: in which losses are stated.
        bytes_per_token: of the text, if it is one number and known.
        study: what the figures are drawn from; None if read from a file.
    """

    JSON_PROPERTIES: ClassVar = ("answer_without", "warnings")

    crossings: tuple[Crossing, ...]
    law: ThresholdLaw
    alternatives: tuple[ThresholdLaw, ...]
    gap_laws: GapLaws
    tokens: TokenRule
    used: int
    left_out: tuple[dict[str, Any], ...]
    level: float
    merged: int = 0
    reading: Reading = field(default_factory=Reading)
    best: tuple[AtSize, ...] = ()
    compute: ComputeAnswer | None = None
    noise: NoiseSummary = field(default_factory=NoiseSummary)
    curves: CurvesSummary = field(default_factory=CurvesSummary)
    diverged: tuple[dict[str, Any], ...] = ()
    count: str = "nonembedding"
    epochs: Epochs | None = None
    unusual: tuple[UnusualRun, ...] = ()
    without_unusual: Answer | None = None
    remarks: tuple[Remark, ...] = ()
    learning_rate: RateCheck | None = None
    next_depth: int | None = None
    next_sizes: NextSizes | None = None
    unit: UnitName = "nats per token"
    bytes_per_token: float | None = None
    # A file has no study: data frames are not read.
    study: Annotated[Study | None, PlainValidator(lambda _: None)] = field(
        default=None, compare=False, repr=False
    )

    @property
    def loss_unit(self) -> LossUnit:
        """The unit in which losses are stated."""
        return LossUnit.of(self.unit, self.bytes_per_token)

    @property
    def answer_without(self) -> tuple[str, ...]:
        """The words of `without_unusual`."""
        answer = self.without_unusual
        if answer is None:
            return ()
        return tuple(short_answer(answer.reading, answer.best, self.level, self.tokens))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The words of `remarks`."""
        return tuple(
            self.tokens.sentence if remark.about is About.NOT_COMPARABLE else text_of(remark)
            for remark in self.remarks
        )

    @property
    def layer_weights(self) -> float:
        """N over L·d² of the models."""
        return self.reading.layer_weights

    @property
    def sizes(self) -> tuple[float, float] | None:
        """The smallest and the largest N of the losses compared; None if nothing could be compared."""
        return self.gap_laws.params_range

    def predict(self, params: float, within: float = WITHIN) -> Projection:
        """The shape at N = `params` by the laws of the gaps, see `analysis.law.prediction`.

        `within` is in nats per token, as the losses of the shape are; its reason is in the unit of the fit.
        """
        if not self.gap_laws.laws and self.law.usable:
            return self._by_line(params)
        projection = predict(
            self.gap_laws,
            self.crossings,
            params,
            level=self.level,
            within=within,
            refusal=refusal_of(self.tokens),
            unit=self.loss_unit,
        )
        return replace(projection, layer_weights=self.layer_weights)

    def _by_line(self, params: float) -> Projection:
        """The shape by the threshold law alone, for a file that has no other."""
        check_size(params)
        depth, law = self.law.best_depth(params), self.law
        reasons: tuple[Because, ...] = ()
        if depth is None or law.layer_weights * depth > params:
            falls = law.b is not None and law.b <= 0
            depth, reasons = None, (Because(Reason.WIDTH_FALLS if falls else Reason.NO_FINITE_DEPTH),)
        return Projection(
            params,
            depth,
            law.interval(params, self.level),
            self.level,
            "none" if depth is None else "law",
            "the threshold law of the file",
            reasons=reasons,
            extrapolated=depth is None or law.extrapolates(depth),
            layer_weights=self.layer_weights,
        )

    @property
    def estimated_runs(self) -> NextRuns:
        """The runs of the next steps, estimated from the rows; none of a fit that was read from a file."""
        return NextRuns() if self.study is None else estimated_runs(self.study, self.next_depth)

    def to_json(self, next_runs: NextRuns | None = None) -> dict[str, Any]:
        """The fit file: strict JSON types, no NaN, all losses in the unit of the fit.

        `next_runs` are those of a plan; without it they are estimated.
        """
        runs = next_runs or self.estimated_runs
        stated = times(replace(self, study=None), self.loss_unit.per_nat)
        document: dict[str, Any] = to_json(stated)
        del document["study"]
        if stated.learning_rate is not None:
            document["learning_rate"] = rate_document(stated.learning_rate, runs.rates)
        document["next_runs"] = to_json(runs)
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
            given = {name: item for name, item in value.items() if item is not None}
            alternatives = [dict(item) for item in given.pop("alternatives")]
            none = {"laws": (), "params_range": None, "depths": (), "loss": None, "reasons": _NOT_IN_FILE}
            document = {
                "tokens": {"rule": "unknown", "compared": None, "levels": (), "remarks": (), "refusal": None},
                "level": given["law"]["level"],
                "gap_laws": none,
                **given,
                **given.pop("rows"),
                "alternatives": [_UNKNOWN_LAW | item for item in alternatives],
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"This is not a {_NAME}: {type(error).__name__} at {error}.") from error
        read = from_json(cls, document, _NAME)
        try:
            return times(read, 1 / read.loss_unit.per_nat)
        except ValueError as error:
            raise InputError(f"This is not a {_NAME}: {error}.") from error


@single_threaded
def fit(
    runs: RunTable, *, level: float = 0.95, tokens: float | None = None, unit: UnitOption = "nats"
) -> Fit:
    """Fit a run table, see `study_of` and `fit_of`."""
    return fit_of(study_of(runs, level=level, tokens=tokens), unit)


@single_threaded
def fit_of(study: Study, unit: UnitOption = "nats") -> Fit:
    """The fit of a study: its laws, best shapes, checks and warnings.

    Args:
        study: the losses compared.
        unit: in which losses are stated; it changes no other number.

    Raises:
        NoBytesError: the unit is bits per byte, and the rows have no common number of bytes per token.
    """
    if unit not in UNITS:
        raise InputError(f"The unit is {unit!r}; it must be one of {', '.join(UNITS)}.")
    # Checked before the laws are fitted, which takes the most time.
    per_token = (
        common_bytes(study.entered) if unit == "nats" else needed_bytes(study.entered, study.runs.source)
    )
    stated = LossUnit.of(UNITS[unit], per_token)
    comparison, curves, crossings = study.comparison, study.curves, study.crossings
    law, *alternatives = (law.counted(study.layer_weights) for law in study.laws)
    epochs, compute = epochs_of(study.rows), compute_answer(study)
    by_compute = comparison.tokens.rule == "compute"
    repeated = epochs.repeated if epochs else ()
    return Fit(
        crossings=study.stated_crossings,
        law=law,
        alternatives=tuple(alternatives),
        gap_laws=study.gap_laws,
        reading=study.reading,
        best=study.best,
        compute=compute,
        noise=curves.noise.summary(),
        curves=curves.summary(),
        tokens=comparison.tokens,
        epochs=epochs,
        diverged=tuple({str(key): row[key] for key in row} for row in comparison.diverged.to_dict("records")),
        count=study.runs.count,
        used=len(study.rows),
        merged=len(comparison.merged),
        left_out=(*study.runs.left_out, *why_not(study.runs.frame, comparison.left_out)),
        unusual=study.unusual,
        without_unusual=_without_unusual(study),
        remarks=(*study.runs.notes, *comparison.remarks, *repeated, *_remarks(study, stated)),
        level=crossings.level,
        learning_rate=study.learning_rate,
        next_depth=next_depth(study.rows, compute.best if by_compute and compute else study.best),
        next_sizes=next_sizes(study, compute),
        unit=stated.name,
        bytes_per_token=per_token,
        study=study,
    )


def _without_unusual(study: Study) -> Answer | None:
    return Answer(study.without_unusual.reading, study.without_unusual.best) if study.unusual else None


def _remarks(study: Study, unit: LossUnit) -> Iterator[Remark]:
    """What may bias the answer of a study; losses are stated in `unit`."""
    rows, curves, crossings = study.rows, study.curves, study.crossings.items
    source, has_one_seed = curves.noise.source, curves.noise.seeds < 2
    # The curves of losses that are not comparable state nothing.
    comparable = study.comparison.tokens.comparable
    if source == "residuals" and comparable:
        yield Remark(About.ONE_SEED if has_one_seed else About.EQUAL_LOSSES)
    elif source == "none":
        yield Remark(About.NO_NOISE_OF_ONE_SEED if has_one_seed else About.NO_NOISE_OF_EQUAL_LOSSES)
    seeds = rows.groupby(["depth", "params"])["seed"].nunique()
    if seeds.nunique() > 1:
        yield Remark(About.UNEQUAL_SEEDS, (int(seeds.min()), int(seeds.max())))
    if comparable and curves.misfit_p is not None and curves.misfit_p < 0.01:
        misfit = float(unit.per_nat * curves.misfit_rms)
        yield Remark(About.MISFIT, (misfit, unit.short, float(curves.misfit_p)))
    turned = [f"{item.shallow} → {item.deep}" for item in crossings if item.non_monotone]
    if turned:
        yield Remark(About.TURNED, tuple(turned))
    lost = sorted({item for crossing in crossings for item in crossing.diverged})
    if lost:
        yield Remark(
            About.LOST_SHAPES, tuple(value for depth, params, _ in lost for value in (depth, params))
        )
