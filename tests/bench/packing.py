"""The encoding of text with BPE: by Ray Data on two CPUs, against this process on one and on two."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.workers.distributed_encoding import Workers, encode_on_workers
from study.workers.machines import Slots
from study.workers.ray_session import private_ray
from tests.bench.figure import Figure
from trainables.data import data_key
from trainables.data.kinds.files import FilesData
from trainables.data.packing.pack import pack
from trainables.data.packing.pack_text import Encode, encode_here

CPUS = 2
#: Of text, some ten seconds of one core.
MEGABYTES = 48
CONTEXT = 64
CHUNKS = 64


def encoding_time(folder: Path) -> list[Figure]:
    """Seconds that the encoding of the training text takes, from the first to the last id, and their ratios.

    The workers' start is left out, which is as long for sixty gigabytes, and with it the first chunks of many.
    """
    text = folder / "text.txt"
    _write(text)
    data = FilesData(path=str(text), tokenizer="bpe", vocabulary=2000)
    seconds = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, threads in (("one", "false"), ("two", "true")):
            patch.setenv("TOKENIZERS_PARALLELISM", threads)
            seconds[name] = _timed(data, folder / name, encode_here)
    with private_ray(Slots(CPUS, 1, 0)):
        seconds["ray"] = _timed(
            data,
            folder / "ray",
            encode_on_workers(Workers(CPUS), chunk=MEGABYTES * 1_000_000 // CHUNKS, per_worker=1),
        )
    digests = {(folder / name / "train.bin").read_bytes() for name in seconds}
    assert len(digests) == 1, "the same ids"
    ours = f"{MEGABYTES / seconds['ray']:.1f} MB/s"
    return [
        Figure(
            f"encoding {MEGABYTES} MB with BPE by Ray Data on {CPUS} CPUs, against this process on {cores}",
            seconds["ray"] / seconds[rival],
            "ratio",
            limit,
            ours,
            f"{MEGABYTES / seconds[rival]:.1f} MB/s",
        )
        for cores, rival, limit in ((1, "one", 0.75), (2, "two", 1.5))
    ]


def _timed(data: FilesData, folder: Path, encode: Encode) -> float:
    marks: list[float] = []

    @contextmanager
    def timed(*arguments: Any) -> Iterator[list[Iterator[Any]]]:
        with encode(*arguments) as streams:
            yield [_marked(stream, marks) for stream in streams]

    folder.mkdir()
    pack(data, CONTEXT, Path(), data_key(data, CONTEXT), folder, timed)
    first, last, *_ = marks
    return last - first


def _marked(stream: Iterator[Any], marks: list[float]) -> Iterator[Any]:
    """The same stream; the times of its first and its last item are written down."""
    yield next(stream)
    marks.append(time.perf_counter())
    yield from stream
    marks.append(time.perf_counter())


def _write(path: Path) -> None:
    """Words of a vocabulary that a tokenizer has to cut, used as unequally as those of a language."""
    draw = np.random.default_rng(0)
    words = ["".join(chr(97 + c) for c in draw.integers(0, 26, draw.integers(2, 12))) for _ in range(50_000)]
    with path.open("w") as file:
        while file.tell() < MEGABYTES * 1_000_000:
            chosen = np.minimum(draw.zipf(1.3, 100_000), len(words)) - 1
            for start in range(0, len(chosen), 12):
                file.write(" ".join(words[i] for i in chosen[start : start + 12]) + "\n")
