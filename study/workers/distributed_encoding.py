"""Encoding text on the machines of a cluster by Ray Data; the store is the same to the last byte.

The driver reads and splits the text, learns the vocabulary and writes the ids, because all three go through the text in
order; the whole text is on its disk meanwhile. The slowest step, the encoding with BPE, is cut into chunks. A chunk is
sent to a worker as a Ray object, so a worker needs neither the source nor the storage. The ids return in the order of
the chunks.
"""

import logging
import os
import tempfile
from array import array
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from study.workers.machines import MARK
from trainables.data.packing.pack_text import Encode
from trainables.data.packing.text_buffer import Chunk, Text, cut
from trainables.data.packing.token_file import Ids, token_type
from trainables.data.packing.tokenizer import Encoder, bpe_encoder, bytes_encoder
from trainables.data.sources.interleave import interleave

#: Bytes of text per chunk: about a second of work.
CHUNK = 4 << 20
#: Least bytes of text per worker; with less than two workers, the driver encodes.
PER_WORKER = 64 << 20
#: Chunks at a worker: the current one, and the next.
AT_WORKER = 2
#: Chunks that the driver's reader process reads at once.
READERS = 4
#: Ray Data asks the autoscaler for CPUs, twice as many as there are, and so would start machines of any pool, including
#: the most expensive (Ray 2.60). Our workers are requested from the start, and name their pool.
ASK_FOR_NOTHING = {"RAY_DATA_DEFAULT_CLUSTER_SCALING_UP_MAX_CPU_RESOURCE_DELTA": "0"}


@dataclass(frozen=True)
class Workers:
    """Processes of one CPU each, on machines of the Ray cluster this process is connected to."""

    most: int
    marks: tuple[str, ...] = ()
    """Resources that their machines must have, such as that of a pool."""


def encode_on_workers(workers: Workers, *, chunk: int = CHUNK, per_worker: int = PER_WORKER) -> Encode:
    """Return an `Encode` that encodes on workers.

    Workers whose machines the autoscaler has to start join later; the others do not wait for them. A worker whose
    machine dies is started again elsewhere and repeats its chunks. Ids that wait for earlier ones are in Ray's object
    store, of which Ray Data uses at most half. In a mixture, the ids of a part that is ahead wait on this machine's
    disk.

    Args:
        workers: how many at most, and where.
        chunk: bytes of text per chunk.
        per_worker: least bytes of text per worker.
    """

    @contextmanager
    def encode(
        encoder: Encoder, texts: Sequence[Text], weights: Sequence[float], work: Path
    ) -> Iterator[list[Iterator[Ids]]]:
        count = min(workers.most, sum(text.size for text in texts) // per_worker)
        if count < 2:
            yield [encoder.encode(text) for text in texts]
            return
        ordered = list(_order(texts, weights, chunk))
        with ExitStack() as stack:
            rows = _encoded(encoder, [one for _, one in ordered], min(count, len(ordered)), workers.marks)
            stack.enter_context(closing(rows))
            files = [stack.enter_context(tempfile.TemporaryFile(dir=work)) for _ in texts]
            arrivals = _Arrivals(rows, [owner for owner, _ in ordered], files, token_type(encoder.vocabulary))
            yield [arrivals.of(owner) for owner in range(len(texts))]

    return encode


def _order(texts: Sequence[Text], weights: Sequence[float], size: int) -> Iterator[tuple[int, Chunk]]:
    """Yield all chunks in about the order of use: by the weights while every text lasts, then the rest."""
    streams = [text.chunks(size) for text in texts]
    yield from interleave(streams, weights, lambda chunk: chunk.size)
    for owner, stream in enumerate(streams):
        for one in stream:
            yield owner, one


class _Arrivals:
    """Distributes the ids of chunks, which arrive in one order, to their texts; early ids wait on the disk."""

    def __init__(
        self,
        rows: Iterator[tuple[bytes, bytes]],
        owners: Sequence[int],
        files: Sequence[IO[bytes]],
        dtype: np.dtype[Any],
    ) -> None:
        """Take the text index of each row, and one file per text for ids that arrive early."""
        self._rows, self._files, self._dtype = zip(owners, rows, strict=True), files, dtype
        self._waiting: list[deque[tuple[int, int, bytes]]] = [deque() for _ in files]

    def of(self, owner: int) -> Iterator[Ids]:
        """Yield the ids of each piece of a text, in order."""
        while (row := self._next(owner)) is not None:
            ids, counts = np.frombuffer(row[0], self._dtype), np.frombuffer(row[1], np.int64)
            start = 0
            for count in counts.tolist():
                yield ids[start : start + count]
                start += count

    def _next(self, owner: int) -> tuple[bytes, bytes] | None:
        file = self._files[owner]
        if self._waiting[owner]:
            offset, length, counts = self._waiting[owner].popleft()
            file.seek(offset)
            return file.read(length), counts
        for other, (ids, counts) in self._rows:
            if other == owner:
                return ids, counts
            offset = self._files[other].seek(0, os.SEEK_END)
            self._files[other].write(ids)
            self._waiting[other].append((offset, len(ids), counts))
        return None


class Reader:
    """Reads chunks on the driver's machine, for workers; a Ray actor."""

    def __init__(self, chunks: Sequence[Chunk], tokenizer: str | None) -> None:
        self._chunks, self._tokenizer = chunks, tokenizer

    def tokenizer(self) -> str | None:
        """Return the BPE tokenizer in JSON; None for bytes."""
        return self._tokenizer

    def chunk(self, index: int) -> tuple[bytes, "array[int]", bytearray]:
        """Return the text of a chunk, the bytes of each piece, and whether a document ends with it."""
        one = self._chunks[index]
        return one.content(), one.lengths, one.lasts


class Worker:
    """Encodes chunks; a Ray Data actor."""

    def __init__(self, reader: Any) -> None:
        import ray

        self._get, self._reader = ray.get, reader
        tokenizer = self._get(reader.tokenizer.remote())
        if tokenizer is None:
            self._encoder = bytes_encoder()
        else:
            from tokenizers import Tokenizer

            self._encoder = bpe_encoder(Tokenizer.from_str(tokenizer))
        self._dtype = token_type(self._encoder.vocabulary)

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, list[Any]]:
        """Return the ids of one chunk, and the number of ids per piece."""
        (index,) = batch["chunk"].tolist()
        pieces = cut(*self._get(self._reader.chunk.remote(index)))
        ids = list(self._encoder.encode(pieces))
        counts = np.array([len(one) for one in ids], np.int64)
        return {
            "chunk": [index],
            "ids": [np.concatenate(ids).astype(self._dtype).tobytes()],
            "counts": [counts.tobytes()],
        }


