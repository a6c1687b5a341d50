"""Train one cell by hand, without Ray or MLflow: `python -m trainables CELL.json`.

The cell file is a `trainables.cell.Cell` as JSON. The result is printed as JSON; progress goes to stderr. A second
call goes on from the newest checkpoint.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from trainables.cell import Cell
from trainables.errors import InputError
from trainables.progress import Progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the cell of a file; return the exit status: 0 done, 1 diverged, 2 wrong input."""
    parser = argparse.ArgumentParser(
        prog="python -m trainables", description="Train one cell and print its result."
    )
    parser.add_argument("cell", type=Path, help="a cell as JSON")
    parser.add_argument(
        "--data", type=Path, default=Path("results/data"), help="folder of packed token stores"
    )
    parser.add_argument("--checkpoints", type=Path, help="folder of this cell's checkpoints; none by default")
    parser.add_argument("--checkpoint-every", type=float, default=30.0, help="seconds between checkpoints")
    parser.add_argument("--evaluations", type=int, default=4, help="evaluations during the cell")
    parser.add_argument(
        "--micro-batch", type=int, help="sequences worked on at once; by default the whole batch"
    )
    options = parser.parse_args(arguments)
    try:
        cell = read_cell(options.cell)
        from trainables.loop import train

        result = train(
            cell,
            data_root=options.data,
            checkpoints=options.checkpoints,
            checkpoint_every=options.checkpoint_every,
            evaluations=options.evaluations,
            micro_batch=options.micro_batch,
            report=_show,
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(result.model_dump_json(indent=2))
    return 0 if result.status == "done" else 1


def read_cell(path: Path) -> Cell:
    """Read a cell file.

    Raises:
        InputError: the file is missing, or is no cell; every wrong key is named.
    """
    try:
        return Cell.model_validate_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not a text file in UTF-8 ({error.reason} at byte {error.start}). "
            "`interplay plan SPEC --cell KEY` writes a cell."
        ) from error
    except OSError as error:
        raise InputError(f"The cell file {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors())
        raise InputError(
            f"{path} is not a cell: {wrong}. `interplay plan SPEC --json` lists the cells of a study."
        ) from error


def _show(progress: Progress) -> None:
    loss = f"  loss {progress.points[-1].train_loss:.4f}" if progress.points else ""
    print(f"step {progress.step:,} of {progress.steps:,}{loss}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
