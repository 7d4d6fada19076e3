"""kill -9 in the middle of group commits over several replicas: what was acknowledged is there, and
the rest is a prefix of the writes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from partition_writer import WINDOW, Replicas, after, carry_out, read_all, steps

from raftlog.node.storage.partition_store import RocksPartitionStore
from raftlog.node.storage.rocks_adapter import RocksPartitions

KILLS = int(os.environ.get("RAFTLOG_PARTITION_KILLS", "20"))
WRITER = Path(__file__).with_name("partition_writer.py")


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
) -> int:
    """Let a writer run until it has said some lines, and kill it a moment later; the last write
    that it called durable.
    """
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write(f"{directory} {round_}\n")
    writers.stdin.flush()
    # Every eighth dies while it opens the store, the others at work.
    lines = 0 if round_ % 8 == 0 else rng.choice((rng.randint(1, 20), rng.randint(20, 250)))
    wait_s = rng.uniform(0.0, 0.1) if lines == 0 else rng.choice((0.0, rng.uniform(0.0, 0.004)))
    pid = int(writers.stdout.readline().removeprefix("pid "))
    durable = count = 0
    if not lines:
        time.sleep(wait_s)
        os.kill(pid, signal.SIGKILL)
    for line in writers.stdout:
        what, number = line.split()
        if what == "gone":
            break
        assert int(number) == durable + 1, "reports come in order, each once"
        durable = int(number)
        count += 1
        if count == lines:
            time.sleep(wait_s)
            os.kill(pid, signal.SIGKILL)
    assert count >= lines, f"the writer of round {round_} died by itself"
    return durable


def steps_that_show(round_: int, before: Replicas, durable: int, now: Replicas) -> int:
    """After how many steps of the round the store looks like this; at least those that were
    durable.
    """
    state = before
    writes = steps(round_, before)
    for number in range(durable + WINDOW + 1):
        if number >= durable and state == now:
            return number
        state = after(state, next(writes))
    pytest.fail(
        f"round {round_}: no prefix of the writes, from the {durable}th on, leads to what is stored"
    )


async def test_what_was_acknowledged_survives_kill_9(
    tmp_path: Path, writers: subprocess.Popen[str]
) -> None:
    rng = Random(9)
    begun = time.monotonic()
    seen: Replicas = {}
    acknowledged = beyond = 0
    for round_ in range(1, KILLS + 1):
        durable = write_until_killed(writers, tmp_path, round_, rng)
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
        f"{KILLS} kills in {time.monotonic() - begun:.1f} s: {acknowledged} writes acknowledged,"
        f" {beyond} times more was there"
    )
    assert acknowledged > 20 * KILLS
    assert beyond > KILLS // 20
    assert len(seen) > 2


async def test_a_wal_that_ends_anywhere_leaves_a_prefix_of_the_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As power loss may leave it: cut at any byte, or zeros from any sector on."""
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
