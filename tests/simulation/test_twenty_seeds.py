"""A few swarm runs, each a test of its own: all promises hold.

Three hundred of them are in ``test_seeds.py``, nightly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
import structlog

from simulation.checks.suite import all_checkers
from simulation.cli import silence
from simulation.world import run_swarm

SEEDS = range(20)

lived = cache(run_swarm)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_promises_hold(seed: int) -> None:
    assert lived(seed).failure is None


def test_no_check_is_idle_and_clients_have_written_and_read() -> None:
    looked_at: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for seed in SEEDS:
        looked_at.update(lived(seed).looked_at)
        done.update(lived(seed).operations)
    assert {what.partition(".")[0] for what in looked_at} >= {
        type(checker).__name__ for checker in all_checkers()
    }
    assert {what for what, found in looked_at.items() if not found} == set()
    for name in ("write_config ok", "read_config ok", "produce ok", "consumed"):
        assert done[name] > 10 * len(SEEDS), name
