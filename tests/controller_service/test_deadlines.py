"""Whose time is up is found without looking at all that wait."""

from __future__ import annotations

from dataclasses import dataclass

from controller.service.intake import SLACK, Deadlines


@dataclass(eq=False)
class One:
    deadline: float
    done: bool = False
    looks: int = 0

    def __getattribute__(self, name: str) -> object:
        if name in ("deadline", "done"):
            object.__setattr__(self, "looks", object.__getattribute__(self, "looks") + 1)
        return object.__getattribute__(self, name)


def late(deadlines: Deadlines[One], now: float, waiting: int, most: int = 1 << 30) -> list[One]:
    found = []
    for one in deadlines.late(now, waiting):
        one.done = True
        found.append(one)
        if len(found) == most:
            break
    return found


def test_in_order_of_their_deadlines_each_once_and_none_that_is_done() -> None:
    deadlines: Deadlines[One] = Deadlines()
    ones = [One(at) for at in (5.0, 1.0, 3.0, 1.0, 2.0)]
    for one in ones:
        deadlines.add(one)
    ones[2].done = True
    assert late(deadlines, 0.9, 4) == []
    assert late(deadlines, 1.0, 4) == [ones[1], ones[3]]
    ones[4].done = True
    assert late(deadlines, 9.0, 1) == [ones[0]]
    assert len(deadlines) == 0


def test_whoever_stops_in_between_goes_on_with_the_next_call() -> None:
    deadlines: Deadlines[One] = Deadlines()
    ones = [One(1.0) for _ in range(10)]
    for one in ones:
        deadlines.add(one)
    assert late(deadlines, 2.0, 10, most=4) == ones[:4]
    deadlines.add(another := One(0.5))
    assert late(deadlines, 2.0, 7, most=4) == [another, *ones[4:7]]
    assert late(deadlines, 2.0, 3) == ones[7:]


def test_those_that_wait_are_not_looked_at_again_each_time() -> None:
    """[65,536 requests wait for 30 s: each of ten looks a second at all of them took a quarter of
    the leader's time]
    """
    deadlines: Deadlines[One] = Deadlines()
    ones = [One(30.0) for _ in range(2_000)]
    for one in ones:
        deadlines.add(one)
    for tick in range(100):
        assert late(deadlines, tick / 10, len(ones)) == []
    assert max(one.looks for one in ones) < 5


def test_what_is_done_does_not_pile_up() -> None:
    deadlines: Deadlines[One] = Deadlines()
    for _ in range(20):
        ones = [One(300.0) for _ in range(SLACK)]
        for one in ones:
            deadlines.add(one)
        assert late(deadlines, 1.0, SLACK) == []
        for one in ones:
            one.done = True
    assert late(deadlines, 1.0, 0) == []
    assert len(deadlines) <= SLACK
