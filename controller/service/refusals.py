"""Answers the requests that wait in vain: the leadership was lost, this node does not lead, or the
deadline has passed.

They are refused over several turns of the event loop [65,536 requests wait, the leadership is lost,
and all are refused at once: for a second this node does not hear a new leader].
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


class Node(Protocol):
    """What refusals need from the node."""

    leadership: Leadership | None

    def not_controller(self) -> ApiError | None:
        """Why requests are refused here, None if they are not."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds of the loop's clock."""


class Refusals:
    """Sends a bounded number of refusals in each turn of the event loop, and the rest in the next
    ones.
    """

    def __init__(
        self,
        answers: Answers,
        intake: Intake,
        node: Node,
        soon: Callable[[float, Callable[[], None]], None],
        stopwatch: Callable[[], float],
    ) -> None:
        """``soon`` calls back in a later turn of the event loop, unless this node has stopped by
        then.
        """
        self._answers, self._intake, self._node = answers, intake, node
        self._soon, self._stopwatch = soon, stopwatch
        # The leaderships that were lost, each with the parked replies that are still to be
        # answered.
        self._lost: deque[tuple[Leadership, str, Iterator[tuple[Parked, bool]]]] = deque()
        self._refusing = self._due = False

    def lost(self, leadership: Leadership, why: str) -> None:
        """Answer every request that waits for something that this leadership proposed."""
        self._lost.append((leadership, why, leadership.parking.drain()))
        self.go_on()

    def refuse_waiting(self) -> None:
        """Refuse every request that waits in the intake of a node that does not lead: none of them
        was started.
        """
        self._refusing = True
        self.go_on()

    def go_on(self) -> None:
        """Answer the requests that wait in vain by now, unless the next turn does that anyway."""
        if self._due:
            return
        begun = self._stopwatch()
        refusals = self._all()
        for _ in range(limits.CONTROLLER_TURN_MAX_REFUSALS):
            if not next(refusals, False):
                return
            if self._stopwatch() - begun >= limits.TURN_MAX_S:
                break
        self._due = True
        self._soon(self._stopwatch() - begun, self._next_turn)

    def _next_turn(self) -> None:
        self._due = False
        self.go_on()

    def _all(self) -> Iterator[bool]:
        """Answer one request at each step."""
        answers, node = self._answers, self._node
        while self._lost:
            lost, why, left = self._lost[0]
            for parked, is_committed in left:
                answers.give_up(parked, lost.log.lao, is_committed, ErrorCode.NOT_CONTROLLER, why)
                yield True
            self._lost.popleft()
        error = node.not_controller()
        if self._refusing and error is not None:
            for waiting in self._intake.drain():
                answers.refuse(waiting.link, waiting.request, error, waiting.begun)
                yield True
        self._refusing = False
        leadership, now = node.leadership, node.now()
        if leadership is None:
            return
        for parked, is_committed in leadership.parking.expired(now):
            answers.give_up(
                parked,
                leadership.log.lao,
                is_committed,
                ErrorCode.REQUEST_TIMED_OUT,
                "not committed in time",
            )
            yield True
        error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not started in time")
        for waiting in self._intake.expired(now):
            answers.refuse(waiting.link, waiting.request, error, waiting.begun)
            yield True
