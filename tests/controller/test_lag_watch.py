"""Fencing of lagging brokers, and log lines about an LAO that does not advance."""

from collections.abc import Collection

from deciding import Cell

from controller.settings import ControllerSettings
from controller.state.liveness import LagWatch
from controller.visibility.progress import SAY_EVERY_S, HeldBack, LaoStall

LAG_S = 30.0


def _watch() -> LagWatch:
    return LagWatch(
        lag_max_s=LAG_S, probation_s=10, probation_max_s=40, session_timeout_s=9, now=0.0
    )


def _marked(committed_offset: int = 100) -> LagWatch:
    watch = _watch()
    watch.mark(0.0, committed_offset)
    return watch


def test_broker_lags_when_a_commit_older_than_the_maximum_lag_is_not_applied() -> None:
    watch = _marked()
    applied = {1: 99, 2: 100, 3: 500}
    assert watch.stuck(LAG_S - 0.1, applied, applied.__getitem__) is None
    assert watch.stuck(LAG_S, applied, applied.__getitem__) == 1
    applied[1] = 100
    assert watch.stuck(LAG_S, applied, applied.__getitem__) is None


def test_only_the_newest_mark_that_is_old_enough_counts() -> None:
    watch = _watch()
    for at, offset in ((0, 10), (10, 20), (20, 30), (30, 40)):
        watch.mark(float(at), offset)
    applied = {1: 15, 2: 99, 3: 99}
    assert watch.stuck(30.0, applied, applied.__getitem__) is None
    watch.mark(40.0, 50)
    assert watch.stuck(40.0, applied, applied.__getitem__) == 1
    assert watch.next_check == 40.0 + LAG_S / 8


def test_majority_of_brokers_never_counts_as_stuck() -> None:
    watch = _marked()
    for brokers, stuck in ((1, 1), (2, 2), (3, 2), (4, 3)):
        applied = {
            broker_id: 0 if broker_id <= stuck else 100 for broker_id in range(1, brokers + 1)
        }
        assert watch.stuck(LAG_S, applied, applied.__getitem__) is None
    applied = {1: 100, 2: 7, 3: 5, 4: 100}
    assert watch.stuck(LAG_S, applied, applied.__getitem__) == 3


def test_brokers_on_probation_count_as_lagging() -> None:
    """[Four of five lag: fenced one by one, each time the rest would look like a majority.]"""
    watch = _marked()
    watch.fenced(1, LAG_S)
    watch.fenced(2, LAG_S)
    applied = {3: 0, 4: 100, 5: 100}
    assert watch.stuck(LAG_S, applied, applied.__getitem__) is None
    assert watch.stuck(LAG_S + 11, applied, applied.__getitem__) == 3


def test_new_broker_has_time_to_catch_up() -> None:
    watch = _marked()
    applied = {1: 0, 2: 100, 3: 100}
    watch.unfenced(1, LAG_S - 1)
    assert watch.stuck(LAG_S + 1, applied, applied.__getitem__) is None
    assert watch.stuck(2 * LAG_S - 1, applied, applied.__getitem__) == 1


def test_probation_doubles_up_to_a_bound_and_resets_after_a_long_good_time() -> None:
    watch = _watch()
    now = 0.0
    for length in (10, 20, 40, 40):
        watch.fenced(1, now)
        assert watch.on_probation(1, now + length - 0.1)
        assert not watch.on_probation(1, now + length)
        now += length + 1
    now += 40
    watch.fenced(1, now)
    assert not watch.on_probation(1, now + 10)
    watch.fenced(1, now)
    watch.forget(1)
    assert not watch.on_probation(1, now)


def _heartbeats(cell: Cell, seconds: float, stuck_at: int) -> None:
    """All brokers heartbeat; broker 1 applies nothing beyond ``stuck_at``; writes go on."""
    end = cell.now + seconds
    while cell.now < end:
        cell.now += 2
        cell.create(f"t{cell.pending.offset}", replication_factor=1)
        for broker_id in (1, 2, 3):
            applied = min(stuck_at, cell.pending.offset) if broker_id == 1 else cell.pending.offset
            cell.beat(broker_id, current_metadata_offset=applied)
        cell.due()


