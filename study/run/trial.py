"""The function that a Ray Tune trial runs: train one cell by `trainables`, and report as JSON."""

import functools
import gc
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from core.errors import InputError
from study.spec.devices import USABLE_MEMORY
from study.workers.causes import LossCause, Place, as_text, loss_cause, message, own_place
from study.workers.environment import added_variables
from study.workers.ray_session import stop_requested
from study.workers.spot_notice import spot_notices
from trainables.cell import Cell, Recipe
from trainables.diagnostics import Diagnostic
from trainables.errors import InterruptedTrainingError
from trainables.layout import Layout
from trainables.model.counts import memory
from trainables.progress import Progress, Result
from trainables.record import Keep
from trainables.storage.storage import MARKER, joined, open_storage, path_or_uri
from trainables.train.trunk import Trunk

#: Seconds that memory of a GPU may take to become free: a killed process that held 80 GB can take several to end. Fewer
#: sequences at once would cost more, as they stay for the whole cell.
FREE_SECONDS = 30.0


class HeldMemoryError(MemoryError):
    """Other processes hold so much of a GPU that a cell does not fit into the rest."""


class GpuSettings(BaseModel):
    """What a trial on a GPU needs to keep to its part of the memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trials: int
    """Trials that share a GPU."""
    vocabulary: int
    """Symbols of the data, for the estimate of a cell's memory."""


class TrialSettings(BaseModel):
    """Settings of a trial. Nothing here changes its loss, so nothing here is in its key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_root: str | Path
    """Folder or URI of the packed data, by key; those of checkpoints and weights are alike."""
    checkpoint_root: str | Path
    checkpoint_every: float | None
    """Seconds; None as often as takes a twentieth of the time, and at most twice a minute."""
    evaluations: int
    diagnostics: tuple[Diagnostic, ...] = ()
    gpu: GpuSettings | None = None
    """None for a trial on a CPU."""
    compile_cache: str | Path | None = None
    """Folder of compiled layers, absolute or below the user's own folder of the machine; None leaves it to torch."""
    model_root: str | Path | None = None
    """For the final weights; None keeps none."""
    revision: str | None = None
    """Revision of the code, recorded with the weights."""
    gang_timeout: float = 300.0
    """Seconds that a rank waits for the others before a missing one counts as hanging."""
    run: str = ""
    """The name under which the driver asks its trials to stop; see `study.workers.ray_session`."""


class Report(BaseModel):
    """One report of a trial: its place, its progress, its result, or why it ended without one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: Place | None = None
    """Where the trial's own process is, sent before all else."""
    progress: Progress | None = None
    result: Result | None = None
    failure: str | None = None
    """An error in the input."""
    interrupted: bool = False
    """The driver has asked for the end, and a checkpoint is saved."""


def read_report(text: str) -> Report:
    """Read a trial's report; one that cannot be read fails its cell and not the study."""
    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        return Report(failure=f"the trial sent a report that cannot be read: {error.errors()[0]['msg']}")


def trial_config(
    cell: Cell,
    layout: Layout,
    settings: TrialSettings,
    avoided: Sequence[str] = (),
    lengths: Sequence[int] = (),
) -> dict[str, str]:
    """Return the Tune configuration of a cell: flat texts, because Tune flattens everything else.

    `avoided` are Ray's ids of the machines that the trial keeps off; `lengths` the steps of all cells that share its
    trunk.
    """
    return {
        "key": cell.key,
        "cell": cell.model_dump_json(),
        "layout": layout.model_dump_json(),
        "settings": settings.model_dump_json(),
        "avoided": json.dumps(avoided),
        "lengths": json.dumps(lengths),
    }


def trunk_folder(trunk: str) -> str:
    """Return the name of the folder of a trunk's checkpoints, beside those of cells, by its key."""
    return f"trunk-{trunk}"


def saved_step(settings: TrialSettings, key: str) -> int:
    """Return the step of the newest finished checkpoint of a cell, by its key; 0 if none can be found."""
    try:
        storage = open_storage(joined(settings.checkpoint_root, key))
        # In shared storage a folder may have any name.
        steps = {tag: tag.split("-")[1] for tag in storage.tags() if tag.startswith("step-")}
        saved = [tag for tag, step in steps.items() if step.isdecimal() and storage.read(tag, MARKER)]
    except (OSError, InputError):
        return 0
    return max((int(steps[tag]) for tag in saved), default=0)


def run_trial(config: dict[str, Any]) -> None:
    """Train the cell of a configuration and report; the Tune trainable."""
    run_with(_train, config)


def _train(cell: Cell, **options: Any) -> Result:
    # Imported here, because the process that supervises a gang does not need it.
    from trainables.train.loop import train

    return train(cell, **options)


def _train_on_gpu(train: Callable[..., Result], gpu: GpuSettings, cell: Cell, **options: Any) -> Result:
    from trainables.ranks.process_group import device

    if device().type != "cuda":
        raise InputError(
            "the study is planned for a GPU (resources.device), but this machine shows none to torch."
        )
    check_gpu(device())
    limit_memory(device(), gpu.trials)
    layout = options["layout"]
    needed = memory(cell.shape, gpu.vocabulary, cell.recipe, layout, on_gpu=True).total
    _check_memory(device(), needed, layout.sequences(cell.recipe))
    return train(cell, **options)


def limit_memory(place: Any, trials: int) -> None:
    """Limit what torch allocates on a GPU to the part that the plan assumes of trials that share it."""
    import torch

    if trials > 1:
        torch.cuda.set_per_process_memory_fraction(USABLE_MEMORY / trials, place)


