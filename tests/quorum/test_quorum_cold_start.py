"""A cluster that starts has a leader within the election timeout, two election round trips and 0.3
s, however far its voters are.

[A rival was waited for 10 to 40 ms, less than a round trip: of five far voters three campaigned in
each epoch, and split its votes alike each time, for ever]
"""

from __future__ import annotations

import pytest
from far_followers import TOPOLOGIES, cold_start

from raftlog.quorum.election_state import ElectionHints

SEEDS = 2
SPREADS_S = (0.0, 0.3, 2.0)
"""Of the times at which the voters start."""


def late(voters: int, silent: int, spreads_s: tuple[float, ...], *, led: bool) -> list[str]:
    """Those that were late. A needless election fails the test at once."""
    found = []
    for topology in TOPOLOGIES:
        for seed in range(SEEDS):
            for spread_s in spreads_s:
                for longest_s in (0.12, 0.2):
                    start = cold_start(topology, voters, silent, longest_s, spread_s, seed, led=led)
                    where = (
                        f"seed {seed}, {topology}, {longest_s} s, started within {spread_s} s:"
                        f" {start}"
                    )
                    assert start.needless == 0, where
                    if start.took_s > start.bound_s:
                        found.append(where)
    return found


@pytest.mark.parametrize(("voters", "silent"), [(3, 0), (3, 1), (5, 0), (5, 1), (5, 2)])
def test_a_new_cluster_has_a_leader_in_time(voters: int, silent: int) -> None:
    assert late(voters, silent, SPREADS_S, led=False) == []


@pytest.mark.parametrize(("voters", "silent"), [(3, 0), (3, 1), (5, 0), (5, 1), (5, 2)])
def test_a_cluster_that_was_stopped_has_a_leader_in_time(voters: int, silent: int) -> None:
    assert late(voters, silent, (0.0, 0.3), led=True) == []


# --- how long a rival goes first ----------------------------------------------------------------


def test_a_rival_goes_first_for_as_long_as_an_election_takes() -> None:
    hints = ElectionHints(0.5)
    hints.note_rival(1, 100.0, 0.02)
    assert hints.yields_until() == 100.02, "nobody has answered yet"
    hints.note_answer(2, 0.001)
    assert hints.yields_until() == 100.02, "a near cluster waits no longer than before"
    hints.note_answer(3, 0.2)
    assert hints.yields_until() == pytest.approx(100.6)
    assert hints.rivals(100.5) == {1}
    assert hints.rivals(100.7) == set()


def test_no_answer_however_late_makes_a_rival_go_first_for_longer_than_the_fetch_timeout() -> None:
    hints = ElectionHints(0.5)
    hints.note_rival(1, 100.0, 0.02)
    hints.note_answer(2, 30.0)
    assert hints.yields_until() == 101.0


def test_how_far_the_others_are_is_known_in_the_next_epoch_too() -> None:
    hints = ElectionHints(0.5)
    hints.note_answer(2, 0.1)
    hints.note_answer(3, 0.2)
    hints.clear()
    hints.note_rival(1, 100.0, 0.02)
    assert hints.yields_until() == pytest.approx(100.6)
    hints.forget(3)
    assert hints.yields_until() == pytest.approx(100.3), "whose process is gone answers no more"
