"""Model families: one class has everything that differs between GPT-2 and another kind of transformer.

The class of the family `training.network` lives in `trainables/model/families/NAME.py`, or registers itself with
`register`. Plans count parameters without torch, so only methods that build a model may import it.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from core.errors import InputError, did_you_mean
from trainables.cell import ROPE_THETA, Recipe, Residual, Shape
from trainables.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

#: Bytes of a value that a layer computes. In bf16 too, weights, gradients and the residual stream take 4.
VALUE_BYTES = {"fp32": 4, "bf16": 2}
#: Largest relative difference of a layer's weights from 12·d² that is rounding: that of a gated network's inner width
#: is 1.0 % at d = 8.
ROUNDED = 0.015


#: Optional fields of a shape and a recipe, and their keys in a spec. A family refuses what its `options` do not list.
OPTIONAL = {
    "kv_heads": "`frontier.kv_heads`",
    "head_dim": "`frontier.head_dim` beside `frontier.heads`",
    "d_ff": "`frontier.d_ff`",
    "embeddings": "`training.embeddings: untied`",
    "rope_theta": "`training.rope_theta`",
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Exact parameter counts of a model, by where they are."""

    embedding: int
    position: int
    """Learned position vectors: T·d in GPT-2, 0 with rotary positions."""
    non_embedding: int
    """All blocks and the final norm; the paper's N = 12·L·d² leaves out biases and norms."""
    head: int = 0
    """The matrix of a head that is not the embedding."""

    @property
    def total(self) -> int:
        """Equal to `model.num_parameters()`."""
        return self.embedding + self.position + self.non_embedding + self.head


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of one token's forward pass; a multiply-add counts as two."""

    matrices: int
    """The matrices of all blocks: 24·L·d² in GPT-2."""
    attention: int
    """Scores and weighted values over the whole context: 4·L·T·d (a causal kernel may skip half of it)."""
    head: int
    norms: int
    """Five per value: 10·L·d + 5·d in GPT-2, 1 % of the total at d = 32."""

    @property
    def forward(self) -> int:
        """The sum, as DeepSpeed's FLOPs profiler counts: without biases, residual sums and GELU."""
        return self.matrices + self.attention + self.head + self.norms

    @property
    def training(self) -> int:
        """Three times forward: backward computes two products for each of its (Kaplan et al. 2020, section 2.1)."""
        return 3 * self.forward


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a parameter, on which parametrisation and initialisation depend."""

    kind: Literal["embedding", "hidden", "branch_output", "norm", "head_norm", "final_norm"]
    """`branch_output` is the last linear layer of a residual branch, `embedding` also an untied head, `norm` the norm
    before a branch, `head_norm` a norm of queries or keys."""
    is_matrix: bool
    layer: int | None = None
    """Index of the block from 0; None outside the blocks."""


class Parts(Protocol):
    """A model taken apart for diagnostics; a stream is the fp32 input of a layer, [B, T, d]."""

    def embedded(self, tokens: "Tensor") -> "Tensor":
        """Return the stream before the first layer, for tokens [B, T]."""

    def layers(self) -> Iterable[Any]:
        """Return the layers in order, for the methods below."""

    def attention(self, layer: Any, stream: "Tensor", *, skip: bool = True) -> "Tensor":
        """Return the stream after the attention of a layer, with or without its skip connection."""

    def feed(self, layer: Any, stream: "Tensor", *, skip: bool = True) -> "Tensor":
        """Return the stream after a layer's feed-forward network, given the stream after its attention."""

    def attention_weights(self, layer: Any, stream: "Tensor") -> "Tensor":
        """Return a layer's attention weights, [B, heads, T, T]."""

    def logits(self, stream: "Tensor") -> "Tensor":
        """Return the logits [B, T, V] of the last layer's output."""


