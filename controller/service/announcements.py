"""Effects of a commit, and of a broker's report: parked replies are released at once, observers
after the other work of the same turn of the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

from controller.service.intake import Intake
from controller.service.node import ControllerNode
from controller.service.observers import Observers
from controller.service.turns import Leadership
from raftlog.wire.controller.v1 import controller_pb2 as pb

HOLD_MAX_S = 0.025
"""Longest time in seconds that LAO is held for records to be sent with it."""
REMEMBERED = 64
"""Most commits above LAO whose time is measured."""
_NEW_SHARE = 0.25
_PAUSE_S = 1.0
"""Longest interval between commits that still counts as a steady rate, in seconds."""


class Telling:
    """The rate of commits, and the time that brokers take to apply one."""

    def __init__(self) -> None:
        self._commits: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        """(end offset, time) of the commits above LAO."""
        self._last = 0.0
        self._interval_s = _PAUSE_S

    def committed(self, high_watermark: int, now: float) -> None:
        """Record that the high watermark (exclusive) has moved."""
        interval_s = min(max(now - self._last, 0.0), _PAUSE_S)
        self._last = now
        self._interval_s += _NEW_SHARE * (interval_s - self._interval_s)
        self._commits.append((high_watermark, now))

    def hold_s(self, lao: int, now: float) -> float:
        """Return for how long the new LAO (inclusive) may wait for a commit to be sent with; 0:
        send it at once.
        """
        commits, since = self._commits, None
        while commits and commits[0][0] <= lao + 1:
            since = commits.popleft()[1]
        if since is None:
            return 0.0
        took_s = now - since
        if self._last + self._interval_s - now >= took_s:
            return 0.0
        return min(took_s, HOLD_MAX_S)


class _Everybody:
    """A container of every id: a writer waits for all brokers."""

    def __contains__(self, broker_id: object) -> bool:
        return True


EVERYBODY: Container[int] = _Everybody()


class Announcements:
    """The news of one node while it is the active controller.

    ``soon``: call back in a later turn of the event loop; ``wake``: run a turn soon;
    ``stopwatch``: a clock in seconds that advances within a turn; ``cpu_clock``: seconds of the CPU
    that the loop's thread has used.
    """

    def __init__(
        self,
        node: ControllerNode,
        intake: Intake,
        soon: Callable[[float, Callable[[], None]], None],
        wake: Callable[[], None],
        stopwatch: Callable[[], float],
        cpu_clock: Callable[[], float],
    ) -> None:
        self._node, self._intake = node, intake
        self._soon, self._wake = soon, wake
        self.observers = Observers(node, self.report, self._must_report, soon, stopwatch, cpu_clock)
        self._commit_due = False
        self._observers_due = False
        self._reports_due = False
        self._telling = Telling()

    def committed(self, leadership: Leadership) -> None:
        """Send the answers that have become true.

        Everything else that follows from a commit happens after they have left.
        """
        leadership.parking.committed(self._node.committed_end)
        if not self._commit_due:
            self._commit_due = True
            self._soon(0, self._after_commit)

    def _after_commit(self) -> None:
        """Answer observers, replace the committed image, move LAO, and decide requests that have
        waited for this commit.

        Observers come first: they wait, and the other work does not affect their answers, except
        for a LAO that the commit itself moves. That LAO is sent afterwards.
        """
        self._commit_due = False
        leadership = self._node.leadership
        if leadership is None or leadership.decider is None:
            return
        self.observers.lao_is_held = False
        self.observers.release()
        advanced_bytes = leadership.log.commit(self._node.committed_end)
        if advanced_bytes is not None:
            log = leadership.log
            self._node.committed.replace(log.committed, log.log_hash, advanced_bytes)
        now = self._node.now()
        self._telling.committed(self._node.committed_end, now)
        leadership.decider.state.sketches.committed(self._node.committed_end, now)
        self._visibility_moved(leadership)
        if self._intake or leadership.decider.due.is_urgent():
            self._wake()

    def report(self, fetch: pb.MetadataFetchRequest) -> None:
        """Process a broker's report, in a fetch, of its applied offset."""
        leadership = self._node.leadership
        if leadership is None or leadership.decider is None:
            return
        leadership.decider.report(
            fetch.replica_id,
            fetch.broker_epoch,
            fetch.controller_epoch,
            fetch.applied_offset,
            fetch.told_lowest_acknowledged_offset,
            self._node.now(),
        )
        if not self._reports_due:
            # After the other reports of this turn of the event loop: their effects are found at
            # once, and each observer gets one answer for all of them.
            self._reports_due = True
            self._soon(0, self._after_reports)

    def _after_reports(self) -> None:
        self._reports_due = False
        leadership = self._node.leadership
        if leadership is None or leadership.decider is None:
            return
        self._visibility_moved(leadership)
        if leadership.decider.due.is_urgent():
            self._wake()

    def _visibility_moved(self, leadership: Leadership) -> None:
        lao = leadership.log.lao
        seen = (lao.lao, lao.min_known_lao)
        if seen == leadership.visibility_seen:
            return
        tell = seen[0] != leadership.visibility_seen[0] and not self._observers_due
        leadership.visibility_seen = seen
        if leadership.decider is not None:
            leadership.decider.state.sketches.moved(*seen, self._node.now())
        leadership.parking.visibility(*seen)
        if tell:
            hold_s = self._telling.hold_s(seen[0], self._node.now())
            if hold_s > 0:
                self._observers_due = self.observers.lao_is_held = True
                self._soon(hold_s, self._release_observers)
            else:
                self.observers.release()

    def ask_reports(self) -> None:
        """Have brokers report the LAO that they were told, if a reply waits for that."""
        leadership = self._node.leadership
        if leadership is not None and self._waits_for_known_lao(leadership):
            self.observers.ask_reports()

    def _must_report(self) -> Container[int]:
        """Return the brokers whose report is awaited: all, if a writer waits; and the brokers that
        are to be unfenced.
        """
        leadership = self._node.leadership
        if leadership is None or leadership.decider is None:
            return EVERYBODY
        if self._waits_for_known_lao(leadership):
            return EVERYBODY
        return leadership.decider.state.wants_unfence

    @staticmethod
    def _waits_for_known_lao(leadership: Leadership) -> bool:
        # By LAO as the last report has moved it: the parked replies hear of it later in the turn,
        # when brokers may have been told it already.
        return leadership.parking.waits_for_known_lao(leadership.log.lao.lao)

    def _release_observers(self) -> None:
        self._observers_due = False
        self.observers.lao_is_held = False
        self.observers.release()
