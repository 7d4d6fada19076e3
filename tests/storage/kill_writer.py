"""Processes to be killed, which append to a store forever and report what is durable. One process
imports everything, and forks a writer for each line ``directory round`` that it reads. A writer
reports on the common pipe ``pid N``, then what it does or learns (``open E``, ``truncating E``,
``durable E``, ``vote E``, ``starting E``, ``started E``); ``gone`` follows when it is dead.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

from storage_kit import make_chunk, open_rocks, snapshot_content

from raftlog.errors import FatalError, StorageError
from raftlog.node.storage.api import SnapshotId, VoteState

WINDOW = 20
KEPT = 150
"""Offsets between two snapshots."""


def next_chunk(base_offset: int, round_: int) -> tuple[bytes, int]:
    """Return a small or large chunk, whose epoch is the round's number, and its end."""
    counts, body = ((2, 3), b"y" * 3000) if base_offset % 3 == 0 else ((1,), b"body")
    return make_chunk(base_offset, *counts, epoch=round_, body=body), base_offset + sum(counts)


def say(what: str, number: int) -> None:
    """Write one line; such short writes to a pipe are atomic."""
    os.write(1, f"{what} {number}\n".encode())


async def write_for_ever(directory: Path, round_: int) -> None:
    """Until killed."""
    rng = Random(f"writer {round_}")
    store = open_rocks(directory)
    found = store.recover()
    end, start = found.end_offset, found.start_offset
    say("open", end)
    keeps = max(
        [
            start,
            *(one.end_offset for one in found.snapshots),
            *(first for _, first in found.epochs[-1:]),
        ]
    )
    if rng.random() < 0.3 and keeps < end:
        # As a follower whose leader has another tail; what a snapshot holds is never truncated.
        end = keeps
        say("truncating", end)
        store.truncate(end)
    window = asyncio.Semaphore(WINDOW)
    durable = [found.start_offset]
    snapshot: list[SnapshotId] = []

    def acknowledged(outcome: int | StorageError) -> None:
        assert isinstance(outcome, int), outcome
        durable[0] = outcome
        say("durable", outcome)
        window.release()

    def voted(error: StorageError | None) -> None:
        assert error is None, error
        say("vote", round_)
        has_voted.set()

    def frozen(error: FatalError | None) -> None:
        assert error is None, error
        snapshot.extend(making)

    making: list[SnapshotId] = []
    has_voted = asyncio.Event()
    store.write_vote(VoteState(round_, 2), voted)
    # As a node does: no record of an epoch before the vote of that epoch is durable.
    await has_voted.wait()
    while True:
        await window.acquire()
        chunk, behind = next_chunk(end, round_)
        store.append(chunk, end, behind)
        end = behind
        store.flush(acknowledged, inline=end % 2 == 0)
        if not making and durable[0] >= start + KEPT:
            making.append(SnapshotId(durable[0], round_))
            store.store_snapshot(making[0], 0, snapshot_content(making[0]))
            store.freeze_snapshot(making[0], frozen)
        if snapshot:
            say("starting", snapshot[0].end_offset)
            store.advance_log_start(snapshot[0])
            start = snapshot[0].end_offset
            say("started", start)
            snapshot.clear()
            making.clear()


def serve() -> None:
    """Fork a writer for each line."""
    for line in sys.stdin:
        directory, round_ = line.split()
        pid = os.fork()
        if not pid:
            try:
                say("pid", os.getpid())
                asyncio.run(write_for_ever(Path(directory), int(round_)))
            finally:
                os._exit(1)
        os.waitpid(pid, 0)
        say("gone", pid)


class Writers(AbstractContextManager["Writers"]):
    """The test's end of such a process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def until_killed(self, directory: Path, round_: int, rng: Random) -> Iterator[tuple[str, int]]:
        """Let a writer run until it has reported some lines, and kill it a moment later; yield all
        that it reported. Every eighth dies while it opens the store.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{directory} {round_}\n")
        self._process.stdin.flush()
        lines = 0 if round_ % 8 == 0 else rng.choice((rng.randint(1, 20), rng.randint(20, 250)))
        wait_s = rng.choice((0.0, rng.uniform(0.0, 0.004))) if lines else rng.uniform(0.0, 0.2)
        pid = int(self._process.stdout.readline().removeprefix("pid "))
        count = 0
        if not lines:
            time.sleep(wait_s)
            os.kill(pid, signal.SIGKILL)
        for line in self._process.stdout:
            what, number = line.split()
            if what == "gone":
                break
            yield what, int(number)
            count += 1
            if count == lines:
                time.sleep(wait_s)
                os.kill(pid, signal.SIGKILL)
        assert count >= lines, f"the writer of round {round_} died by itself"


if __name__ == "__main__":
    serve()
