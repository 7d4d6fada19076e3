"""A standby that is far behind lets the new leader claim first, and never waits for long."""

from controller.service.claim_watch import CLAIM_MAX_S, FAR_BEHIND_RECORDS, ClaimWatch

FAR = FAR_BEHIND_RECORDS


def test_it_waits_while_a_new_leader_may_be_claiming() -> None:
    watch = ClaimWatch()
    assert not watch.waits(FAR, 5.0)
    watch.leader_changed(elected=True, now=5.0)
    watch.committed(100)
    assert watch.waits(FAR, 5.0)
    assert watch.waits(FAR, 5.0 + CLAIM_MAX_S - 0.01)
    assert not watch.waits(FAR, 5.0 + CLAIM_MAX_S)


def test_it_does_not_wait_for_a_leader_that_decides() -> None:
    watch = ClaimWatch()
    watch.leader_changed(elected=True, now=5.0)
    watch.committed(100)
    watch.committed(100)
    assert watch.waits(FAR, 5.1)
    watch.committed(101)
    assert not watch.waits(FAR, 5.1)
    watch.leader_changed(elected=False, now=6.0)
    assert not watch.waits(FAR, 6.0)


def test_it_waits_with_nothing_that_is_done_at_once() -> None:
    watch = ClaimWatch()
    watch.leader_changed(elected=True, now=5.0)
    assert not watch.waits(FAR - 1, 5.0)


def test_a_leader_that_is_lost_is_not_waited_for() -> None:
    watch = ClaimWatch()
    watch.leader_changed(elected=True, now=5.0)
    watch.leader_changed(elected=False, now=5.1)
    assert not watch.waits(FAR, 5.1)
