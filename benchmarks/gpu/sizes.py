"""What each stage of the measurement of a GPU is given: a whole H100's worth, a 16 GB card's, or a CPU's."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainables.cell import Shape


@dataclass(frozen=True)
class Case:
    """A shape, its vocabulary, and a step: sequences of `context` tokens, in micro-batches if `micro` is given."""

    name: str
    shape: Shape
    vocabulary: int
    context: int
    batch: int
    micro: int | None = None


@dataclass(frozen=True)
class Sizes:
    """The work of all stages.

    Attributes:
        matrix, copied: rows of the square matrices that are multiplied, and bytes that are copied.
        seconds: of a timed run, by the plan's estimate; the second half is timed.
        cases: by the name for the command line, in ascending order of their work. Several processes share the first.
            `memory` measures the last. `constants` are fitted to the first three.
        saved: the case whose checkpoints are written.
        life: shapes of one process after each other; the last is killed and resumed.
        beyond: a case whose batch does not fit at once.
        heads, contexts: widths of a head and lengths of a sequence whose attention is timed.
        attended: tokens of all these sequences together.
        processes: numbers of processes that share the GPU.
        compiler: the backend of `torch.compile`.
    """

    matrix: int
    copied: int
    seconds: float
    cases: Mapping[str, Case]
    saved: str
    life: tuple[Case, ...]
    beyond: Case
    heads: tuple[int, ...]
    contexts: tuple[int, ...]
    processes: tuple[int, ...]
    attended: int = 64 * 1024
    compiler: str = "inductor"


def _case(name: str, depth: int, width: int, heads: int, vocabulary: int, *step: int) -> Case:
    return Case(name, Shape(depth=depth, width=width, heads=heads), vocabulary, *step)


#: For an H100 of 80 GB.
FULL = Sizes(
    matrix=8192,
    copied=4 << 30,
    seconds=2.0,
    cases={
        "10M-8k": _case("10M, 8k tokens", 6, 384, 6, 2000, 1024, 8),
        "10M": _case("10M, 64k tokens", 6, 384, 6, 2000, 1024, 64),
        "125M": _case("125M, 64k tokens", 12, 768, 12, 50_304, 1024, 64),
        # GPT-2's own vocabulary, which is no multiple of 8: rows of logits are not aligned to 16 bytes.
        "125M-50257": _case("125M, 50,257 symbols", 12, 768, 12, 50_257, 1024, 64),
        "350M": _case("350M, 64k tokens", 24, 1024, 16, 50_304, 1024, 64, 32),
        "1.3B": _case("1.3B, 64k tokens", 24, 2048, 16, 50_304, 1024, 64, 16),
    },
    # A checkpoint of 1.3B has 16 GB.
    saved="350M",
    life=tuple(
        _case(f"{depth} × {width}", depth, width, 8, 2000, 512, 16)
        for depth, width in ((2, 1024), (24, 256), (6, 512), (12, 512), (6, 384))
    ),
    beyond=_case("125M, 512 sequences", 12, 768, 12, 50_304, 1024, 512),
    heads=(12, 56, 64, 96, 128, 160, 256, 320, 512, 984),
    contexts=(128, 1024),
    processes=(1, 4),
)
#: For a card of 16 GB.
SMALL = Sizes(
    matrix=4096,
    copied=1 << 30,
    seconds=2.0,
    cases={
        "10M-8k": FULL.cases["10M-8k"],
        "125M": _case("125M, 8k tokens", 12, 768, 12, 50_304, 1024, 8),
    },
    saved="125M",
    life=FULL.life[-3:],
    beyond=_case("125M, 256 sequences", 12, 768, 12, 50_304, 1024, 256),
    heads=(64, 256, 320),
    contexts=(1024,),
    processes=(1, 4),
)
#: Seconds on a CPU, so that the script is known to work.
TINY = Sizes(
    matrix=64,
    copied=1 << 16,
    seconds=0.0,
    cases={
        "10M-8k": _case("1 × 32, 64 tokens", 1, 32, 2, 64, 16, 4),
        "10M": _case("1 × 32, 128 tokens", 1, 32, 2, 64, 16, 8),
        "125M": _case("2 × 48", 2, 48, 2, 64, 16, 8),
        "125M-50257": _case("2 × 48, 63 symbols", 2, 48, 2, 63, 16, 8),
        "350M": _case("3 × 48", 3, 48, 2, 64, 16, 8, 4),
        "1.3B": _case("3 × 64", 3, 64, 2, 64, 16, 8, 2),
    },
    saved="350M",
    life=(_case("1 × 32", 1, 32, 2, 64, 16, 4), _case("3 × 16", 3, 16, 2, 64, 16, 4)),
    beyond=_case("16 sequences", 1, 32, 2, 64, 16, 16),
    heads=(8, 24),
    contexts=(16,),
    processes=(1, 2),
    attended=64,
    compiler="eager",
)
SIZES = {"full": FULL, "small": SMALL, "tiny": TINY}
