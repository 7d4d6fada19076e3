"""Answers those who wait in vain: of a leadership that was lost, at a node that does not lead, and those whose time is up.

No turn of the loop is spent on them alone [65,536 requests wait, the leadership is lost, and all are refused at once: a second in
which this node hears no new leader].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from controller.service.answers import Answers
from controller.service.intake import Intake
from controller.service.leadership import Leadership
from controller.service.parking import Parked
from raftlog import resource_limits as limits
from raftlog.errors import ApiError, ErrorCode

LONG_TURN_S = limits.TURN_MAX_MS / 1000


class Node(Protocol):
    """What is asked of the node."""

    leadership: Leadership | None

    def not_controller(self) -> ApiError | None:
        """Why requests are refused here, None if they are not."""

    def now(self) -> float:
        """Seconds of the loop's clock."""

    def soon(self, pause_s: float, callback: Callable[[], None]) -> None:
        """Call back in another turn of the loop, unless this node has stopped by then."""


class Refusals:
    """A bounded number of them in each turn, one after the other; what is left comes in the next."""

    def __init__(self, answers: Answers, intake: Intake, node: Node, stopwatch: Callable[[], float]) -> None:
        self._answers, self._intake, self._node, self._stopwatch = answers, intake, node, stopwatch
        # Of leaderships that were lost: who still waits for an answer.
        self._lost: deque[tuple[Leadership, str, Iterator[tuple[Parked, bool]]]] = deque()
        self._refusing = self._due = False

    def lost(self, leadership: Leadership, why: str) -> None:
        """Answer all that wait for what this leadership proposed."""
        self._lost.append((leadership, why, leadership.parking.drain()))
        self.go_on()

    def refuse_waiting(self) -> None:
        """Send those elsewhere who wait at a node that does not lead: nothing of theirs was begun."""
        self._refusing = True
        self.go_on()

    def go_on(self) -> None:
        """Answer those who wait in vain by now, unless that is due in the next turn anyway."""
        if self._due:
            return
        begun = self._stopwatch()
        refusals = self._all()
        for _ in range(limits.CONTROLLER_TURN_MAX_REFUSALS):
            if not next(refusals, False):
                return
            if self._stopwatch() - begun >= LONG_TURN_S:
                break
        self._due = True
        self._node.soon(self._stopwatch() - begun, self._next_turn)

    def _next_turn(self) -> None:
        self._due = False
        self.go_on()

    def _all(self) -> Iterator[bool]:
        """Answer one at each step."""
        answers, node = self._answers, self._node
        while self._lost:
            lost, why, left = self._lost[0]
            for parked, is_committed in left:
                answers.give_up(parked, lost.lao, is_committed, ErrorCode.NOT_CONTROLLER, why)
                yield True
            self._lost.popleft()
        error = node.not_controller()
        if self._refusing and error is not None:
            for waiting in self._intake.drain():
                answers.refuse(waiting.link, waiting.request, error)
                yield True
        self._refusing = False
        leadership, now = node.leadership, node.now()
        if leadership is None:
            return
        for parked, is_committed in leadership.parking.expired(now):
            answers.give_up(parked, leadership.lao, is_committed, ErrorCode.REQUEST_TIMED_OUT, "not committed in time")
            yield True
        error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not begun in time")
        for waiting in self._intake.expired(now):
            answers.refuse(waiting.link, waiting.request, error)
            yield True
