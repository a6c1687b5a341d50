"""A whole study as read from YAML: `StudySpec`.

Importing this module loads no training library.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from core.command_line import call
from core.errors import shortened
from core.numbers import listed
from study.errors import SpecError
from study.spec import yaml_file
from study.spec.devices import DEVICES
from study.spec.frontier import (
    HEADS,
    TOKENS_PER_PARAMETER,
    FrontierSection,
    FrontierShape,
    Miss,
    misses,
    shapes,
)
from study.spec.messages import explain
from study.spec.resources import ResourcesSection, TrackingSection
from study.spec.search import GridSection, SearchSection, SensitivitySection
from study.spec.section import Section, distinct, shape_name
from study.spec.training import (
    LENGTHS,
    ROUNDING,
    TableRate,
    TrainingSection,
    largest_batch,
    whole_steps,
)
from trainables.cell import Precision, Recipe
from trainables.data import DataSpec
from trainables.diagnostics import Diagnostic
from trainables.model.family import family, family_names

#: Names in a results folder that are not studies.
RESERVED = ("data", "mlartifacts", "mlflow.db")


class StudySpec(Section):
    """A study: the data, the frontier of shapes, how each shape is trained, and how the study is run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """letters, digits, `.`, `_`, `-`, first a letter or digit; names the results folder and the MLflow experiment"""
    description: str = ""
    """one line for lists of studies"""
    claim: str = ""
    """the result that a source reports, with the source; shown in the report"""
    data: DataSpec
    """what the models are trained on"""
    frontier: FrontierSection
    """which shapes are compared"""
    training: TrainingSection
    """how each shape is trained"""
    search: SearchSection = Field(default_factory=GridSection)
    """which cells are trained; by default all"""
    sensitivity: SensitivitySection | None = None
    """other learning rates at the crossings; by default none"""
    diagnostics: Annotated[tuple[Diagnostic, ...], AfterValidator(distinct)] = ()
    """what is measured of the layers at the start and at each evaluation; by default nothing"""
    resources: ResourcesSection = Field(default_factory=ResourcesSection)
    """devices, storage, and assumptions of the estimates"""
    tracking: TrackingSection = Field(default_factory=TrackingSection)
    """the MLflow store, and other trackers"""

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, values: Any) -> Any:
        """Fill in what most studies leave open.

        These are the kind of data with a path, heads of even width for rotary positions, and 20 tokens per parameter.
        """
        if not isinstance(values, Mapping):
            return values
        filled = dict(values)
        data, training = filled.get("data"), filled.get("training", {})
        if isinstance(data, Mapping) and "path" in data:
            filled["data"] = {"kind": "files", **data}
        filled |= _even_heads(filled)
        if isinstance(training, Mapping) and all(training.get(name) is None for name in LENGTHS):
            frontier = filled.get("frontier")
            if isinstance(frontier, Mapping) and frontier.get("minutes") is not None:
                return filled
            if isinstance(frontier, Mapping) and frontier.get("flops") is not None:
                return {**filled, "training": {**training, "tokens_per_parameter": TOKENS_PER_PARAMETER}}
            try:
                largest = max(FrontierSection.model_validate(frontier).budget_values)
            except ValidationError:
                # The mistake is explained with the others; any number of tokens will do.
                largest = 1.0
            filled["training"] = {**training, "tokens": TOKENS_PER_PARAMETER * largest}
        return filled

    @property
    def experiment(self) -> str:
        """The MLflow experiment."""
        return self.tracking.experiment or self.name

    @property
    def precision(self) -> Precision:
        """The precision of training on the device of `resources`."""
        auto: Precision = "bf16" if DEVICES[self.resources.device].is_gpu else "fp32"
        return auto if self.training.precision == "auto" else self.training.precision

    @property
    def _ratio(self) -> float:
        return self.training.tokens_per_parameter or TOKENS_PER_PARAMETER

    @property
    def shapes(self) -> list[FrontierShape]:
        """The shapes of the frontier, by compute, budget and depth; see `study.spec.frontier.shapes`."""
        return shapes(self.frontier, self._ratio)

    @property
    def misses(self) -> list[Miss]:
        """The budgets at which a depth has no shape."""
        return misses(self.frontier, self._ratio)

    @property
    def length(self) -> int | str:
        """What decides how long the cells are trained: their steps, or a rule such as `20 N` or `C / FLOPs`."""
        rules = {"FLOPs": "C / FLOPs", "minutes": "minutes · speed"}
        unit = self.frontier.compute_unit
        return self.training.length if unit is None else rules[unit]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the longest cell of the frontier; the others differ from it in their steps alone."""
        return self.recipe_of(max(self.step_counts(sized)[-1] for sized in self.shapes))

    def recipe_of(self, steps: int) -> Recipe:
        """Return the recipe of a cell of these steps."""
        head_width = self.frontier.head_width(self.training.base.width)
        return self.training.recipe(steps, self.precision, head_width)

    def step_counts(self, sized: FrontierShape) -> tuple[int, ...]:
        """Optimizer steps of the cells of a shape, ascending: one number, or one per number of `training.tokens`.

        Raises:
            SpecError: whole steps miss the tokens per parameter, or the budget of `frontier.flops` or
                `frontier.minutes`.
        """
        if sized.compute is None:
            return self.training.step_counts(sized.shape)
        exact, batch = self._exact_steps(sized), self.training.batch
        if (steps := whole_steps(exact)) is None:
            most = largest_batch(exact * batch)
            least = sized.compute / (2 * ROUNDING * exact * batch)
            key, unit = self.frontier.compute_key, self.frontier.compute_unit
            fix = f"set `training.batch: {most}` or less" if most else f"start {key} at {least:.2g}"
            raise SpecError(
                f"{key} {sized.compute:g} gives L{sized.shape.depth}-d{sized.shape.width} {exact:.3g} steps of {batch} "
                f"× {self.training.context}, which in whole steps miss it by more than 1 %; for equal {unit}, {fix}."
            )
        return (steps,)

    def _exact_steps(self, sized: FrontierShape) -> float:
        """The steps, with a fraction, that spend the FLOPs or the minutes of a shape."""
        training, minutes = self.training, self.frontier.minutes
        if minutes is not None:
            speed = minutes[sized.compute or 0.0][shape_name(sized.shape.depth, sized.shape.width)]
            return 60 * (sized.compute or 0.0) * speed / (training.batch * training.context)
        counted = family(training.network).flops(sized.shape, self.recipe_of(1), self.data.vocabulary_size)
        return (sized.compute or 0.0) / (counted.training * training.batch * training.context)

    def _check_compute(self) -> None:
        """Raise a `ValueError` if the steps at equal FLOPs or minutes are given elsewhere, or too few to be whole."""
        training, key, unit = self.training, self.frontier.compute_key, self.frontier.compute_unit
        # With `flops`, the tokens per parameter place the sizes.
        lengths = ("steps", "tokens") if unit == "FLOPs" else LENGTHS
        if given := [f"`training.{name}`" for name in lengths if getattr(training, name) is not None]:
            raise ValueError(
                f"{given[0]} has the length of every cell, which follows from {key}; take one of them out"
            )
        self.search.check_compute(key)
        if self.sensitivity is not None:
            raise ValueError(
                f"`sensitivity` trains shapes next to crossings in N, and {key} compares depths at equal {unit}; take "
                "`sensitivity` out, and set `search.lr_factors: [0.5, 1, 2]` for other learning rates"
            )
        if unit == "FLOPs":
            self.frontier.check_depths(self._ratio)
        # The fewest first, whose fix holds for all.
        for sized in sorted(self.shapes, key=self._exact_steps):
            self.step_counts(sized)

    def _check_warmup(self) -> None:
        """Raise a `ValueError` if the warm-up of the shortest cell does not end before its decay begins."""
        shortest = self.recipe_of(min(self.step_counts(sized)[0] for sized in self.shapes))
        if shortest.warmup_end > shortest.decay_start:
            fewer = (
                f"`training.warmup_steps: {shortest.decay_start}` or less, or "
                if shortest.decay_start
                else ""
            )
            raise ValueError(
                f"`training.warmup_steps` is {shortest.warmup_end:,}, and the decay of the shortest cells, of "
                f"{shortest.steps:,} steps, begins after {shortest.decay_start:,}; set {fewer}a smaller "
                "`training.decay`"
            )

    def to_yaml(self) -> str:
        """Return the spec as YAML with all defaults; `load_spec` reads it back unchanged."""
        raw = self.model_dump(mode="json")
        text: str = yaml.safe_dump(
            raw, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
        )
        return text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        training, search = self.training, self.search
        if self.frontier.compute_unit is not None:
            self._check_compute()
        network, recipe = family(training.network), self.recipe
        network.check(recipe)
        for sized in self.shapes:
            network.check_shape(sized.shape, recipe)
        self._check_warmup()
        generated = [name for name in self.resources.measure if name != "train"]
        if generated and not network.is_huggingface(recipe):
            raise ValueError(
                f"`resources.measure` has {listed(generated)}, which are those of a HuggingFace model, and HuggingFace "
                "has no class for this `network` or `residual`; set it to [train]"
            )
        # Case does not count: on some file systems `Data` is the folder `data`.
        if self.name.lower() in RESERVED:
            raise ValueError(
                f"`name` is {self.name!r}, and {', '.join(RESERVED)} are reserved in the results folder; choose "
                "another name"
            )
        if misfit := self.data.misfit(training.context):
            raise ValueError(f"`training.context` {training.context} does not fit `data`: {misfit}")
        if self.data.has_targets and self.resources.shard_vocabulary == "always":
            raise ValueError(
                f"`resources.shard_vocabulary` is always, but the accuracy of the task `{self.data.kind}` is computed "
                "from whole logits; set it to never: the vocabulary of a task is small"
            )
        if self.sensitivity is not None and len(search.lr_factors) > 1:
            raise ValueError(
                f"`sensitivity` trains at other learning rates, but `search.lr_factors` already has "
                f"{len(search.lr_factors)} per shape; take `sensitivity` out, or keep one factor"
            )
        if isinstance(training.lr, TableRate):
            for sized in self.shapes:
                training.lr.rate(sized.shape)
        search.check(self.frontier, training)
        self.frontier.check_size(self.cell_bound, "cells (shapes x `lr_factors` x seeds)")
        return self

    @property
    def cell_bound(self) -> int:
        """Number of cells that the plan lists or the search may add."""
        shape_count = len(self.shapes) + len(self.search.added_shapes(self.frontier))
        seed_count = self.search.most_seeds(self.training)
        levels = len(self.training.tokens) if isinstance(self.training.tokens, tuple) else 1
        return shape_count * levels * seed_count * len(self.search.lr_factors)


def _even_heads(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `frontier` with a step of widths that gives the heads of a rotary family an even width."""
    frontier, training = values.get("frontier"), values.get("training")
    network = training.get("network") if isinstance(training, Mapping) else None
    if not isinstance(frontier, Mapping) or network not in family_names() or not family(network).is_rotary:
        return {}
    heads = frontier.get("heads", HEADS)
    if frontier.get("head_dim") is not None or "width_multiple" in frontier or not isinstance(heads, int):
        return {}
    return {"frontier": {**frontier, "width_multiple": 2 * heads}}


