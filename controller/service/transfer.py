"""The shell's part of a planned stop: leadership transfer, and connection draining.

A transfer begins with a notice to all clients that names the successor. While they connect to it,
this node continues to lead, as connecting takes milliseconds. A second notice, sent while the last
chunk is being committed, makes clients send requests to the successor.

Nothing polls: during a transfer, each event of the quorum's state machine is followed by a check.
As soon as this node has resigned, the waiting requests are redirected to the successor, where they
wait until it leads, so redirection and election run in parallel. The successor learns of its role
before it is asked to campaign, so requests that arrive earlier wait there, too.

Why: docs/decisions/023-leadership-transfer.md
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from controller.decisions.quorum.transfer import TRANSFER_TIMEOUT_S, Transfer, best_successor
from controller.service.replies import send_quietly
from raftlog.errors import ApiError, ErrorCode, InvariantError
from raftlog.transport.api import Link
from raftlog.wire.controller.v1 import controller_pb2 as pb

if TYPE_CHECKING:
    from controller.service.node import ControllerNode

log = structlog.get_logger(__name__)

POLL_S = 0.005
QUIET_S = 0.5
"""Time in seconds without a request after which none is in flight: longer than a round trip of any
working link.
"""
BOUND_S = 2.0
"""Longest time in seconds that a node drains, even if requests still arrive."""


class ConnectionDrain:
    """Connection draining of a stopping node: clients are redirected, and the node waits until no
    request can be in flight to it.

    If a link breaks with a request in flight, that request's outcome is unknown, although the node
    would have refused it. So each link gets one notice (correlation id 0) that names the active
    controller. A client sends its further requests there, and closes the link when all earlier ones
    are answered. If a client does not understand the notice, the node waits until it is silent.
    """

    def __init__(self) -> None:
        self._links: dict[int, Any] = {}
        self.heard_at = -math.inf
        """Time of the last request, in seconds of the loop's clock."""
        self._begun_at = math.inf
        self.begun = False
        """True once this node refuses all requests."""

    def opened(self, link: Link) -> None:
        """Add a link on which requests arrive."""
        self._links[id(link)] = link

    def closed(self, link: Link) -> None:
        """Remove a link that has closed."""
        self._links.pop(id(link), None)

    def begin(self, now: float, notice: Callable[[Link], pb.ControllerResponse]) -> None:
        """Begin to drain, and send ``notice`` on every link."""
        self._begun_at, self.begun = now, True
        self.tell(notice)

    def tell(self, notice: Callable[[Link], pb.ControllerResponse]) -> None:
        """Send ``notice`` on every link."""
        for link in list(self._links.values()):
            send_quietly(link, notice(link))

    def is_over(self, now: float) -> bool:
        """Return whether no request can be in flight to this node, or the time is up."""
        quiet_since = max(self.heard_at, self._begun_at)
        return not self._links or now >= quiet_since + QUIET_S or now >= self._begun_at + BOUND_S


CONNECT_S = 0.05
"""Time in seconds for clients to connect to the successor, before any request waits for it."""
NEXT_CHUNK_S = 0.01
"""Longest wait in seconds for the next chunk after that."""
HOLD_S = 0.25
"""Longest time in seconds that requests are held at the successor, at a candidate, or at a node
that has lost its leader: trying one node after another would take a client longer.
"""

_WITHOUT_LEADER = ("unattached", "prospective", "candidate")
"""Roles in which the next leader, if one can be elected, is elected within milliseconds."""

Answer = Callable[[ApiError | None], None]
"""Called once, at the end of a transfer: with None if this node has resigned, else with the
error.
"""


