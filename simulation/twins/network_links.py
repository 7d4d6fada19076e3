"""Simulated connections: two ends, and two flows that keep order and lose nothing."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raftlog.bounds import ENVELOPE_MAX_ITEMS
from raftlog.config_writes.writes import ConfigReplies, Framed
from raftlog.transport.api import WATCHES, Conversation
from raftlog.transport.conversations import WIRES, Wire
from raftlog.transport.links import PEER_ENDED, BaseLink

if TYPE_CHECKING:
    import asyncio

    from simulation.twins.network import SimNetwork


@dataclass(frozen=True, slots=True)
class Site:
    """An end's host, the context of its callbacks, and the address that its peer sees."""

    host: str
    context: Context
    address: str


class SimLink(BaseLink):
    """An end of a connection. Messages become bytes when sent and are parsed on arrival, so two
    processes never share an object.
    """

    def __init__(
        self, network: SimNetwork, site: Site, peer: str, wires: tuple[Wire, Wire], max_bytes: int
    ) -> None:
        """``wires``: of outgoing and of incoming messages."""
        super().__init__(network.loop, peer)
        self.site = site
        self._network = network
        self._outgoing, self._incoming = wires
        self._pending: list[Any] = []
        self._max_messages = network.params.limits.max_queued_messages
        self._max_bytes = max_bytes
        self.flow: Flow
        self.connection: Connection

    def send(self, message: Any) -> None:
        """Queue a message; messages sent in one iteration of the event loop travel together."""
        if self._reason is not None:
            raise self._closed_error()
        if type(message) is ConfigReplies:
            for response in message.responses():
                self.send(response)
            return
        # Before the tap: what checkers keep is what will arrive, whatever the sender does to its
        # own.
        data = self._outgoing.encode(message, self._max_bytes)
        if type(data) is Framed:
            (message,) = self._outgoing.decode(data, 1)
        else:
            message = self._outgoing.item_type.FromString(data)
        tap = self._network.taps.get(self.site.host)
        if tap is not None:
            tap(self._other_host, message)
        if len(self._pending) + self.flow.backlog >= self._max_messages:
            self.close(f"{self._max_messages} messages are unsent: the peer does not keep up")
            raise self._closed_error()
        if not self._pending:
            self._loop.call_soon(self._flush, context=self.site.context)
        self._pending.append(message)

    @property
    def unsent_bytes(self) -> int:
        return self.flow.backlog_bytes + sum(message.ByteSize() for message in self._pending)

    @property
    def _other_host(self) -> str:
        client, server = self.connection.ends
        return (server if self is client else client).site.host

    def arrive(self, messages: list[Any]) -> None:
        """Deliver one envelope's messages, grouped as by the real link."""
        tap = self._network.arrival_taps.get(self.site.host)
        heard = self._reason is None and self.connection.conversation is Conversation.CONTROLLER
        if tap is not None and heard:
            for message in messages:
                tap(self._other_host, message)
        if self._incoming.single:
            for message in messages:
                self.deliver([message])
        else:
            self.deliver(self._incoming.grouped(messages))

    def die(self) -> None:
        """Mark the process as dead: no handler is called on this side."""
        if self._reason is None:
            self._reason = "the process died"
            self._shut()

    def _flush(self) -> None:
        messages, self._pending = self._pending, []
        for start in range(0, len(messages), ENVELOPE_MAX_ITEMS):
            self.flow.push(messages[start : start + ENVELOPE_MAX_ITEMS])

    def _shut(self) -> None:
        self._pending = []
        self.connection.end_closed(self)

    def _schedule(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback, context=self.site.context)

    def _handler_failed(self, error: Exception) -> None:
        super()._handler_failed(error)
        self._network.handler_failures.append(error)


