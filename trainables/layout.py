"""Layout: how a cell is distributed over devices. It changes losses by rounding only, so no cell's key contains it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from core.errors import InputError
from trainables.cell import Frozen, Recipe, Shape

ZeroStage = Literal[0, 1, 2, 3]


class Layout(Frozen):
    """The ranks that train a cell: `data_parallel` groups share the batch, and the ranks of a group every matrix.

    Rank r is shard r mod `tensor_parallel` of group r div `tensor_parallel`.
    """

    tensor_parallel: int = Field(default=1, ge=1, description="ranks that share each matrix; divides heads")
    data_parallel: int = Field(default=1, ge=1, description="groups that share each batch; divides it")
    zero: ZeroStage = Field(
        default=0, description="what the groups share of optimizer (1), gradients (2) and weights (3)"
    )
    micro_batch: int | None = Field(
        default=None, ge=1, description="sequences that a group processes at once; None: all of its share"
    )
    activation_checkpointing: bool = Field(
        default=False, description="keep no activations inside a layer: backward computes them again"
    )
    shard_vocabulary: bool = Field(
        default=False, description="also share the embedding and the logits among the tensor-parallel ranks"
    )

    compiled: bool = Field(
        default=False, description="compile layers and loss: fewer and larger kernels, after 10 to 40 seconds"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.shard_vocabulary and self.tensor_parallel == 1:
            raise ValueError(
                "shard_vocabulary shares the embedding among tensor-parallel ranks, but there is only one"
            )
        return self

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tensor_parallel * self.data_parallel

    @property
    def divides_matrices(self) -> bool:
        """Whether a rank holds a part of a matrix or of its optimizer state."""
        return self.zero > 0 or self.tensor_parallel > 1

    def share(self, recipe: Recipe) -> int:
        """Sequences of one group per step."""
        return recipe.batch // self.data_parallel

    def sequences(self, recipe: Recipe) -> int:
        """Sequences that a group processes at once (the micro-batch)."""
        return self.micro_batch or self.share(recipe)

    def pieces(self, recipe: Recipe) -> int:
        """Micro-batches per step."""
        return self.share(recipe) // self.sequences(recipe)

    def compiles_layers(self, recipe: Recipe) -> bool:
        """Whether compiled layers compute the same up to rounding: without communication inside and dropout."""
        return self.tensor_parallel == 1 and self.zero < 3 and not recipe.dropout

    @property
    def can_compile(self) -> bool:
        """Whether the loss can be compiled, and perhaps the layers: for a shared vocabulary DeepSpeed has its own."""
        return not self.shard_vocabulary

    def with_half_the_sequences(self, recipe: Recipe) -> "Layout | None":
        """The layout with at most half as many sequences at once; None if a group processes one at a time."""
        share, most = self.share(recipe), self.sequences(recipe) // 2
        fewer = next((n for n in range(most, 0, -1) if share % n == 0), None)
        return None if fewer is None else self.model_copy(update={"micro_batch": fewer})

    def check(self, shape: Shape, recipe: Recipe) -> None:
        """Raise an InputError if a cell cannot be trained in this layout."""
        if shape.key_value_heads % self.tensor_parallel:
            self._refuse_degree(shape)
        if recipe.batch % self.data_parallel:
            raise InputError(
                f"data_parallel {self.data_parallel} does not divide the batch of {recipe.batch} sequences. Use a "
                f"divisor of {recipe.batch}, or another batch."
            )
        share = self.share(recipe)
        if share % self.sequences(recipe):
            raise InputError(
                f"micro_batch {self.micro_batch} does not divide the {share} sequences of a group (a batch of "
                f"{recipe.batch} over data_parallel {self.data_parallel}). Use a divisor of {share}."
            )
        if self.compiled and not self.can_compile:
            raise InputError(
                "nothing can be compiled with `shard_vocabulary`: DeepSpeed's layers communicate inside, and it has a "
                "loss of its own. Leave one of `compiled` and `shard_vocabulary` out."
            )
        if recipe.optimizer == "muon" and self.divides_matrices:
            raise InputError(
                f"`optimizer: muon` needs whole matrices, but the layout divides them (tensor_parallel "
                f"{self.tensor_parallel}, ZeRO stage {self.zero}). Use tensor_parallel 1 and stage 0, with "
                "data_parallel for more ranks, or `optimizer: adamw`."
            )

    def _refuse_degree(self, shape: Shape) -> None:
        degree, heads = self.tensor_parallel, shape.key_value_heads
        kind = "heads" if shape.kv_heads is None else "key-value heads"
        finer = shape.width % 64 == 0 and shape.width // 64 > shape.heads
        more = "`frontier.head_dim: 64`" if finer else "a smaller `frontier.head_dim`"
        more = (
            f"more heads ({more} in place of `heads`)"
            if shape.kv_heads is None
            else "a larger `frontier.kv_heads`"
        )
        raise InputError(
            f"tensor_parallel {degree} does not divide the {heads} {kind} of depth {shape.depth}, width {shape.width}. "
            f"Use a divisor of {heads}, or in a spec `auto`, or `{{min_width: {{{degree}: WIDTH}}}}`, or {more}."
        )


def default_zero(recipe: Recipe, ranks: int) -> ZeroStage:
    """Return the cheapest stage: 0 for one rank, which has nothing to share, and for Muon; else 1."""
    return 1 if ranks > 1 and recipe.optimizer == "adamw" else 0
