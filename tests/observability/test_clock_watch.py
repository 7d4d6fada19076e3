from __future__ import annotations

from raftlog.clock import TOLERANCE_MS
from raftlog.node.observability.clock_watch import LOOK_EVERY_S, ClockWatch
from raftlog.node.observability.journal import Kind, RecentEvents


def test_clock_watch_tells_once_that_a_clock_is_overruled_and_once_that_it_agrees() -> None:
    off = -TOLERANCE_MS - 1
    once, twice = (7_000, TOLERANCE_MS), (7_001, 7_000, -9_000)
    looks = (None, *once, *twice, None, TOLERANCE_MS, 400, 0, off, off)
    ahead = iter(looks)
    journal = RecentEvents(1, "broker", wall_clock_ms=lambda: 1_000)
    watch = ClockWatch(lambda: next(ahead), journal)
    for look in range(len(looks)):
        watch.tick(look * LOOK_EVERY_S)
        watch.tick((look + 0.9) * LOOK_EVERY_S)
    told, _ = journal.since(0, 0, 10)
    assert [(one.kind, one.details) for one in told] == [
        (Kind.CLOCK_OVERRULED, {"ahead_ms": 7_000}),
        (Kind.CLOCK_AGREES, {}),
        (Kind.CLOCK_OVERRULED, {"ahead_ms": off}),
    ]