def _slug(text: str) -> str:
    """Return a text as part of a name: `1e06`, `gpt2`."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)


def load_spec(source: str, overrides: Sequence[str] = (), results: Path | None = None) -> StudySpec:
    """Read a preset (`quickstart`), a YAML file or a study, apply overrides (`training.seeds=5`), and check the result.

    A study is named by its folder, or by its name if `results`, the root of the results, is given. Its spec has the
    overrides with which it was run. `yaml_file.find` has the order.

    Values of overrides are YAML. An override removes what it excludes: `data.path` on a preset whose data has no path
    turns the data into `files` and keeps tokenizer and limits; a new `data.kind`, `training.lr.rule` or
    `search.sampler` keeps only the keys that both have; `training.tokens` replaces `steps`, `frontier.head_dim`
    replaces `heads`, and so on. A preset takes precedence over a file of the same name; write `./quickstart` for the
    file.

    A relative path of the data starts from the folder of its YAML file, or from the working folder in an override. The
    returned spec has absolute paths.

    Raises:
        SpecError: lists up to five mistakes at once.
    """
    try:
        path = yaml_file.find(source, results)
    except OSError as error:
        raise SpecError(f"{shortened(source, 200)} cannot be read: {error.strerror}.") from error
    origin, raw = yaml_file.read(source, path, results)
    if path.parent != yaml_file.PRESETS:
        raw.setdefault("name", _slug(path.stem))
        yaml_file.resolve_relative_paths(raw, path.resolve().parent)
    changed = yaml_file.override(raw, overrides)
    yaml_file.resolve_relative_paths(changed, Path.cwd())
    try:
        return parse_spec(changed, origin)
    except SpecError as error:
        if overrides or path.name != yaml_file.SPEC:
            raise
        raise SpecError(f"{error} {_fix_of_recorded(path)}") from error


def _fix_of_recorded(path: Path) -> str:
    """What to do about the spec of a study's folder that this version cannot read."""
    text = "Another version of Interplay has written it, or it was edited."
    table = path.parent / "runs.csv"
    if table.is_file():
        text += f" To read its rows all the same: `{call('fit', table)}`."
    return f"{text} To go on with the study, correct the file as said; finished cells are kept."


def parse_spec(raw: Mapping[str, Any], origin: str = "the spec") -> StudySpec:
    """Check a spec given as nested mappings; `origin` names it in errors."""
    try:
        return StudySpec.model_validate(raw)
    except ValidationError as error:
        raise SpecError(explain(error, raw, StudySpec, origin)) from None
