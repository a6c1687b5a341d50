"""The model that Levine et al. 2020 analyse: attention alone, without softmax, ReLU or norm."""

import math
from typing import Any, ClassVar

from trainables.cell import Recipe, Residual, Shape
from trainables.layout import Layout
from trainables.model.families.gpt2 import GPT2Family
from trainables.model.family import VALUE_BYTES, Flops, Parameters, Parts, register


@register
class Analysed(GPT2Family):
    """GPT-2 without MLPs and norms, with linear attention (`trainables.model.analysed`)."""

    name = "analysed"
    title = "attention alone"
    # Without softmax there are no attention weights for the diagnostics `induction` and `attention`.
    diagnostics = GPT2Family.diagnostics - {"induction", "attention"}
    #: Token and position vectors sum to a variance of 1.
    embedding_std = math.sqrt(0.5)
    keeps_scores = True
    options: ClassVar[frozenset[str]] = frozenset()
    residuals: ClassVar[frozenset[Residual]] = frozenset({"pre"})

    def check(self, recipe: Recipe) -> None:
        """Refuse dropout and parametrisations other than `sp`."""
        super().check(recipe)
        if recipe.parametrisation != "sp" or recipe.dropout:
            raise ValueError("`network: analysed` needs `parametrisation: sp` and `dropout: 0`")

    def residual(self, recipe: Recipe) -> Residual:
        """Always 1/sqrt(L), as the skip connections of the model."""
        return "sqrt"

    def parameters(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Parameters:
        """Count 4·d² weights per block."""
        depth, width = shape.depth, shape.width
        return Parameters(vocabulary * width, recipe.context * width, depth * 4 * width**2)

    def matrices(self, shape: Shape) -> list[tuple[int, int]]:
        """Return those of the attention."""
        return super().matrices(shape)[:2]

    def flops(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Flops:
        """Count the FLOPs of one token."""
        depth, width = shape.depth, shape.width
        return Flops(8 * depth * width**2, 4 * depth * recipe.context * width, 2 * vocabulary * width, 0)

    def rank_parameters(self, shape: Shape, recipe: Recipe, vocabulary: int, layout: Layout) -> int:
        """Count the parameters of the largest rank; ranks share the matrices of the blocks."""
        degree, width = layout.tensor_parallel, shape.width
        symbols = math.ceil(vocabulary / degree) if layout.shard_vocabulary else vocabulary
        return symbols * width + recipe.context * width + shape.depth * (4 * width**2 // degree)

    def layer_activations(self, shape: Shape, recipe: Recipe, layout: Layout) -> int:
        """Count the layer's input; query, key, value and the input of the last matrix; and the stored scores."""
        value, degree = VALUE_BYTES[recipe.precision], layout.tensor_parallel
        return value * (shape.width + (4 * shape.width + recipe.context * shape.heads) // degree)

    def change(self, model: Any, recipe: Recipe) -> None:
        """Remove MLPs and norms, and replace the attention."""
        from trainables.model.analysed import to_analysed

        to_analysed(model)

    def parts(self, model: Any, recipe: Recipe) -> Parts:
        """Return the model in parts."""
        from trainables.model.analysed import AnalysedParts

        return AnalysedParts(model)

    def is_huggingface(self, recipe: Recipe) -> bool:
        """The model is not HuggingFace's class."""
        return False
