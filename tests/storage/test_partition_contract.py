"""What every PartitionStore promises, asked of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from partition_kit import (
    A0,
    A1,
    B7,
    KEYS,
    LAST,
    Machine,
    RocksMachine,
    SimMachine,
    ends,
    flush,
    whole,
)
from storage_kit import make_batch, make_chunk

from raftlog.errors import FatalError, StorageError
from raftlog.node.storage.partition_api import PartitionKey, PartitionStore
from simulation.twins.disk_hardware import Operation


@pytest.fixture(params=["rocks", "sim"])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    return SimMachine() if request.param == "sim" else RocksMachine(tmp_path / "data", monkeypatch)


@pytest.fixture
async def store(machine: Machine) -> AsyncIterator[PartitionStore]:
    store, _ = machine.open()
    yield store
    store.close()


async def test_a_new_store_holds_nothing(machine: Machine) -> None:
    store, found = machine.open()
    assert found == ()
    assert store.read(A0, 0, until=0, max_bytes=100) == b""
    assert store.free_bytes() > 0
    assert await flush(store) is None
    store.close()


async def test_replicas_are_logs_of_their_own_and_are_all_found_again(
    machine: Machine, store: PartitionStore
) -> None:
    expected: dict[PartitionKey, bytes] = {}
    for n, key in enumerate(KEYS, start=1):
        chunks = [
            make_chunk(0, n, body=b"first %d " % n),
            make_chunk(n, 2, 1, epoch=n + 1, body=b"second %d " % n),
        ]
        store.append(key, chunks[0], 0, n)
        store.append(key, chunks[1], n, n + 3)
        expected[key] = b"".join(chunks)
    for n, key in enumerate(KEYS, start=1):
        assert whole(store, key, n + 3) == expected[key], "readable at once"
    assert await flush(store) is None
    store.close()
    store, found = machine.open()
    assert [(one.key, one.start_offset, one.end_offset, one.epochs) for one in found] == [
        (key, 0, n + 3, ((1, 0), (n + 1, n))) for n, key in enumerate(KEYS, start=1)
    ], "ordered by topic id and index"
    for n, key in enumerate(KEYS, start=1):
        assert whole(store, key, n + 3) == expected[key]
        store.append(key, make_batch(n + 3, epoch=n + 1), n + 3, n + 4)
    store.close()


async def test_read_gives_whole_batches_within_its_bounds(store: PartitionStore) -> None:
    batches = [make_batch(0), make_batch(1, 2), make_batch(3), make_batch(4)]
    for key in KEYS:
        store.append(key, batches[0] + batches[1], 0, 3)
        store.append(key, batches[2] + batches[3], 3, 5)
    size = len(batches[1])
    for key in KEYS:
        assert store.read(key, 1, until=5, max_bytes=0) == batches[1]
        assert store.read(key, 1, until=5, max_bytes=size) == batches[1]
        assert (
            store.read(key, 1, until=5, max_bytes=size + len(batches[2])) == batches[1] + batches[2]
        )
        assert store.read(key, 1, until=4, max_bytes=1 << 20) == batches[1] + batches[2]
        assert store.read(key, 0, until=3, max_bytes=1 << 20) == batches[0] + batches[1]
        assert store.read(key, 4, until=5, max_bytes=1 << 20) == batches[3]
        assert store.read(key, 2, until=4, max_bytes=1 << 20) == batches[1] + batches[2], (
            "offset 2 is inside a batch"
        )
        assert store.read(key, 2, until=5, max_bytes=0) == batches[1]
        assert store.read(key, 5, until=5, max_bytes=1 << 20) == b""


@pytest.mark.parametrize(("offset", "until"), [(1, 2), (-1, 3), (0, 6), (6, 6), (4, 3)])
async def test_read_refuses_what_is_no_boundary_of_the_replica(
    store: PartitionStore, offset: int, until: int
) -> None:
    for key in (A0, A1):
        store.append(key, make_chunk(0, 1, 2), 0, 3)
        store.append(key, make_chunk(3, 1, 1), 3, 5)
    store.append(A1, make_chunk(5, 5), 5, 10)
    with pytest.raises(ValueError, match=r"boundary|is \[0, 5\)"):
        store.read(A0, offset, until=until, max_bytes=1 << 20)
    assert len(whole(store, A0, 5)) > 0, "a bad argument does not break the store"


async def test_append_must_be_at_the_replicas_end(store: PartitionStore) -> None:
    store.append(A0, make_batch(0), 0, 1)
    for base, end in ((0, 1), (2, 3), (1, 1)):
        with pytest.raises(ValueError, match=f"append.*topic {A0[0].hex()}, which ends at 1"):
            store.append(A0, make_batch(base), base, end)
    with pytest.raises(ValueError, match="which ends at 0"):
        store.append(A1, make_batch(1), 1, 2)


@pytest.mark.parametrize("end", [0, 1, 3, 4, 6])
@pytest.mark.parametrize("key", [A0, B7, LAST])
async def test_truncate_drops_the_rest_of_one_replica_and_nothing_else(
    machine: Machine, store: PartitionStore, key: PartitionKey, end: int
) -> None:
    batches = {0: make_batch(0), 1: make_batch(1, 2), 3: make_batch(3), 4: make_batch(4, 2)}
    for one in KEYS:
        store.append(one, batches[0] + batches[1], 0, 3)
        store.append(one, batches[3] + batches[4], 3, 6)
    assert await flush(store) is None
    store.truncate(key, end)
    expected = b"".join(bytes_ for base, bytes_ in batches.items() if base < end)
    assert whole(store, key, end) == expected
    new = make_batch(end, 3, epoch=9)
    store.append(key, new, end, end + 3)
    assert await flush(store) is None
    store.close()
    store, found = machine.open()
    assert ends(found) == {one: end + 3 if one == key else 6 for one in KEYS}
    for one in KEYS:
        assert whole(store, one, ends(found)[one]) == (
            expected + new if one == key else b"".join(batches.values())
        )
    store.close()


@pytest.mark.parametrize("end", [-1, 2, 7])
async def test_a_refused_truncate_changes_nothing(store: PartitionStore, end: int) -> None:
    chunks = make_chunk(0, 1, 2), make_chunk(3, 3)
    store.append(A0, chunks[0], 0, 3)
    store.append(A0, chunks[1], 3, 6)
    with pytest.raises(ValueError, match=r"boundary|is \[0, 6\)"):
        store.truncate(A0, end)
    assert whole(store, A0, 6) == b"".join(chunks)


async def test_a_replica_without_a_record_is_not_found_again_and_begins_anew(
    machine: Machine, store: PartitionStore
) -> None:
    for key in KEYS:
        store.append(key, make_chunk(0, 3), 0, 3)
    store.truncate(A0, 0)
    store.delete(B7)
    store.delete((b"c" * 16, 3))
    with pytest.raises(ValueError, match=r"is \[0, 0\)"):
        store.read(B7, 0, until=3, max_bytes=1)
    assert await flush(store) is None
    store.close()
    store, found = machine.open()
    assert ends(found) == {A1: 3, LAST: 3}
    for key in (A0, B7):
        store.append(key, make_batch(0, epoch=4), 0, 1)
        assert whole(store, key, 1) == make_batch(0, epoch=4)
    assert whole(store, A1, 3) == whole(store, LAST, 3) == make_chunk(0, 3)
    store.close()


async def test_flushes_report_in_order_and_once(store: PartitionStore) -> None:
    seen: list[tuple[str, StorageError | None]] = []
    for i in range(20):
        store.append(KEYS[i % 4], make_batch(i // 4), i // 4, i // 4 + 1)
        store.flush(partial(lambda i, error: seen.append((f"f{i}", error)), i), inline=i % 3 == 0)
    assert await flush(store) is None
    assert seen == [(f"f{i}", None) for i in range(20)]


async def test_a_flush_asked_for_by_a_report_comes_after_the_other_reports(
    store: PartitionStore,
) -> None:
    seen: list[str] = []

    def first(_: StorageError | None) -> None:
        seen.append("first")
        store.flush(lambda _: seen.append("nested"), inline=True)

    store.append(A0, make_batch(0), 0, 1)
    store.flush(lambda _: None, inline=False)
    store.flush(first, inline=False)
    store.flush(lambda _: seen.append("second"), inline=False)
    await flush(store)
    await flush(store)
    assert seen == ["first", "second", "nested"]


@pytest.mark.parametrize("operation", ["append", "flush"])
async def test_after_an_error_every_call_raises_it(
    machine: Machine, store: PartitionStore, operation: Operation
) -> None:
    store.append(A0, make_batch(0), 0, 1)
    machine.fail_next(operation)
    if operation == "append":
        with pytest.raises(StorageError) as caught:
            store.append(A1, make_batch(0), 0, 1)
        error: object = caught.value
    else:
        error = await flush(store)
    assert isinstance(error, StorageError)
    assert "injected" in str(error)
    calls = (
        lambda: store.append(A0, make_batch(1), 1, 2),
        lambda: store.flush(lambda _: None, inline=True),
        lambda: store.truncate(A0, 0),
        lambda: store.read(A0, 0, until=1, max_bytes=1),
        lambda: store.delete(A0),
    )
    for call in calls:
        with pytest.raises(FatalError) as again:
            call()
        assert again.value is error


async def test_a_failed_sync_fails_every_flush_that_waits(
    machine: Machine, store: PartitionStore
) -> None:
    store.append(A0, make_batch(0), 0, 1)
    seen: list[StorageError | None] = []
    machine.fail_next("flush")
    store.flush(seen.append, inline=False)
    store.flush(seen.append, inline=False)
    last = await flush(store)
    assert isinstance(last, StorageError)
    assert seen == [last, last]


async def test_an_append_that_fails_under_a_running_sync_lets_nothing_be_acknowledged(
    machine: Machine, store: PartitionStore
) -> None:
    store.append(A0, make_batch(0), 0, 1)
    running, waiting = asyncio.create_task(flush(store)), asyncio.create_task(flush(store))
    await asyncio.sleep(0)
    machine.fail_next("append")
    with pytest.raises(StorageError):
        store.append(B7, make_batch(0), 0, 1)
    assert isinstance(await running, StorageError)
    assert isinstance(await waiting, StorageError)


async def test_a_closed_store_raises_and_calls_nobody(
    machine: Machine, store: PartitionStore
) -> None:
    seen: list[object] = []
    store.append(A0, make_batch(0), 0, 1)
    store.flush(seen.append, inline=False)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.append(A0, make_batch(1), 1, 2)
    store, found = machine.open()
    assert ends(found) == {A0: 1}
    assert await flush(store) is None
    assert seen == []
    store.close()


async def test_recover_comes_first_and_once(store: PartitionStore) -> None:
    with pytest.raises(ValueError, match="recover"):
        store.recover()
