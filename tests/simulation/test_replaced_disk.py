"""The race of KIP-903: with the epoch check nothing is lost; without it everything is, and the
checkers say so.
"""

import pytest

from raftlog.errors import ErrorCode
from simulation.checks.suite import all_checkers
from simulation.mutants.edits import Edit, edited
from simulation.replaced_disk import RECORDS, race

NO_CHECK = Edit(
    "controller.decisions.partitions.alter_partition:_ineligible",
    "if member.broker_epoch != broker.epoch and not (skip and member.broker_epoch =="
    " UNKNOWN_EPOCH):",
    "if False:",
)


@pytest.mark.parametrize("seed", range(3))
def test_late_proposal_by_an_epoch_that_is_over_is_refused_and_nothing_is_lost(seed: int) -> None:
    found = race(seed, all_checkers())
    assert found.failure is None
    assert ErrorCode.INELIGIBLE_REPLICA.name in found.answers
    assert found.isr_after == (201,)
    assert found.leaders == [-1, 201], "nobody leads until the one comes back that has everything"
    assert len(found.acknowledged) == 2 * RECORDS
    assert found.lost == []


def test_without_the_check_all_that_was_acknowledged_is_lost() -> None:
    with edited([NO_CHECK]):
        found = race()
    assert found.failure is None
    assert ErrorCode.INELIGIBLE_REPLICA.name not in found.answers
    assert set(found.isr_after) == {201, 202}
    assert found.leaders[0] == 202, "the empty disk leads"
    assert len(found.lost) == 2 * RECORDS


def test_without_the_check_the_checkers_notice_when_the_isr_is_committed() -> None:
    with edited([NO_CHECK]):
        found = race(1, all_checkers())
    assert "I21" in str(found.failure) or "I24" in str(found.failure)
