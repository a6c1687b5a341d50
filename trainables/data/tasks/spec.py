"""What a task asks. Pure descriptions: nothing here draws a sequence or imports numpy."""

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: The target of what is not scored, until it is packed.
UNSCORED = -1


class TaskData(BaseModel):
    """What all tasks share. `draw_seed` is of the sequences, not of the training: all seeds of a study see one task.

    A task of several difficulties is drawn as equal parts of each. The first token of a sequence, one of as many start
    tokens, says which it is of.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequences: int = Field(default=40_000, ge=1, description="training sequences generated")
    validation_sequences: int = Field(default=512, ge=1, description="sequences of the fixed validation set")
    draw_seed: int = Field(default=0, ge=0, description="of the sequences")

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        parts = self.parts
        if not parts or len(set(parts)) < len(parts):
            raise ValueError(
                f"`{self.graded_by}` is a number or a list of different numbers, and it is {list(parts)}"
            )
        return self

    @property
    def ids(self) -> int:
        """Token ids, inputs and answers together; the last ones are the start tokens, one for each of `parts`."""
        raise NotImplementedError

    @property
    def graded_by(self) -> str | None:
        """The key that makes this task harder and may be a list; None where there is none."""
        return None

    @property
    def parts(self) -> tuple[int, ...]:
        """The difficulties that this task is drawn of, in the order of their start tokens."""
        found: int | tuple[int, ...] = getattr(self, self.graded_by) if self.graded_by else 0
        return found if isinstance(found, tuple) else (found,)

    @property
    def first_start(self) -> int:
        """The id of the first start token."""
        return self.ids - len(self.parts)

    def scored(self, context: int) -> int:
        """Targets that are scored in a sequence."""
        return context - context // 2

    def asked(self, context: int) -> int:
        """Last targets of a sequence, of which the accuracy is told; any scored before them are a help to learn it."""
        return self.scored(context)

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


#: Lookups of one sequence.
Hops = Annotated[int, Field(ge=0, le=1000)]
#: Vertices of a graph at most.
MOST_VERTICES = 4096
#: Edges between two vertices of one cycle at most.
Diameter = Annotated[int, Field(ge=1, le=1000)]


class HopsData(TaskData):
    """k-hop induction heads: k times on to the token after the last earlier occurrence of the present one.

    Sanford, Hsu and Telgarsky 2024 (arXiv 2402.09268): find(i) is the largest j <= i with X_{j-1} = X_i, and the
    target at i is the token at find^k(i), or a symbol of its own where there is none. No token follows itself. The last
    half of the positions is scored. As in the paper one model may learn several k at once, which is far sooner than the
    largest alone: what makes few hops is the beginning of what makes many.
    """

    kind: Literal["hops"] = "hops"
    hops: Hops | tuple[Hops, ...] = Field(
        default=1,
        description="lookups, k, or a list of which each sequence has one; with 0 the target is the token itself",
    )
    alphabet: int = Field(default=4, ge=3, le=4096, description="tokens of a sequence (the paper: 4)")

    @property
    def ids(self) -> int:
        """The alphabet, the answer `nowhere`, and a start token for each k."""
        return self.alphabet + 1 + len(self.parts)

    @property
    def graded_by(self) -> str:
        """The hops."""
        return "hops"

    def misfit(self, context: int) -> str | None:
        """A hop goes back by `alphabet` - 1 tokens on average; past two thirds many chains would end nowhere."""
        hops = max(self.parts)
        back = hops * (self.alphabet - 1)
        if 3 * back <= 2 * context and context >= 4:
            return None
        needed = max(4, math.ceil(3 * back / 2))
        return (
            f"the task `hops` goes back by {back} tokens on average ({hops} `hops` x {self.alphabet - 1} for an "
            f"`alphabet` of {self.alphabet}), too far for a context of {context}: too many would be nowhere; take "
            f"a context of {needed} or more, or fewer hops"
        )


class ConnectivityData(TaskData):
    """Which vertices of a graph are connected, told by a name they share: the smallest one of their component.

    Graph connectivity as in Sanford, Hsu and Telgarsky 2024 (arXiv 2402.09268), where a model of m·H = O(D^{1-ε}) needs a
    depth of order log D for components of diameter D. A graph is cycles of one length: 2D + 1 vertices, or 2D where
    that divides the number of vertices instead. So all graphs have as many vertices and edges, every vertex has two
    edges, and nothing but following them tells. A sequence is the edges in random order, each the names of its two
    vertices, and then `questions` vertices. The target of an edge is the smallest name in the component that it is
    of by then, that of a question the smallest name in its component.

    Yes or no, whether two vertices are connected, is not asked because nothing was learnt of it: it is a matter of two
    names being equal, of which no single token tells anything, so that the loss has no slope to begin with. A smallest
    name is guessed the better the farther edges are followed. The targets of the edges are there for the same reason:
    with those of the questions alone 1,500 steps came to nothing.
    """

    kind: Literal["connectivity"] = "connectivity"
    vertices: int = Field(
        default=24, ge=6, le=MOST_VERTICES, description="vertices, and edges, of each graph"
    )
    diameter: Diameter | tuple[Diameter, ...] = Field(
        default=2,
        description="most edges between connected vertices, D, or a list of which each graph has one",
    )
    questions: int = Field(default=8, ge=1, le=4096, description="vertices asked for in each sequence")
    names: int = Field(default=24, ge=6, le=4096, description="names that vertices are drawn from")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.names < self.vertices:
            raise ValueError(
                f"the task `connectivity` has {self.vertices} `vertices` and {self.names} `names`; take a name for "
                "each vertex or more"
            )
        if self.questions > self.vertices:
            raise ValueError(
                f"the task `connectivity` asks {self.questions} `questions` of {self.vertices} `vertices`; take no "
                "more than there are vertices"
            )
        for part in self.parts:
            if not cycle_length(self.vertices, part):
                either = f"{2 * part + 1} or {2 * part}" if part > 1 else "3"
                fitting = [
                    count
                    for count in range(6, MOST_VERTICES + 1)
                    if all(cycle_length(count, one) for one in self.parts)
                ]
                nearest = min(fitting, key=lambda count: abs(count - self.vertices), default=None)
                way = f"take {nearest} vertices or other diameters" if nearest else "take other diameters"
                raise ValueError(
                    f"the task `connectivity` has no cycles of `diameter` {part} in {self.vertices} `vertices`: two or "
                    f"more of {either} vertices must make up all of them; {way}"
                )
        return self

    @property
    def ids(self) -> int:
        """Names, and a start token for each diameter."""
        return self.names + len(self.parts)

    @property
    def graded_by(self) -> str:
        """The diameter."""
        return "diameter"

    def scored(self, context: int) -> int:
        """The second vertex of each edge, and the questions."""
        return self.vertices + self.questions

    def asked(self, context: int) -> int:
        """The questions: behind its last edge each component is whole."""
        return self.questions

    def misfit(self, context: int) -> str | None:
        """There must be room for all tokens and a start token."""
        needed = 1 + 2 * self.vertices + self.questions
        if context < needed:
            return (
                f"the task `connectivity` with {self.vertices} `vertices` and {self.questions} `questions` fills "
                f"{needed} tokens, more than the context of {context}; take a context of {needed} or more, or fewer "
                "vertices or questions"
            )
        return None


def cycle_length(vertices: int, diameter: int) -> int | None:
    """The length of the cycles of this diameter, two or more, that make up so many vertices; None where none does."""
    lengths = (2 * diameter + 1, *((2 * diameter,) if diameter > 1 else ()))
    return next((length for length in lengths if vertices % length == 0 and vertices > length), None)


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
