"""What a task asks. Pure descriptions: nothing here draws a sequence or imports numpy."""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

#: The target of what is not scored, until it is packed.
UNSCORED = -1


class TaskData(BaseModel):
    """What all tasks share. `draw_seed` is of the sequences, not of the training: all seeds of a study see one task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequences: int = Field(default=40_000, ge=1, description="training sequences generated")
    validation_sequences: int = Field(default=512, ge=1, description="sequences of the fixed validation set")
    draw_seed: int = Field(default=0, ge=0, description="of the sequences")

    @property
    def ids(self) -> int:
        """Token ids, inputs and answers together; the last one is the start token."""
        raise NotImplementedError

    def scored(self, context: int) -> int:
        """Targets that are scored in a sequence."""
        return context - context // 2

    def misfit(self, context: int) -> str | None:
        """Why sequences of so many tokens cannot hold this task, and the way out; None where they can."""
        raise NotImplementedError


class RepeatsData(TaskData):
    """Random tokens whose last ones are repeated to the end: each of the last half follows from those before.

    Elhage et al. 2021 ("A Mathematical Framework for Transformer Circuits", induction heads). The first half, less one,
    is different tokens; a block of its last ones, from a quarter of the context to all of it, is then repeated. So no
    fixed distance tells what to copy, and the token after the last occurrence of the present one is exactly what comes.
    Two things keep one layer from other ways: tokens before the block, without which the token that was not seen for
    longest comes next, and an alphabet larger than the sequence, whose places do not all fit into one vector.
    """

    kind: Literal["repeats"] = "repeats"
    alphabet: int = Field(
        default=64, ge=2, le=4096, description="tokens drawn from; half of the context, less one, at least"
    )

    @property
    def ids(self) -> int:
        """The alphabet and the start token."""
        return self.alphabet + 1

    def misfit(self, context: int) -> str | None:
        """A quarter of the context is the shortest block, and the first tokens all differ."""
        if context < 8:
            return f"the task `repeats` needs a context of 8 tokens or more, and it has {context}; take a longer one"
        first = first_part(context)
        if self.alphabet < first:
            return (
                f"the task `repeats` begins with {first} different tokens in a context of {context}, more than its "
                f"alphabet of {self.alphabet}; take an `alphabet` of {first} or more, or a shorter context"
            )
        return None


def first_part(context: int) -> int:
    """Tokens of `repeats` that come before the repetition: one less than half, so that the first scored follows it."""
    return context // 2 - 1


class HopsData(TaskData):
    """k-hop induction heads: k times on to the token after the last earlier occurrence of the present one.

    Sanford, Hsu and Telgarsky 2024 (arXiv 2402.09268): find(i) is the largest j <= i with X_{j-1} = X_i, and the
    target at i is the token at find^k(i), or a symbol of its own where there is none. No token follows itself. The last
    half of the positions is scored.
    """

    kind: Literal["hops"] = "hops"
    hops: int = Field(
        default=1, ge=0, le=1000, description="lookups, k; with 0 the target is the token itself"
    )
    alphabet: int = Field(default=4, ge=3, le=4096, description="tokens of a sequence (the paper: 4)")

    @property
    def ids(self) -> int:
        """The alphabet, the answer `nowhere`, and the start token."""
        return self.alphabet + 2

    def misfit(self, context: int) -> str | None:
        """A hop goes back by `alphabet` - 1 tokens on average; past two thirds many chains would end nowhere."""
        back = self.hops * (self.alphabet - 1)
        if 3 * back <= 2 * context and context >= 4:
            return None
        needed = max(4, math.ceil(3 * back / 2))
        return (
            f"the task `hops` goes back by {back} tokens on average ({self.hops} `hops` x {self.alphabet - 1} for an "
            f"`alphabet` of {self.alphabet}), too far for a context of {context}: too many would be nowhere; take "
            f"a context of {needed} or more, or fewer hops"
        )


class ConnectivityData(TaskData):
    """Whether vertices of a graph are connected to the first: two cycles of vertices at most `diameter` edges apart.

    Graph connectivity as in Sanford, Hsu and Telgarsky 2024 (arXiv 2402.09268), where a net of m·H = O(D^{1-ε}) needs a
    depth of order log D. Each cycle has 2D + 1 vertices, so that all distances up to D are equally frequent and nothing
    but following the edges tells a vertex of one cycle from one of the other. A sequence is the name of one vertex,
    the edges in random order, each the names of its two vertices, and `questions` names with the target no or yes.
    """

    kind: Literal["connectivity"] = "connectivity"
    diameter: int = Field(default=2, ge=1, le=1000, description="largest distance in a cycle, D")
    questions: int = Field(default=8, ge=1, le=1000, description="vertices asked for in each sequence")
    names: int = Field(default=20, ge=6, le=1000, description="names that vertices are drawn from")

    @property
    def cycle(self) -> int:
        """Vertices, and edges, of one cycle."""
        return 2 * self.diameter + 1

    @property
    def ids(self) -> int:
        """Names, no, yes, and the start token."""
        return self.names + 3

    def scored(self, context: int) -> int:
        """The questions."""
        return self.questions

    def misfit(self, context: int) -> str | None:
        """There must be names for both cycles, and room for all tokens and a start token."""
        if self.names < 2 * self.cycle:
            return (
                f"the task `connectivity` with a `diameter` of {self.diameter} has two cycles of {self.cycle} "
                f"vertices, more than its {self.names} `names`; take {2 * self.cycle} names or more, or a smaller "
                "diameter"
            )
        needed = 2 + 4 * self.cycle + self.questions
        if context < needed:
            return (
                f"the task `connectivity` with a `diameter` of {self.diameter} and {self.questions} `questions` fills "
                f"{needed} tokens, more than the context of {context}; take a context of {needed} or more, a smaller "
                "diameter, or fewer questions"
            )
        return None


class ExpressionsData(TaskData):
    """The value of a nested expression over digits, in prefix form: [MAX 4 [SM 7 5 ] 0 ] is 4.

    After ListOps (Nangia and Bowman 2018), on which Brown et al. 2022 ("Wide Attention Is The Way Forward For
    Transformers?") compare one wide layer with a deep net. MIN, MAX, MED (the lower one of two in the middle) and SM
    (the sum modulo 10) of 2 to `arguments` values, nested up to `levels` deep; the target of the last token, which
    closes the expression, is its value. An expression that is longer than the context is drawn again.
    """

    kind: Literal["expressions"] = "expressions"
    levels: int = Field(default=3, ge=1, le=50, description="how deep expressions are nested at most")
    arguments: int = Field(default=4, ge=2, le=100, description="values of one operator at most")

    @property
    def ids(self) -> int:
        """Ten digits, four operators, the closing bracket and the start token."""
        return 16

    def scored(self, context: int) -> int:
        """The last one."""
        return 1

    def misfit(self, context: int) -> str | None:
        """The start token and the shortest expression of the most arguments must fit."""
        needed = self.arguments + 3
        if context < needed:
            return (
                f"the task `expressions` with up to {self.arguments} `arguments` needs a context of {needed} tokens "
                f"or more, and it has {context}; take a longer one, or fewer arguments"
            )
        return None


AnyTask = Annotated[RepeatsData | HopsData | ConnectivityData | ExpressionsData, Field(discriminator="kind")]
