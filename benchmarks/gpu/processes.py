"""Run steps in processes of their own: each imports while the step before it measures, and sends its rows as they come.

The process reads one line of JSON, its step, from stdin. It writes lines of JSON, each with one key: `ready` (whether
there is a GPU) after its imports, `about` (of the device) when it has read the step, `row` per row, and `done` or
`error` (a traceback).
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.gpu.plan import Step
from benchmarks.gpu.sizes import SIZES

ROOT = Path(__file__).parents[2]
#: Characters of an error that are kept.
ERROR_LENGTH = 3000
Row = dict[str, Any]


class Stages(Protocol):
    """What a process runs, as the module `benchmarks.gpu.stages` has it."""

    STAGES: Mapping[str, Callable[..., Iterator[Row]]]

    def has_gpu(self) -> bool:
        """Whether there is a GPU; takes none of its memory."""

    def about(self) -> Row:
        """Name of the device and versions of the packages."""


def serve(load: Callable[[], Stages]) -> None:
    """Import the stages, wait for a step on stdin, run it and write its rows; for a process of its own."""
    # What libraries and children print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(key: str, value: object) -> None:
        print(json.dumps({key: value}), file=answers, flush=True)

    stages = load()
    send("ready", stages.has_gpu())
    line = sys.stdin.readline()
    if not line:
        return
    step = json.loads(line)
    os.environ.update(step["environment"])
    try:
        send("about", stages.about())
        with tempfile.TemporaryDirectory() as folder:
            for row in stages.STAGES[step["stage"]](SIZES[step["size"]], Path(folder), **step["options"]):
                send("row", row)
    except Exception:  # noqa: BLE001 - the error is a result, and other stages go on
        send("error", traceback.format_exc()[-ERROR_LENGTH:])
    else:
        send("done", True)


class Worker:
    """A process that imports, and then waits for a step."""

    def __init__(self, command: Sequence[str]) -> None:
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - `end` closes it
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            text=True, start_new_session=True,
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def send(self, step: Step, size: str, environment: Mapping[str, str]) -> None:
        """Give it its step."""
        message = {"stage": step.stage, "options": dict(step.options)}
        assert self.process.stdin
        # One that died at its imports is found by its missing answer.
        with contextlib.suppress(BrokenPipeError):
            print(
                json.dumps({**message, "size": size, "environment": dict(environment)}),
                file=self.process.stdin,
                flush=True,
            )

    def answer(self, seconds: float) -> tuple[str, Any]:
        """Return the key and value of its next line; `error` if none came in time, or if it died."""
        try:
            line = self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return "error", None
        if line is None:
            return "error", f"died with status {self.process.wait()}\n{self.stderr()[-ERROR_LENGTH:]}".strip()
        ((key, value),) = json.loads(line).items()
        return key, value

    def stderr(self) -> str:
        """Return what it and its children printed."""
        self._stderr.seek(0)
        return self._stderr.read()

    def end(self) -> str:
        """Kill it with its children, and return what they printed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        printed = self.stderr()
        for file in (self._stderr, self.process.stdin, self.process.stdout):
            assert file
            with contextlib.suppress(BrokenPipeError):
                file.close()
        return printed


def follow(worker: Worker, seconds: float) -> Iterator[tuple[str, Any]]:
    """Yield `about`, `row` and at last `done` or `error` of a worker that has its step, for so many seconds at most."""
    deadline = time.monotonic() + seconds
    while True:
        key, value = worker.answer(deadline - time.monotonic())
        if key == "error" and value is None:
            value = f"killed after {seconds:.0f} s"
        if key != "ready":
            yield key, value
        if key in ("done", "error"):
            return