def test_broker_that_heartbeats_but_does_not_apply_is_fenced_and_lao_advances() -> None:
    cell = Cell(brokers=3)
    stuck_at = cell.pending.offset
    _heartbeats(cell, 28, stuck_at)
    assert not cell.broker(1).fenced
    assert cell.lao.lao <= stuck_at
    assert cell.lao.held_back_by() == [1]
    _heartbeats(cell, 10, stuck_at)
    broker = cell.broker(1)
    assert (broker.fenced, broker.reason) == (True, "metadata lag above broker.metadata.lag.max.ms")
    assert cell.lao.lao > stuck_at
    cell.check_invariants()


def test_broker_on_probation_is_not_unfenced_when_it_has_caught_up() -> None:
    cell = Cell(brokers=3)
    _heartbeats(cell, 38, cell.pending.offset)
    fenced_at = cell.now
    while cell.broker(1).fenced:
        assert cell.now < fenced_at + 20
        _heartbeats(cell, 1, 1 << 40)
    assert cell.now - fenced_at >= 6


# --- Disks that hang -----------------------------------------------------------------------------


def beats(
    cell: Cell, hanging: Collection[int], seconds: float = 2.0, *, low: Collection[int] = ()
) -> None:
    """Send heartbeats of brokers 1 to 3, every two seconds each; ``low``: on space."""
    for _ in range(int(seconds / 2)):
        cell.now += 2
        for broker_id in (1, 2, 3):
            hangs_ms = 6_000 if broker_id in hanging else 0
            cell.beat(broker_id, disk_hangs_ms=hangs_ms, low_on_space=broker_id in low)
        cell.due()


def fenced(cell: Cell) -> set[int]:
    return {broker_id for broker_id in (1, 2, 3) if cell.broker(broker_id).fenced}


def test_broker_with_a_hanging_disk_loses_leadership_until_the_disk_recovers() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    beats(cell, {1})
    assert fenced(cell) == {1}
    assert cell.broker(1).reason == "disk hangs longer than broker.disk.hang.timeout.ms"
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr) == (2, (2, 3))
    beats(cell, {1}, 60)
    assert fenced(cell) == {1}, "the disk hangs longer than the probation"
    beats(cell, set())
    assert fenced(cell) == set()
    beats(cell, {1})
    fenced_at = cell.now
    while fenced(cell):
        beats(cell, set())
    assert cell.now - fenced_at >= 20, "the probation doubles: a disk that flaps is out"
    cell.check_invariants()


def test_hanging_disks_of_most_brokers_fence_only_a_minority() -> None:
    cell = Cell(brokers=3)
    beats(cell, {1, 2, 3}, 20)
    assert fenced(cell) == {1}, "the fault is elsewhere: shared storage"
    beats(cell, {2, 3}, 20)
    assert fenced(cell) == set(), "two of three"


def test_dead_broker_with_a_hanging_disk_keeps_no_other_from_being_fenced() -> None:
    cell = Cell(brokers=3)
    beats(cell, {1})
    assert fenced(cell) == {1}
    beats(cell, {1}, 40)
    for _ in range(10):
        cell.now += 2
        cell.beats(2, 3)
        cell.due()
    cell.beat(2, disk_hangs_ms=6_000)
    assert fenced(cell) == {1, 2}, "one of the two that live"


def test_broker_with_a_read_lease_is_fenced_for_its_disk_when_the_lease_ends() -> None:
    cell = Cell(brokers=3)
    assert cell.beat(1, want_read_lease=True).read_lease_ms
    cell.beat(1, want_read_lease=True, disk_hangs_ms=6_000)
    assert not cell.broker(1).fenced
    ends_at = cell.decider.state.read_leases.ends_at(1)
    while cell.now <= ends_at:
        beats(cell, {1})
    beats(cell, {1})
    assert cell.broker(1).fenced


# --- Disks without space -------------------------------------------------------------------------


def leaders(cell: Cell, topic: bytes, count: int) -> list[int]:
    return [cell.partition(topic, index).leader for index in range(count)]


