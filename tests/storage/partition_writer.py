"""Processes to be killed, which write to partition replicas and report what is durable. The writes
of a round follow from its number and initial content, so that the test can repeat them in memory.
"""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from kill_writer import say, serve
from partition_kit import open_rocks_partitions
from storage_kit import make_chunk

from raftlog.errors import StorageError
from raftlog.node.storage.chunks import walk
from raftlog.node.storage.partition_api import PartitionKey, PartitionStore

WINDOW = 20
WRITER_KEYS: tuple[PartitionKey, ...] = tuple(
    (bytes([topic]) * 16, index) for topic in (1, 2) for index in range(4)
)

Replicas = dict[PartitionKey, bytes]


class Step(NamedTuple):
    """One write: a chunk that ends at ``end``, or (None) a truncation to it; to 0: a deletion."""

    key: PartitionKey
    chunk: bytes | None
    base: int
    end: int


def boundaries(content: bytes) -> list[int]:
    """Return the ends of a replica's batches."""
    return [end for _, end, _, _, _ in walk(content, 0)]


def steps(round_: int, begun_with: Replicas) -> Iterator[Step]:
    """Yield steps forever."""
    rng = Random(f"steps {round_}")
    ends = {key: boundaries(content) for key, content in begun_with.items()}
    while True:
        key = rng.choice(WRITER_KEYS)
        known = ends.setdefault(key, [])
        base, what = known[-1] if known else 0, rng.random()
        if known and what < 0.05:
            end = rng.choice([0, *known])
            ends[key] = [one for one in known if one <= end]
            yield Step(key, None, base, end)
            continue
        counts, body = ((2, 3), b"y" * 3000) if what > 0.8 else ((1,), b"body")
        for count in counts:
            known.append((known[-1] if known else 0) + count)
        yield Step(key, make_chunk(base, *counts, epoch=round_, body=body), base, known[-1])


def after(replicas: Replicas, step: Step) -> Replicas:
    """Return the stored content after one more step."""
    content = replicas.get(step.key, b"")
    if step.chunk is not None:
        content += step.chunk
    else:
        content = b"".join(
            content[position:behind]
            for _, end, _, position, behind in walk(content, 0)
            if end <= step.end
        )
    changed = {**replicas, step.key: content}
    return {key: one for key, one in changed.items() if one}


def carry_out(store: PartitionStore, step: Step) -> None:
    if step.chunk is not None:
        store.append(step.key, step.chunk, step.base, step.end)
    elif step.end:
        store.truncate(step.key, step.end)
    else:
        store.delete(step.key)


def read_all(directory: Path) -> tuple[PartitionStore, Replicas]:
    """Open, recover and read everything."""
    store = open_rocks_partitions(directory)
    found = store.recover()
    return store, {
        one.key: store.read(one.key, 0, until=one.end_offset, max_bytes=1 << 40) for one in found
    }


async def write_for_ever(directory: Path, round_: int) -> None:
    """Until killed."""
    store, begun_with = read_all(directory)
    window = asyncio.Semaphore(WINDOW)

    def durable(number: int, error: StorageError | None) -> None:
        assert error is None, error
        say("durable", number)
        window.release()

    for number, step in enumerate(steps(round_, begun_with), start=1):
        await window.acquire()
        carry_out(store, step)
        store.flush(partial(durable, number), inline=number % 2 == 0)


if __name__ == "__main__":
    serve(write_for_ever)
