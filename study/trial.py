"""What runs inside a Ray Tune trial: one cell, trained by `trainables`, reported back as JSON."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainables.cell import Cell
from trainables.errors import InputError
from trainables.progress import Progress, Result


class TrialSettings(BaseModel):
    """Where and how a cell is run: nothing here can change its loss, so nothing here is in its key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_root: Path
    checkpoint_root: Path
    checkpoint_every: float
    evaluations: int
    needs_gpu: bool = False


class Report(BaseModel):
    """One report of a trial: news of its progress, its result, or the input error that ended it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    progress: Progress | None = None
    result: Result | None = None
    failure: str | None = None


def trial_config(cell: Cell, micro_batch: int, settings: TrialSettings) -> dict[str, str | int]:
    """Return the Tune configuration of a cell: flat, because Tune walks and flattens everything else."""
    return {
        "key": cell.key,
        "cell": cell.model_dump_json(),
        "micro_batch": micro_batch,
        "settings": settings.model_dump_json(),
    }


def run_trial(config: dict[str, Any]) -> None:
    """Train the cell of a configuration and report; the Tune trainable.

    An error in the input is reported as a failure, because trying again cannot help. Everything else is raised, and
    Tune tries the cell again from its checkpoint.
    """
    from ray import tune

    from trainables.engine import device
    from trainables.loop import train

    cell = Cell.model_validate_json(config["cell"])
    settings = TrialSettings.model_validate_json(config["settings"])

    def send(**content: Any) -> None:
        tune.report({"report": Report(**content).model_dump_json()})

    try:
        if settings.needs_gpu and device().type != "cuda":
            raise InputError(
                "the study is planned for a GPU (resources.device), but this machine shows none to torch."
            )
        result = train(
            cell,
            data_root=settings.data_root,
            checkpoints=settings.checkpoint_root / cell.key,
            checkpoint_every=settings.checkpoint_every,
            evaluations=settings.evaluations,
            micro_batch=config["micro_batch"],
            report=lambda progress: send(progress=progress),
        )
    except InputError as error:
        send(failure=str(error))
    else:
        send(result=result)