class LeadershipTransfer:
    """The leadership transfer that is under way, at most one, and the requests held for the next
    leader.

    ``wake``: run a turn soon. ``refuse_waiting``: refuse the waiting requests, unless this node
    leads. ``announce``: send clients the successor, and whether it takes requests from now on.
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
        self.under_way: Transfer | None = None
        """The transfer under way, during which nothing is decided, or None."""
        self._connecting: asyncio.Handle | None = None
        """Set while clients connect to the successor."""
        self._named_at, self._has_sent = -1.0, False
        """Time at which the successor was announced, and whether its second notice was sent."""
        self._answers: list[Answer] = []
        self._timer: asyncio.Handle | None = None
        self._held_until = -1.0
        self._has_held = False
        """Whether requests have been held since the last leader was known, so that they are not
        held twice.
        """
        self._check_due = False
        self.resigning = False
        """True while this node resigns because its transfer is complete."""

    @property
    def is_busy(self) -> bool:
        """True from the beginning of a transfer to its end."""
        return self.under_way is not None or self._connecting is not None

    def holds(self, now: float) -> bool:
        """Return whether requests are held here although this node does not lead.

        They are if it has just resigned or begun to campaign; or if it is the successor, or has
        lost its leader, and has not held requests since.
        """
        if now >= self._held_until and not self._has_held and self._awaits_leader():
            self._hold()
            self._has_held = True
        return now < self._held_until and self._node.directory.successor_id == -1

    def _awaits_leader(self) -> bool:
        core = self._node.replica.core
        return core.role in _WITHOUT_LEADER or core.is_successor

    def campaigning(self) -> None:
        """Hold requests while this node campaigns, until the outcome is known."""
        self._hold()

    def _hold(self) -> None:
        self.stop_holding()
        self._held_until = self._loop.time() + HOLD_S
        self._timer = self._loop.call_at(self._held_until, self._give_up_holding)

    def begin(self, target_id: int, reason: str, answer: Answer | None = None) -> None:
        """Announce the successor, stop deciding a moment later, and resign as soon as no write can
        be lost.

        ``answer``: called at the end of this transfer, or of the one already under way.
        """
        if answer is not None:
            self._answers.append(answer)
        if self.is_busy:
            return
        log.info("transferring the leadership", to=target_id, reason=reason)
        if target_id < 0:
            self._stop_deciding(target_id, reason)
            return
        self._announce(target_id, False)
        self._named_at, self._has_sent = self._loop.time(), False
        self._node.replica.choose_successor(target_id)
        self._connecting = self._loop.call_later(CONNECT_S, self._connected, target_id, reason)

    def _connected(self, target_id: int, reason: str) -> None:
        """Stop deciding after the next chunk, if one is proposed soon.

        While that chunk is being committed, clients get the second notice, so that their next
        requests are at the successor when it leads.
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
        self.under_way = Transfer(target_id, reason, self._loop.time() + TRANSFER_TIMEOUT_S)
        self._timer = self._loop.call_at(self.under_way.deadline, self._check)
        self._node.replica.stepped = self._check_soon
        self._check_soon()

    def begin_to_anybody(self, reason: str, answer: Answer | None = None) -> None:
        """Transfer the leadership to the voter that can lead soonest.

        Without a successor, the accepted requests are still completed.
        """
        node = self._node
        target_id = best_successor(node.replica.describe(node.now()), node.quorum.node_id)
        self.begin(target_id, reason, answer)

    def _check_soon(self) -> None:
        """Check the transfer after all effects of the current event."""
        if not self._check_due:
            self._check_due = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._check_due = False
        transfer, node = self.under_way, self._node
        if transfer is None or node.leadership is None:
            return
        now = self._loop.time()
        seen = node.replica.describe(now)
        if not self._has_sent and transfer.is_awaited(seen, now - self._named_at):
            self._has_sent = True
            self._announce(transfer.target_id, True)
        if transfer.may_resign(seen):
            self.resigning = self._has_held = True
            self._hold()
            node.replica.resign(transfer.reason, transfer.target_id)
            self.resigning = False
            self._name_successor(transfer.target_id)
            if node.leadership is not None:
                raise InvariantError("a leader that was told to resign still leads")
        elif now >= transfer.deadline:
            why = transfer.why_not(seen)
            log.warning("leadership not transferred", to=transfer.target_id, why=why)
            node.replica.choose_successor(-1)
            self._end(
                ApiError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"the leadership was not transferred in time: {why}",
                )
            )
            self._wake()

    def _name_successor(self, node_id: int) -> None:
        """Redirect the waiting requests to the successor, which holds them."""
        if node_id >= 0:
            self._node.directory.successor_id = node_id
            self._refuse_waiting()

    def lost(self) -> None:
        """End the transfer, as this node has lost the leadership, by the transfer or otherwise."""
        if self.resigning:
            self._end(None)
        elif self.is_busy:
            self._end(
                ApiError(
                    ErrorCode.NOT_CONTROLLER, "the leadership was lost before it was transferred"
                )
            )

    def successor_known(self) -> None:
        """Redirect the held requests to the new leader, which is another node."""
        self._has_held = False
        if self._held_until >= 0:
            self._give_up_holding()

    def leads(self) -> None:
        """Stop holding requests, as this node now leads and decides them."""
        self._has_held = False
        self.stop_holding()

    def stop_holding(self) -> None:
        """Stop holding requests; the caller decides or refuses those that wait."""
        self._held_until = self._node.directory.successor_id = -1
        self._cancel()

    def _give_up_holding(self) -> None:
        self.stop_holding()
        self._refuse_waiting()

    def _end(self, error: ApiError | None) -> None:
        answers, self._answers, self.under_way = self._answers, [], None
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
        """Cancel the transfer, and end it with NOT_CONTROLLER."""
        self._cancel()
        self._end(ApiError(ErrorCode.NOT_CONTROLLER, "the node is stopping"))
