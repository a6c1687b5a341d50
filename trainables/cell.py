"""Cell: everything that can change a loss, and the key that hashes it."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from trainables.data import DataSpec
from trainables.data.kind import digest
from trainables.deepspeed_options import check_names

#: Raised when a code change alters the loss of a cell. Cells with dropout have 2 since their masks are a function of
#: (seed, step), cells in bf16 have 3 since their weights stay in fp32.
CELL_VERSION = 1
DROPOUT_CELL_VERSION = 2
BF16_CELL_VERSION = 3

Precision = Literal["fp32", "bf16"]
#: Warm-up of the schedule `cosine`, and decay of `wsd`, as shares of the steps, where a recipe has none.
WARMUP, DECAY = 0.1, 0.2
#: Base of the wavelengths of rotary positions in Su et al. 2021 (arXiv 2104.09864) and Llama.
ROPE_THETA = 10_000.0
Residual = Literal["pre", "sqrt", "linear", "scaled_norm", "post", "admin"]


class Frozen(BaseModel):
    """Base of all records here: immutable, and unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Shape(Frozen):
    """Depth L, width d and heads H of a transformer."""

    depth: int = Field(ge=1, description="layers L")
    width: int = Field(ge=1, description="width d of the residual stream")
    heads: int = Field(
        ge=1, description="attention heads H of a layer; must divide the width without `head_dim`"
    )
    kv_heads: int | None = Field(
        default=None, ge=1, description="heads of keys and values, if fewer than `heads`; must divide them"
    )
    head_dim: int | None = Field(
        default=None, ge=1, description="width of a head, if not `width` over `heads`"
    )
    d_ff: int | None = Field(
        default=None,
        ge=0,
        description="inner width of the feed-forward network, if not that which the family derives; 0 for none",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_implied(cls, values: Any) -> Any:
        # Equal models have one key, whether or not a value that follows from the others was written.
        if not isinstance(values, Mapping):
            return values
        width, heads, head_dim = (values.get(name) for name in ("width", "heads", "head_dim"))
        implied = {"kv_heads"} if values.get("kv_heads") == heads else set()
        if isinstance(heads, int) and isinstance(head_dim, int) and heads * head_dim == width:
            implied.add("head_dim")
        return {name: value for name, value in values.items() if name not in implied}

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")
        if self.heads % self.key_value_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly")
        return self

    @model_serializer(mode="wrap")
    def _without_empty_options(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialise(self)
        return {name: value for name, value in values.items() if value is not None}

    @property
    def head_width(self) -> int:
        """Width of one head, d_h."""
        return self.head_dim or self.width // self.heads

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values; tensor-parallel ranks divide these."""
        return self.kv_heads or self.heads

    @property
    def has_feed_forward(self) -> bool:
        """Whether a layer has a feed-forward network behind its attention."""
        return self.d_ff != 0

    @property
    def layer_weights(self) -> int:
        """Weights of a layer over d² that N counts: 4 of attention, 8 of the feed-forward network if any."""
        return 12 if self.has_feed_forward else 4

    @property
    def budget_params(self) -> int:
        """Non-embedding parameters: N = 12·L·d² (Levine et al. 2020, section 5).

        Without feed-forward networks it is 4·L·d².
        """
        return self.layer_weights * self.depth * self.width**2


class Base(Frozen):
    """The shape at which all parametrisations are the same; the learning rate of a cell is given for it."""

    depth: int = Field(default=2, ge=1, description="layers of the base shape, L0")
    width: int = Field(default=64, ge=1, description="its width, d0")
    head_width: float = Field(default=32.0, gt=0, description="width of one of its heads, d_h0")


class RecipeFields(BaseModel):
    """The fields that `Recipe` and the section `training` of a spec share."""

    # Far above any study: a typing error is refused, and products of counts stay within a float.
    batch: int = Field(ge=1, le=10_000_000, description="sequences of one step, over all ranks")
    context: int = Field(ge=2, le=100_000_000, description="tokens of a sequence, T")
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="adamw; or muon: Muon for the matrices of the blocks, AdamW for all else. Its learning rate is the "
        "same for every shape",
    )
    epsilon: float = Field(default=1e-8, gt=0, description="of AdamW")
    weight_decay: float = Field(default=0.01, ge=0, description="on matrices; biases and norms have none")
    schedule: Literal["cosine", "wsd"] = Field(
        default="cosine",
        description="learning rate after the warm-up: cosine, down over all steps; wsd: constant, then down over the "
        "last steps, so that cells of several numbers of tokens share all steps before (Hägele et al. 2024, arXiv "
        "2405.18392)",
    )
    warmup: float | None = Field(
        default=None, ge=0, le=1, description=f"linear warm-up, as a share of the steps (cosine; {WARMUP})"
    )
    warmup_steps: int | None = Field(
        default=None, ge=0, le=10**12, description="linear warm-up in steps, the same in every cell (wsd)"
    )
    decay: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description=f"share of the steps over which the rate falls, by 1 - sqrt of the progress (wsd; {DECAY})",
    )
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1, description="share of the peak rate at the end")
    grad_clip: float = Field(default=1.0, ge=0, description="largest norm of the gradient; 0: no clipping")
    init: Literal["fan_in", "gpt2"] = Field(
        default="fan_in",
        description="fan_in: std 1/sqrt(fan in), residual outputs by 1/sqrt(2L), embeddings 0.02; gpt2: std 0.02",
    )
    parametrisation: Literal["sp", "mup", "completep"] = Field(
        default="sp",
        description="sp: the same settings for every shape; mup: initialisation, learning rates, weight decay and "
        "epsilon follow the width; completep: width and depth. The learning-rate rule is then read at the base shape",
    )
    residual: Residual = Field(
        default="pre",
        description="how branches join the residual stream: pre (GPT-2); sqrt, linear: times 1/sqrt(L), 1/L; "
        "scaled_norm: norms times 1/sqrt(layer); post: norms behind the sum; admin: post with weights on the stream",
    )
    network: str = Field(
        default="gpt2",
        description="model family (`trainables.model.families`): gpt2; llama: rotary positions, RMSNorm, a gated "
        "feed-forward network, no biases; qwen3: llama with norms of queries and keys; analysed: attention alone, "
        "without softmax, ReLU or norm",
    )
    embeddings: Literal["tied", "untied"] = Field(
        default="tied",
        description="tied: the head is the embedding; untied: it has a matrix of its own (llama, qwen3)",
    )
    rope_theta: float = Field(
        default=ROPE_THETA,
        # Below 1 later pairs rotate faster than the first, and near 0 their angles overflow.
        ge=1,
        le=1e12,
        description="base of the rotary positions' wavelengths (llama, qwen3)",
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of the activations")
    deepspeed: Annotated[dict[str, Any], AfterValidator(check_names)] = Field(
        default_factory=dict,
        description="options for DeepSpeed itself, such as {zero_optimization: {overlap_comm: true}}; part of every "
        "cell, because some change the rounding of a loss",
    )

    @model_validator(mode="after")
    def _keys_are_of_the_schedule(self) -> Self:
        if self.schedule == "wsd" and self.warmup_steps is None:
            raise ValueError(
                "`schedule: wsd` needs `warmup_steps`, because cells of several lengths share their first steps; write "
                "for example `warmup_steps: 100`"
            )
        names = ("warmup",) if self.schedule == "wsd" else ("warmup_steps", "decay")
        for name in names:
            if getattr(self, name) is not None:
                instead = "`warmup_steps`, a number of steps" if name == "warmup" else "`schedule: wsd`"
                instead += " or `warmup`, a share of the steps" if name == "warmup_steps" else ""
                raise ValueError(
                    f"`{name}` is not for `schedule: {self.schedule}`; take it out, or write {instead}"
                )
        return self

    @model_validator(mode="after")
    def _parametrisation_is_alone(self) -> Self:
        if self.optimizer == "muon" and self.parametrisation != "sp":
            raise ValueError(
                f"`optimizer: muon` and `parametrisation: {self.parametrisation}` exclude each other, because mup and "
                "completep scale the rates of AdamW; use `parametrisation: sp`"
            )
        if self.parametrisation != "sp" and self.residual != "pre":
            raise ValueError(
                f"`parametrisation: {self.parametrisation}` and `residual: {self.residual}` exclude each other, "
                "because each scales the branches its own way; keep one"
            )
        return self


class Recipe(Frozen, RecipeFields):
    """How a cell is trained, apart from its shape, data, learning rate and seed. Compared cells share one recipe."""

    steps: int = Field(ge=1, description="optimizer steps")
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    precision: Precision = "fp32"
    base: Base = Field(default_factory=Base, description="shape at which mup and completep equal sp")

    @model_validator(mode="before")
    @classmethod
    def _no_base_without_need(cls, values: Any) -> Any:
        # Under sp nothing depends on the base shape, so recipes that differ in it alone are equal.
        if isinstance(values, Mapping) and values.get("parametrisation", "sp") == "sp":
            Base.model_validate(values.get("base", {}))
            return {key: value for key, value in values.items() if key != "base"}
        return values

    @model_validator(mode="before")
    @classmethod
    def _shares_of_the_schedule(cls, values: Any) -> Any:
        # Equal recipes have one key, whether or not a default was written.
        if not isinstance(values, Mapping):
            return values
        name, share = ("decay", DECAY) if values.get("schedule") == "wsd" else ("warmup", WARMUP)
        return {**values, name: share} if values.get(name) is None else values

    @model_serializer(mode="wrap")
    def _without_empty_options(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A cell without options has the key it had before there were any: its results stay valid.
        values: dict[str, Any] = serialise(self)
        unused = {"deepspeed": not self.deepspeed, "residual": self.residual == "pre"}
        unused |= {"network": self.network == "gpt2", "parametrisation": self.parametrisation == "sp"}
        unused |= {"embeddings": self.embeddings == "tied", "rope_theta": self.rope_theta == ROPE_THETA}
        unused["base"] = unused["parametrisation"]
        unused["schedule"] = self.schedule == "cosine"
        unused |= {name: getattr(self, name) is None for name in ("warmup", "warmup_steps", "decay")}
        return {key: value for key, value in values.items() if not unused.get(key)}

    @property
    def tokens(self) -> int:
        """Training tokens of the whole cell."""
        return self.steps * self.batch * self.context

    @property
    def warmup_end(self) -> int:
        """Steps of the linear warm-up."""
        return round((self.warmup or 0.0) * self.steps) if self.warmup_steps is None else self.warmup_steps

    @property
    def decay_start(self) -> int:
        """Steps before the rate falls: with `wsd` all but the share `decay`, with `cosine` those of the warm-up."""
        if self.decay is None:
            return self.warmup_end
        return self.steps - max(1, round(self.decay * self.steps))


class Cell(Frozen):
    """One training run, completely described.

    `data_key` identifies the content of the data and `data` its place: a moved file keeps its cells.
    """

    shape: Shape
    recipe: Recipe
    data: DataSpec
    data_key: str
    lr: float = Field(gt=0, description="peak learning rate")
    seed: int = Field(ge=0, description="of the initial weights and of the order of the data")

    @model_validator(mode="after")
    def _warmup_ends_before_the_decay(self) -> Self:
        recipe = self.recipe
        if recipe.warmup_end > recipe.decay_start:
            raise ValueError(
                f"`warmup_steps` {recipe.warmup_end:,} end after step {recipe.decay_start:,}, where the decay of "
                f"{recipe.steps:,} steps begins; write `warmup_steps: {recipe.decay_start}` or less"
            )
        return self

    @functools.cached_property
    def key(self) -> str:
        """Sixteen hex digits: the hash of everything that can change the loss, and of nothing else."""
        identity: dict[str, Any] = self.model_dump(mode="json", exclude={"data"})
        return digest({"version": self._version, **identity})

    @property
    def _version(self) -> int:
        version = DROPOUT_CELL_VERSION if self.recipe.dropout else CELL_VERSION
        return BF16_CELL_VERSION if self.recipe.precision == "bf16" else version

    @functools.cached_property
    def trunk(self) -> str | None:
        """The key of what cells of several lengths share; None unless the schedule is `wsd`.

        Such cells are equal to the bit until the decay of the shortest begins.
        """
        if self.recipe.schedule != "wsd":
            return None
        identity = self.model_dump(mode="json", exclude={"data": True, "recipe": {"steps", "decay"}})
        return digest({"version": self._version, "trunk": identity})

    @property
    def name(self) -> str:
        """A short name for people, such as `L2-d16-s0`; not unique, the key is."""
        return f"L{self.shape.depth}-d{self.shape.width}-s{self.seed}"
