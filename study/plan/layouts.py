"""Layouts: how many devices a cell takes, and what each of them holds."""

import bisect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from core.errors import InputError
from study.errors import SpecError
from study.plan.cost import Cost
from study.spec.devices import DEVICES, Device, usable_memory
from study.spec.resources import MinWidth, ResourcesSection
from trainables.cell import Recipe, Shape
from trainables.layout import Layout, default_zero
from trainables.model.attention_kernel import FLASH_WIDTH, attention_kernel
from trainables.model.counts import ONE_PASS_LOGITS
from trainables.model.family import family

#: ASSUMPTION: resident memory of a rank's process on CPU before its first tensor (measured 490 MB).
PROCESS_BYTES = 500_000_000
#: ASSUMPTION: GPUs of one machine, unless a cluster was joined. Ranks that share matrices are placed on one machine,
#: because they sum the residual stream in every layer; beyond it `auto` uses data parallelism (Narayanan et al. 2021,
#: arXiv 2104.04473, takeaway 1). For larger machines set `tensor_parallel: 16`.
GPUS_OF_A_MACHINE = 8
#: ASSUMPTION: tokens that a GPU processes at once if `micro_batch` is auto. More fill no more of it, and leave no room
#: for what the estimate of the memory misses.
TOKENS_AT_ONCE = 65_536
#: ASSUMPTION: a cell gains from compiled layers if its steps take longer than this many times what compiling takes:
#: compiled steps saved others a sixth of their time at 8B parameters (torchtitan) and half at 124M (nanoGPT, A100).
WORTH_COMPILING = 5.0
#: Number of slots tried when looking for a remedy.
MANY_SLOTS = 1024
#: The width of a head in most models of more than a hundred million parameters.
HEAD_DIM = 64


@dataclass(frozen=True)
class ClusterCapacity:
    """The capacity of a joined cluster for a study."""

    devices: int
    memory: int
    """Bytes that a rank may fill on a CPU; 0 if unknown."""
    together: int
    """Devices of the largest machine."""


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """The layout of a cell with its cost, and the reasons for it."""

    cost: Cost
    flags: tuple[str, ...]
    fits: bool = True
    """Whether its memory fits the device; no layout does if not."""

    @property
    def layout(self) -> Layout:
        """How the cell is spread over devices."""
        return self.cost.layout


