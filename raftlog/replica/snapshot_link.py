"""The bulk conversation with one peer: dialed when something is asked, hung up when nothing has
been asked for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from raftlog.replica.silence import Silence
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

CONNECT_S = 1.0
"""A peer that gives no link in this time gives no answer."""
IDLE_S = 5.0


class SnapshotAnswers(Protocol):
    """Who asked."""

    def answered(self, peer_id: int, correlation_id: int, response: Any) -> None:
        """A response, on the link its request went out on."""

    def unanswered(self, peer_id: int, correlation_id: int) -> None:
        """This request gets no answer."""


class SnapshotLink:
    """FetchSnapshot requests to one peer.

    A link that says nothing is hung up: who asks again gets another one.
    """

    def __init__(
        self,
        peer_id: int,
        endpoint: str,
        transport: Transport,
        answers: SnapshotAnswers,
        answer_s: float,
    ) -> None:
        """``answer_s``: how long an answer may take."""
        self._loop = asyncio.get_running_loop()
        self._peer_id, self._endpoint, self._transport, self._answers = (
            peer_id,
            endpoint,
            transport,
            answers,
        )
        self._dialer: Dialer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[pb.FetchSnapshotRequest] = []
        # Correlation ids, in the order of asking.
        self._in_flight: dict[int, None] = {}
        self._silence = Silence(answer_s, self.close)

    def send(self, correlation_id: int, request: pb.FetchSnapshotRequest) -> None:
        """Send, once there is a link. Each request is answered or reported unanswered."""
        request.correlation_id = correlation_id
        if self._dialer is None:
            self._dialer = self._transport.dial(self._endpoint, Conversation.SNAPSHOT, self)
        link = self._dialer.link
        if link is None:
            self._waiting.append(request)
            self._arm(CONNECT_S, self._no_link)
        else:
            self._send(link, request)

    def _send(self, link: Link, request: pb.FetchSnapshotRequest) -> None:
        self._stop_timer()
        self._in_flight[request.correlation_id] = None
        try:
            link.send(request)
        except LinkClosedError:
            self._unanswered([request.correlation_id])
        else:
            self._silence.asked()

    def opened(self, link: Link) -> None:
        """Send what has waited."""
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._send(link, request)
        self._arm_if_idle()

    def received(self, link: Link, messages: Sequence[pb.FetchSnapshotResponse]) -> None:
        """Answers to what was sent on this link; anything else is dropped."""
        self._silence.heard()
        for message in messages:
            if message.correlation_id in self._in_flight:
                del self._in_flight[message.correlation_id]
                self._answers.answered(self._peer_id, message.correlation_id, message)
        self._arm_if_idle()

    def closed(self, link: Link, reason: str) -> None:
        """No answer comes any more on it."""
        self._silence.over()
        self._unanswered(list(self._in_flight))
        self._arm_if_idle()

    def close(self) -> None:
        """Hang up; what waits gets no answer."""
        self._stop_timer()
        self._silence.over()
        dialer, self._dialer = self._dialer, None
        if dialer is not None:
            dialer.close()
        waiting, self._waiting = self._waiting, []
        self._unanswered([*self._in_flight, *(request.correlation_id for request in waiting)])

    def _no_link(self) -> None:
        self._timer = None
        if self._waiting:
            self.close()

    def _unanswered(self, correlation_ids: list[int]) -> None:
        for correlation_id in correlation_ids:
            self._in_flight.pop(correlation_id, None)
        for correlation_id in correlation_ids:
            self._answers.unanswered(self._peer_id, correlation_id)

    def _arm_if_idle(self) -> None:
        if self._dialer is not None and not self._in_flight and not self._waiting:
            self._arm(IDLE_S, self.close)

    def _arm(self, delay_s: float, call: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(delay_s, call)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
