"""What is taken is what there is room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.bounds import Shares

TOTAL = 20


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.booleans())))
def test_to_take_and_to_ask_are_one_rule(steps: list[tuple[str, int, bool]]) -> None:
    shares = Shares(TOTAL)
    held: dict[str, int] = {}
    for holder, amount, back in steps:
        if back and held.get(holder, 0) >= amount:
            shares.give_back(holder, amount)
            held[holder] -= amount
        room = shares.has_room(holder, amount)
        assert shares.take(holder, amount) is room
        held[holder] = held.get(holder, 0) + amount * room
        assert shares.total == sum(held.values()) <= TOTAL
        assert all(shares.held(one) == count for one, count in held.items())


def test_a_greedy_holder_leaves_as_much_for_others() -> None:
    shares = Shares(TOTAL)
    while shares.take("greedy"):
        pass
    assert shares.held("greedy") == TOTAL // 2
    assert shares.take("other", TOTAL // 2)
