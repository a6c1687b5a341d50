"""Measure this machine's GPU: `python -m tests.gpu OUT.json`, or with `--size small` on a card of 16 GB.

It needs no network, no Ray and no installation: from the folder of the repository, a Python with torch (2.11 or newer,
with CUDA) and the wheels of deepspeed, transformers and pydantic. Each stage runs in a process of its own with a limit,
and its result is in the file before the next begins; a stage that fails is recorded with its error. `--only STAGE`
repeats one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.gpu import sizes as all_sizes

ROOT = Path(__file__).parents[2]
#: The start of a line that holds a row.
ROW = "row "
SIZES = {"full": all_sizes.FULL, "small": all_sizes.SMALL, "tiny": all_sizes.TINY}


def main() -> None:
    """Run the stages, each in its own process, or one in this process."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--only", action="append", default=[], metavar="STAGE")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        one(options.stage, options.size)
        return
    import torch

    if options.size != "tiny" and not torch.cuda.is_available():
        sys.exit("This machine shows torch no GPU. `--size tiny` tries the script on the CPU.")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measure(options.out, options.size, options.only)


def one(stage: str, size: str) -> None:
    """Run a stage in this process and print each row as soon as it is known."""
    from tests.gpu.stages import STAGES

    with tempfile.TemporaryDirectory() as folder:
        for row in STAGES[stage][0](SIZES[size], Path(folder)):
            print(ROW + json.dumps(row), flush=True)


def measure(out: Path, size: str, only: list[str]) -> dict[str, Any]:
    """Run the stages, `only` some or all, and add each to the file as soon as it has ended; return its content."""
    import torch

    from tests.gpu.stages import STAGES, this_device

    document = json.loads(out.read_text()) if out.exists() else {}
    document |= {
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU",
        "planned as": this_device().name,
        "size": size,
        "versions": {name: version(name) for name in ("torch", "deepspeed", "transformers")},
    }
    stages = document.setdefault("stages", {})
    for name, (_, limit) in STAGES.items():
        if only and name not in only:
            continue
        start = time.monotonic()
        command = [sys.executable, "-m", "tests.gpu", str(out), "--size", size, "--stage", name]
        found: dict[str, Any] = {}
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            try:
                subprocess.run(command, cwd=ROOT, stdout=output, stderr=errors, timeout=limit, check=True)
            except subprocess.CalledProcessError:
                errors.seek(0)
                found["error"] = errors.read().strip()[-2000:]
            except subprocess.TimeoutExpired:
                found["error"] = f"ended at its limit of {limit:.0f} s"
            output.seek(0)
            found["rows"] = [json.loads(line.removeprefix(ROW)) for line in output if line.startswith(ROW)]
        stages[name] = {"seconds": round(time.monotonic() - start, 1), **found}
        out.write_text(json.dumps(document, indent=1) + "\n")
        print(table(name, stages[name]), flush=True)
    return document


def table(name: str, stage: dict[str, Any]) -> str:
    """A stage as a Markdown table."""
    head = f"\n### {name} ({stage['seconds']:.0f} s)\n\n"
    if not stage["rows"]:
        return f"{head}{stage['error']}"
    columns = list(dict.fromkeys(column for row in stage["rows"] for column in row))
    lines = [
        columns,
        ["---"] * len(columns),
        *([text(row.get(column)) for column in columns] for row in stage["rows"]),
    ]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{head}{rows}\n\n{stage.get('error', '')}".rstrip()


def text(value: object) -> str:
    """A number to three digits."""
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
