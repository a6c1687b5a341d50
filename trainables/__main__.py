"""Train one cell by hand, without Ray or MLflow: `python -m trainables CELL.json`.

Prints the result as JSON and progress on stderr. Run it again to resume from the newest checkpoint of `--checkpoints`,
which SIGTERM (a scheduler's stop) and Ctrl-C write first. With `torchrun --nproc-per-node 2` each batch is shared among
two ranks, and with `--tensor-parallel 2` each matrix.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from core.errors import InputError
from trainables.cell import Cell
from trainables.diagnostics import DIAGNOSTICS
from trainables.errors import InterruptedTrainingError
from trainables.layout import Layout, default_zero
from trainables.model.family import family
from trainables.progress import Progress
from trainables.record import Keep, refuse_filled

#: Exit status after SIGTERM or Ctrl-C with a checkpoint.
INTERRUPTED = 143
#: Longest difference between the start-up times of ranks on one machine, in seconds.
REFUSAL_SECONDS = 15.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m trainables", description="Train a cell and print its result.")
    add = parser.add_argument
    add("cell", type=Path, help="a cell as JSON")
    add("--data", type=Path, default=Path("results/data"), help="folder of packed token stores")
    add("--checkpoints", help="folder or URI of this cell's checkpoints; none by default")
    add(
        "--checkpoint-every",
        type=float,
        help="seconds between checkpoints; by default a twentieth of the time",
    )
    add("--weights", type=Path, help="folder to write the model to when it is done; none by default")
    add("--evaluations", type=int, default=4, help="evaluations during the cell")
    add("--diagnostics", nargs="*", choices=DIAGNOSTICS, default=(), help="measures; none by default")
    add("--tensor-parallel", type=int, default=1, help="ranks that share each matrix")
    add("--zero", type=int, choices=(0, 1, 2, 3), help="ZeRO stage; by default the cheapest correct one")
    add("--micro-batch", type=int, help="sequences of a group at once; by default all of its share")
    add("--activation-checkpointing", action="store_true", help="keep no activations inside a layer")
    add("--shard-vocabulary", action="store_true", help="share the embedding as well as the matrices")
    add("--compiled", action="store_true", help="compile the layers and the loss")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the cell of a file; return the exit status: 0 done, 1 diverged, 2 wrong input, 143 stopped and saved."""
    options = _parser().parse_args(arguments)
    try:
        cell = read_cell(options.cell)
        if options.weights:
            refuse_filled(options.weights, f"--weights {options.weights}")
            if not family(cell.recipe.network).is_huggingface(cell.recipe):
                raise InputError(
                    "--weights writes a HuggingFace model, and HuggingFace has no class for this cell's `network` or "
                    "`residual`; leave it out."
                )
        from trainables.ranks.process_group import leave
        from trainables.train.loop import train

        with _stop_signals(saves=options.checkpoints is not None) as interrupted:
            result = train(
                cell,
                data_root=options.data,
                layout=_layout(options, cell),
                checkpoints=options.checkpoints,
                checkpoint_every=options.checkpoint_every,
                weights=Keep(options.weights) if options.weights else None,
                evaluations=options.evaluations,
                diagnostics=options.diagnostics,
                report=_show,
                interrupted=interrupted,
            )
        # A rank that exits with open connections counts as lost.
        leave()
    except InterruptedTrainingError as error:
        print(f"{error}, and saved; the same command continues it.", file=sys.stderr, flush=True)
        return INTERRUPTED
    except (InputError, ConnectionError) as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        else:
            # A launcher ends all ranks when the first one exits, so wait until the error is printed.
            time.sleep(REFUSAL_SECONDS)
        return 2
    if os.environ.get("RANK", "0") == "0":
        print(result.model_dump_json(indent=2))
    return 0 if result.status == "done" else 1


@contextmanager
def _stop_signals(*, saves: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or Ctrl-C has come; both end the process if nothing is saved."""
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        # A second one ends the process at once.
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if saves}
    try:
        for number in before:
            signal.signal(number, note)
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _layout(options: argparse.Namespace, cell: Cell) -> Layout:
    """Return the layout of the options over the ranks that the launcher started."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    degree = options.tensor_parallel
    if degree < 1 or ranks % degree:
        raise InputError(
            f"--tensor-parallel {degree} does not divide the {ranks} ranks that were started; start a multiple of it "
            f"(`torchrun --nproc-per-node {max(1, degree)} -m trainables ...`)."
        )
    try:
        return Layout(
            tensor_parallel=degree,
            data_parallel=ranks // degree,
            zero=default_zero(cell.recipe, ranks) if options.zero is None else options.zero,
            micro_batch=options.micro_batch,
            activation_checkpointing=options.activation_checkpointing,
            shard_vocabulary=options.shard_vocabulary,
            compiled=options.compiled,
        )
    except ValidationError as error:
        raise InputError(
            "; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors()) + "."
        ) from error


def read_cell(path: Path) -> Cell:
    """Read a cell file; an InputError names every wrong key."""
    try:
        return Cell.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"The cell file {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors())
        raise InputError(
            f"{path} is not a cell: {wrong}. `interplay plan SPEC --cell KEY` writes a cell."
        ) from error


def _show(progress: Progress) -> None:
    loss = f"  loss {progress.points[-1].train_loss:.4f}" if progress.points else ""
    print(f"step {progress.step:,} of {progress.steps:,}{loss}", file=sys.stderr, flush=True)


def end(status: int) -> NoReturn:
    """Flush the output and exit; with several ranks without Python's shutdown.

    After ZeRO 3 torch 2.13 keeps gloo's threads, which race with the shutdown and sometimes raise SIGABRT.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    end(main())
