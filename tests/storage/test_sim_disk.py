from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit import LATE_VOTE, flush, make_batch, sim_disk, whole, write_vote

from raftlog.errors import StorageError
from raftlog.node.storage.api import RecoveredLog, VoteState
from simulation.twins.disk import SimDisk, SimLogStore


def opened(disk: SimDisk) -> tuple[SimLogStore, RecoveredLog]:
    store = disk.open()
    return store, store.recover()


async def crash_after_two_syncs(seed: int) -> tuple[bytes, int]:
    """Ten batches, four of them synced, then a crash; return the remaining log and its end."""
    disk = sim_disk()
    store, _ = opened(disk)
    for i in range(4):
        store.append(make_batch(i), i, i + 1)
    assert await flush(store) == 4
    for i in range(4, 10):
        store.append(make_batch(i), i, i + 1)
    store.flush(lambda _: pytest.fail("a crashed store calls nobody"), inline=True)
    disk.crash(Random(seed))
    with pytest.raises(StorageError, match="crashed"):
        store.read(0, until=1, max_bytes=1)
    store, found = opened(disk)
    return whole(store, found.end_offset), found.end_offset


async def test_crash_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
    ends = set()
    for seed in range(60):
        content, end = await crash_after_two_syncs(seed)
        assert content == b"".join(make_batch(i) for i in range(end))
        ends.add(end)
    assert ends == set(range(4, 11))


async def test_crash_keeps_the_written_vote_or_a_later_one() -> None:
    seen = set()
    for seed in range(30):
        disk = sim_disk()
        store, _ = opened(disk)
        assert await write_vote(store, VoteState(epoch=1)) is None
        for epoch in (2, 3):
            store.write_vote(
                VoteState(epoch=epoch), lambda _: pytest.fail("a crashed store calls nobody")
            )
        disk.crash(Random(seed))
        seen.add(opened(disk)[1].vote.epoch)
    assert seen == {1, 2, 3}


async def test_failed_sync_makes_nothing_durable() -> None:
    ends = set()
    for seed in range(10):
        disk = sim_disk()
        store, _ = opened(disk)
        store.append(make_batch(0), 0, 1)
        disk.fail_next("flush")
        assert isinstance(await flush(store), StorageError)
        disk.crash(Random(seed))
        ends.add(opened(disk)[1].end_offset)
    assert ends == {0, 1}


async def test_failed_vote_is_not_replayed_later() -> None:
    disk = sim_disk()
    store, _ = opened(disk)
    disk.fail_next("write_vote")
    assert isinstance(await write_vote(store, VoteState(epoch=1)), StorageError)
    store.close()
    store, found = opened(disk)
    assert found.vote == LATE_VOTE
    assert await write_vote(store, VoteState(epoch=2)) is None
    store.close()
    assert opened(disk)[1].vote == VoteState(epoch=2)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 99), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
async def test_simulated_disk_agrees_with_a_list(operations: list[tuple[str, int, int]]) -> None:
    """Batches and durable ones in lists; a crash ends in a state since the last sync."""
    disk = sim_disk()
    store, _ = opened(disk)
    ends: list[tuple[int, bytes]] = []
    states: list[list[tuple[int, bytes]]] = [[]]
    epoch = 1
    for name, a, b in operations:
        end = ends[-1][0] if ends else 0
        if name == "append":
            chunk = b""
            for _ in range(b):
                batch = make_batch(end, a, epoch=epoch)
                chunk, end = chunk + batch, end + a
                ends.append((end, batch))
            store.append(chunk, end - a * b, end)
        elif name == "truncate":
            ends = ends[: max(len(ends) - a, 0)]
            store.truncate(ends[-1][0] if ends else 0)
            epoch += 1
        elif name == "flush":
            assert await flush(store) == end
            states = []
        else:
            disk.crash(Random(a))
            store, found = opened(disk)
            content = whole(store, found.end_offset)
            ends = next(
                state for state in states if b"".join(batch for _, batch in state) == content
            )
            states = []
        states.append(list(ends))
        assert whole(store, ends[-1][0] if ends else 0) == b"".join(batch for _, batch in ends)
