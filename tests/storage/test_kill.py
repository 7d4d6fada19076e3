"""kill -9 during commits, truncations, votes, snapshots and log starts loses nothing."""

import os
import shutil
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from kill_writer import next_chunk, snapshot_of, writers_of
from partition_writer import WINDOW, Replicas, after, carry_out, read_all, steps
from storage_kit import IDENTITY, open_rocks
from tiers import nightly

from raftlog.node.storage.chunks import walk
from raftlog.node.storage.directory import format_storage, read_identity
from raftlog.node.storage.partition_store import RocksPartitionStore
from raftlog.node.storage.reader import open_read_only
from raftlog.node.storage.rocks_adapter import RocksPartitions

KILLS = int(os.environ.get("RAFTLOG_STORE_KILLS", "200"))
PARTITION_KILLS = int(os.environ.get("RAFTLOG_PARTITION_KILLS", "20"))


class Said(NamedTuple):
    """The last report of a killed writer. Offsets, except for ``vote``."""

    opened: int = -1
    truncated: int = -1
    """It was about to drop everything from here on."""
    durable: int = -1
    vote: int = -1
    starting: int = -1
    """New log start that the writer was about to set."""
    started: int = -1


_FIELDS = {
    "open": "opened", "truncating": "truncated", "durable": "durable", "vote": "vote", "starting": "starting",
    "started": "started",
}  # fmt: skip


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
            assert reader.read_snapshot(one, 0, 1 << 30) == snapshot_of(one)
        return Seen(start, end, reader.vote.epoch, batches(reader.read(start, end, 1 << 40), start))


def read_as_a_node(directory: Path) -> Seen:
    """Read as a node does, which closes the store in order."""
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
    """Assert that all found or reported before is there, and the rest as written, gapless."""
    where = f"round {round_}: {said}, [{now.start}, {now.end})"
    assert said.opened in (-1, before.end), (
        f"{where}: the writer found another end than {before.end}"
    )
    kept = before.end if said.truncated < 0 else said.truncated
    assert now.end >= max(kept, said.durable), where
    assert now.vote in (max(before.vote, said.vote), round_ if said.opened >= 0 else before.vote), (
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
            assert said.durable < 0 <= said.truncated, (
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
    with writers_of("kill_writer.py") as writers:
        for round_ in range(1, kills + 1):
            words = writers.until_killed(directory, round_, rng, opens_in_s=0.2)
            said = Said(**{_FIELDS[what]: number for what, number in words})
            now = read_offline(directory) if round_ % 3 else read_as_a_node(directory)
            check(round_, seen, said, now)
            moves += now.start > seen.start
            truncations += said.truncated >= 0
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


# --- partition replicas --------------------------------------------------------------------------


def steps_that_show(round_: int, before: Replicas, durable: int, now: Replicas) -> int:
    """Return after how many steps, at least the durable ones, the store looks like this."""
    state = before
    writes = steps(round_, before)
    for number in range(durable + WINDOW + 1):
        if number >= durable and state == now:
            return number
        state = after(state, next(writes))
    pytest.fail(
        f"round {round_}: no prefix of the writes, from the {durable}th on, leads to what is stored"
    )


async def test_acknowledged_partition_records_survive_kill_9(tmp_path: Path) -> None:
    rng = Random(9)
    begun = time.monotonic()
    seen: Replicas = {}
    acknowledged = beyond = 0
    with writers_of("partition_writer.py") as writers:
        for round_ in range(1, PARTITION_KILLS + 1):
            durable = 0
            for _, number in writers.until_killed(tmp_path, round_, rng, opens_in_s=0.1):
                assert number == durable + 1, "reports come in order, each once"
                durable = number
            store, now = read_all(tmp_path)
            if round_ % 3:
                # Closed in order; else the next writer finds what two unclean ends left.
                store.close()
            else:
                assert isinstance(store, RocksPartitionStore)
                store._rocks.close()
            kept = steps_that_show(round_, seen, durable, now)
            acknowledged, beyond = acknowledged + durable, beyond + (kept > durable)
            seen = now
    print(
        f"{PARTITION_KILLS} kills in {time.monotonic() - begun:.1f} s: {acknowledged} writes"
        f" acknowledged, {beyond} times more was there"
    )
    assert acknowledged > 20 * PARTITION_KILLS
    assert beyond > PARTITION_KILLS // 20
    assert len(seen) > 2


async def test_partition_wal_truncated_anywhere_leaves_a_prefix_of_the_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The WAL is cut at any byte, or zeroed from any sector on, as after power loss."""
    # It would begin a new WAL at some time of its own.
    monkeypatch.setattr(RocksPartitions, "compact", lambda *_: None)
    store, _ = read_all(tmp_path / "running")
    prefixes: list[Replicas] = [{}]
    for _, step in zip(range(80), steps(1, {}), strict=False):
        carry_out(store, step)
        prefixes.append(after(prefixes[-1], step))
    shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    store.close()
    (wal,) = (tmp_path / "crashed" / "partitions").glob("*.log")
    good, rng, lengths = wal.read_bytes(), Random(3), set()
    for number in range(16):
        cut = rng.randrange(len(good) + 1)
        torn = (
            good[:cut]
            if number % 2
            else good[: cut // 512 * 512].rstrip(b"\0").ljust(len(good), b"\0")
        )
        wal.write_bytes(torn)
        shutil.copytree(tmp_path / "crashed", tmp_path / "scratch")
        store, now = read_all(tmp_path / "scratch")
        store.close()
        shutil.rmtree(tmp_path / "scratch")
        assert now in prefixes, f"cut at {cut} of {len(good)}"
        lengths.add(prefixes.index(now))
    assert len(lengths) > 5
