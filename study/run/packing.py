"""Packing the data of a study, with a progress line."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from study.errors import SpecError
from study.plan.table import duration
from trainables.data import DataSpec
from trainables.data.packing import OnProgress
from trainables.data.store.batches import window_count
from trainables.data.store.open import open_store, packed_windows

#: Seconds between two lines where the output is no terminal.
LINE_SECONDS = 30.0


def packed(data: DataSpec, context: int, root: str | Path, key: str, console: Console) -> int:
    """Pack the data of a study below `root`, a folder or URI, unless it is there under its `data_key` already.

    Returns:
        The different training sequences (windows) of the packed data.

    Raises:
        DataError: the data cannot be used, or the disk is full.
        InputError: nothing can be written to the storage.
        SpecError: the storage cannot be reached.
    """
    try:
        windows = packed_windows(data, context, root, key)
        if windows is None:
            with shown(console) as show:
                store = open_store(data, context=context, root=root, key=key, on_progress=show)
            windows = window_count(len(store.train), context, store.row)
        return windows
    except ConnectionError as error:
        raise SpecError(str(error)) from error


@contextmanager
def shown(console: Console) -> Iterator[OnProgress]:
    """Yield an `OnProgress` that shows one line: updated in a terminal, else printed every half minute."""
    began = printed = time.monotonic()
    current, first = "", (began, 0.0)
    with console.status("packing the data") as status:

        def show(stage: str, share: float | None) -> None:
            nonlocal current, first, printed
            now = time.monotonic()
            if stage != current:
                current, first = stage, (now, 0.0)
            elif share is not None and not first[1]:
                first = (now, share)
            text = f"packing the data: {stage}"
            if share is not None:
                text += f", {share:.0%}"
                if share > first[1] > 0:
                    left = (now - first[0]) / (share - first[1]) * (1 - share)
                    text += f", about {duration(left)} left"
            if console.is_terminal:
                status.update(Text(text))
            elif now - printed >= LINE_SECONDS:
                printed = now
                console.print(Text(text), soft_wrap=True)

        yield show
    spent = time.monotonic() - began
    if spent >= LINE_SECONDS:
        console.print(Text(f"packed the data in {duration(spent)}", style="dim"))