class Flow:
    """One direction of a connection: each envelope takes a random time, and none overtakes another.
    While the direction is blocked, arrivals are held, until it opens or the connection breaks.
    """

    def __init__(
        self,
        network: SimNetwork,
        source: Site,
        connection: Connection,
        target: SimLink,
        rng: random.Random,
    ) -> None:
        self._network = network
        self._connection = connection
        self._to_server = target is connection.server
        self._lost = self._muted = False
        self._source = source
        self._target = target
        self._rng = rng
        self._last_arrival = 0.0
        self._held: deque[tuple[Callable[..., None], Any]] = deque()
        self.backlog = self.backlog_bytes = 0
        """Number of messages in transit or held; and, for watches, their size in bytes."""
        self._counts_bytes = connection.conversation in WATCHES

    def push(self, messages: list[Any]) -> None:
        self._count(messages, 1)
        faults = self._network.faults
        if faults is None:
            self._travel(self._deliver, messages)
            return
        hosts = self._source.host, self._target.site.host
        faults.look_for_parts(*hosts, messages)
        if faults.breaks(self._rng, *hosts):
            self._connection.break_off()
            return
        if stall_s := faults.stall_s(self._rng, *hosts):
            self.stall(stall_s)
        if late_s := faults.late_change_s(self._rng, *hosts, messages):
            self.stall(late_s)
        self._travel(self._deliver, messages)
        if self._to_server:
            again = faults.repeated(self._rng, *hosts, self._connection.conversation, messages)
            if again:
                self._count(again, 1)
                self._travel(
                    self._deliver, [type(one).FromString(one.SerializeToString()) for one in again]
                )

    def _count(self, messages: list[Any], sign: int) -> None:
        self.backlog += sign * len(messages)
        if self._counts_bytes:
            self.backlog_bytes += sign * sum(message.ByteSize() for message in messages)

    def stall(self, seconds: float) -> None:
        self._last_arrival = max(self._last_arrival, self._network.loop.true_time() + seconds)

    def lose(self) -> None:
        self._lost = True
        self._held.clear()

    def mute(self) -> None:
        """Drop further messages silently, like a middlebox that forgot the connection."""
        self._muted = True

    def push_call(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the other end, after the messages sent so far."""
        self._travel(lambda _: callback(), None)

    def retry(self) -> None:
        """Deliver the held messages after another delay, if this direction is open again."""
        if self._held and not self._network.is_blocked(self._source.host, self._target.site.host):
            loop = self._network.loop
            self._last_arrival = max(loop.true_time() + self._way_s(), self._last_arrival)
            loop.call_at_true(self._last_arrival, self._drain, context=self._target.site.context)

    def drop_held(self) -> None:
        """Drop the held messages of a broken end."""
        self._held.clear()

    def _way_s(self) -> float:
        return self._network.travel_s(self._rng, self._source.host, self._target.site.host)

    def _travel(self, event: Callable[..., None], argument: Any) -> None:
        loop = self._network.loop
        self._last_arrival = max(loop.true_time() + self._way_s(), self._last_arrival)
        loop.call_at_true(
            self._last_arrival, self._arrive, event, argument, context=self._target.site.context
        )

    def _arrive(self, event: Callable[..., None], argument: Any) -> None:
        if self._lost:
            return
        if self._held or self._network.is_blocked(self._source.host, self._target.site.host):
            self._held.append((event, argument))
            self._network.note_held(self._source.host, self._target.site.host)
        else:
            event(argument)

    def _drain(self) -> None:
        while self._held and not self._network.is_blocked(
            self._source.host, self._target.site.host
        ):
            event, argument = self._held.popleft()
            event(argument)

    def _deliver(self, messages: list[Any]) -> None:
        self._count(messages, -1)
        if not self._muted:
            self._target.arrive(messages)


class Connection:
    """Two ends and their flows, from connect until both ends know that it is over."""

    def __init__(
        self, network: SimNetwork, client: Site, server: Site, conversation: Conversation
    ) -> None:
        self._network = network
        self.conversation = conversation
        wires, limits = WIRES[conversation], network.params.limits
        up_bytes, down_bytes = limits.request_max_bytes(conversation.name), limits.max_message_bytes
        up, down = wires.to_server, wires.to_client
        self.client = SimLink(network, client, server.address, (up, down), up_bytes)
        self.server = SimLink(network, server, client.address, (down, up), down_bytes)
        for end, other in ((self.client, self.server), (self.server, self.client)):
            end.connection = self
            rng = network.rng_for(f"flow {end.site.host}>{other.site.host} {conversation.name}")
            end.flow = Flow(network, end.site, self, other, rng)
        self._break_timers: list[asyncio.TimerHandle] = []

    @property
    def ends(self) -> tuple[SimLink, SimLink]:
        return self.client, self.server

    def break_off(self) -> None:
        """Reset: messages in transit are lost; each end detects the reset itself."""
        for end in self.ends:
            end.flow.lose()
            delay_s = self._network.delay_s(self._network.rng_for(f"reset {end.site.host}"))
            reason, context = "UNAVAILABLE: connection reset by peer", end.site.context
            self._network.loop.call_later_true(delay_s, end.close, reason, context=context)

    def end_closed(self, end: SimLink) -> None:
        """Notify the other end, after the messages in transit."""
        other = self.server if end is self.client else self.client
        if other.close_reason is None:
            end.flow.push_call(lambda: other.close(PEER_ENDED))
        else:
            self._cancel_breaks()
            self._network.connection_over(self)

    def recheck(self) -> None:
        """Start or stop the keepalive timers of both ends, after a change of the network."""
        disturbed = self._network.is_disturbed(self.client.site.host, self.server.site.host)
        if disturbed and not self._break_timers:
            for end in self.ends:
                wait_s = self._network.keepalive_s(end.site.host)
                timer = self._network.loop.call_later_true(
                    wait_s, self._keepalive_expired, end, context=end.site.context
                )
                self._break_timers.append(timer)
        elif not disturbed:
            self._cancel_breaks()
        for end in self.ends:
            end.flow.retry()

    def _keepalive_expired(self, end: SimLink) -> None:
        if end.close_reason is not None:
            # Long over on this side, and its kernel goes on to say so: the other end would hear it,
            # whoever is gone.
            return
        end.flow.drop_held()
        end.close("UNAVAILABLE: keepalive timeout")

    def _cancel_breaks(self) -> None:
        for timer in self._break_timers:
            timer.cancel()
        self._break_timers = []
