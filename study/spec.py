"""StudySpec: what a study compares, read from YAML and checked; one class a section.

`load_spec` reads a preset or a file, applies `--set` overrides, and turns every mistake into a `SpecError`
that names the key, the value, what is allowed and how to mend it. Importing this module loads no training
library.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from study import document
from study.devices import DEVICES
from study.errors import SpecError
from study.frontier import misses, shapes, width_step
from trainables.cell import Initialisation, Precision, Recipe, Shape
from trainables.data.spec import DataSpec, HierarchyData, MixtureData


class Section(BaseModel):
    """Base of all sections: immutable; unknown keys, infinities and truth values are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_values(cls, values: Any) -> Any:
        # Pydantic would read `seeds: true` as one seed. No section has a field of true or false.
        if isinstance(values, Mapping):
            for key, value in values.items():
                if isinstance(value, bool):
                    raise ValueError(f"`{key}` is {str(value).lower()}, and no key here is true or false")
        return values


#: Bounds no study reaches: they turn a slip of the keyboard into a refusal instead of an endless plan.
Budget = Annotated[float, Field(gt=0, le=1e15)]
Depth = Annotated[int, Field(ge=1, le=10_000)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]


class BudgetRange(Section):
    """Budgets from `min` to `max`, each the same factor above the one before."""

    min: Budget = Field(description="smallest budget")
    max: Budget = Field(description="largest budget")
    points: int = Field(ge=2, le=10_000, description="how many budgets, both ends counted")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"`min` {self.min:g} is not below `max` {self.max:g}; swap them")
        return self


def _list_or_table(value: Any) -> str:
    return "table" if isinstance(value, Mapping | BudgetRange) else "list"


