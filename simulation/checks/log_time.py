"""Log time, compared with the voters' wall clocks when each batch was written.

* It moves on only to a time reached by a majority's clocks, within the tolerance.
* It goes back only if far ahead, and then to the majority's time; else it stands still.
* It is ahead of all clocks no longer than it may stand still.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from raftlog.clock import HEARD_FOR_S, STAND_STILL_MAX_MS, TOLERANCE_MS
from raftlog.metadata.records import Record
from raftlog.quorum.events import Effect, Event, Proposed
from simulation.checks.api import Checker, ControllerView, World, fail
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.twins.loop import START_OF_TIME_MS

SLACK_MS = 1_500
"""Margin for drifting monotonic clocks of voters that are not heard, and for messages in
transit.
"""


class _Clocks(NamedTuple):
    """Errors of the wall clocks from some moment on, in ms."""

    since: float
    off_ms: dict[int, int]


class LogTime(Checker):
    """Checker of the timestamps of committed batches."""

    def __init__(self, ledger: Ledger) -> None:
        self._golden = ledger.golden
        self._clocks: list[_Clocks] = []
        self._built: dict[tuple[int, int], float] = {}
        """(offset, epoch) of chunks -> when their leader built them."""
        self._built_at = 0.0
        self._last_ms = 0
        self.moved = 0
        self.returned = 0
        ledger.golden.listeners.append(self._committed)

    def begin(self, world: World) -> None:
        super().begin(world)
        self._look()

    def clock_set(self, host: ControllerView) -> None:
        self._look()

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        if type(event) is Proposed:
            self._built[event.span.base_offset, event.epoch] = self.world.now()

    def _look(self) -> None:
        off_ms = {host.id: host.wall_offset_ms for host in self.world.controllers}
        self._clocks.append(_Clocks(self.world.now(), off_ms))

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        header = logged.header
        # A batch within a chunk was built with the one before.
        self._built_at = self._built.pop((header.base_offset, header.epoch), self._built_at)
        last_ms, self._last_ms = self._last_ms, header.timestamp_ms
        now_ms = START_OF_TIME_MS + round(self._built_at * 1000)
        ahead_ms, last_ahead_ms = header.timestamp_ms - now_ms, last_ms - now_ms
        low_ms, high_ms, most_ms = self._majority()
        what = f"timestamps: the batch at {header.base_offset}, built at {self._built_at:.3f} s, is"
        if header.timestamp_ms > last_ms:
            self.moved += 1
            if ahead_ms > high_ms + TOLERANCE_MS + SLACK_MS:
                fail(f"{what} {ahead_ms} ms ahead; a majority's clocks were at most {high_ms}")
        elif header.timestamp_ms < last_ms:
            self.returned += 1
            if last_ms - header.timestamp_ms < STAND_STILL_MAX_MS - TOLERANCE_MS - SLACK_MS:
                fail(f"{what} {ahead_ms} ms ahead, the one before {last_ahead_ms}")
            if ahead_ms < low_ms - TOLERANCE_MS - SLACK_MS:
                fail(f"{what} {ahead_ms} ms ahead; a majority's clocks were at least {low_ms}")
        if ahead_ms > most_ms + STAND_STILL_MAX_MS + SLACK_MS:
            fail(f"{what} {ahead_ms} ms ahead; no voter's clock was, by {most_ms}")

    def _majority(self) -> tuple[int, int, int]:
        """Return bounds of a majority's clock errors, lowest and highest, and the highest of any
        clock.
        """
        since = self._built_at - HEARD_FOR_S - 1.0
        seen = [
            one.off_ms
            for one, after in zip_longest(self._clocks, self._clocks[1:])
            if one.since <= self._built_at and (after is None or after.since > since)
        ]
        reached, most = list[int](), list[int]()
        for voters in self._voter_sets():
            for off_ms in seen:
                clocks = sorted(off_ms[one] for one in voters if one in off_ms)
                # Fewer than a majority may have been heard of those that count.
                reached += [clocks[0], clocks[-(len(voters) // 2 + 1)]]
                most.append(clocks[-1])
        return min(reached), max(reached), max(most)

    def _voter_sets(self) -> list[list[int]]:
        """Return the node ids of the last two voter sets: the newest may not be active yet."""
        known = [[one.node_id for one in at.voters] for at in self._golden.voter_sets[-2:]]
        configured = list(range(1, self.world.config.voters + 1))
        return known if len(known) > 1 else [configured, *known]
