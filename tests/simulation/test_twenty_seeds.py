"""A few swarm runs, nine in the gate. Three hundred are in ``test_seeds.py``, nightly."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest
from tiers import in_gate

from simulation.checks.suite import all_checkers
from simulation.run import run_swarm

SEEDS = range(20)
IN_GATE = (1, 2, 3, 6, 9, 11, 16, 18, 19)
"""Little CPU, and between them every check has looked at something."""

WITH_A_SCENE = {"BrokerSpace", "Replacements", "SetBack"}
"""Checkers of what seeds seldom show: ``test_fault_scenarios.py`` and ``test_checkers_at_work.py`` ask
what they have looked at."""

lived = cache(run_swarm)


@pytest.mark.parametrize("seed", in_gate(SEEDS, IN_GATE))
def test_all_promises_hold_for_each_seed(seed: int) -> None:
    assert lived(seed).failure is None


def of_all(seeds: Sequence[int]) -> tuple[Counter[str], Counter[str]]:
    """Return the sums of all checks' counters and of clients' operations."""
    looked_at: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for seed in seeds:
        looked_at.update(lived(seed).looked_at)
        done.update(lived(seed).operations)
    for name in ("write_config ok", "read_config ok", "produce ok", "consumed"):
        assert done[name] > 10 * len(seeds), name
    return looked_at, done


def test_no_checker_is_idle_and_clients_have_written_and_read() -> None:
    looked_at, _ = of_all(IN_GATE)
    assert {what.partition(".")[0] for what, found in looked_at.items() if found} >= {
        type(checker).__name__ for checker in all_checkers()
    } - WITH_A_SCENE


@pytest.mark.nightly
def test_every_check_without_a_scenario_has_something_to_check() -> None:
    looked_at, _ = of_all(SEEDS)
    idle = {what for what, found in looked_at.items() if not found}
    assert {what for what in idle if what.partition(".")[0] not in WITH_A_SCENE} == set()