def _list_or_count(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else "count"


class FrontierSection(Section):
    """Which shapes are compared: budgets x depths, or the widths of each depth by hand."""

    budgets: (
        Annotated[
            Annotated[tuple[Budget, ...], Tag("list")] | Annotated[BudgetRange, Tag("table")],
            Discriminator(_list_or_table),
        ]
        | None
    ) = Field(default=None, description="targets of N = 12·L·d², as a list or as {min, max, points}")
    depths: tuple[Depth, ...] | None = Field(default=None, description="layers L")
    widths: dict[Depth, tuple[Width, ...]] | None = Field(
        default=None,
        description="instead of budgets: the widths of each depth; the budget of a shape is its own N. "
        "`depths`, if given, says which of them are used",
    )
    heads: int | None = Field(
        default=None, ge=1, le=10_000, description="attention heads of every layer (the paper: 2)"
    )
    head_dim: int | None = Field(
        default=None, ge=1, le=10_000, description="instead of heads: the width of one head"
    )
    tolerance: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="how far N of a shape may be from its budget, as a share of the budget",
    )
    width_multiple: int = Field(
        default=1, ge=1, le=10_000, description="widths are multiples of this, and of the heads"
    )

    @property
    def budget_values(self) -> tuple[float, ...]:
        """The budgets in ascending order; with `widths`, the N of every shape."""
        if self.widths is not None:
            return tuple(sorted({found.budget for found in shapes(self)}))
        if isinstance(self.budgets, BudgetRange):
            low, high, points = self.budgets.min, self.budgets.max, self.budgets.points
            ratio = high / low
            return (low, *(low * ratio ** (i / (points - 1)) for i in range(1, points - 1)), high)
        return tuple(sorted(self.budgets or ()))

    @property
    def depth_values(self) -> tuple[int, ...]:
        """The depths in ascending order."""
        return tuple(
            sorted(self.widths if self.depths is None and self.widths is not None else self.depths or ())
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.heads is None) == (self.head_dim is None):
            given = "neither is" if self.heads is None else "both are"
            raise ValueError(f"give exactly one of `heads` and `head_dim`; {given} given")
        if self.widths is not None:
            self._check_widths(self.widths)
        else:
            self._check_budgets()
        return self

    def _check_widths(self, widths: Mapping[int, tuple[int, ...]]) -> None:
        if self.budgets is not None:
            raise ValueError("`widths` and `budgets` exclude each other; take one of them out")
        if not widths:
            raise ValueError("`widths` is empty; write `widths: {6: [128, 256], 12: [96, 192]}`")
        if self.depths is not None:
            _refuse_repeats("depths", self.depths)
            unknown = sorted(set(self.depths) - set(widths))
            if unknown or not self.depths:
                raise ValueError(
                    f"`depths` has {unknown or 'nothing'}, and `widths` has the depths {sorted(widths)}; "
                    f"choose among these, "
                    "or give widths for the others"
                )
        step = width_step(self)
        for depth, values in widths.items():
            if not values:
                raise ValueError(f"`widths` of depth {depth} is empty; give at least one width")
            _refuse_repeats(f"widths.{depth}", values)
            for width in values:
                if width % step:
                    low, high = width // step * step, (width // step + 1) * step
                    raise ValueError(
                        f"width {width} of depth {depth} is not a multiple of {step} "
                        f"({self._step_reason()}); "
                        f"take {f'{low} or ' if low else ''}{high}"
                    )

    def _check_budgets(self) -> None:
        if self.budgets is None or self.depths is None:
            missing = [f"`{name}`" for name in ("budgets", "depths") if getattr(self, name) is None]
            raise ValueError(
                f"{' and '.join(missing)} missing; give `budgets` and `depths`, or `widths` alone"
            )
        for name, values in (("budgets", self.budget_values), ("depths", self.depths)):
            if not values:
                raise ValueError(f"`{name}` is empty; give at least one value")
            _refuse_repeats(name, values)
        found, missed = shapes(self), misses(self)
        for depth in self.depth_values:
            if any(one.shape.depth == depth for one in found):
                continue
            best = min((miss for miss in missed if miss.depth == depth), key=lambda miss: abs(miss.deviation))
            if (
                best.taken_by is not None
            ):  # pragma: no cover - the budget that took it would be among the found
                continue
            raise ValueError(
                f"depth {depth} has no shape at any budget: widths are multiples of {width_step(self)} "
                f"({self._step_reason()}), and the nearest, width {best.nearest_width} for budget "
                f"{best.budget:g}, has "
                f"N = {12 * depth * best.nearest_width**2} ({best.deviation:+.0%}, tolerance "
                f"{self.tolerance:.0%}). "
                f"{self._way_out(best.deviation, depth)}"
            )

    def _way_out(self, deviation: float, depth: int) -> str:
        needed = math.ceil(abs(deviation) * 100) / 100
        if needed < 1:
            return f"Set `tolerance` to {needed:g} or more, change the budgets, or leave depth {depth} out"
        smallest = 12 * depth * width_step(self) ** 2
        return f"Raise the budgets to {smallest} or more, or leave depth {depth} out"

    def _step_reason(self) -> str:
        head = f"{self.heads} heads" if self.heads is not None else f"heads of {self.head_dim}"
        return head if self.width_multiple == 1 else f"{head}, `width_multiple` {self.width_multiple}"


class FixedRate(Section):
    """The same learning rate for every shape."""

    rule: Literal["fixed"]
    value: float = Field(gt=0, description="peak learning rate")

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape."""
        return self.value


class WidthRate(Section):
    """A power of the width: min(cap, base · d^exponent)."""

    rule: Literal["width"]
    base: float = Field(gt=0, description="the rate a width of 1 would have")
    exponent: float = Field(
        default=-1.0, ge=-4, le=4, description="-1 is the rate of muP's hidden matrices under Adam"
    )
    cap: float | None = Field(default=None, gt=0, description="largest rate")

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape."""
        rate = self.base * math.pow(shape.width, self.exponent)
        return rate if self.cap is None else min(self.cap, rate)


