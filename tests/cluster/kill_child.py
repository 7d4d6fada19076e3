"""Forks processes that append in group commits and say over a pipe what is durable, and kills each in the middle of it.

Run with the directory as argument; reads "acknowledgements seconds" lines: how often a child is to acknowledge before it has so many
seconds to live. Answers with where the log ended that the child found, and with what it had acknowledged last. Each child checks
that it finds what was appended, from where the one before it began. By forking, a child need not import anything.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.errors import StorageError
from raftlog.storage.log_store import RocksLogStore
from raftlog.storage.opening import open_store

CLUSTER_ID, NODE_ID = "killed", 1
IN_FLIGHT = 20


def content(offset: int) -> bytes:
    """The batch that begins at this offset, always the same: 1 to 3 records, now and then a large one."""
    count = 1 + offset % 3
    body = b"%d" % offset + b"x" * (3000 if offset % 17 == 0 else 20)
    records = [RecordData(1, 0, body)] * count
    return batch.encode(records, base_offset=offset, epoch=1 + offset // 1000, timestamp_ms=offset)


def records_at(offset: int) -> int:
    """How many records the batch at this offset has."""
    return 1 + offset % 3


def expected(offset: int, end: int) -> bytes:
    """What a log holds between two offsets."""
    batches = []
    while offset < end:
        batches.append(content(offset))
        offset += records_at(offset)
    return b"".join(batches)


def open_checked(directory: Path, since: int, loop: asyncio.AbstractEventLoop) -> tuple[RocksLogStore, int]:
    """The store, and where its log ends; from ``since`` on it is what was appended, and well-formed."""
    store = open_store(directory, expect_cluster_id=CLUSTER_ID, expect_node_id=NODE_ID, loop=loop)
    end = store.recover().end_offset
    assert end >= since, f"the log ends at {end}, {since} had been there"
    whole = store.read(since, until=end, max_bytes=1 << 40)
    assert whole == expected(since, end)
    assert [header.end_offset for header in batch.headers(whole, expect_offset=since, verify=True)][-1:] in ([], [end])
    return store, end


async def _append(directory: Path, since: int, pipe: int) -> None:
    store, end = open_checked(directory, since, asyncio.get_running_loop())
    os.write(pipe, b"%d\n" % end)
    window = asyncio.Semaphore(IN_FLIGHT)

    def flushed(outcome: int | StorageError) -> None:
        assert isinstance(outcome, int)
        os.write(pipe, b"%d\n" % outcome)
        window.release()

    while True:
        await window.acquire()
        base = end
        chunk = b""
        for _ in range(1 + end % 4):
            chunk += content(end)
            end += records_at(end)
        store.append(chunk, base, end)
        store.flush(flushed, inline=base % 2 == 0)


def one_life(directory: Path, since: int, acknowledgements: int, more_s: float) -> tuple[int, int]:
    """Where the log ended that a child found, and what it acknowledged last, before it was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(_append(directory, since, writing))
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = acknowledged = pipe.readline()
        for _ in range(acknowledgements):
            acknowledged = pipe.readline()
        time.sleep(more_s)
        os.kill(pid, signal.SIGKILL)
        for line in pipe:
            # The last one may be torn.
            acknowledged = line if line.endswith(b"\n") else acknowledged
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself"
    return int(found), int(acknowledged)


def main() -> None:
    """One life for each line."""
    directory, found = Path(sys.argv[1]), 0
    for line in sys.stdin:
        acknowledgements, more_s = line.split()
        found, acknowledged = one_life(directory, found, int(acknowledgements), float(more_s))
        sys.stdout.write(f"{found} {acknowledged}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
