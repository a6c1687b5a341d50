"""A whole study as read from YAML: `StudySpec`, and the studies of a series.

Importing this module loads no training library.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from study.errors import SpecError
from study.spec import yaml_file
from study.spec.devices import DEVICES
from study.spec.early_stopping import EarlyStopping
from study.spec.frontier import FrontierSection, shapes
from study.spec.messages import explain
from study.spec.resources import ResourcesSection, TrackingSection
from study.spec.search import SearchSection, SensitivitySection, parse_search
from study.spec.section import Section, refuse_repeats
from study.spec.training import TableRate, TrainingSection
from trainables.cell import Precision, Recipe
from trainables.data.spec import DataSpec, HierarchyData, MixtureData
from trainables.data.tasks.spec import AnyTask, TaskData
from trainables.diagnostics.names import Diagnostic
from trainables.model.family import family

#: What lies in a results folder beside the folders of studies.
RESERVED = ("data", "mlartifacts", "mlflow.db")

#: What a key may be in each study of a series.
Value = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)] | str


#: Keys that tell studies of one series from each other, or say where they are kept.
NOT_VARIED = ("name", "description", "claim", "vary", "tracking", "diagnostics")


class StudySpec(Section):
    """A study: the data, the frontier of shapes, how each is trained, and how the whole is run."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="letters, digits, `.`, `_`, `-`; the results' folder and the MLflow experiment",
    )
    description: str = Field(default="", description="one line for lists of studies")
    claim: str = Field(
        default="", description="what a source says the outcome should be, and which source; on the report"
    )
    data: DataSpec
    frontier: FrontierSection
    training: TrainingSection
    search: SearchSection = Field(default_factory=lambda: parse_search({}))
    early_stopping: EarlyStopping | None = Field(
        default=None, description="whether cells may end before their last step; by default none does"
    )
    sensitivity: SensitivitySection | None = Field(
        default=None, description="whether the crossings are tried at other learning rates; by default not"
    )
    diagnostics: tuple[Diagnostic, ...] = Field(
        default=(),
        description="what is measured of the layers at the start and at each evaluation; nothing by default",
    )
    resources: ResourcesSection = Field(default_factory=ResourcesSection)
    tracking: TrackingSection = Field(default_factory=TrackingSection)
    vary: dict[str, tuple[Value, ...]] | None = Field(
        default=None,
        description="a key and its values, such as {data.hops: [1, 2, 4]}: a series of studies that differ in that "
        "alone, each of its own report, and one page that holds them against each other",
    )

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

    @property
    def recipe(self) -> Recipe:
        """What the cells of this study have in common."""
        return self.training.recipe(self.precision, self.frontier.head_width(self.training.base.width))

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
        family(self.training.network).check(self.recipe)
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
        refuse_repeats("diagnostics", self.diagnostics)
        if isinstance(self.data, TaskData):
            _check_task(self.data, self.training.context, self.resources)
        if self.early_stopping is not None:
            self.early_stopping.check(self.training.step_count, self.resources.evaluations)
        if self.sensitivity is not None and len(self.search.lr_factors) > 1:
            raise ValueError(
                f"`sensitivity` asks what another learning rate does to the crossings, but `search.lr_factors` tries "
                f"{len(self.search.lr_factors)} of every shape already; take `sensitivity` out, or leave one factor"
            )
        if isinstance(self.training.lr, TableRate):
            for found in shapes(self.frontier):
                self.training.lr.rate(found.shape)
        self.search.check(self)
        if self.vary is not None:
            members(self)
        return self


@dataclass(frozen=True)
class SeriesMember:
    """One study of a series: the value of the key that is varied, and the study with it."""

    value: int | float | str
    spec: StudySpec


