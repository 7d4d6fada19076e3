"""What a leader does when disks fill up: hand over, refuse, go on."""

from __future__ import annotations

import pytest

from controller.disk.space import (
    CHECK_EVERY_S,
    ENOUGH_FACTOR,
    FINE,
    TRANSFER_EVERY_S,
    SpaceWatch,
    effective_reserve_bytes,
)
from raftlog.quorum.core import QuorumDescription, ReplicaDescription


def quorum(*low: int, voters: int = 3, dead: tuple[int, ...] = ()) -> QuorumDescription:
    replicas = tuple(
        ReplicaDescription(i, f"d{i}", 9, 5000 if i in dead else 0, 0, 2, i in low)
        for i in range(1, voters + 1)
    )
    return QuorumDescription("leader", 1, 1, 1, 0, 9, 9, 9, 0, replicas, ())


def watch(*, low: bool) -> SpaceWatch:
    made = SpaceWatch(100)
    assert made.measured(0 if low else 100) is low
    return made


def test_the_disk_is_looked_at_now_and_then() -> None:
    made = SpaceWatch(100)
    assert [made.due(5.0), made.due(5.0), made.due(5.0 + CHECK_EVERY_S)] == [True, False, True]
    assert not SpaceWatch(0).due(5.0)


def test_space_has_come_back_only_with_some_to_spare() -> None:
    made = SpaceWatch(100)
    seen = [
        (free, made.measured(free), made.low)
        for free in (100, 99, 100, int(100 * ENOUGH_FACTOR), 100)
    ]
    assert seen == [
        (100, False, False),
        (99, True, True),
        (100, False, True),
        (125, True, False),
        (100, False, False),
    ]


def test_the_reserve_is_small_on_a_small_disk() -> None:
    assert effective_reserve_bytes(256 << 20, 100 << 30) == 256 << 20
    assert effective_reserve_bytes(256 << 20, 1 << 30) == (1 << 30) // 20


def test_a_full_disk_of_another_stops_nothing() -> None:
    assert watch(low=False).judge(quorum(2), 1, 0.0) == FINE


def test_a_leader_without_space_hands_over_to_one_with_space() -> None:
    made = watch(low=True)
    assert made.judge(quorum(), 1, 0.0).transfer_to == 2
    assert made.judge(quorum(), 1, 1.0) == FINE, "not again at once"
    assert made.judge(quorum(), 1, TRANSFER_EVERY_S).transfer_to == 2
    made = watch(low=True)
    assert made.judge(quorum(voters=5, dead=(2, 3)), 1, 0.0).transfer_to == 4


def test_a_leader_without_space_and_without_a_successor_refuses_writes() -> None:
    made = watch(low=True)
    verdict = made.judge(quorum(dead=(2, 3)), 1, 0.0)
    assert "node 1" in verdict.refusal
    assert verdict.transfer_to == -1
    verdict = watch(low=True).judge(quorum(voters=1), 1, 0.0)
    assert verdict.refusal


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
def test_writes_are_refused_while_those_with_space_are_no_majority(
    voters: int, low: tuple[int, ...], refused: bool
) -> None:
    made = watch(low=False)
    verdict = made.judge(quorum(*low, voters=voters), 1, 0.0)
    assert bool(verdict.refusal) is refused
    if refused:
        assert str(list(low)) in verdict.refusal
    assert made.judge(quorum(voters=voters), 1, 1.0) == FINE
    assert made.verdict == FINE


def test_the_leader_counts_itself_as_it_knows_itself() -> None:
    assert "[1, 2]" in watch(low=True).judge(quorum(2), 1, 0.0).refusal