def test_broker_low_on_space_leads_only_what_no_other_can_and_leads_again_with_space() -> None:
    cell = Cell(brokers=3, settings=ControllerSettings(leader_imbalance_check_interval_seconds=30))
    topic, alone = cell.create_on((1, 2, 3), (2, 3, 1)), cell.create_on((1,), name="alone")
    beats(cell, (), 2, low={1})
    assert leaders(cell, topic, 2) == [2, 2]
    assert cell.partition(alone).leader == 1
    assert [cell.partition(topic, index).isr for index in range(2)] == [(1, 2, 3), (2, 3, 1)]
    assert fenced(cell) == set(), "it still serves consumers"
    left = cell.partition(topic)
    beats(cell, (), 120, low={1})
    assert cell.partition(topic) == left, "the balance does not give it back"
    beats(cell, (), 60, low=set())
    assert leaders(cell, topic, 2) == [1, 2]
    cell.check_invariants()


def test_leadership_skips_another_broker_that_is_low_on_space() -> None:
    cell = Cell(brokers=5)
    topic = cell.create_on((1, 2, 3))
    cell.now += 1
    cell.beat(2, low_on_space=True)
    cell.beat(1, low_on_space=True)
    assert cell.partition(topic).leader == 3


def test_leaderships_stay_while_most_brokers_are_low_on_space() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3), (2, 3, 1))
    cell.now += 1
    cell.beat(3, low_on_space=True)
    cell.beat(2, low_on_space=True)
    assert leaders(cell, topic, 2) == [1, 2], "two of three"


def test_report_of_a_full_disk_ends_with_the_session() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    cell.beat(3, low_on_space=True)
    for _ in range(10):
        cell.now += 2
        cell.beats(1, 2)
        cell.due()
    assert fenced(cell) == {3}
    cell.beat(1, low_on_space=True)
    assert cell.partition(topic).leader == 2, "one of the two that live"


# --- What the log says of a LAO that stands still ------------------------------------------------


def looks(
    lao_stall: LaoStall,
    begin: float,
    end: float,
    lao: int,
    newest: int,
    by: list[int],
    reason: str = "",
) -> list[HeldBack]:
    said = []
    for tenth in range(round(begin * 10), round(end * 10)):
        news = lao_stall.update(tenth / 10, lao, newest, by, reason)
        if news is not None:
            said.append(news)
    return said


def test_lao_holder_is_logged_after_a_second_and_then_rarely() -> None:
    lao_stall = LaoStall()
    assert looks(lao_stall, 0.0, 5.0, 10, 10, []) == []
    assert looks(lao_stall, 5.0, 5.9, 10, 12, [3]) == []
    said = looks(lao_stall, 5.9, 5.0 + SAY_EVERY_S, 10, 15, [3])
    assert [(one.by, one.for_s) for one in said] == [((3,), 1.0)]
    assert len(looks(lao_stall, 5.0 + SAY_EVERY_S, 6.1 + 2 * SAY_EVERY_S, 10, 99, [3, 4])) == 2
    assert lao_stall.held_ms(6.0 + 2 * SAY_EVERY_S) == 1000 + 2 * 1000 * SAY_EVERY_S


def test_lao_progress_is_logged_once_after_a_logged_hold() -> None:
    lao_stall = LaoStall()
    looks(lao_stall, 0.0, 3.0, 10, 12, [3])
    said = looks(lao_stall, 3.0, 4.0, 12, 12, [])
    assert [(one.by, one.reason) for one in said] == [((), "")]
    assert said[0].for_s == 3.0
    assert lao_stall.held_ms(4.0) == 0
    assert looks(lao_stall, 4.0, 4.5, 12, 13, [3]) == []
    assert looks(lao_stall, 4.5, 5.0, 13, 13, []) == []


def test_reason_of_an_unknown_lao_is_logged_if_there_are_brokers() -> None:
    why = "brokers [4] have not reported in controller epoch 3"
    said = looks(LaoStall(), 0.0, 2.0, -1, 10, [4], why)
    assert [one.reason for one in said] == [why]
    without_brokers = LaoStall()
    assert looks(without_brokers, 0.0, 5.0, 10, 20, []) == []
    assert without_brokers.held_ms(5.0) == 0


def test_moving_lao_is_not_reported_as_held_back() -> None:
    lao_stall = LaoStall()
    said = [lao_stall.update(tenth / 10, tenth, tenth + 5, [1], "") for tenth in range(100)]
    assert said == [None] * 100
    assert lao_stall.held_ms(10.0) < 200
