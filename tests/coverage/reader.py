"""What a reader of an answer loses, in worlds whose loss is known at every N and depth.

    python -m tests.coverage.reader --studies 20

The loss is that of the depths named for an N above the best depth of the study there, both by the truth, in 1/1000 nats
per token, averaged over N uniform in ln N over the sizes of the study. A second table has the shape that is stated at
multiples of the largest size.
"""

import argparse
import dataclasses
import math
import multiprocessing
import statistics
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.fit.document import Fit, fit
from analysis.fit.recommendation import recommended
from analysis.law.answer_words import use_sentence
from analysis.law.near_optimal import WITHIN
from analysis.runs.table import RunTable
from analysis.threads import single_threaded

#: Places of ln N in a study.
PLACES = 40
TOKENS = 8e9
#: Factors on the largest size at which a shape is asked for.
FACTORS = (3.0, 10.0)
Generator = np.random.Generator
#: Expected loss of a depth at N, nats per token.
Loss = Callable[[float, float], float]


def valley(generator: Generator, low: float, high: float, ratio: float | None = None) -> Loss:
    """E + A·N^-0.3 + B·d^-a + C·L^-p, whose best depth and curvature there are drawn.

    At N = `low` the best depth is 2.3 to 4, at `high` it is 11 to 18. In the middle the loss grows by 0.02 to 0.05 nats
    per square of ln L away from it. `ratio` are tokens per parameter, with a term of (ratio·N)^-0.35.
    """
    first, last = generator.uniform(2.3, 4), generator.uniform(11, 18)
    power, curvature = generator.uniform(0.4, 0.9), generator.uniform(0.02, 0.05)
    irreducible, scale = generator.uniform(1.5, 2.3), generator.uniform(0.3, 0.7)
    wide = [math.sqrt(size / (12 * depth)) for size, depth in ((low, first), (high, last))]
    # At both ends the derivative by ln L is 0: (a / 2)·B·d^-a = p·C·L^-p.
    a = power * math.log(last / first) / math.log(wide[1] / wide[0])
    depth, width = math.sqrt(first * last), math.sqrt(wide[0] * wide[1])
    # Half of the second derivative there is (a / 2 + p)·(a / 2)·B·d^-a / 2.
    by_width = 4 * curvature / (a * (a / 2 + power))
    by_depth = a * by_width / (2 * power)

    def loss(L: float, params: float) -> float:
        common = irreducible + scale * (params / low) ** -0.3
        common += 0.4 * (params / low) ** -0.35 if ratio else 0.0
        w = math.sqrt(params / (12 * L))
        return common + by_width * (w / width) ** -a + by_depth * (L / depth) ** -power

    return loss


def off_when_small(generator: Generator, low: float, high: float) -> Loss:
    """A valley, and a loss of depths beyond 4 layers that decays with N."""
    loss, nats = valley(generator, low, high), generator.uniform(0.02, 0.06)
    return lambda L, params: loss(L, params) + nats * max(math.log(L / 4), 0) * (params / low) ** -0.8


def deep_in_the_middle(generator: Generator, low: float, high: float) -> Loss:
    """The best depth is 8 to 14 at the middle size and falls to both sides."""
    top, bend = generator.uniform(8, 14), generator.uniform(0.15, 0.25)
    curvature, middle = generator.uniform(0.03, 0.06), math.sqrt(low * high)

    def loss(L: float, params: float) -> float:
        best = math.log(top) - bend * math.log(params / middle) ** 2
        return 2 + 0.6 * (params / low) ** -0.3 + curvature * (math.log(L) - best) ** 2

    return loss


def flat(generator: Generator, low: float, high: float) -> Loss:
    """Depths differ by 0.0005 nats per octave."""
    nats = generator.choice([-0.0005, 0.0005])
    return lambda L, params: 2 + 0.6 * (params / low) ** -0.3 + nats * math.log2(L)


def never_crosses(generator: Generator, low: float, high: float) -> Loss:
    """Deeper models are better at every size, by a gap that decays."""
    nats = generator.uniform(0.01, 0.02)
    return lambda L, params: 2 + 0.6 * (params / low) ** -0.3 - nats * math.log2(L) * (params / low) ** -0.4


