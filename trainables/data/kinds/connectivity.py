"""Connected components of a graph."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainables.data.kind import register
from trainables.data.task import UNSCORED, TaskData

if TYPE_CHECKING:
    from trainables.data.sources.random_rows import Draws, Symbols

#: Most vertices of a graph.
MOST_VERTICES = 4096
#: Edges between two vertices of one cycle at most.
Diameter = Annotated[int, Field(ge=1, le=1000)]


@register
class ConnectivityData(TaskData):
    """Connected components: the target of a vertex is the smallest name in its component.

    Graph connectivity as in Sanford, Hsu and Telgarsky 2024 (arXiv 2402.09268), where a model of m·H = O(D^{1-ε}) needs
    a depth of order log D for components of diameter D. A graph is cycles of one length: 2D + 1 vertices, or 2D where
    that divides the number of vertices instead. So all graphs have as many vertices and edges, every vertex has two
    edges, and only following them gives the answer. A sequence is the edges in random order, each the names of its two
    vertices, and then `questions` vertices. The target of an edge is the smallest name in its component so far, the
    target of a question the smallest name in its component.

    Whether two vertices are connected is not asked, because models did not learn it: the answer depends on the equality
    of two names, about which no single token carries information, so the loss has no slope at the start. The smallest
    name can be guessed, and better the farther edges are followed. Edges have targets for the same reason: with the
    targets of the questions alone, models learnt nothing in 1,500 steps.
    """

    graded_by: ClassVar[str | None] = "diameter"

    kind: Literal["connectivity"] = "connectivity"
    vertices: int = Field(default=24, ge=6, le=MOST_VERTICES, description="vertices and edges of each graph")
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
            if not _cycle_length(self.vertices, part):
                raise ValueError(self._no_cycles(part))
        return self

    def _no_cycles(self, diameter: int) -> str:
        either = f"{2 * diameter + 1} or {2 * diameter}" if diameter > 1 else "3"
        counts = range(6, MOST_VERTICES + 1)
        fitting = [count for count in counts if all(_cycle_length(count, part) for part in self.parts)]
        nearest = min(fitting, key=lambda count: abs(count - self.vertices), default=None)
        fix = f"take {nearest} vertices or other diameters" if nearest else "take other diameters"
        return (
            f"the task `connectivity` has no cycles of `diameter` {diameter} in {self.vertices} `vertices`: two or "
            f"more of {either} vertices must make up all of them; {fix}"
        )

    @property
    def vocabulary_size(self) -> int:
        """Names, and one start token per diameter."""
        return self.names + len(self.parts)

    def scored(self, context: int) -> int:
        """The second vertex of each edge, and the questions."""
        return self.vertices + self.questions

    def asked(self, context: int) -> int:
        """The questions: after its last edge each component is complete."""
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

    def draw(self, context: int, draws: "Draws", count: int) -> "tuple[Symbols, Symbols]":
        """Draw graphs: edges in random order, then the questions."""
        import numpy as np

        size, asked = self.vertices, self.questions
        part = self.draw_parts(draws, count)
        names = draws.orders(count, self.names)[:, :size]
        turn = draws.below(2, (count, size))
        order = draws.orders(count, size)
        # The index of the next vertex in the cycle of each vertex, [parts, vertices].
        index, lengths = (
            np.arange(size),
            np.array([[_cycle_length(size, difficulty)] for difficulty in self.parts]),
        )
        following = index - index % lengths + (index + 1) % lengths
        edges = np.stack([names, np.take_along_axis(names, following[part], axis=1)], axis=2)
        edges = np.where(turn[..., None] == 1, edges[..., ::-1], edges)
        edges = np.take_along_axis(edges, order[:, :, None], axis=1)
        questions = np.take_along_axis(names, draws.orders(count, size)[:, :asked], axis=1)

        inputs = np.broadcast_to(self.first_start + part[:, None], (count, context)).copy()
        inputs[:, -2 * size - asked : -asked] = edges.reshape(count, -1)
        inputs[:, -asked:] = questions
        targets = np.full_like(inputs, UNSCORED)
        joined, smallest = _join(edges, self.names)
        targets[:, -2 * size - asked + 1 : -asked : 2] = joined
        targets[:, -asked:] = np.take_along_axis(smallest, questions, axis=1)
        return inputs, targets


def _cycle_length(vertices: int, diameter: int) -> int | None:
    """The length of the cycles of this diameter, two or more of which make up all vertices; None if there is none."""
    lengths = (2 * diameter + 1, *((2 * diameter,) if diameter > 1 else ()))
    return next((length for length in lengths if vertices % length == 0 and vertices > length), None)


def _join(edges: "Symbols", names: int) -> "tuple[Symbols, Symbols]":
    """Join edges, int64 [n, edges, 2] names of vertices, in their order.

    Returns:
        the smallest name of each edge's component so far, int64 [n, edges], and of each name's in the end, [n, names].
    """
    import numpy as np

    count = len(edges)
    smallest = np.tile(np.arange(names), (count, 1))
    joined = np.empty(edges.shape[:2], np.int64)
    for place in range(edges.shape[1]):
        ends = np.sort(np.take_along_axis(smallest, edges[:, place], axis=1), axis=1)
        joined[:, place] = ends[:, 0]
        smallest = np.where(smallest == ends[:, 1:], ends[:, :1], smallest)
    return joined, smallest
