"""Measure this machine's GPU: `python -m benchmarks.gpu OUT.json`, or with `--size small` on a card of 16 GB.

It needs no network, no Ray and no installation: from the folder of the repository, a Python with torch (2.11 or newer,
with CUDA) and the wheels that docs/gpu.md names. `--sitting 1` and `--sitting 2` are for a GPU that is there for a
quarter of an hour. Steps run in the order of their value, each in a process of its own with a limit. Each row is in the
file as soon as it is there; a step that fails is recorded with its error, and one that does not fit into `--seconds`
as left out. `--only STAGE`, `--case`, and `--who` choose or repeat some.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import EVERYTHING, SITTINGS, WHO, Step, chosen
from benchmarks.gpu.processes import Worker, follow, serve
from benchmarks.gpu.sizes import FULL, SIZES
from core.files import write_json

COMMAND = (sys.executable, "-m", "benchmarks.gpu", "--stage")
#: Seconds that the imports of the first process may take, from a cold disk.
IMPORT_SECONDS = 180.0
#: Settings that are tried after each other if the first training step fails: NCCL opens a socket even for one rank, and
#: a machine may have no network interface but the loopback.
FALLBACKS: tuple[Mapping[str, str], ...] = ({"NCCL_SOCKET_IFNAME": "lo"}, {"INTERPLAY_BACKEND": "gloo"})


def main() -> None:
    """Run the chosen steps, or one in this process, or print a file."""
    stages = list(dict.fromkeys(step.stage for step in EVERYTHING))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT.json")
    parser.add_argument("--sitting", choices=SITTINGS, help="five minutes; default: everything")
    parser.add_argument("--seconds", type=float, help="leave out what does not fit; default: no limit")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument(
        "--only", action="append", default=[], choices=stages, metavar="STAGE", help=", ".join(stages)
    )
    parser.add_argument("--case", action="append", default=[], choices=FULL.cases)
    parser.add_argument("--who", action="append", default=[], choices=WHO)
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the tables of a file")
    parser.add_argument("--stage", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        serve(_stages)
        return
    if options.show:
        for name, stage in read(options.show)["stages"].items():
            print(table(name, stage))
        return
    if options.out is None:
        parser.error("name the file for the results, such as gpu.json")
    steps = chosen(options.sitting, options.size, options.only, options.case, options.who)
    if not steps:
        parser.error("no step has all of these options")
    # `timeout` and schedulers end a program by SIGTERM; the stage's process has to end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure(options.out, steps, options.size, options.seconds)
    except KeyboardInterrupt:
        sys.exit(f"Stopped. What was measured is in {options.out}.")


def _stages() -> Any:
    from benchmarks.gpu import stages

    return stages


def read(file: Path) -> dict[str, Any]:
    """Return the content of a file of results; SystemExit if it is none."""
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{file} cannot be read: {error}.")
    if not isinstance(document, dict) or "stages" not in document:
        sys.exit(f"{file} is no file of this script; name another.")
    return document


def _begun(out: Path, size: str) -> dict[str, Any]:
    """Return the content of the file that earlier calls began, or none; SystemExit if nothing can be added to it."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"{out} cannot be written: {error}.")
    if not os.access(out.parent, os.W_OK) or out.is_dir() or out.suffix == ".log":
        sys.exit(f"{out} cannot be written, or is the log beside the results; name a file such as gpu.json.")
    if not out.exists():
        return {"stages": {}}
    document = read(out)
    if document["size"] != size:
        sys.exit(f"{out} has rows of `--size {document['size']}`; name another file for those of {size}.")
    return document


