"""Every promise of LogStore and PartitionStore, for the real stores and their simulated twins."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import partition_kit as parts
import pytest
from partition_kit import A0, A1, B7, KEYS, LAST
from storage_kit import (
    IDENTITY,
    LATE_VOTE,
    Machine,
    SimMachine,
    flush,
    make_batch,
    make_chunk,
    rocks_machine,
    whole,
    write_vote,
)

from raftlog.errors import FatalError, StorageError
from raftlog.node.storage.api import LogStore, VoteState
from raftlog.node.storage.partition_api import PartitionKey, PartitionStore
from simulation.twins.disk_hardware import Operation

VOTE = VoteState(epoch=53, voted_id=2, voted_directory_id="d2")


@pytest.fixture(params=["rocks", "sim"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def machine(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = SimMachine() if kind == "sim" else rocks_machine(tmp_path / "data", monkeypatch)
    yield made
    made.close()


@pytest.fixture
async def store(machine: Machine) -> LogStore:
    opened: LogStore = machine.open()[0]
    return opened


@pytest.fixture
def partition_machine(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    is_sim = kind == "sim"
    made = parts.sim_machine() if is_sim else parts.rocks_machine(tmp_path / "data", monkeypatch)
    yield made
    made.close()


@pytest.fixture
async def partitions(partition_machine: Machine) -> PartitionStore:
    opened: PartitionStore = partition_machine.open()[0]
    return opened


class Log:
    """One log of a store: the only one of a log store, or one replica among others."""

    def __init__(self, machine: Any, store: Any, *key: PartitionKey) -> None:
        self.machine, self.store, self.key = machine, store, key

    def append(self, chunk: bytes, base: int, end: int) -> None:
        self.store.append(*self.key, chunk, base, end)

    def read(self, offset: int, *, until: int, max_bytes: int = 1 << 20) -> bytes:
        data: bytes = self.store.read(*self.key, offset, until=until, max_bytes=max_bytes)
        return data

    def truncate(self, end: int) -> None:
        self.store.truncate(*self.key, end)

    async def flush(self) -> object:
        """Return the error if there is one."""
        reported = await (parts.flush if self.key else flush)(self.store)
        return reported if isinstance(reported, StorageError) else None

    def reopen(self) -> Any:
        """Return the log found, after the store was closed and opened."""
        self.store, found = self.machine.reopen()
        return next(one for one in found if one.key == self.key[0]) if self.key else found


@pytest.fixture(params=[(), (A0,), (LAST,)], ids=["log", "first partition", "last partition"])
def log(request: pytest.FixtureRequest, kind: str) -> Iterator[Log]:
    """A log between others, which must stay unchanged."""
    if not request.param:
        yield Log(request.getfixturevalue("machine"), request.getfixturevalue("store"))
        return
    store = request.getfixturevalue("partitions")
    neighbours = {A0, A1, B7, LAST} - {*request.param}
    for key in neighbours:
        store.append(key, make_chunk(0, 2, 4, 4), 0, 10)
    made = Log(request.getfixturevalue("partition_machine"), store, *request.param)
    yield made
    with suppress(FatalError):  # that the test has injected
        for key in neighbours:
            assert parts.whole(made.store, key, 10) == make_chunk(0, 2, 4, 4)


async def test_read_returns_whole_batches_within_its_bounds(log: Log) -> None:
    batches = [make_batch(0), make_batch(1, 2), make_batch(3), make_batch(4)]
    log.append(batches[0] + batches[1], 0, 3)
    log.append(batches[2] + batches[3], 3, 5)
    size = len(batches[1])
    assert log.read(1, until=5, max_bytes=0) == batches[1]
    assert log.read(1, until=5, max_bytes=size) == batches[1]
    assert log.read(1, until=5, max_bytes=size + len(batches[2])) == batches[1] + batches[2]
    assert log.read(1, until=4) == batches[1] + batches[2]
    assert log.read(0, until=3) == batches[0] + batches[1]
    assert log.read(4, until=5) == batches[3]
    if log.key:
        assert log.read(2, until=4) == batches[1] + batches[2], "offset 2 is inside a batch"
        assert log.read(2, until=5, max_bytes=0) == batches[1]
        assert log.read(5, until=5) == b""
    else:
        with pytest.raises(ValueError, match="boundary"):
            log.read(2, until=5)


@pytest.mark.parametrize(("offset", "until"), [(1, 2), (-1, 3), (0, 6), (6, 6), (4, 3)])
async def test_read_refuses_an_offset_inside_a_batch(log: Log, offset: int, until: int) -> None:
    log.append(make_chunk(0, 1, 2), 0, 3)
    log.append(make_chunk(3, 1, 1), 3, 5)
    with pytest.raises(ValueError, match=r"boundary|it has \[0, 5\)"):
        log.read(offset, until=until)
    assert len(log.read(0, until=5)) > 0, "a bad argument does not break the store"


async def test_append_is_refused_unless_it_is_at_the_end(log: Log) -> None:
    log.append(make_batch(0), 0, 1)
    replica = f".*topic {log.key[0][0].hex()}, which ends at 1" if log.key else ""
    for base, end in ((0, 1), (2, 3), (1, 1)):
        with pytest.raises(ValueError, match=f"append{replica}"):
            log.append(make_batch(base), base, end)


@pytest.mark.parametrize("end", [-1, 2, 7])
async def test_refused_truncate_changes_nothing(log: Log, end: int) -> None:
    chunks = make_chunk(0, 1, 2), make_chunk(3, 3)
    log.append(chunks[0], 0, 3)
    log.append(chunks[1], 3, 6)
    with pytest.raises(ValueError, match=r"boundary|it has \[0, 6\)"):
        log.truncate(end)
    assert log.read(0, until=6) == b"".join(chunks)


@pytest.mark.parametrize("end", [0, 1, 3, 4, 6])
async def test_truncate_drops_only_the_rest(log: Log, end: int) -> None:
    batches = {0: make_batch(0), 1: make_batch(1, 2), 3: make_batch(3), 4: make_batch(4, 2)}
    log.append(batches[0] + batches[1], 0, 3)
    log.append(batches[3] + batches[4], 3, 6)
    assert await log.flush() is None
    log.truncate(end)
    expected = b"".join(bytes_ for base, bytes_ in batches.items() if base < end)
    assert log.read(0, until=end) == expected
    new = make_batch(end, 3, epoch=9)
    log.append(new, end, end + 3)
    assert await log.flush() is None
    assert log.reopen().end_offset == end + 3
    assert log.read(0, until=end + 3) == expected + new


async def test_truncation_below_what_was_durable_at_opening_survives(log: Log) -> None:
    log.append(make_chunk(0, 1, 1, 1), 0, 3)
    assert await log.flush() is None
    for _ in range(2):
        log.reopen()
        log.truncate(1)
        assert log.read(0, until=1) == make_batch(0)
    assert log.reopen().end_offset == 1
    assert log.read(0, until=1) == make_batch(0)


async def test_flush_reports_are_in_order_and_sent_once(log: Log) -> None:
    seen: list[tuple[int, Any]] = []
    for i in range(20):
        log.append(make_batch(i), i, i + 1)
        log.store.flush(partial(lambda i, end: seen.append((i, end)), i), inline=i % 3 == 0)
    assert await log.flush() is None
    assert [i for i, _ in seen] == list(range(20))
    if log.key:
        assert {end for _, end in seen} == {None}
    else:
        assert all(end > i for i, end in seen)
        assert seen == sorted(seen, key=lambda one: one[1])


async def test_flush_requested_by_a_report_completes_after_the_other_reports(log: Log) -> None:
    seen: list[str] = []

    def first(_: object) -> None:
        seen.append("first")
        log.store.flush(lambda _: seen.append("nested"), inline=True)

    log.append(make_batch(0), 0, 1)
    log.store.flush(lambda _: None, inline=False)
    log.store.flush(first, inline=False)
    log.store.flush(lambda _: seen.append("second"), inline=False)
    await log.flush()
    await log.flush()
    assert seen == ["first", "second", "nested"]


@pytest.mark.parametrize("operation", ["append", "flush", "write_vote"])
async def test_every_call_raises_the_error_after_an_error(log: Log, operation: Operation) -> None:
    log.append(make_batch(0), 0, 1)
    if log.key and operation == "write_vote":
        operation = "flush"  # A partition store has no votes.
    log.machine.fail_next(operation)
    if operation == "append":
        with pytest.raises(StorageError) as caught:
            log.append(make_batch(1), 1, 2)
        error: object = caught.value
    else:
        error = await (log.flush() if operation == "flush" else write_vote(log.store, VOTE))
    assert isinstance(error, StorageError)
    assert "injected" in str(error)
    calls: list[Callable[[], object]] = [
        lambda: log.append(make_batch(1), 1, 2),
        lambda: log.store.flush(lambda _: None, inline=True),
        lambda: log.truncate(0),
        lambda: log.read(0, until=1),
        lambda: (
            log.store.delete(*log.key) if log.key else log.store.write_vote(VOTE, lambda _: None)
        ),
    ]
    for call in calls:
        with pytest.raises(FatalError) as again:
            call()
        assert again.value is error


async def test_failed_sync_fails_every_waiting_flush(log: Log) -> None:
    log.append(make_batch(0), 0, 1)
    seen: list[object] = []
    log.machine.fail_next("flush")
    log.store.flush(seen.append, inline=False)
    log.store.flush(seen.append, inline=False)
    last = await log.flush()
    assert isinstance(last, StorageError)
    assert seen == [last, last]


async def test_failed_append_during_a_sync_lets_nothing_be_acknowledged(log: Log) -> None:
    log.append(make_batch(0), 0, 1)
    running, waiting = asyncio.create_task(log.flush()), asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    log.machine.fail_next("append")
    with pytest.raises(StorageError):
        log.append(make_batch(1), 1, 2)
    assert isinstance(await running, StorageError)
    assert isinstance(await waiting, StorageError)


async def test_closed_store_raises_and_reports_nothing(log: Log) -> None:
    seen: list[object] = []
    log.append(make_batch(0), 0, 1)
    log.store.flush(seen.append, inline=False)
    if not log.key:
        log.store.write_vote(VOTE, lambda _: None)
    log.store.close()
    log.store.close()
    with pytest.raises(StorageError, match="closed"):
        log.append(make_batch(1), 1, 2)
    found = log.reopen()
    assert found.end_offset == 1
    assert log.key or found.vote == VOTE
    assert await log.flush() is None
    assert seen == []


async def test_recover_must_be_called_first_and_once(log: Log) -> None:
    with pytest.raises(ValueError, match="recover"):
        log.store.recover()


# --- the log store -------------------------------------------------------------------------------


async def test_new_log_store_is_empty(machine: Machine) -> None:
    store, found = machine.open()
    assert (found.vote, found.start_offset, found.end_offset, found.epochs) == (LATE_VOTE, 0, 0, ())
    assert store.identity == IDENTITY
    assert store.read(0, until=0, max_bytes=100) == b""


async def test_appended_batches_are_readable_at_once(machine: Machine, store: LogStore) -> None:
    chunks = [make_chunk(0, 1, 3), make_chunk(4, 2, epoch=2), make_chunk(6, 1, epoch=5)]
    for chunk, base, end in zip(chunks, (0, 4, 6), (4, 6, 7), strict=True):
        store.append(chunk, base, end)
    assert whole(store, 7) == b"".join(chunks)
    assert await flush(store) == 7
    assert await write_vote(store, VOTE) is None
    store, found = machine.reopen()
    assert (found.vote, found.end_offset, found.epochs) == (VOTE, 7, ((1, 0), (2, 4), (5, 6)))
    assert whole(store, 7) == b"".join(chunks)
    store.append(make_batch(7, epoch=5), 7, 8)
    assert await flush(store) == 8


async def test_truncate_during_a_flush_lowers_its_reported_end(store: LogStore) -> None:
    store.append(make_chunk(0, 1, 1, 1, 1), 0, 4)
    seen: list[int | StorageError] = []
    store.flush(seen.append, inline=False)
    store.truncate(2)
    store.append(make_chunk(2, 1, 1, epoch=7), 2, 4)
    assert await flush(store) == 4
    assert seen == [2], "the records that took the offsets 2 and 3 over were not in that sync"


async def test_truncate_from_a_report_lowers_later_reports(store: LogStore) -> None:
    store.append(make_chunk(0, 1, 1, 1), 0, 3)
    seen: list[int | StorageError] = []
    store.flush(lambda _: None, inline=False)
    store.flush(lambda _: store.truncate(1), inline=False)
    store.flush(seen.append, inline=False)
    assert await flush(store) == 1
    assert seen == [1]


async def test_votes_are_reported_in_order(machine: Machine, store: LogStore) -> None:
    seen: list[int] = []
    for epoch in range(1, 6):
        store.write_vote(
            VoteState(epoch=epoch),
            partial(lambda epoch, error: seen.append(epoch if error is None else -1), epoch),
        )
    assert await write_vote(store, VoteState(epoch=6, leader_id=3)) is None
    assert seen == [1, 2, 3, 4, 5]
    store.close()
    assert machine.open()[1].vote == VoteState(epoch=6, leader_id=3)


# --- the partition store -------------------------------------------------------------------------


async def test_new_partition_store_is_empty(partition_machine: Machine) -> None:
    partitions, found = partition_machine.open()
    assert found == ()
    assert partitions.read(A0, 0, until=0, max_bytes=100) == b""
    assert partitions.free_bytes() > 0
    assert await parts.flush(partitions) is None


async def test_replicas_are_separate_logs_and_are_all_recovered(
    partition_machine: Machine, partitions: PartitionStore
) -> None:
    expected: dict[PartitionKey, bytes] = {}
    for n, key in enumerate(KEYS, start=1):
        chunks = [
            make_chunk(0, n, body=b"first %d " % n),
            make_chunk(n, 2, 1, epoch=n + 1, body=b"second %d " % n),
        ]
        partitions.append(key, chunks[0], 0, n)
        partitions.append(key, chunks[1], n, n + 3)
        expected[key] = b"".join(chunks)
    for n, key in enumerate(KEYS, start=1):
        assert parts.whole(partitions, key, n + 3) == expected[key], "readable at once"
    assert await parts.flush(partitions) is None
    partitions, found = partition_machine.reopen()
    assert [(one.key, one.start_offset, one.end_offset, one.epochs) for one in found] == [
        (key, 0, n + 3, ((1, 0), (n + 1, n))) for n, key in enumerate(KEYS, start=1)
    ], "ordered by topic id and index"
    for n, key in enumerate(KEYS, start=1):
        assert parts.whole(partitions, key, n + 3) == expected[key]
        partitions.append(key, make_batch(n + 3, epoch=n + 1), n + 3, n + 4)


async def test_replica_without_records_is_not_recovered_and_starts_empty(
    partition_machine: Machine, partitions: PartitionStore
) -> None:
    for key in KEYS:
        partitions.append(key, make_chunk(0, 3), 0, 3)
    partitions.truncate(A0, 0)
    partitions.delete(B7)
    partitions.delete((b"c" * 16, 3))
    with pytest.raises(ValueError, match=r"it has \[0, 0\)"):
        partitions.read(B7, 0, until=3, max_bytes=1)
    assert await parts.flush(partitions) is None
    partitions, found = partition_machine.reopen()
    assert parts.ends(found) == {A1: 3, LAST: 3}
    for key in (A0, B7):
        partitions.append(key, make_batch(0, epoch=4), 0, 1)
        assert parts.whole(partitions, key, 1) == make_batch(0, epoch=4)
    assert parts.whole(partitions, A1, 3) == parts.whole(partitions, LAST, 3) == make_chunk(0, 3)
