"""Which stages run, in which order: two sittings of five minutes on a borrowed H100, or everything by its value."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.sizes import SIZES

#: Who is timed: the trainer, with compiled layers, with Muon; its model in a plain loop; a compiled nanoGPT-like loop.
WHO = ("ours", "ours, compiled", "ours, muon", "plain torch", "compiled nanoGPT")
OURS = WHO[:3]
#: Seconds expected on one H100 by a model of bytes and FLOPs, not measured yet: drawing weights, packing and the steps
#: of a case, and what compiling adds.
CASE_SECONDS = {"10M-8k": 10.0, "10M": 10.0, "125M": 10.0, "125M-50257": 10.0, "350M": 15.0, "1.3B": 27.0}
COMPILE_SECONDS = {"ours, compiled": 20.0, "compiled nanoGPT": 40.0}


@dataclass(frozen=True)
class Step:
    """A stage with its options.

    Attributes:
        stage: name in `benchmarks.gpu.stages.STAGES`.
        expected: seconds on one H100.
        options: keyword arguments of the stage.
        most: seconds after which it is killed; by default a minute more than twice the expected ones.
    """

    stage: str
    expected: float
    options: Mapping[str, Any] = field(default_factory=dict)
    most: float | None = None

    @property
    def title(self) -> str:
        """Its name in the file."""
        options = [
            value if isinstance(value, str) else f"{key}={value}" for key, value in self.options.items()
        ]
        return f"{self.stage}: {', '.join(options)}" if options else self.stage

    @property
    def limit(self) -> float:
        """Seconds after which it is killed."""
        return 60 + 2 * self.expected if self.most is None else self.most


def _timed(stage: str, case: str, who: str) -> Step:
    return Step(stage, CASE_SECONDS[case] + COMPILE_SECONDS.get(who, 0), {"case": case, "who": who})


#: By number. The first: does it work, and how fast is it at 125M parameters? The second: speed at all sizes, attention,
#: memory, processes that share the GPU, constants of plans.
SITTINGS = {
    "1": (
        Step("facts", 8),
        # NCCL that finds no interface may wait for minutes, and two other ways are tried then.
        Step("contact", 10, most=45),
        Step("ceilings", 8),
        Step("agreement", 15, {"compiled": False}),
        _timed("throughput", "125M", "ours"),
        _timed("profile", "125M", "ours"),
        _timed("throughput", "125M", "ours, compiled"),
        _timed("profile", "125M", "ours, compiled"),
        Step("agreement", 30, {"compiled": True}),
        Step("life", 45),
        _timed("throughput", "125M", "plain torch"),
        Step("kernels", 25),
        _timed("throughput", "125M", "ours, muon"),
        Step("gangs", 45),
    ),
    "2": (
        _timed("throughput", "1.3B", "ours, compiled"),
        _timed("throughput", "1.3B", "ours"),
        Step("attention", 10),
        Step("constants", 25),
        _timed("throughput", "10M-8k", "ours"),
        _timed("profile", "10M-8k", "ours"),
        Step("memory", 25),
        Step("packing", 40),
        _timed("throughput", "350M", "ours, compiled"),
        _timed("throughput", "10M", "ours"),
        _timed("throughput", "125M", "compiled nanoGPT"),
        _timed("throughput", "125M-50257", "ours"),
        _timed("throughput", "10M-8k", "ours, compiled"),
        _timed("throughput", "1.3B", "compiled nanoGPT"),
        _timed("throughput", "350M", "compiled nanoGPT"),
        _timed("throughput", "10M", "ours, compiled"),
        _timed("throughput", "350M", "ours"),
        Step("checkpoints", 40),
    ),
}
_EACH = [
    _timed(stage, case, who)
    for stage, rows in (("throughput", WHO), ("profile", OURS))
    for case in CASE_SECONDS
    for who in rows
]
#: Both sittings, then all other cases of `throughput` and `profile`.
EVERYTHING = tuple({step.title: step for step in (*SITTINGS["1"], *SITTINGS["2"], *_EACH)}.values())


def chosen(
    sitting: str | None = None,
    size: str = "full",
    only: Collection[str] = (),
    cases: Collection[str] = (),
    who: Collection[str] = (),
) -> list[Step]:
    """Return the steps of a sitting, or of all, in their order.

    Args:
        sitting: one of `SITTINGS`; None: everything.
        size: one of `SIZES`; steps of a case that it does not have are left out.
        only: names of stages; empty: all.
        cases, who: only steps with one of these options; empty: all steps, also those without such an option.
    """
    available = SIZES[size].cases
    return [
        step
        for step in (SITTINGS[sitting] if sitting else EVERYTHING)
        if (not only or step.stage in only)
        and ("case" not in step.options or step.options["case"] in available)
        and (not cases or step.options.get("case") in cases)
        and (not who or step.options.get("who") in who)
    ]
