"""A few swarm runs, each a test of its own: all promises hold. Three hundred of them are in ``test_seeds.py``, nightly."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import structlog

from simulation.cli import silence
from simulation.report import as_dict
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


def test_clients_have_written_and_read() -> None:
    done: dict[str, int] = {}
    for seed in SEEDS:
        for name, count in as_dict(lived(seed))["operations"].items():
            done[name] = done.get(name, 0) + count
    for name in ("write_config ok", "read_config ok", "produce ok", "consumed"):
        assert done[name] > 10 * len(SEEDS), name