def _check_memory(place: Any, needed: int, sequences: int) -> None:
    import torch

    deadline = time.monotonic() + FREE_SECONDS
    while True:
        free, total = torch.cuda.mem_get_info(place)
        reserved = torch.cuda.memory_reserved(place)
        reusable = reserved - torch.cuda.memory_allocated(place)
        try:
            check_free_memory(needed, sequences, free, reusable, total - free - reserved)
        except HeldMemoryError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def check_free_memory(needed: int, sequences: int, free: int, reusable: int, others: int) -> None:
    """Raise a HeldMemoryError if a cell does not fit into what other processes leave of a GPU.

    It counts as out of memory: `retry_with_smaller_batches` tries fewer sequences at once, and if not even one fits,
    the trial is tried again elsewhere.

    Args:
        needed: bytes by the estimate of the plan.
        sequences: that the cell processes at once.
        free: bytes that the driver has left.
        reusable: bytes that this process holds and no longer uses.
        others: bytes that other processes hold, and the contexts of all (0.5 GB each).
    """
    if needed > free + reusable:
        gigabytes = [f"{count / 1e9:.1f}" for count in (needed, free + reusable, others)]
        raise HeldMemoryError(
            f"{sequences} sequences at once need about {gigabytes[0]} GB of the GPU of {socket.gethostname()}, and "
            f"{gigabytes[1]} GB are free: other processes hold about {gigabytes[2]} GB. End them (`nvidia-smi` lists "
            "them), or run the study on another GPU (CUDA_VISIBLE_DEVICES)"
        )


def check_gpu(place: Any) -> None:
    """Raise a RuntimeError if a product of matrices on a GPU is wrong, so that its machine loses the trial at once.

    The trial is tried again, and a machine that loses several is avoided.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    difference = float(((a.to(place) @ b.to(place)).cpu() - a @ b).abs().max())
    # Sums of 512 products: 1e-4 in fp32, and 0.05 where TF32 is on.
    if not difference < 0.1:
        raise RuntimeError(
            f"a product of matrices on {place} of {socket.gethostname()} is off by {difference:g}"
        )


def retry_with_smaller_batches(attempt: Callable[[Layout], Result], layout: Layout, recipe: Recipe) -> Result:
    """Return the result of an attempt; out of memory, of others with half as many sequences at once, down to one.

    The cell goes on from its newest checkpoint. The layout changes losses by rounding only. A process that is killed
    for memory cannot go on here: its trial is tried again as it was.
    """
    notes: list[str] = []
    while True:
        try:
            result = attempt(layout)
        except Exception as error:
            smaller = layout.with_half_the_sequences(recipe)
            if loss_cause(error) is not LossCause.MEMORY or smaller is None:
                raise
            is_held = HeldMemoryError.__name__ in as_text(error)
            why = f"out of memory with {layout.sequences(recipe)} sequences at once"
            notes.append(
                f"{message(error) if is_held else why}, so {smaller.sequences(recipe)} from there on; "
                f"`resources.micro_batch: {smaller.sequences(recipe)}` sets it."
            )
        else:
            return result.model_copy(update={"notes": (*result.notes, *notes)})
        layout = smaller
        _release_memory()


def _release_memory() -> None:
    """Give back what a cell held; the tensors of a failed one are in cycles with the frames of its exception."""
    gc.collect()
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()


def run_with(train: Callable[..., Result], config: dict[str, Any]) -> None:
    """Train the cell of a `trial_config` over as many ranks as its layout has, each by `train`, and report.

    Out of memory, see `retry_with_smaller_batches`. An error in the input is reported as a failure, because a retry
    cannot help. Once the driver asks for the end, the cell saves a checkpoint and ends without a result. Every other
    error is raised, and Tune tries the cell again from its checkpoint.
    """
    from ray import tune

    from study.workers.gang import train_gang

    cell = Cell.model_validate_json(config["cell"])
    layout = Layout.model_validate_json(config["layout"])
    settings = TrialSettings.model_validate_json(config["settings"])
    on_gpu = settings.gpu is not None
    os.environ.update(added_variables(os.environ, on_gpu=on_gpu, compile_cache=settings.compile_cache))
    options: dict[str, Any] = {
        "data_root": path_or_uri(settings.data_root),
        "checkpoints": joined(settings.checkpoint_root, cell.key),
        "checkpoint_every": settings.checkpoint_every,
        "evaluations": settings.evaluations,
        "diagnostics": settings.diagnostics,
    }
    if lengths := json.loads(config["lengths"]):
        options["trunk"] = Trunk(
            joined(settings.checkpoint_root, trunk_folder(cell.trunk or "")), tuple(lengths)
        )
    if settings.model_root:
        options["weights"] = Keep(joined(settings.model_root, cell.key), settings.revision)

    def send(**content: Any) -> None:
        tune.report({"report": Report(**content).model_dump_json()})

    def show(progress: Progress) -> None:
        send(progress=progress)

    send(place=own_place())
    if settings.gpu:
        train = functools.partial(_train_on_gpu, train, settings.gpu)

    def attempt(layout: Layout) -> Result:
        given = {**options, "layout": layout}
        if layout.ranks == 1:
            with stop_requested(settings.run) as stop, spot_notices() as at_risk:
                return train(cell, **given, report=show, interrupted=stop, at_risk=at_risk)
        return train_gang(train, cell, layout, given, settings.gang_timeout, show, settings.run)

    try:
        result = retry_with_smaller_batches(attempt, layout, cell.recipe)
    except InputError as error:
        send(failure=str(error))
    except InterruptedTrainingError:
        send(interrupted=True)
    else:
        send(result=result)
    if settings.gpu:
        # The process trains the next cell, and other processes may share the GPU.
        _release_memory()