class TableRate(Section):
    """A learning rate for each shape, for example from an earlier search."""

    rule: Literal["table"]
    values: dict[str, Annotated[float, Field(gt=0)]] = Field(
        description="rates by shape, such as `L2-d16: 0.02`"
    )

    @model_validator(mode="after")
    def _names(self) -> Self:
        if not self.values:
            raise ValueError("`values` is empty; give a rate for each shape, such as `L2-d16: 0.02`")
        for name in self.values:
            if not re.fullmatch(r"L[1-9]\d*-d[1-9]\d*", name):
                raise ValueError(f"`{name}` names no shape; write depth and width as `L2-d16`")
        return self

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape; raises `SpecError` for a shape the table does not have."""
        name = f"L{shape.depth}-d{shape.width}"
        if name not in self.values:
            known = ", ".join(sorted(self.values))
            raise SpecError(
                f"`training.lr.values` has no rate for {name}, a shape of the frontier. It has: {known}. "
                f"Add `{name}: <rate>`, or use `rule: width`."
            )
        return self.values[name]


LearningRate = Annotated[FixedRate | WidthRate | TableRate, Field(discriminator="rule")]


class TrainingSection(Section):
    """How every cell is trained. All compared cells share this."""

    steps: int | None = Field(default=None, ge=1, description="optimizer steps")
    tokens: float | None = Field(
        default=None,
        ge=1,
        description="instead of steps: training tokens, rounded to whole steps (at least one)",
    )
    batch: int = Field(ge=1, description="sequences of one step")
    context: int = Field(ge=2, description="tokens of a sequence")
    optimizer: Literal["adamw"] = "adamw"
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0, description="on matrices; biases and norms have none")
    warmup: float = Field(default=0.1, ge=0, le=1, description="linear warm-up, as a share of the steps")
    floor: float = Field(
        default=0.0, ge=0, le=1, description="end of the cosine, as a share of the peak rate"
    )
    clip: float = Field(
        default=1.0, ge=0, description="largest norm of the gradient; 0 switches clipping off"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="auto is fp32 on CPU and bf16 on GPU"
    )
    init: Initialisation = Field(
        default="fan_in",
        description="fan_in: std 1/sqrt(fan in), residual outputs by 1/sqrt(2L); gpt2: std 0.02",
    )
    dropout: float = Field(default=0.0, ge=0, lt=1)
    lr: LearningRate = Field(description="rule of the peak learning rate")
    seeds: Annotated[
        Annotated[int, Field(ge=1, le=10_000), Tag("count")]
        | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Tag("list")],
        Discriminator(_list_or_count),
    ] = Field(default=1, description="how many (0, 1, …), or which")

    @property
    def step_count(self) -> int:
        """Optimizer steps of a cell."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.tokens or 0) / (self.batch * self.context)))

    @property
    def seed_values(self) -> tuple[int, ...]:
        """The seeds every shape is trained with; the same for all, so that differences are paired."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def recipe(self, precision: Precision) -> Recipe:
        """Return what the cells of this study have in common, at a precision that is no longer `auto`."""
        return Recipe(
            steps=self.step_count,
            batch=self.batch,
            context=self.context,
            optimizer=self.optimizer,
            beta1=self.betas[0],
            beta2=self.betas[1],
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            warmup=self.warmup,
            floor=self.floor,
            clip=self.clip,
            precision=precision,
            init=self.init,
            dropout=self.dropout,
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.steps is None) == (self.tokens is None):
            given = "neither is" if self.steps is None else "both are"
            raise ValueError(f"give exactly one of `steps` and `tokens`; {given} given")
        if isinstance(self.seeds, tuple):
            if not self.seeds:
                raise ValueError("`seeds` is empty; give a number of seeds or a list such as [0, 1, 2]")
            _refuse_repeats("seeds", self.seeds)
        return self


class SearchSection(Section):
    """Which of the frontier's shapes are trained, and with which multiples of the rule's learning rate."""

    sampler: Literal["grid", "tpe", "gp"] = Field(
        default="grid",
        description="grid: all depths x lr_factors; tpe, gp: Optuna picks `candidates` of them a budget",
    )
    lr_factors: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(1.0,), description="multipliers on the rule's learning rate"
    )
    candidates: int | None = Field(
        default=None,
        ge=1,
        description="for tpe and gp: how many pairs of depth and learning rate to try at each budget, each "
        "with every seed",
    )
    seed: int = Field(default=0, ge=0, description="of the sampler")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.lr_factors:
            raise ValueError("`lr_factors` is empty; write [1.0] to use the rule's rate as it is")
        _refuse_repeats("lr_factors", self.lr_factors)
        if self.sampler == "grid" and self.candidates is not None:
            raise ValueError(
                f"`candidates` is {self.candidates}, but the sampler `grid` trains every candidate; take "
                "`candidates` out, or choose `sampler: tpe` or `gp`"
            )
        if self.sampler != "grid" and self.candidates is None:
            raise ValueError(
                f"the sampler `{self.sampler}` needs `candidates`: how many pairs of depth and learning "
                "rate to try at each budget, for example `candidates: 8`"
            )
        return self


DeviceName = Literal[
    "cpu",
    "l4-24gb",
    "a10g-24gb",
    "l40s-48gb",
    "a100-40gb",
    "a100-80gb",
    "h100-80gb",
    "h200-141gb",
    "b200-180gb",
]


class ResourcesSection(Section):
    """What a trial gets, how many run side by side, and what the estimates assume."""

    device: DeviceName = Field(
        default="cpu", description="what a trial trains on; sets memory and speed of the plan"
    )
    slots: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        default="auto", description="trials side by side; auto is as many as the cores or GPUs there are"
    )
    cpus_per_trial: float = Field(default=1, gt=0, description="CPU cores of a trial")
    gpus_per_trial: int = Field(
        default=0, ge=0, le=1, description="GPUs of a trial; by default 1 unless on cpu"
    )
    checkpoint_every_seconds: float = Field(default=30, gt=0, description="most work lost with a machine")
    max_retries: int = Field(default=2, ge=0, description="new attempts after a lost process or machine")
    evaluations: int = Field(
        default=4, ge=1, description="evaluations during a cell, the last one at its end"
    )
    price_per_hour: float | None = Field(
        default=None, ge=0, description="of one trial's resources, in any currency"
    )
    utilisation: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of the device's peak to plan with, instead of the assumed one",
    )

    @model_validator(mode="before")
    @classmethod
    def _gpu_by_device(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "gpus_per_trial" not in values:
            device = DEVICES.get(str(values.get("device", "cpu")))
            return {**values, "gpus_per_trial": int(device is not None and device.is_gpu)}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        is_gpu = DEVICES[self.device].is_gpu
        if self.gpus_per_trial and not is_gpu:
            raise ValueError(
                f"`gpus_per_trial` is {self.gpus_per_trial}, but `device` is {self.device}; take "
                f"`gpus_per_trial` out, "
                f"or name the GPU: {', '.join(name for name in DEVICES if DEVICES[name].is_gpu)}"
            )
        if is_gpu and not self.gpus_per_trial:
            raise ValueError(
                f"`gpus_per_trial` is 0, but `device` is {self.device}, a GPU; set it to 1, or `device: cpu`"
            )
        return self


#: Names of query parameters that hold a secret: `password`, `sslpassword`, `access_token`, `api_key`, …
_SECRET = re.compile(r"passw|pwd|token|secret|credential|(api|access|account|private).?key", re.IGNORECASE)

#: What lies in a results folder beside the studies' own folders.
RESERVED = ("data", "mlartifacts", "mlflow.db")


class TrackingSection(Section):
    """Where MLflow keeps the study."""

    uri: str = Field(
        default="auto", min_length=1, description="auto is SQLite in the results folder; or an MLflow URI"
    )
    experiment: str | None = Field(
        default=None, min_length=1, description="MLflow experiment; by default the name"
    )

    @model_validator(mode="after")
    def _usable_and_no_secret(self) -> Self:
        example = "write it as http://host:5000"
        try:
            parts = urlsplit(self.uri)
        except ValueError as error:
            raise ValueError(f"`uri` is no address ({error}); {example}") from None
        # The spec is written to disk and to MLflow as it is, so a secret in it would leak.
        secrets = [key for key, _ in parse_qsl(parts.query, keep_blank_values=True) if _SECRET.search(key)]
        if parts.password or secrets:
            where = f" (`{secrets[0]}`)" if secrets else ""
            raise ValueError(
                f"`uri` holds a password{where}, and specs are kept as files; take it out and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN; PGPASSWORD for "
                "a database) in the environment"
            )
        try:
            _ = parts.port
        except ValueError:
            raise ValueError(f"`uri` has a port that is no number from 0 to 65535; {example}") from None
        if parts.scheme in ("http", "https") and not parts.hostname:
            raise ValueError(f"`uri` names no host; {example}")
        return self


class StudySpec(Section):
    """A study: the data, the frontier of shapes, how each is trained, and how the whole is run."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="letters, digits, `.`, `_`, `-`; the results' folder and the MLflow experiment",
    )
    description: str = Field(default="", description="one line for lists of studies")
    data: DataSpec
    frontier: FrontierSection
    training: TrainingSection
    search: SearchSection = Field(default_factory=SearchSection)
    resources: ResourcesSection = Field(default_factory=ResourcesSection)
    tracking: TrackingSection = Field(default_factory=TrackingSection)

    @property
    def experiment(self) -> str:
        """The MLflow experiment."""
        return self.tracking.experiment or self.name

    @property
    def precision(self) -> Precision:
        """The precision cells are trained in, on the device of `resources`."""
        if self.training.precision == "auto":
            return "bf16" if DEVICES[self.resources.device].is_gpu else "fp32"
        return self.training.precision

    def to_yaml(self) -> str:
        """Return this very spec, all defaults written out; `load_spec` reads it back unchanged."""
        text: str = yaml.safe_dump(
            self.model_dump(mode="json"),
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=None,
            width=110,
        )
        return text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # Compared without case: on some file systems `Data` is the folder `data`.
        if self.name.lower() in RESERVED:
            raise ValueError(
                f"`name` is {self.name!r}, and the results folder keeps {', '.join(RESERVED)} for itself; "
                "take another name"
            )
        sources = (
            [part.data for part in self.data.parts] if isinstance(self.data, MixtureData) else [self.data]
        )
        for source in sources:
            if isinstance(source, HierarchyData):
                _check_grammar(source, self.training.context)
        if isinstance(self.training.lr, TableRate):
            for found in shapes(self.frontier):
                self.training.lr.rate(found.shape)
        return self


