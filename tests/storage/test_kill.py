"""kill -9 in the middle of group commits, truncations, votes, snapshots and log starts: what was
acknowledged is there again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from kill_writer import next_chunk, snapshot_of
from storage_kit import IDENTITY, open_rocks
from tiers import nightly

from raftlog.node.storage.chunks import walk
from raftlog.node.storage.directory import format_storage, read_identity
from raftlog.node.storage.reader import open_read_only

KILLS = int(os.environ.get("RAFTLOG_STORE_KILLS", "200"))
WRITER = Path(__file__).with_name("kill_writer.py")


class Said(NamedTuple):
    """What a writer had said when it died. Offsets, but for ``vote``."""

    opened: int = -1
    truncated: int = -1
    """It was about to drop everything from here on."""
    durable: int = -1
    vote: int = -1
    starting: int = -1
    """Where it was about to let the log begin."""
    started: int = -1


_FIELDS = {
    "open": "opened", "truncating": "truncated", "durable": "durable", "vote": "vote", "starting": "starting",
    "started": "started",
}  # fmt: skip


class Seen(NamedTuple):
    """What a store holds."""

    start: int
    end: int
    vote: int
    batches: dict[int, tuple[int, bytes]]
    """By base offset: epoch and bytes."""


@pytest.fixture
def writers() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def write_until_killed(
    writers: subprocess.Popen[str], directory: Path, round_: int, rng: Random
) -> Said:
    """Let a writer run until it has said some lines, and kill it a moment later; all that it has
    said.
    """
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write(f"{directory} {round_}\n")
    writers.stdin.flush()
    # Every eighth dies while it opens the store, the others at work.
    lines = 0 if round_ % 8 == 0 else rng.choice((rng.randint(1, 20), rng.randint(20, 250)))
    wait_s = rng.uniform(0.0, 0.2) if lines == 0 else rng.choice((0.0, rng.uniform(0.0, 0.004)))
    pid = int(writers.stdout.readline().removeprefix("pid "))
    said, count = Said(), 0
    if not lines:
        time.sleep(wait_s)
        os.kill(pid, signal.SIGKILL)
    for line in writers.stdout:
        what, number = line.split()
        if what == "gone":
            break
        said = said._replace(**{_FIELDS[what]: int(number)})
        count += 1
        if count == lines:
            time.sleep(wait_s)
            os.kill(pid, signal.SIGKILL)
    assert count >= lines, f"the writer of round {round_} died by itself"
    return said


def batches(data: bytes, start: int) -> dict[int, tuple[int, bytes]]:
    """By base offset, each of them checked."""
    return {
        base: (epoch, data[position:behind])
        for base, _, epoch, position, behind in walk(data, start)
    }


def as_written(base: int, epoch: int, size: int) -> bool:
    """Whether a writer of this epoch would have put a batch of so many bytes at ``base``."""
    for chunk_base in (base, base - 2):
        made = batches(next_chunk(chunk_base, epoch)[0], chunk_base)
        if base in made and len(made[base][1]) == size:
            return True
    return False


def read_offline(directory: Path) -> Seen:
    """As an offline reader does, which changes nothing: the next writer finds what the killed one
    left.
    """
    with open_read_only(directory) as reader:
        start, end = reader.start_offset, reader.end_offset
        for one in reader.snapshots:
            assert reader.read_snapshot(one, 0, 1 << 30) == snapshot_of(one)
        return Seen(start, end, reader.vote.epoch, batches(reader.read(start, end, 1 << 40), start))


def read_as_a_node(directory: Path) -> Seen:
    """As a node does, which closes the store in order."""
    store = open_rocks(directory)
    try:
        found = store.recover()
        start, end = found.start_offset, found.end_offset
        for one in found.snapshots:
            assert store.read_snapshot(one, 0, 1 << 30) == snapshot_of(one)
        assert start == 0 or any(one.end_offset >= start for one in found.snapshots)
        return Seen(
            start,
            end,
            found.vote.epoch,
            batches(store.read(start, until=end, max_bytes=1 << 40), start),
        )
    finally:
        store.close()


def check(round_: int, before: Seen, said: Said, now: Seen) -> None:
    """Everything that was there, or was said, is there; the rest is what the writer has written,
    without a gap.
    """
    where = f"round {round_}: {said}, [{now.start}, {now.end})"
    assert said.opened in (
        -1,
        before.end,
    ), f"{where}: the writer found another end than {before.end}"
    kept = before.end if said.truncated < 0 else said.truncated
    assert now.end >= max(kept, said.durable), where
    assert now.vote in (
        max(before.vote, said.vote),
        round_ if said.opened >= 0 else before.vote,
    ), where
    assert now.vote >= said.vote, where
    begins = {said.started, said.starting} - {-1} or {before.start}
    assert now.start in begins or (said.started < 0 and now.start == before.start), where
    for base, (epoch, content) in now.batches.items():
        if base < kept:
            assert (epoch, content) == before.batches[base], (
                f"{where}: what was there at {base} has changed"
            )
        elif epoch == round_:
            assert base >= kept, where
        else:
            # Truncated, if it had come to that.
            assert said.durable < 0 <= said.truncated, (
                f"{where}: a batch of epoch {epoch} at {base}"
            )
            assert (epoch, content) == before.batches[base], where
    for base in [base for base in now.batches if base >= kept]:
        epoch, content = now.batches[base]
        assert as_written(base, epoch, len(content)), (
            f"{where}: nobody has written the batch at {base}"
        )


@pytest.mark.parametrize("kills", [20, nightly(KILLS)])
async def test_what_was_acknowledged_survives_kill_9(
    tmp_path: Path, writers: subprocess.Popen[str], kills: int
) -> None:
    directory = tmp_path / "data"
    format_storage(directory, IDENTITY)
    rng = Random(9)
    begun = time.monotonic()
    seen, moves, truncations, early = Seen(0, 0, 0, {}), 0, 0, 0
    for round_ in range(1, kills + 1):
        said = write_until_killed(writers, directory, round_, rng)
        now = read_offline(directory) if round_ % 3 else read_as_a_node(directory)
        check(round_, seen, said, now)
        moves, truncations = moves + (now.start > seen.start), truncations + (said.truncated >= 0)
        early += said.opened < 0
        seen = now
    took_s = time.monotonic() - begun
    print(
        f"{kills} kills in {took_s:.1f} s ({early} before the store was open): {seen.end} offsets,"
        f" {moves} moves of the log start, {truncations} truncations"
    )
    assert moves > kills // 20
    assert truncations > kills // 20
    assert read_identity(directory).format_version == 2