@dataclass(frozen=True)
class World:
    """A grid of shapes and the truth of each of its studies.

    Attributes:
        draw: the loss of a study, from a generator and the ends of the sizes.
        depths, low, high, sizes: of the grid; the sizes are N, equally far apart in ln N.
        seeds: of every shape; `large` of those above the middle size.
        multiple: of the widths.
        noise: of one seed, nats per token.
        ratio: tokens per parameter; None for the same tokens everywhere.
        last: the largest N of the depths whose large models are missing.
    """

    draw: Callable[..., Loss] = valley
    depths: tuple[int, ...] = (2, 4, 8, 16)
    low: float = 4e6
    high: float = 6e8
    sizes: int = 8
    seeds: int = 1
    large: int | None = None
    multiple: int = 2
    noise: float = 0.004
    ratio: float | None = None
    last: dict[int, float] = dataclasses.field(default_factory=dict)

    def study(self, name: str, number: int) -> tuple[pd.DataFrame, Loss]:
        """The rows of a simulated study and its true loss."""
        generator = np.random.default_rng([zlib.crc32(name.encode()), number])
        ends = {"low": self.low, "high": self.high}
        loss = self.draw(generator, **ends, **({"ratio": self.ratio} if self.ratio else {}))
        rows = []
        for depth in self.depths:
            widths = np.sqrt(np.geomspace(self.low, self.high, self.sizes) / (12 * depth)) / self.multiple
            for width in np.unique(np.maximum(np.rint(widths), 1)) * self.multiple:
                params = 12.0 * depth * width**2
                if params > self.last.get(depth, math.inf):
                    continue
                large = params > math.sqrt(self.low * self.high)
                for seed in range((self.large or self.seeds) if large else self.seeds):
                    noisy = loss(depth, params) + self.noise * generator.standard_normal()
                    tokens = self.ratio * params if self.ratio else TOKENS
                    rows.append((depth, int(width), params, seed, tokens, 1e-3, noisy))
        columns = ["depth", "width", "params", "seed", "tokens", "lr", "loss"]
        return pd.DataFrame(rows, columns=columns), loss


WORLDS = {
    "1 seed": World(),
    "3 seeds": World(seeds=3),
    "2 seeds of small models, 1 of large ones": World(seeds=2, large=1),
    "widths in multiples of 64": World(low=1.2e7, high=1.2e9, multiple=64, seeds=2),
    "deep models worse when small": World(off_when_small, seeds=2),
    "deep models missing at large sizes": World(last={8: 2.5e8, 16: 8e7}, seeds=2),
    "deep models best in the middle": World(deep_in_the_middle, seeds=3),
    "three sizes a factor of ten apart": World(low=8e6, high=8e8, sizes=3, seeds=2),
    "nine depths at four sizes": World(depths=(2, 3, 4, 6, 8, 12, 16, 20, 28), sizes=4),
    "depths do not differ": World(flat, seeds=2),
    "curves do not cross": World(never_crosses, seeds=3),
    "20 tokens per parameter": World(ratio=20.0),
}


class Answer(NamedTuple):
    """The depths that an answer names for one N: its first sentence, the nearest size, and the recommendation."""

    sentence: tuple[int, ...]
    best: int | None
    recommended: int | None


def answer(found: Fit, params: float) -> Answer:
    """What an answer names for N = `params`; the only place that knows how an answer is stored."""
    reading = found.reading
    ranges = reading.ranges if use_sentence(reading, found.level) else ()
    named = next((item.depths for item in ranges if _within(item.low, item.high, params)), ())
    best = reading.at(params)
    return Answer(tuple(named), best.depth if best else None, recommended(found, params).depth)


def _within(low: float | None, high: float | None, params: float) -> bool:
    """Whether a range holds N; the smallest and the largest size come out of logarithms."""
    return (low is None or low <= params * (1 + 1e-9)) and (high is None or params <= high * (1 + 1e-9))


class Paid(NamedTuple):
    """Losses above the best depth in nats per token: of each place with an answer, by the kind of answer."""

    sentence: list[float]
    best: list[float]
    recommended: list[float]


def paid(found: Fit, rows: pd.DataFrame, loss: Loss) -> Paid:
    """What the reader of one answer loses at every place."""
    total = Paid([], [], [])
    depths = sorted({int(depth) for depth in rows["depth"]})
    for params in np.geomspace(rows["params"].min(), rows["params"].max(), PLACES).tolist():
        said = answer(found, params)
        named = said.sentence, *((depth,) if depth is not None else () for depth in said[1:])
        least = min(loss(depth, params) for depth in depths)
        for kind, several in zip(total, named, strict=True):
            if several:
                kind.append(statistics.fmean(loss(depth, params) for depth in several) - least)
    return total