def _check_grammar(data: HierarchyData, context: int) -> None:
    # Compared by logarithms first: the powers themselves may have millions of digits.
    if data.levels * math.log(data.branching) > math.log(context) + 1e-9:
        fitting = int(math.log(context) / math.log(data.branching) + 1e-9)
        raise ValueError(
            f"the grammar's strings have branching^levels = {data.branching}^{data.levels} symbols, more than "
            f"`training.context` {context}; take at most {fitting} `levels`, or a longer context"
        )
    length: int = data.branching**data.levels
    if context % length:
        below = context // length * length
        raise ValueError(
            f"`training.context` {context} is not a multiple of {length}, the length of the grammar's strings "
            f"(branching^levels = {data.branching}^{data.levels}); take {below} or {below + length}"
        )
    if math.log(data.synonyms) > (data.branching - 1) * math.log(data.vocabulary) + 1e-9:
        most: int = data.vocabulary ** (data.branching - 1)
        raise ValueError(
            f"`data.synonyms` {data.synonyms} x `data.vocabulary` {data.vocabulary} rules need more than the "
            f"{most * data.vocabulary} strings of {data.branching} symbols there are; take at most {most} synonyms"
        )


def _refuse_repeats(name: str, values: Sequence[float]) -> None:
    repeated = sorted({value for value in values if list(values).count(value) > 1})
    if repeated:
        raise ValueError(
            f"`{name}` has {', '.join(f'{v:g}' for v in repeated)} more than once; write each value once"
        )