def measure(
    out: Path,
    steps: Sequence[Step],
    size: str,
    seconds: float | None = None,
    command: Sequence[str] = COMMAND,
) -> dict[str, Any]:
    """Run steps in their order, add every row to the file as soon as it is there, and return the file's content.

    Args:
        out: the file; steps of earlier calls stay in it, and the settings with which contact worked. What processes
            print is in `out` with the suffix `.log`.
        steps: from `benchmarks.gpu.plan`.
        size: one of `SIZES`; at others than `full`, expected times are not known.
        seconds: for all steps together.
        command: starts a process that calls `benchmarks.gpu.processes.serve`.

    Raises:
        SystemExit: the first process does not start, or finds no GPU and the size is not `tiny`; or the file cannot be
            written, or has rows of another size.
    """
    begun = time.monotonic()
    document = _begun(out, size)
    spare = Worker(command)
    try:
        key, value = spare.answer(IMPORT_SECONDS)
        if key != "ready" or not (value or size == "tiny"):
            sys.exit(
                "This machine shows torch no GPU. `--size tiny` tries the script on the CPU."
                if key == "ready"
                else f"The imports of the stages failed: {value or f'no answer in {IMPORT_SECONDS:.0f} s'}"
            )
        document |= {"size": size, "seconds": seconds, "steps": [step.title for step in steps]}
        document.setdefault("environment", {})
        stages = document["stages"]
        for step in steps:
            kept = document["environment"]
            for environment in [kept, *FALLBACKS] if step.stage == "contact" else [kept]:
                settings = " ".join(f"{name}={value}" for name, value in environment.items())
                title = step.title if environment is kept else f"{step.title}: {settings}"
                left = math.inf if seconds is None else seconds - (time.monotonic() - begun)
                if left <= (step.expected if size == "full" else 0):
                    missing = f"{max(0, left):.0f} s were left, and it takes about {step.expected:.0f} s"
                    stage = {"left out": missing}
                    # Rows of an earlier call stay.
                    if not stages.get(title, {}).get("rows"):
                        stages[title] = stage
                    document["environment"] = kept
                else:
                    document["environment"] = dict(environment)
                    worker, spare = spare, Worker(command)
                    stage = _run(worker, step, min(step.limit, left), out, document, title)
                    stage["ended at"] = round(time.monotonic() - begun, 1)
                write_json(out, document)
                print(table(title, stage), flush=True)
                if "error" not in stage:
                    break
            else:
                # The stage failed with every setting, so none is to blame.
                document["environment"] = kept
    finally:
        spare.end()
    document["took"] = round(time.monotonic() - begun, 1)
    write_json(out, document)
    return document


def _run(
    worker: Worker, step: Step, seconds: float, out: Path, document: dict[str, Any], title: str
) -> dict[str, Any]:
    """Run a step in a worker, save the document after every row, and return what is recorded of the step."""
    begun = time.monotonic()
    # The error stays if nothing comes after it, such as when the machine is taken away.
    stage: dict[str, Any] = {"rows": [], "error": "not finished"}
    document["stages"][title] = stage
    try:
        worker.send(step, document["size"], document["environment"])
        for key, value in follow(worker, seconds):
            if key == "about":
                document.update(value)
                # Two calls may get different ones.
                stage["device"] = value["device"]
            elif key == "row":
                stage["rows"].append(value)
            elif key == "error":
                stage["error"] = value
            elif key == "done":
                del stage["error"]
            write_json(out, document)
    finally:
        printed = worker.end()
    stage["seconds"] = round(time.monotonic() - begun, 1)
    with out.with_suffix(".log").open("a") as log:
        log.write(f"\n## {title}\n{printed}")
    return stage


def table(name: str, stage: dict[str, Any]) -> str:
    """A stage as a Markdown table."""
    if "left out" in stage:
        return f"\n### {name}\n\nLeft out: {stage['left out']}"
    took = f"{stage['seconds']:.0f} s" if "seconds" in stage else ""
    head = f"\n### {name} ({', '.join(filter(None, (took, stage.get('device'))))})\n\n"
    error = stage.get("error", "")
    if not stage["rows"]:
        return f"{head}{error}".rstrip()
    columns = list(dict.fromkeys(column for row in stage["rows"] for column in row))
    lines = [
        columns,
        ["---"] * len(columns),
        *([text(row.get(column)) for column in columns] for row in stage["rows"]),
    ]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{head}{rows}\n\n{error}".rstrip()


def text(value: object) -> str:
    """A number to three digits."""
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