class ModelFamily(ABC):
    """One kind of transformer: its counts in closed form, its construction, and how its weights are sharded."""

    name: ClassVar[str]
    """The value of `training.network`."""
    title: ClassVar[str]
    """The family's name for people."""
    diagnostics: ClassVar[frozenset[str]] = frozenset()
    """Diagnostics that support its blocks (`trainables.diagnostics`)."""
    embedding_std: ClassVar[float] = 0.02
    """Standard deviation of the initial embeddings."""
    partition_config: ClassVar[Mapping[str, Any] | None] = None
    """DeepSpeed's `partition_config` for tensor parallelism; None uses HuggingFace's own plan."""
    keeps_scores: ClassVar[bool] = False
    """Whether backward needs the attention weights; a fused kernel stores none."""
    residuals: ClassVar[frozenset[Residual]] = frozenset({"pre", "sqrt", "linear", "scaled_norm"})
    """Values of `training.residual` that it can train; these four only scale weights by their role."""

    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `OPTIONAL` that it can build."""
    is_rotary: ClassVar[bool] = False
    """Whether positions are rotations of pairs of a head's values, so that heads have an even width."""

    def check(self, recipe: Recipe) -> None:
        """Raise a ValueError if the family cannot train a recipe."""
        self._check_options(recipe)
        if recipe.residual not in self.residuals:
            allowed = ", ".join(sorted(self.residuals))
            raise ValueError(
                f"`network: {self.name}` has no `residual: {recipe.residual}`; allowed: {allowed}"
            )

    def check_shape(self, shape: Shape, recipe: Recipe) -> None:
        """Raise a ValueError if the family has no model of a shape."""
        self._check_options(shape)

    def _check_options(self, values: Shape | Recipe) -> None:
        # A field at its default is absent from the dump.
        for name in sorted((values.model_dump().keys() & OPTIONAL.keys()) - self.options):
            raise ValueError(
                f"`network: {self.name}` has no {OPTIONAL[name]}; take it out, or choose "
                f"{' or '.join(f'`network: {other}`' for other in _families_with(name))}"
            )

    def residual(self, recipe: Recipe) -> Residual:
        """Return how branches join the residual stream."""
        return recipe.residual

    def summed_branches(self, shape: Shape, recipe: Recipe, depth: float) -> float:
        """Return how many initial branch outputs add up in the stream; each is divided by the root of their number.

        2·L, or L without feed-forward networks, where L is the depth at which the parametrisation changes nothing.
        `sqrt` and `linear` divide by L themselves (`trainables.model.parametrisation.residual_scale`).
        """
        branches = 2 if shape.has_feed_forward else 1
        return branches if self.residual(recipe) in ("sqrt", "linear") else branches * depth

    @abstractmethod
    def parameters(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Parameters:
        """Count the parameters exactly."""

    @abstractmethod
    def matrices(self, shape: Shape) -> list[tuple[int, int]]:
        """Return rows and columns of each matrix of a layer."""

    @abstractmethod
    def flops(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Flops:
        """Count the FLOPs of one token of a sequence of the recipe's context."""

    @abstractmethod
    def rank_parameters(self, shape: Shape, recipe: Recipe, vocabulary: int, layout: Layout) -> int:
        """Count the parameters that the largest tensor-parallel rank holds before ZeRO divides them."""

    @abstractmethod
    def layer_activations(self, shape: Shape, recipe: Recipe, layout: Layout) -> int:
        """Count the bytes per token that backward needs of a layer on a rank; the stream between layers is fp32."""

    def gradients_inside(self, shape: Shape, layout: Layout) -> int:
        """Count the values per token of the largest gradients inside a layer on a rank during its backward pass."""
        return 4 * shape.width // layout.tensor_parallel

    @abstractmethod
    def role(self, name: str) -> Role:
        """Return the role of a parameter, by its name in the model."""

    @abstractmethod
    def build(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Any:
        """Build a HuggingFace causal language model on the CPU in fp32; `build_model` draws its weights."""

    def finish_weights(self, model: Any, recipe: Recipe, seed: int) -> None:  # noqa: B027  # optional
        """Set the weights that depend on those that were drawn."""

    def finish_sharding(self, model: Any, layout: Layout) -> None:  # noqa: B027  # optional
        """Adjust a model that DeepSpeed has sharded."""

    def parts(self, model: Any, recipe: Recipe) -> Parts:
        """Return a model in parts, for the family's `diagnostics`."""
        raise NotImplementedError(f"`network: {self.name}` has no diagnostics")

    def layer_weights(self, shape: Shape, recipe: Recipe) -> float:
        """Return the weights of a layer's matrices over d²: 12 where N = 12·L·d² counts them all."""
        return self.flops(shape, recipe, 1).matrices / (2 * shape.depth * shape.width**2)

    def describe(self, shapes: Iterable[Shape], recipe: Recipe) -> str:
        """Return the trained model in words, with the weights that N = 12·L·d² does not count or does not have."""
        base = "" if recipe.rope_theta == ROPE_THETA else f", rotary base {recipe.rope_theta:g}"
        text = f"{self.title}, {recipe.embeddings} embeddings{base}"
        shapes = list(shapes)
        weights = sorted(self.layer_weights(shape, recipe) for shape in shapes)
        counted = 12 if all(shape.has_feed_forward for shape in shapes) else 4
        if max(abs(count / counted - 1) for count in (weights[0], weights[-1])) <= ROUNDED:
            return text if counted == 12 else f"{text}; without feed-forward networks, N = 4·L·d²"
        least, most = (f"{count:.1f}" for count in (weights[0], weights[-1]))
        span = least if least == most else f"{least} to {most}"
        return f"{text}; a layer has {span}·d² weights, N = 12·L·d² counts 12·d²"

    def is_huggingface(self, recipe: Recipe) -> bool:
        """Whether HuggingFace has a class for the trained model, so that it can be exported."""
        return True

    @abstractmethod
    def exported(
        self, state: Mapping[str, "Tensor"], shape: Shape, recipe: Recipe, vocabulary: int
    ) -> tuple[Any, dict[str, "Tensor"]]:
        """Return HuggingFace's configuration and the weights that `from_pretrained` of that configuration reads."""


_REGISTERED: dict[str, type[ModelFamily]] = {}


def register(family_class: type[ModelFamily]) -> type[ModelFamily]:
    """Register a family under its name; use as a class decorator."""
    _REGISTERED[family_class.name] = family_class
    return family_class


def family_names() -> list[str]:
    """Return the names of all families, for `training.network`."""
    from trainables.model import families

    return sorted({module.name for module in pkgutil.iter_modules(families.__path__)} | set(_REGISTERED))


def family(name: str) -> ModelFamily:
    """Return the family of a name; an InputError if there is none."""
    if name not in _REGISTERED:
        if name not in (names := family_names()):
            raise InputError(
                f"`training.network` is {name!r}; allowed: {', '.join(names)}{did_you_mean(name, names)}"
            )
        importlib.import_module(f"trainables.model.families.{name}")
    return _REGISTERED[name]()


def _families_with(option: str) -> list[str]:
    """Return the names of the families that have an option."""
    return [name for name in family_names() if option in family(name).options]
