"""The choice of a successor, and the conditions for resigning."""

import pytest
from deciding import Cell

from controller.decisions.quorum.transfer import LIVE_WITHIN_MS, Transfer, best_successor
from controller.disk.space import (
    CHECK_EVERY_S,
    ENOUGH_FACTOR,
    FINE,
    TRANSFER_EVERY_S,
    SpaceWatch,
    effective_reserve_bytes,
)
from raftlog.errors import ErrorCode
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc


def replica(
    node_id: int, end: int = 9, *, fetched: int = 10, low: bool = False
) -> ReplicaDescription:
    return ReplicaDescription(node_id, f"d{node_id}", end, fetched, fetched, 2, low)


def quorum(*voters: ReplicaDescription, end: int = 9, high_watermark: int = 9) -> QuorumDescription:
    return QuorumDescription(
        "leader", 1, 1, 1, 0, end, end, high_watermark, 0, (replica(1, end), *voters), ()
    )


def ask(seen: QuorumDescription, target: int) -> object:
    cell = Cell(0, quorum=lambda _: seen)
    decision = cell.decide(rpc.TransferLeadershipRequest(target_id=target))
    assert decision.records == []
    if decision.error is not None:
        return decision.error.code
    return decision.transfer_to


def test_successor_with_the_longest_log_is_preferred_and_one_with_a_full_disk_comes_last() -> None:
    assert best_successor(quorum(replica(2, 8), replica(3, 9)), 1) == 3
    assert best_successor(quorum(replica(2, 9), replica(3, 9)), 1) == 2
    assert best_successor(quorum(replica(2, 9, fetched=LIVE_WITHIN_MS + 1), replica(3, 5)), 1) == 3
    assert best_successor(quorum(replica(2, 9, fetched=-1)), 1) == -1
    assert best_successor(quorum(), 1) == -1
    assert best_successor(quorum(replica(2, 9, low=True), replica(3, 5)), 1) == 3
    assert best_successor(quorum(replica(2, 9, low=True)), 1) == 2


def test_transfers_without_a_valid_target_are_refused() -> None:
    seen = quorum(replica(2), replica(3, fetched=-1))
    assert ask(seen, 2) == 2
    assert ask(seen, -1) == 2
    assert ask(seen, 1) is None, "it leads already"
    assert ask(seen, 4) == ErrorCode.VOTER_NOT_FOUND
    assert ask(seen, 3) == ErrorCode.REQUEST_TIMED_OUT
    assert ask(quorum(), -1) == ErrorCode.REQUEST_TIMED_OUT


def test_node_low_on_space_receives_no_leadership() -> None:
    """Such a node waits for others to lead: until one does, there would be no leader."""
    seen = quorum(replica(2, low=True), replica(3))
    assert ask(seen, 2) == ErrorCode.KAFKA_STORAGE_ERROR
    assert ask(seen, 3) == ask(seen, -1) == 3
    full = quorum(replica(2, low=True), replica(3, low=True))
    assert ask(full, 3) == ask(full, -1) == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    ("end", "committed", "target_end", "may"),
    [(9, 9, 9, True), (9, 8, 9, False), (9, 9, 8, False), (9, -1, 9, False), (9, 9, -1, False)],
)
def test_leader_resigns_only_when_all_is_committed_and_replicated_to_the_target(
    end: int, committed: int, target_end: int, may: bool
) -> None:
    seen = quorum(replica(2, target_end), replica(3), end=end, high_watermark=committed)
    transfer = Transfer(2, "", 0.0)
    assert transfer.may_resign(seen) is may
    assert "node 2 has the log up to" in transfer.why_not(seen)
    removed = Transfer(4, "", 0.0)
    assert not removed.may_resign(seen)
    assert "no longer a voter" in removed.why_not(seen)


