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

from trainables.cell import Recipe, Residual, Shape
from trainables.errors import InputError, did_you_mean
from trainables.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

#: Bytes of a value that a layer computes. In bf16 too, weights, gradients and the residual stream take 4.
VALUE_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Exact parameter counts of a model with tied embeddings, by where they are."""

    embedding: int
    position: int
    """Learned position vectors: T·d in GPT-2, 0 with rotary positions."""
    non_embedding: int
    """All blocks and the final norm; the paper's N = 12·L·d² leaves out biases and norms."""

    @property
    def total(self) -> int:
        """Equal to `model.num_parameters()`."""
        return self.embedding + self.position + self.non_embedding


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

    kind: Literal["embedding", "hidden", "branch_output", "norm", "final_norm"]
    """`branch_output` is the last linear layer of a residual branch."""
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

    def check(self, recipe: Recipe) -> None:
        """Raise a ValueError if the family cannot train a recipe."""
        if recipe.residual not in self.residuals:
            allowed = ", ".join(sorted(self.residuals))
            raise ValueError(
                f"`network: {self.name}` has no `residual: {recipe.residual}`; allowed: {allowed}"
            )

    def residual(self, recipe: Recipe) -> Residual:
        """Return how branches join the residual stream."""
        return recipe.residual

    def summed_branches(self, recipe: Recipe, depth: float) -> float:
        """Return how many initial branch outputs add up in the stream; each is divided by the root of their number.

        2·L, where L is the depth at which the parametrisation changes nothing. `sqrt` and `linear` divide by L
        themselves (`trainables.model.parametrisation.residual_scale`).
        """
        return 2 if self.residual(recipe) in ("sqrt", "linear") else 2 * depth

    @abstractmethod
    def parameters(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Parameters:
        """Count the parameters exactly."""

    @abstractmethod
    def flops(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Flops:
        """Count the FLOPs of one token of a sequence of the recipe's context."""

    @abstractmethod
    def rank_parameters(self, shape: Shape, recipe: Recipe, vocabulary: int, layout: Layout) -> int:
        """Count the parameters that the largest tensor-parallel rank holds before ZeRO divides them."""

    @abstractmethod
    def layer_activations(self, shape: Shape, recipe: Recipe, layout: Layout) -> int:
        """Count the bytes per token that backward needs of a layer on a rank; the stream between layers is fp32."""

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
