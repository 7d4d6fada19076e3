"""kill -9 during commits, truncations, votes, snapshots and log starts loses nothing."""

import os
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from kill_writer import Writers, next_chunk
from storage_kit import IDENTITY, open_rocks, snapshot_content
from tiers import nightly

from raftlog.node.storage.chunks import walk
from raftlog.node.storage.directory import format_storage, read_identity
from raftlog.node.storage.reader import open_read_only

KILLS = int(os.environ.get("RAFTLOG_STORE_KILLS", "200"))


class Said(NamedTuple):
    """The last report of a killed writer. Offsets, except for ``vote``."""

    open: int = -1
    truncating: int = -1
    """It was about to drop everything from here on."""
    durable: int = -1
    vote: int = -1
    starting: int = -1
    """New log start that the writer was about to set."""
    started: int = -1


class Seen(NamedTuple):
    """The content of a store."""

    start: int
    end: int
    vote: int
    batches: dict[int, tuple[int, bytes]]
    """Epoch and bytes of batches, by base offset."""


def batches(data: bytes, start: int) -> dict[int, tuple[int, bytes]]:
    """Return the checked batches by base offset."""
    return {
        base: (epoch, data[position:behind])
        for base, _, epoch, position, behind in walk(data, start)
    }


def as_written(base: int, epoch: int, size: int) -> bool:
    """Return whether a writer of this epoch would write a batch of this size at ``base``."""
    for chunk_base in (base, base - 2):
        made = batches(next_chunk(chunk_base, epoch)[0], chunk_base)
        if base in made and len(made[base][1]) == size:
            return True
    return False


def read_offline(directory: Path) -> Seen:
    """Read offline, without changes: the next writer finds what the killed one left."""
    with open_read_only(directory) as reader:
        start, end = reader.start_offset, reader.end_offset
        for one in reader.snapshots:
            assert reader.read_snapshot(one, 0, 1 << 30) == snapshot_content(one)
        return Seen(start, end, reader.vote.epoch, batches(reader.read(start, end, 1 << 40), start))


def read_as_a_node(directory: Path) -> Seen:
    """Read as a node does, which closes the store in order."""
    store = open_rocks(directory)
    try:
        found = store.recover()
        start, end = found.start_offset, found.end_offset
        for one in found.snapshots:
            assert store.read_snapshot(one, 0, 1 << 30) == snapshot_content(one)
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
    """Assert that all found or reported before is there, and the rest as written, gapless."""
    where = f"round {round_}: {said}, [{now.start}, {now.end})"
    assert said.open in (-1, before.end), f"{where}: the writer found another end than {before.end}"
    kept = before.end if said.truncating < 0 else said.truncating
    assert now.end >= max(kept, said.durable), where
    assert now.vote in (max(before.vote, said.vote), round_ if said.open >= 0 else before.vote), (
        where
    )
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
            assert said.durable < 0 <= said.truncating, (
                f"{where}: a batch of epoch {epoch} at {base}"
            )
            assert (epoch, content) == before.batches[base], where
    for base in [base for base in now.batches if base >= kept]:
        epoch, content = now.batches[base]
        assert as_written(base, epoch, len(content)), (
            f"{where}: nobody has written the batch at {base}"
        )


@pytest.mark.parametrize("kills", [10, nightly(KILLS)])
async def test_acknowledged_log_survives_kill_9(tmp_path: Path, kills: int) -> None:
    directory = tmp_path / "data"
    format_storage(directory, IDENTITY)
    rng = Random(9)
    begun = time.monotonic()
    seen, moves, truncations, early = Seen(0, 0, 0, {}), 0, 0, 0
    with Writers() as writers:
        for round_ in range(1, kills + 1):
            said = Said(**dict(writers.until_killed(directory, round_, rng)))
            now = read_offline(directory) if round_ % 3 else read_as_a_node(directory)
            check(round_, seen, said, now)
            moves += now.start > seen.start
            truncations += said.truncating >= 0
            early += said.open < 0
            seen = now
    took_s = time.monotonic() - begun
    print(
        f"{kills} kills in {took_s:.1f} s ({early} before the store was open): {seen.end} offsets,"
        f" {moves} moves of the log start, {truncations} truncations"
    )
    assert moves > kills // 20
    assert truncations > kills // 20
    assert read_identity(directory).format_version == 2