def varied(spec: StudySpec) -> tuple[str, tuple[int | float | str, ...]]:
    """The key in which the studies of a series differ, and its values.

    Raises:
        ValueError: there is not one key, or it has fewer than two values, or may not be varied.
    """
    vary = spec.vary or {}
    if len(vary) != 1:
        raise ValueError(
            f"`vary` has {f'{len(vary)} keys' if vary else 'no key'}, and a series differs in one; write for example "
            "`vary: {training.tokens: [1e6, 3e6]}`"
        )
    ((key, values),) = vary.items()
    if key.split(".")[0] in NOT_VARIED:
        raise ValueError(
            f"`vary` has the key `{key}`, which no study of a series can have of its own; name a key of another "
            "section, such as `training.tokens`"
        )
    if len(values) < 2:
        raise ValueError(f"`vary.{key}` has fewer than two values; a series compares several studies")
    slugs = _slugs(key, values)
    repeated = sorted({slug for slug in slugs if slugs.count(slug) > 1})
    if repeated:
        raise ValueError(f"`vary.{key}` has {', '.join(repeated)} more than once; write each value once")
    return key, values


def members(spec: StudySpec) -> tuple[SeriesMember, ...]:
    """The studies of a series, in the order of their values; each is kept under the name `SERIES-KEY-VALUE`.

    Raises:
        ValueError: see `varied`; or the study is wrong with one of the values, which is named.
    """
    key, values = varied(spec)
    raw = spec.model_dump(mode="json", exclude={"vary"}, exclude_unset=True)
    found = []
    for value, slug in zip(values, _slugs(key, values), strict=True):
        try:
            # One experiment, so that MLflow shows the series in one table.
            raw_member = yaml_file.changed(raw, {key: value, "tracking.experiment": spec.experiment})
            raw_member["name"] = f"{spec.name}-{key.split('.')[-1]}-{slug}"
            found.append(SeriesMember(value, parse_spec(raw_member, f"with `{key}` {value}")))
        except SpecError as error:
            raise ValueError(str(error).rstrip(".")) from None
    return tuple(found)


def studies(spec: StudySpec) -> tuple[StudySpec, ...]:
    """The studies that a spec stands for: those of a series, else itself."""
    return (spec,) if spec.vary is None else tuple(member.spec for member in members(spec))


def _slugs(key: str, values: Sequence[float | str]) -> list[str]:
    """The values of a key as parts of names; of files the last parts, where these differ."""
    if yaml_file.VARIED_PATH.fullmatch(key):
        last = [_slug(Path(str(value)).name) for value in values]
        if len(set(last)) == len(last):
            return last
    return [_slug(value) for value in values]


def _slug(value: float | str) -> str:
    """A value as part of a name: `4`, `1e06`, `gpt2`."""
    text = value if isinstance(value, str) else f"{value:g}".replace("+", "")
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)


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


def _check_task(data: AnyTask, context: int, resources: ResourcesSection) -> None:
    misfit = data.misfit(context)
    if misfit:
        raise ValueError(f"`training.context` {context} does not go with `data`: {misfit}")
    if resources.shard_vocabulary == "always":
        raise ValueError(
            f"`resources.shard_vocabulary` is always, but the accuracy of the task `{data.kind}` is read off whole "
            "logits; set it to never: the vocabulary of a task is small"
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
    origin, raw = yaml_file.read(source)
    if source not in yaml_file.preset_names():
        yaml_file.resolve_relative_paths(raw, Path(source).resolve().parent)
    changed = yaml_file.override(raw, overrides)
    yaml_file.resolve_relative_paths(changed, Path.cwd())
    return parse_spec(changed, origin)


def parse_spec(raw: Mapping[str, Any], origin: str = "the spec") -> StudySpec:
    """Check a spec given as nested mappings; `origin` names it in errors."""
    try:
        return StudySpec.model_validate(raw)
    except ValidationError as error:
        raise SpecError(explain(error, raw, StudySpec, origin)) from None


def presets() -> dict[str, str]:
    """Return the presets that come with the package and their descriptions, by name."""
    return {name: str(yaml_file.preset(name).get("description", "")) for name in yaml_file.preset_names()}