@dataclass(frozen=True)
class LayoutPlanner:
    """Chooses layouts under one spec."""

    resources: ResourcesSection
    device: Device
    slots: int
    recipe: Recipe
    vocabulary: int
    cluster: ClusterCapacity | None = None
    """The joined cluster; without one, the slots share the memory of this machine."""

    @property
    def usable(self) -> int:
        """Bytes that the tensors of a rank may fill."""
        whole = usable_memory(self.device, self.slots, self.cluster.memory if self.cluster else None)
        return whole if self.device.is_gpu else whole - PROCESS_BYTES

    @property
    def together(self) -> int:
        """The most ranks that one machine holds; `auto` lets no more share matrices."""
        if self.cluster:
            return min(self.slots, self.cluster.together)
        return min(self.slots, GPUS_OF_A_MACHINE) if self.device.is_gpu else self.slots

    @property
    def _activation_checkpointing(self) -> tuple[bool, ...]:
        # Not for `auto` on a CPU: glibc keeps the blocks it frees (447 MB resident for 196 MB of tensors).
        asked = self.resources.activation_checkpointing
        if asked == "auto":
            return (False, True) if self.device.is_gpu else (False,)
        return (asked == "always",)

    def cost(self, shape: Shape, layout: Layout) -> Cost:
        """Return the cost of a shape in a layout."""
        return Cost(shape, self.vocabulary, self.recipe, layout, self.device, self.resources.utilisation)

    def choose(self, shape: Shape) -> LayoutChoice:
        """Return the layout with the fewest ranks whose memory fits the device.

        Among layouts with the same number of ranks, data parallelism comes before tensor parallelism, which exchanges
        activations in every layer and waits for them, but also shares the weights and their gradients, so that it fits
        where ZeRO's default stage does not. Then comes the largest micro-batch that fits, down to one sequence per
        group, before more ranks. If `activation_checkpointing` is auto, layouts that keep the activations come
        first. A shape that fits no layout has that of one rank: its rows may still be read.
        """
        choice = self._first_fit(shape)
        if choice is not None:
            asked, seconds = self.resources.compile, self.recipe.steps * choice.step_seconds
            is_worth_it = self.device.is_gpu and seconds > WORTH_COMPILING * self.device.seconds_to_compile
            wanted = asked == "always" or (asked == "auto" and is_worth_it)
            if wanted and self._compiled_parts(choice.layout):
                choice = self.cost(shape, choice.layout.model_copy(update={"compiled": True}))
            return LayoutChoice(choice, tuple(self._flags(choice)))
        return LayoutChoice(self.cost(shape, self._layout(1, 1)), (), fits=False)

    def check(self, shape: Shape, choice: LayoutChoice) -> None:
        """Check that a shape can be trained in the layout that `choose` returned for it.

        Raises:
            SpecError: the degrees of the spec do not suit the shape, or it fits no number of ranks; the message names
                the numbers and a remedy.
        """
        self._refuse_impossible(shape)
        if not choice.fits:
            raise SpecError(self._too_large(shape))

    def _first_fit(self, shape: Shape) -> Cost | None:
        usable = self.usable
        for layout, pieces in self._layouts(shape):
            size = partial(self._size, shape, layout)
            # A batch in one piece accumulates no gradients. Of several, memory grows with the size of a piece, so that
            # few of the divisors of a batch are tried.
            if size(pieces[-1]) <= usable:
                return self.cost(shape, layout(pieces[-1]))
            if fitting := bisect.bisect(pieces, usable, hi=len(pieces) - 1, key=size):
                return self.cost(shape, layout(pieces[fitting - 1]))
        return None

    def _size(self, shape: Shape, layout: Callable[[int], Layout], piece: int) -> int:
        return self.cost(shape, layout(piece)).memory.total

    def _layouts(self, shape: Shape) -> Iterator[tuple[Callable[[int], Layout], tuple[int, ...]]]:
        """Yield makers of a layout from its micro-batch, in order of preference, with the micro-batches, ascending."""
        degrees = [
            (tensor, data)
            for tensor in _degrees(
                self.resources.tensor_parallel, shape, shape.key_value_heads, self.together
            )
            for data in _degrees(self.resources.data_parallel, shape, self.recipe.batch, self.slots)
            if tensor * data <= (1 if self.device.trials > 1 or self.device.is_slice else self.slots)
            and (self.recipe.optimizer != "muon" or not self._layout(tensor, data).divides_matrices)
        ]
        for tensor, data in sorted(degrees, key=lambda pair: (pair[0] * pair[1], pair[0])):
            share = self.recipe.batch // data
            asked = self.resources.micro_batch
            if asked == "auto":
                most = max(1, TOKENS_AT_ONCE // self.recipe.context) if self.device.is_gpu else share
                pieces = tuple(piece for piece in divisors(share) if piece <= most)
            else:
                pieces = (asked,) if share % asked == 0 else ()
            for recomputed in self._activation_checkpointing if pieces else ():
                yield partial(self._layout, tensor, data, activation_checkpointing=recomputed), pieces

    def _layout(
        self,
        tensor: int,
        data: int,
        micro_batch: int | None = None,
        *,
        activation_checkpointing: bool = False,
    ) -> Layout:
        zero = self.resources.zero
        return Layout(
            tensor_parallel=tensor,
            data_parallel=data,
            zero=default_zero(self.recipe, tensor * data) if zero == "auto" else zero,
            micro_batch=micro_batch,
            activation_checkpointing=activation_checkpointing,
            shard_vocabulary=self.resources.shard_vocabulary != "never" and tensor > 1,
        )

    def _refuse_impossible(self, shape: Shape) -> None:
        resources = self.resources
        tensor = _asked(resources.tensor_parallel, shape)
        data = _asked(resources.data_parallel, shape)
        micro_batch = None if resources.micro_batch == "auto" else resources.micro_batch
        try:
            # One group is the most lenient choice for auto: what does not divide a batch divides no share of it.
            self._layout(tensor or 1, data or 1, micro_batch).check(shape, self.recipe)
        except InputError as error:
            raise SpecError(f"`resources`: {error}") from None
        ranks = (tensor or 1) * (data or 1)
        if ranks > self.slots:
            degrees = [
                f"`{name}` {n}"
                for name, n in (("tensor_parallel", tensor), ("data_parallel", data))
                if n is not None and n > 1
            ]
            places = "GPUs here" if self.device.is_gpu else f"cores here, {resources.cpus_per_trial:g} a rank"
            auto = f" (auto: the {places})"
            raise SpecError(
                f"`resources`: {' x '.join(degrees)} takes {ranks} devices for depth {shape.depth}, width "
                f"{shape.width}, and `slots` is {self.slots}{auto if resources.slots == 'auto' else ''}: a cell cannot "
                f"take more devices than are in use at a time. Set `slots` to {ranks} or more, or take lower degrees."
            )

    def _flags(self, cost: Cost) -> Iterator[str]:
        layout = cost.layout
        of_usable = f"of {gigabytes(self.usable)}"
        if layout.ranks > 1:
            names = {"tensor parallel": layout.tensor_parallel, "data parallel": layout.data_parallel}
            degrees = " x ".join(f"{name} {n}" for name, n in names.items() if n > 1)
            recomputed = True in self._activation_checkpointing
            single = Layout(micro_batch=1, activation_checkpointing=recomputed)
            alone = self.cost(cost.shape, single).memory.total
            if alone > self.usable:
                yield f"{degrees}: {gigabytes(alone)} {of_usable} on one device"
            else:
                yield f"{degrees}, set in `resources`"
        if layout.activation_checkpointing:
            keeping = layout.model_copy(update={"activation_checkpointing": False})
            kept = self.cost(cost.shape, keeping).memory.total
            if self.resources.activation_checkpointing == "auto":
                yield f"recomputed: {gigabytes(kept)} {of_usable} with activations kept"
            else:
                yield "activations recomputed"
        if layout.compiled:
            yield f"{self._compiled_parts(layout)} compiled, about {cost.compile_seconds:.2g} s"
        elif self.resources.compile == "always":
            yield "nothing to compile: dropout, tensor parallel or ZeRO 3, and few logits or a shared vocabulary"
        if self.device.is_gpu and not family(self.recipe.network).keeps_scores:
            yield from self._attention(cost.shape.head_width)
        if layout.pieces(self.recipe) > 1:
            groups = f" in each of {layout.data_parallel} groups" if layout.data_parallel > 1 else ""
            yield f"batch in {layout.pieces(self.recipe)} pieces of {layout.sequences(self.recipe)}{groups}"

    def _compiled_parts(self, layout: Layout) -> str:
        """Return what of a model can be compiled, in words; empty if nothing."""
        logits = layout.sequences(self.recipe) * self.recipe.context * self.vocabulary
        is_one_pass = layout.can_compile and logits > ONE_PASS_LOGITS
        parts = {"layers": layout.compiles_layers(self.recipe), "loss": is_one_pass}
        return " and ".join(name for name, is_compiled in parts.items() if is_compiled)

    def _attention(self, head_width: int) -> Iterator[str]:
        """Yield a flag for heads of which a GPU has no fast kernel; it has no width, so that shapes share it."""
        precision = self.recipe.precision
        kernel = attention_kernel(head_width, precision)
        if kernel == "math":
            group, wide = (8, f"wider than {FLASH_WIDTH} and ") if precision == "bf16" else (4, "")
            yield f"heads {wide}no multiple of {group}: no fused attention, scores of T x T are stored"
        elif kernel == "efficient" and precision == "bf16":
            yield f"heads wider than {FLASH_WIDTH}: no flash attention, a slower fused kernel"

    def _too_large(self, shape: Shape) -> str:
        ends = (layout(piece) for layout, pieces in self._layouts(shape) for piece in {pieces[0], pieces[-1]})
        tried = [self.cost(shape, layout) for layout in ends]
        smallest = min(tried, key=lambda cost: (cost.memory.total, cost.layout.sequences(self.recipe)))
        layout, needed = smallest.layout, smallest.memory
        sequences = layout.sequences(self.recipe)
        at_once = "one sequence at a time" if sequences == 1 else f"{sequences} sequences at a time"
        each = "it"
        if layout.ranks > 1:
            kind = "heads" if shape.kv_heads is None else "key-value heads"
            each = (
                f"each of {layout.ranks} devices (tensor parallel {layout.tensor_parallel} x data parallel "
                f"{layout.data_parallel}, of what {shape.key_value_heads} {kind}, {self.slots} slots and at most "
                f"{self.together} in a machine allow)"
            )
        share = "usable memory" if self.device.is_gpu else f"memory for each of {self.slots} slots"
        remedies = self._remedies(shape) or ["smaller shapes"]
        return (
            f"`resources.device` {self.device.name} cannot train depth {shape.depth}, width {shape.width}: with "
            f"{at_once} {each} needs {gigabytes(needed.total)} ({gigabytes(needed.state)} of it weights, gradients "
            f"and optimizer), and there are {gigabytes(max(0, self.usable))} of {share}. "
            f"Take {', or '.join(remedies)}, or leave the largest budgets out."
        )

    def _remedies(self, shape: Shape) -> list[str]:
        """Return changes of the spec with which the shape fits, each tried."""
        asked = self.resources

        def fits(**changes: Any) -> bool:
            changed = asked.model_copy(update=changes)
            return replace(self, resources=changed)._first_fit(shape) is not None

        changes: dict[str, Any] = {
            **dict.fromkeys(("tensor_parallel", "data_parallel", "micro_batch"), "auto"),
            **({} if asked.activation_checkpointing == "always" else {"activation_checkpointing": "auto"}),
            "shard_vocabulary": "always",
            "zero": 3,
        }
        advice = [
            f"`resources.{key}: {value}`"
            for key, value in changes.items()
            if getattr(asked, key) != value and fits(**{key: value})
        ]
        beyond = [n for n in divisors(shape.key_value_heads) if self.together < n <= self.slots]
        least = next((n for n in beyond if fits(tensor_parallel=n)), None)
        if asked.tensor_parallel == "auto" and least:
            advice.append(
                f"machines with {least} devices or more"
                if self.cluster
                else f"`resources.tensor_parallel: {least}` (if a machine has as many devices)"
            )
        advice += self._more_ranks(shape)
        larger = [
            name
            for name, device in DEVICES.items()
            if device.memory is not None and replace(self, device=device)._first_fit(shape)
        ]
        if larger:
            advice.append(f"a larger device ({', '.join(larger[:3])})")
        if not self.device.is_gpu and self.slots > 1:
            advice.append("fewer `resources.slots`")
        return advice

    def _more_ranks(self, shape: Shape) -> list[str]:
        """Return more slots, more heads or both, if the shape then fits."""
        shapes = {"": shape}
        is_plain = shape.head_dim is None and shape.kv_heads is None
        if is_plain and shape.width % HEAD_DIM == 0 and shape.heads < shape.width // HEAD_DIM:
            more = shape.model_copy(update={"heads": shape.width // HEAD_DIM})
            shapes[f"`frontier.head_dim: {HEAD_DIM}` instead of `heads`"] = more
        advice = []
        for text, changed in shapes.items():
            if text and (fit := self._first_fit(changed)):
                advice.append(f"{text} (then tensor parallel {fit.layout.tensor_parallel} fits)")
            elif self.device.is_gpu and (fit := replace(self, slots=MANY_SLOTS)._first_fit(changed)):
                slots = f"`resources.slots: {fit.layout.ranks}` or more"
                advice.append(f"{text} with {slots}" if text else slots)
        return advice


def _degrees(rule: Any, shape: Shape, whole: int, slots: int) -> list[int]:
    """Return the degrees a rule allows; for auto all divisors of the heads (or of the batch) up to the slots."""
    asked = _asked(rule, shape)
    return [asked] if asked is not None else [n for n in divisors(whole) if n <= slots]


def _asked(rule: Any, shape: Shape) -> int | None:
    """Return the degree of a rule for a shape; None for auto."""
    if isinstance(rule, MinWidth):
        return rule.degree(shape.width)
    return None if rule == "auto" else int(rule)


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def gigabytes(count: float) -> str:
    """Return bytes in three digits, such as 72 GB."""
    return f"{count / 1e9:.3g} GB"