class Ahead(NamedTuple):
    """The shape at a multiple of the largest size, against the best whole depth whose model is not deeper than wide.

    Attributes:
        lost: what the depth of least expected loss loses, nats per token; None without a law.
        baseline: what the best depth of the largest size loses.
        bounded: whether `lost` is at most the stated bound; None without a law.
        answered: whether the bound is at most `WITHIN`, so that the depth is stated.
        inside: whether the interval of the best depth holds it; None without one.
    """

    lost: float | None
    baseline: float
    bounded: bool | None
    answered: bool
    inside: bool | None


def ahead(found: Fit, loss: Loss, params: float) -> Ahead:
    """What the shape stated for N = `params` loses by the truth."""
    depths = range(1, int((params / 12) ** (1 / 3)) + 1)
    losses = {depth: loss(depth, params) for depth in depths}
    least, best = min(losses.values()), min(losses, key=losses.__getitem__)
    baseline = losses[found.best[-1].depth] - least
    shape = found.predict(params, math.inf)
    if shape.depth is None or shape.near_optimal is None or shape.near_optimal.most is None:
        return Ahead(None, baseline, None, False, None)
    low, high = shape.depth_interval
    lost, bound = losses[shape.depth] - least, shape.near_optimal.most
    return Ahead(lost, baseline, lost <= bound, bound <= WITHIN, (low or 0) <= best <= (high or math.inf))


class Score(NamedTuple):
    """One study: inside its sizes, and at each of `FACTORS` times the largest."""

    paid: Paid
    ahead: tuple[Ahead, ...]


@single_threaded
def score(name: str, number: int) -> Score:
    """What the reader of the answer of one simulated study loses."""
    rows, loss = WORLDS[name].study(name, number)
    found = fit(RunTable.from_frame(rows))
    largest = float(rows["params"].max())
    return Score(paid(found, rows, loss), tuple(ahead(found, loss, factor * largest) for factor in FACTORS))


def measure(names: Iterable[str], studies: int, processes: int = 2) -> Iterator[tuple[str, list[Score]]]:
    """Score this many studies of each world; yields a world when its studies are done."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name in names:
            yield name, pool.starmap(score, [(name, number) for number in range(studies)], chunksize=2)


def ahead_row(items: Sequence[Ahead]) -> list[str]:
    """Mean loss and that of the baseline in 1/1000 nats, shares of bounds and intervals that hold, and of answers."""
    lost = [item.lost for item in items if item.lost is not None]
    shares = [
        [held for item in items if (held := getattr(item, name)) is not None]
        for name in ("bounded", "inside", "answered")
    ]
    return [
        f"{1000 * statistics.fmean(lost):.2f}" if lost else "–",
        f"{1000 * statistics.fmean(item.baseline for item in items):.1f}",
        *(f"{sum(share) / len(share):.0%}" if share else "–" for share in shares),
    ]


def row_of(studies: Sequence[Paid]) -> list[str]:
    """Mean loss in 1/1000 nats per token, and the share of the places with an answer, of each kind of answer."""
    cells = []
    for kind in Paid._fields:
        losses = [value for study in studies for value in getattr(study, kind)]
        share = len(losses) / (PLACES * len(studies))
        cells += [f"{1000 * statistics.fmean(losses):.2f}" if losses else "–", f"{share:.0%}"]
    return cells


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.coverage.reader", description=__doc__)
    parser.add_argument("--studies", type=int, default=20, help="simulated studies of each world")
    parser.add_argument("--only", default="", help="only worlds with this in their name")
    options = parser.parse_args()
    inside = Table(
        "world", *(text for kind in ("sentence", "best", "recommend") for text in (kind, "of N")), box=None
    )
    columns = ("lost", "baseline", "bound holds", "interval holds", "answered")
    beyond = Table("world", "times", *columns, box=None)
    for name, studies in measure([name for name in WORLDS if options.only in name], options.studies):
        inside.add_row(name, *row_of([study.paid for study in studies]))
        for at, factor in enumerate(FACTORS):
            beyond.add_row(name, f"{factor:g}", *ahead_row([study.ahead[at] for study in studies]))
        print(name, file=sys.stderr)
    Console(width=120).print(inside, beyond)
    return 0


if __name__ == "__main__":
    sys.exit(main())
