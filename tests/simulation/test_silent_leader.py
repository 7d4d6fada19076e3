"""A leader that hangs is replaced in time, with far followers, too, and no election is needless."""

import logging
from collections.abc import Iterator

import pytest
import structlog
from tiers import nightly

from raftlog.quorum import messages
from simulation.silent_leader import hang

SEEDS = 4, 12
"""In the gate, and at night."""
FORGETFUL_SEED = 20
"""Notices voters that forget who has asked them, which one in eight does."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def late(seeds: range) -> tuple[int, list[str]]:
    """How many leaders were replaced, and those that were replaced late. Raises what failed."""
    count, found = 0, []
    for seed in seeds:
        outcome, replaced = hang(seed)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        count += len(replaced.took_s)
        found += [f"seed {seed}: {one}" for one in replaced.late]
    return count, found


@pytest.mark.parametrize("seeds", [SEEDS[0], nightly(SEEDS[1])])
def test_every_silent_leader_is_replaced_in_time(seeds: int) -> None:
    count, found = late(range(seeds))
    assert found == []
    assert count > 3 * seeds


def test_voters_that_forget_who_asked_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_note_asker", lambda *_, **__: None)
    _, found = late(range(FORGETFUL_SEED, FORGETFUL_SEED + 1))
    assert found
