"""The shell's part of a transfer: its requester, the looks whether it can be done, and the requests
that wait for the successor.

It begins with a notice to all clients of who is to lead. While they connect there this node leads
on: a connection costs both ends milliseconds, which are not to be those in which nobody leads. A
second notice, while the last chunk is being committed, has them ask there.

Meanwhile, too, the voters store their votes for the successor ahead, so that none of them waits for
its disk when it is asked.

Nothing polls: while a transfer is under way, a look follows each event of the quorum's state
machine. As soon as this node has resigned, the waiting requests are sent to the successor. They
wait there until it leads, so that their way and the election pass at the same time. It knows that
it is the successor before it hears that it is to campaign: one that comes before that waits, too.

Why: docs/decisions/023-leadership-transfer.md, docs/decisions/031-prepared-vote.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from controller.decisions.quorum.transfer import TRANSFER_TIMEOUT_S, Transfer, best_successor
from controller.service.node import ControllerNode
from raftlog.errors import ApiError, ErrorCode, InvariantError

log = structlog.get_logger(__name__)

CONNECT_S = 0.05
"""How long clients have to connect to the successor, before anything waits for it."""
NEXT_CHUNK_S = 0.01
"""How long the next chunk is waited for then."""
HOLD_S = 0.25
"""How long requests wait at a node that is to succeed the leader, that campaigns, or that has lost
its leader: asking round would take longer.
"""

_WITHOUT_LEADER = ("unattached", "prospective", "candidate")
"""Roles in which the next leader is elected within milliseconds, if it can be."""

Answer = Callable[[ApiError | None], None]
"""Called once: None when this node has stopped to lead, or why it has not."""


class HandOver:
    """At most one transfer at a time. ``resign`` inside means the quorum's core.

    ``wake``: run a turn soon; ``refuse_waiting``: refuse the requests that wait, if this node does
    not lead; ``announce``: tell clients who is to lead, so that they connect to it meanwhile, and
    whether they are to ask there from now on.
    """

    def __init__(
        self,
        node: ControllerNode,
        wake: Callable[[], None],
        refuse_waiting: Callable[[], None],
        announce: Callable[[int, bool], None],
    ) -> None:
        self._node, self._wake, self._refuse_waiting = node, wake, refuse_waiting
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self.transfer: Transfer | None = None
        """Under way: nothing may be decided for now."""
        self._connecting: asyncio.Handle | None = None
        """Set while clients connect to the successor."""
        self._named_at, self._has_sent = -1.0, False
        """When the successor was named; whether clients were told to ask there."""
        self._answers: list[Answer] = []
        self._timer: asyncio.Handle | None = None
        self._held_until = -1.0
        self._has_held = False
        """Whether requests have waited since the last leader was known: not again, if that was in
        vain.
        """
        self._look_due = False
        self.resigning = False
        """Whether it resigns right now, its transfer complete."""

    def holds(self, now: float) -> bool:
        """Whether requests wait here although this node does not lead: it resigns, or began to
        campaign, a moment ago; or it is to succeed the leader, or its leader is gone, and nobody
        has waited for the next one yet.
        """
        if now >= self._held_until and not self._has_held and self._awaits_leader():
            self._hold()
            self._has_held = True
        return now < self._held_until and self._node.directory.successor_id == -1

    def _awaits_leader(self) -> bool:
        core = self._node.replica.core
        return core.role in _WITHOUT_LEADER or core.is_successor

    def campaigning(self) -> None:
        """This node asks for votes: what comes waits for the outcome."""
        self._hold()

    def _hold(self) -> None:
        self.stop_holding()
        self._held_until = self._loop.time() + HOLD_S
        self._timer = self._loop.call_at(self._held_until, self._give_up_holding)

    def begin(self, target_id: int, reason: str, answer: Answer | None = None) -> None:
        """Say who is to lead, stop deciding a moment later, and resign as soon as nothing can be
        lost.

        If one is under way already, its end is the answer.
        """
        if answer is not None:
            self._answers.append(answer)
        if self.transfer is not None or self._connecting is not None:
            return
        log.info("handing over", to=target_id, reason=reason)
        if target_id < 0:
            self._stop_deciding(target_id, reason)
            return
        self._announce(target_id, False)
        self._named_at, self._has_sent = self._loop.time(), False
        self._node.replica.choose_successor(target_id)
        self._connecting = self._loop.call_later(CONNECT_S, self._connected, target_id, reason)

    def _connected(self, target_id: int, reason: str) -> None:
        """Stop deciding behind the next chunk, if one comes soon: while that is committed clients
        are told to ask the successor, and what they send next is there when it leads.
        """
        replica = self._node.replica
        end_offset = replica.log_end_offset

        def stepped() -> None:
            if replica.log_end_offset > end_offset and self._connecting is not None:
                self._connecting.cancel()
                self._stop_deciding(target_id, reason)

        replica.stepped = stepped
        self._connecting = self._loop.call_later(
            NEXT_CHUNK_S, self._stop_deciding, target_id, reason
        )

    def _stop_deciding(self, target_id: int, reason: str) -> None:
        self._connecting = None
        self.stop_holding()
        self.transfer = Transfer(target_id, reason, self._loop.time() + TRANSFER_TIMEOUT_S)
        self._timer = self._loop.call_at(self.transfer.deadline, self._look)
        self._node.replica.stepped = self._look_soon
        self._look_soon()

    def begin_to_anybody(self, reason: str, answer: Answer | None = None) -> None:
        """To whoever can take over soonest.

        If there is nobody, only what was accepted is brought to its end.
        """
        node = self._node
        target_id = best_successor(node.replica.describe(node.now()), node.quorum.node_id)
        self.begin(target_id, reason, answer)

    def _look_soon(self) -> None:
        """After all that this event brings."""
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_due = False
        transfer, node = self.transfer, self._node
        if transfer is None or node.leadership is None:
            return
        now = self._loop.time()
        seen = node.replica.describe(now)
        if not self._has_sent and transfer.is_awaited(seen, now - self._named_at):
            # Requests wait there as they would here, and are there when it leads.
            self._has_sent = True
            self._announce(transfer.target_id, True)
        if transfer.may_resign(seen):
            self.resigning = self._has_held = True
            self._hold()
            node.replica.resign(transfer.reason, transfer.target_id)
            self.resigning = False
            self._name_successor(transfer.target_id)
            if node.leadership is not None:
                raise InvariantError("a leader that is asked to resign leads on")
        elif now >= transfer.deadline:
            why = transfer.why_not(seen)
            log.warning("not handed over", to=transfer.target_id, why=why)
            node.replica.choose_successor(-1)
            self._end(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"not handed over in time: {why}"))
            self._wake()

    def _name_successor(self, node_id: int) -> None:
        """What waits goes there, and waits there."""
        if node_id >= 0:
            self._node.directory.successor_id = node_id
            self._refuse_waiting()

    def lost(self) -> None:
        """This node leads no more, on purpose or not."""
        if self.resigning:
            self._end(None)
        elif self.transfer is not None or self._connecting is not None:
            self._end(
                ApiError(
                    ErrorCode.NOT_CONTROLLER, "the leadership was lost before it was handed over"
                )
            )

    def successor_known(self) -> None:
        """Somebody leads: what was held may go there."""
        self._has_held = False
        if self._held_until >= 0:
            self._give_up_holding()

    def leads(self) -> None:
        """This node leads: what was held is decided here."""
        self._has_held = False
        self.stop_holding()

    def stop_holding(self) -> None:
        """Hold nothing any more. What waits stays: the caller decides or refuses it."""
        self._held_until = self._node.directory.successor_id = -1
        self._cancel()

    def _give_up_holding(self) -> None:
        self.stop_holding()
        self._refuse_waiting()

    def _end(self, error: ApiError | None) -> None:
        answers, self._answers, self.transfer = self._answers, [], None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._node.replica.stepped = None
        for answer in answers:
            answer(error)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop for good."""
        self._cancel()
        self._end(ApiError(ErrorCode.NOT_CONTROLLER, "the node stops"))
