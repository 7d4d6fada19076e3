"""A node's time: its own clock, bounded by those of a majority of the voters."""

from __future__ import annotations

import pytest

from raftlog import clock

NOON_MS = 1_700_000_000_000
YEARS_MS = 10 * 365 * 86_400_000
VOTERS = (1, 2, 3)


class Node:
    """Node 1 with its monotonic clock."""

    def __init__(self) -> None:
        self.now = 50.0
        self.off_ms = 0
        """Error of its own clock, in ms."""
        self.time = clock.QuorumTime(lambda: self.at(self.off_ms), lambda: self.now, 1)

    def at(self, off_ms: int) -> int:
        return NOON_MS + round(self.now * 1000) + off_ms

    def hear(self, **off_ms: int) -> Node:
        for name, off in off_ms.items():
            self.time.heard(int(name.removeprefix("node_")), self.at(off))
        self.now += 2 * clock.AGAIN_S
        return self


@pytest.mark.parametrize(
    ("own_ms", "second_ms", "third_ms", "used_ms"),
    [
        (300, 0, -200, 300),
        (YEARS_MS, 0, 100, 100 + clock.TOLERANCE_MS),
        (-YEARS_MS, 0, 100, -clock.TOLERANCE_MS),
        (0, YEARS_MS, 0, 0),
        (0, -YEARS_MS, -YEARS_MS, -YEARS_MS + clock.TOLERANCE_MS),
    ],
)
def test_leader_bounds_its_clock_by_the_majoritys(
    own_ms: int, second_ms: int, third_ms: int, used_ms: int
) -> None:
    node = Node()
    node.off_ms = own_ms
    node.hear(node_2=second_ms, node_3=third_ms)
    assert node.time.now_ms(VOTERS) == node.at(used_ms)


def test_majority_time_of_two_voters_is_the_lower_one() -> None:
    node = Node()
    node.off_ms = YEARS_MS
    node.hear(node_2=0)
    assert node.time.majority(VOTERS) == clock.Majority(node.at(0), node.at(YEARS_MS))


def test_majority_time_comes_from_the_present_voters() -> None:
    """[Two voters were removed within 100 ms: a batch had the time of a majority of former voters.]"""
    node = Node()
    node.off_ms = YEARS_MS
    node.hear(node_2=0, node_3=YEARS_MS)
    assert node.time.majority(VOTERS) == clock.Majority(node.at(YEARS_MS), node.at(YEARS_MS))
    assert node.time.majority((1, 2)) == clock.Majority(node.at(0), node.at(YEARS_MS))


def test_clock_of_a_silent_voter_does_not_count() -> None:
    node = Node().hear(node_2=0, node_3=-5_000, node_4=YEARS_MS)
    assert node.time.majority(VOTERS) == clock.Majority(node.at(0), node.at(0))
    node.now += clock.HEARD_FOR_S / 2
    node.hear(node_3=-5_000)
    assert node.time.majority(VOTERS) == clock.Majority(node.at(0), node.at(0))
    node.now += clock.HEARD_FOR_S / 2
    assert node.time.majority(VOTERS) == clock.Majority(node.at(-5_000), node.at(0))
    node.now += clock.HEARD_FOR_S
    assert node.time.majority(VOTERS) is None


def test_only_voter_uses_its_own_clock() -> None:
    node = Node()
    node.off_ms = YEARS_MS
    assert node.time.now_ms((1,)) == node.at(YEARS_MS)


def test_follower_uses_the_received_time_until_that_is_old() -> None:
    node = Node()
    node.off_ms = -YEARS_MS
    assert (node.time.now_ms(), node.time.ahead_ms()) == (node.at(-YEARS_MS), None)
    node.time.received(node.at(0))
    node.now += 300.0
    assert node.time.now_ms() == node.at(-clock.TOLERANCE_MS)
    assert node.time.ahead_ms() == -YEARS_MS
    node.now += clock.RECEIVED_FOR_S
    assert node.time.now_ms() == node.at(-YEARS_MS)


@pytest.mark.parametrize("clock_ms", [0, -1, clock.MAX_MS + 1])
def test_impossible_clock_is_ignored(clock_ms: int) -> None:
    node = Node()
    node.time.received(clock_ms)
    node.time.heard(2, clock_ms)
    assert node.time.ahead_ms() is None
    assert node.time.majority(VOTERS) is None


def test_timestamps_repeat_while_slightly_ahead_and_go_back_when_far_ahead() -> None:
    assert clock.stamp_after(5_000, 6_000, 6_000) == 6_000
    assert (
        clock.stamp_after(5_000 + clock.STAND_STILL_MAX_MS, 5_000, 5_000)
        == 5_000 + clock.STAND_STILL_MAX_MS
    )
    assert clock.stamp_after(5_001 + clock.STAND_STILL_MAX_MS, 5_000, 5_000) == 5_000


def test_log_time_does_not_go_back_by_less_than_a_majority() -> None:
    node = Node()
    late_ms = node.at(YEARS_MS)
    assert node.time.next_stamp_ms(late_ms, VOTERS) == late_ms
    node.hear(node_2=YEARS_MS + 60_000)
    assert node.time.next_stamp_ms(late_ms, VOTERS) == late_ms, "one of two clocks has passed it"
    node.hear(node_3=0)
    assert node.time.next_stamp_ms(late_ms, VOTERS) == node.at(0)


@pytest.mark.parametrize(
    ("off_ms", "stamp_ms"), [(-10_000, -clock.TOLERANCE_MS), (10_000, clock.TOLERANCE_MS), (3, 3)]
)
def test_timestamp_is_the_own_clock_within_the_tolerance(off_ms: int, stamp_ms: int) -> None:
    node = Node().hear(node_2=0, node_3=0)
    node.off_ms = off_ms
    assert node.time.next_stamp_ms(0, VOTERS) == node.at(stamp_ms)


def test_first_timestamp_of_a_leader_is_bounded_by_its_predecessors_time() -> None:
    """It has received no clocks of voters yet."""
    node = Node()
    node.off_ms = YEARS_MS
    node.time.received(node.at(0))
    assert node.time.next_stamp_ms(0, VOTERS) == node.at(clock.TOLERANCE_MS)


def test_time_received_while_the_process_was_stopped_is_not_used() -> None:
    """[A paused leader reported that its clock was 7 s ahead, and dated its journal so.]"""
    node = Node()
    node.time.received(node.at(0))
    in_the_socket = node.at(0)
    node.now += 7
    node.time.received(in_the_socket)
    assert node.time.quorum_ms() == node.at(0)
    node.time.received(node.at(-200))
    assert node.time.quorum_ms() == node.at(-200)
    for _ in range(3):
        node.time.received(node.at(-5_000))
        assert node.time.quorum_ms() == node.at(-200), "it may have waited, too"
        node.now += clock.AWAY_S / 3
    node.time.received(node.at(-5_000))
    assert node.time.quorum_ms() == node.at(-5_000), "a majority that is set back is followed"
    node.hear(node_2=0, node_3=0).hear(node_2=-9_000, node_3=-9_000)
    assert node.time.majority(VOTERS) == clock.Majority(node.at(0), node.at(0))