def _encoded(
    encoder: Encoder, chunks: Sequence[Chunk], count: int, marks: Sequence[str]
) -> Generator[tuple[bytes, bytes], None, None]:
    """Yield the ids of each chunk in order, and the number of ids per piece, as raw arrays."""
    os.environ |= ASK_FOR_NOTHING
    import ray
    import ray.data
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # The text is on the disk of this machine, which as the head of a cluster may have no CPU resource.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    reader = (
        ray.remote(Reader)
        .options(num_cpus=0, scheduling_strategy=here, max_concurrency=READERS)
        .remote(chunks, encoder.bpe.to_str() if encoder.bpe else None)
    )
    try:
        with _quiet_data(ray.data.DataContext.get_current().copy()) as context:
            context.execution_options.preserve_order = True
            with ray.data.DataContext.current(context):
                dataset = ray.data.from_items(
                    [{"chunk": index} for index in range(len(chunks))], override_num_blocks=len(chunks)
                ).map_batches(
                    Worker,
                    fn_constructor_args=(reader,),
                    batch_size=1,
                    # All are requested at once, so that the autoscaler starts machines for those that cannot be placed.
                    compute=ray.data.ActorPoolStrategy(size=count, max_tasks_in_flight_per_actor=AT_WORKER),
                    num_cpus=1,
                    resources=dict.fromkeys(marks, MARK),
                )
                expected = 0
                for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                    for row in table.to_pylist():
                        if row["chunk"] != expected:
                            raise AssertionError(
                                f"Ray Data gave chunk {row['chunk']} in the place of {expected}"
                            )
                        expected += 1
                        yield row["ids"], row["counts"]
    finally:
        ray.kill(reader)


@contextmanager
def _quiet_data(context: Any) -> Iterator[Any]:
    """Turn off progress bars and logs of Ray Data; errors are still raised."""
    log = logging.getLogger("ray.data")
    before = log.level
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    log.setLevel(logging.CRITICAL)
    try:
        yield context
    finally:
        log.setLevel(before)