def load_spec(source: str, overrides: Sequence[str] = ()) -> StudySpec:
    """Read a preset (`quickstart`) or a YAML file, apply overrides (`training.seeds=5`), and check the whole.

    Values of overrides are YAML. An override wins over what it excludes: `data.path` on a preset whose data
    has no path turns the data into `files` and keeps tokenizer and limits; a new `data.kind` or
    `training.lr.rule` keeps only the keys both kinds know; `training.tokens` replaces `steps`,
    `frontier.head_dim` replaces `heads`, and so on. A preset wins over a file of the same name; write
    `./quickstart` for the file.

    A relative `data.path` starts from the folder of the YAML file it is written in, and from the working folder
    in an override. The spec that comes back has absolute paths, so it means the same wherever it is kept.

    Raises:
        SpecError: whatever is wrong, at most five mistakes at once.
    """
    origin, raw = document.read(source)
    if source not in document.preset_names():
        document.anchor(raw, Path(source).resolve().parent)
    changed = document.override(raw, overrides)
    document.anchor(changed, Path.cwd())
    return parse_spec(changed, origin)


def parse_spec(raw: Mapping[str, Any], origin: str = "the spec") -> StudySpec:
    """Check a spec given as nested mappings; `origin` names it in errors."""
    try:
        return StudySpec.model_validate(raw)
    except ValidationError as error:
        raise SpecError(document.explain(error, raw, StudySpec, origin)) from None


def presets() -> dict[str, str]:
    """Return the presets that come with the package and their descriptions, by name."""
    return {name: str(document.preset(name).get("description", "")) for name in document.preset_names()}
