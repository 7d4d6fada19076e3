"""What every LogStore promises, asked of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from storage_kit import (
    IDENTITY,
    LATE_VOTE,
    Machine,
    RocksMachine,
    SimMachine,
    flush,
    make_batch,
    make_chunk,
    whole,
    write_vote,
)

from raftlog.errors import FatalError, StorageError
from raftlog.node.storage.api import LogStore, VoteState
from simulation.twins.disk_hardware import Operation

VOTE = VoteState(epoch=53, voted_id=2, voted_directory_id="d2")


@pytest.fixture(params=["rocks", "sim"])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    return SimMachine() if request.param == "sim" else RocksMachine(tmp_path / "data", monkeypatch)


@pytest.fixture
async def store(machine: Machine) -> AsyncIterator[LogStore]:
    store, _ = machine.open()
    yield store
    store.close()


async def reopen(machine: Machine, store: LogStore) -> LogStore:
    store.close()
    return machine.open()[0]


async def test_a_new_store_is_empty(machine: Machine) -> None:
    store, found = machine.open()
    assert (found.vote, found.start_offset, found.end_offset, found.epochs) == (LATE_VOTE, 0, 0, ())
    assert store.identity == IDENTITY
    assert store.read(0, until=0, max_bytes=100) == b""
    store.close()


async def test_what_is_appended_is_readable_at_once_and_after_reopening(
    machine: Machine, store: LogStore
) -> None:
    chunks = [make_chunk(0, 1, 3), make_chunk(4, 2, epoch=2), make_chunk(6, 1, epoch=5)]
    for chunk, base, end in zip(chunks, (0, 4, 6), (4, 6, 7), strict=True):
        store.append(chunk, base, end)
    assert whole(store, 7) == b"".join(chunks)
    assert await flush(store) == 7
    assert await write_vote(store, VOTE) is None
    store.close()
    store, found = machine.open()
    assert (found.vote, found.end_offset, found.epochs) == (VOTE, 7, ((1, 0), (2, 4), (5, 6)))
    assert whole(store, 7) == b"".join(chunks)
    store.append(make_batch(7, epoch=5), 7, 8)
    assert await flush(store) == 8
    store.close()


async def test_read_gives_whole_batches_within_its_bounds(store: LogStore) -> None:
    batches = [make_batch(0), make_batch(1, 2), make_batch(3), make_batch(4)]
    store.append(batches[0] + batches[1], 0, 3)
    store.append(batches[2] + batches[3], 3, 5)
    size = len(batches[1])
    assert store.read(1, until=5, max_bytes=0) == batches[1]
    assert store.read(1, until=5, max_bytes=size) == batches[1]
    assert store.read(1, until=5, max_bytes=size + len(batches[2])) == batches[1] + batches[2]
    assert store.read(1, until=4, max_bytes=1 << 20) == batches[1] + batches[2]
    assert store.read(0, until=3, max_bytes=1 << 20) == batches[0] + batches[1]
    assert store.read(4, until=5, max_bytes=1 << 20) == batches[3]


@pytest.mark.parametrize(("offset", "until"), [(2, 5), (1, 2), (-1, 3), (0, 6), (6, 6), (4, 3)])
async def test_read_refuses_what_is_no_boundary_of_the_log(
    store: LogStore, offset: int, until: int
) -> None:
    store.append(make_chunk(0, 1, 2), 0, 3)
    store.append(make_chunk(3, 1, 1), 3, 5)
    with pytest.raises(ValueError, match=r"boundary|the log is"):
        store.read(offset, until=until, max_bytes=1 << 20)
    assert len(whole(store, 5)) > 0, "a bad argument does not break the store"


async def test_append_must_be_at_the_end(store: LogStore) -> None:
    store.append(make_batch(0), 0, 1)
    for base, end in ((0, 1), (2, 3), (1, 1)):
        with pytest.raises(ValueError, match="append"):
            store.append(make_batch(base), base, end)


@pytest.mark.parametrize("end", [0, 1, 3, 4, 6])
async def test_truncate_drops_the_rest_and_nothing_else(
    machine: Machine, store: LogStore, end: int
) -> None:
    batches = {0: make_batch(0), 1: make_batch(1, 2), 3: make_batch(3), 4: make_batch(4, 2)}
    store.append(batches[0] + batches[1], 0, 3)
    store.append(batches[3] + batches[4], 3, 6)
    assert await flush(store) == 6
    store.truncate(end)
    expected = b"".join(bytes_ for base, bytes_ in batches.items() if base < end)
    assert whole(store, end) == expected
    new = make_batch(end, 3, epoch=9)
    store.append(new, end, end + 3)
    assert await flush(store) == end + 3
    store = await reopen(machine, store)
    assert whole(store, end + 3) == expected + new
    store.close()


@pytest.mark.parametrize("end", [-1, 2, 7])
async def test_a_refused_truncate_changes_nothing(store: LogStore, end: int) -> None:
    chunks = make_chunk(0, 1, 2), make_chunk(3, 3)
    store.append(chunks[0], 0, 3)
    store.append(chunks[1], 3, 6)
    with pytest.raises(ValueError, match=r"boundary|the log is"):
        store.truncate(end)
    assert whole(store, 6) == b"".join(chunks)


async def test_a_truncation_below_what_was_durable_at_opening_survives(
    machine: Machine, store: LogStore
) -> None:
    store.append(make_chunk(0, 1, 1, 1), 0, 3)
    assert await flush(store) == 3
    store = await reopen(machine, store)
    store.truncate(1)
    store = await reopen(machine, store)
    assert whole(store, 1) == make_batch(0)
    store.close()


async def test_flushes_report_in_order_and_once(store: LogStore) -> None:
    seen: list[tuple[str, int | StorageError]] = []
    for i in range(20):
        store.append(make_batch(i), i, i + 1)
        store.flush(partial(lambda i, end: seen.append((f"f{i}", end)), i), inline=i % 3 == 0)
    assert await flush(store) == 20
    assert [name for name, _ in seen] == [f"f{i}" for i in range(20)]
    ends = [end for _, end in seen if isinstance(end, int)]
    assert len(ends) == len(seen)
    assert all(end > i for i, end in enumerate(ends))
    assert ends == sorted(ends)


async def test_a_flush_asked_for_by_a_report_comes_after_the_other_reports(store: LogStore) -> None:
    seen: list[str] = []

    def first(_: int | StorageError) -> None:
        seen.append("first")
        store.flush(lambda _: seen.append("nested"), inline=True)

    store.append(make_batch(0), 0, 1)
    store.flush(lambda _: None, inline=False)
    store.flush(first, inline=False)
    store.flush(lambda _: seen.append("second"), inline=False)
    await flush(store)
    await flush(store)
    assert seen == ["first", "second", "nested"]


async def test_a_truncate_under_a_running_flush_lowers_what_it_reports(store: LogStore) -> None:
    store.append(make_chunk(0, 1, 1, 1, 1), 0, 4)
    seen: list[int | StorageError] = []
    store.flush(seen.append, inline=False)
    store.truncate(2)
    store.append(make_chunk(2, 1, 1, epoch=7), 2, 4)
    assert await flush(store) == 4
    assert seen == [2], "the records that took the offsets 2 and 3 over were not in that sync"


async def test_a_truncate_from_a_report_lowers_the_reports_behind_it(store: LogStore) -> None:
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


@pytest.mark.parametrize("operation", ["append", "flush", "write_vote"])
async def test_after_an_error_every_call_raises_it(
    machine: Machine, store: LogStore, operation: Operation
) -> None:
    store.append(make_batch(0), 0, 1)
    machine.fail_next(operation)
    if operation == "append":
        with pytest.raises(StorageError) as caught:
            store.append(make_batch(1), 1, 2)
        error: object = caught.value
    elif operation == "flush":
        error = await flush(store)
    else:
        error = await write_vote(store, VOTE)
    assert isinstance(error, StorageError)
    assert "injected" in str(error)
    calls = (
        lambda: store.append(make_batch(1), 1, 2),
        lambda: store.flush(lambda _: None, inline=True),
        lambda: store.truncate(0),
        lambda: store.read(0, until=1, max_bytes=1),
        lambda: store.write_vote(VOTE, lambda _: None),
    )
    for call in calls:
        with pytest.raises(FatalError) as again:
            call()
        assert again.value is error


async def test_a_failed_sync_fails_every_flush_that_waits(
    machine: Machine, store: LogStore
) -> None:
    store.append(make_batch(0), 0, 1)
    seen: list[int | StorageError] = []
    machine.fail_next("flush")
    store.flush(seen.append, inline=False)
    store.flush(seen.append, inline=False)
    last = await flush(store)
    assert isinstance(last, StorageError)
    assert seen == [last, last]


async def test_an_append_that_fails_under_a_running_sync_lets_nothing_be_acknowledged(
    machine: Machine, store: LogStore
) -> None:
    store.append(make_batch(0), 0, 1)
    running, waiting = asyncio.create_task(flush(store)), asyncio.create_task(flush(store))
    await asyncio.sleep(0)
    machine.fail_next("append")
    with pytest.raises(StorageError):
        store.append(make_batch(1), 1, 2)
    assert isinstance(await running, StorageError)
    assert isinstance(await waiting, StorageError)


async def test_a_closed_store_raises_and_calls_nobody(machine: Machine, store: LogStore) -> None:
    seen: list[object] = []
    store.append(make_batch(0), 0, 1)
    store.flush(seen.append, inline=False)
    store.write_vote(VOTE, lambda _: None)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.append(make_batch(1), 1, 2)
    store, found = machine.open()
    assert (found.end_offset, found.vote) == (1, VOTE)
    assert await flush(store) == 1
    assert seen == []
    store.close()


async def test_recover_comes_first_and_once(machine: Machine, store: LogStore) -> None:
    with pytest.raises(ValueError, match="recover"):
        store.recover()