@pytest.mark.parametrize(
    ("fetched_ms_ago", "end", "named_s", "awaited"),
    [
        (20, 9, 0.06, True),
        (20, 8, 0.06, False),
        (-1, 9, 0.06, False),
        # It fetched in the same moment, and up to a millisecond before: its age is rounded down.
        (60, 9, 0.06, False),
        (60, 9, 0.060_000_000_000_000_005, False),
        (60, 9, 0.060_5, False),
        (60, 9, 0.061, True),
    ],
)
def test_target_awaits_leadership_once_it_has_fetched_since_it_was_named(
    fetched_ms_ago: int, end: int, named_s: float, awaited: bool
) -> None:
    seen = quorum(replica(2, end, fetched=fetched_ms_ago), replica(3))
    assert Transfer(2, "", 0.0).is_awaited(seen, named_s) is awaited


# --- What a leader does when disks fill up -------------------------------------------------------


def quorum_with_space(*low: int, voters: int = 3, dead: tuple[int, ...] = ()) -> QuorumDescription:
    replicas = tuple(
        ReplicaDescription(i, f"d{i}", 9, 5000 if i in dead else 0, 0, 2, i in low)
        for i in range(1, voters + 1)
    )
    return QuorumDescription("leader", 1, 1, 1, 0, 9, 9, 9, 0, replicas, ())


def watch(*, low: bool) -> SpaceWatch:
    made = SpaceWatch(100)
    assert made.measured(0 if low else 100) is low
    return made


def test_disk_is_checked_periodically() -> None:
    made = SpaceWatch(100)
    assert [made.due(5.0), made.due(5.0), made.due(5.0 + CHECK_EVERY_S)] == [True, False, True]
    assert not SpaceWatch(0).due(5.0)


def test_space_counts_as_free_again_only_with_a_margin() -> None:
    made = SpaceWatch(100)
    assert int(100 * ENOUGH_FACTOR) == 125
    seen = [(made.measured(free), made.low) for free in (100, 99, 100, 125, 100)]
    assert seen == [(False, False), (True, True), (False, True), (True, False), (False, False)]


def test_reserve_is_small_on_a_small_disk() -> None:
    assert effective_reserve_bytes(256 << 20, 100 << 30) == 256 << 20
    assert effective_reserve_bytes(256 << 20, 1 << 30) == (1 << 30) // 20


def test_leader_without_space_transfers_to_a_voter_with_space() -> None:
    made = watch(low=True)
    assert made.judge(quorum_with_space(), 1, 0.0).transfer_to == 2
    assert made.judge(quorum_with_space(), 1, 1.0) == FINE, "not again at once"
    assert made.judge(quorum_with_space(), 1, TRANSFER_EVERY_S).transfer_to == 2
    made = watch(low=True)
    assert made.judge(quorum_with_space(voters=5, dead=(2, 3)), 1, 0.0).transfer_to == 4


def test_leader_without_space_and_without_a_successor_refuses_writes() -> None:
    made = watch(low=True)
    verdict = made.judge(quorum_with_space(dead=(2, 3)), 1, 0.0)
    assert "node 1" in verdict.refusal
    assert verdict.transfer_to == -1
    assert watch(low=True).judge(quorum_with_space(voters=1), 1, 0.0).refusal
    # Its own disk counts as it has measured it.
    assert "[1, 2]" in watch(low=True).judge(quorum_with_space(2), 1, 0.0).refusal


@pytest.mark.parametrize(
    ("voters", "low", "refused"),
    [
        (3, (2, 3), True),
        (3, (3,), False),
        (5, (3, 4), False),
        (5, (3, 4, 5), True),
        (4, (3, 4), True),
        (1, (), False),
    ],
)
def test_writes_are_refused_while_voters_with_space_are_not_a_majority(
    voters: int, low: tuple[int, ...], refused: bool
) -> None:
    made = watch(low=False)
    verdict = made.judge(quorum_with_space(*low, voters=voters), 1, 0.0)
    assert verdict == FINE or refused, "the full disk of a minority stops nothing"
    assert (str(list(low)) in verdict.refusal) is refused
    assert made.judge(quorum_with_space(voters=voters), 1, 1.0) == FINE
    assert made.verdict == FINE
