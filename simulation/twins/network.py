"""The simulated network: hosts, delays and faults from one seed. Each flow and dialer has its own
generator, so that a change does not reshuffle the rest. A host is a process and its kernel: a crash
lets the kernel close and refuse connections; ``isolate`` it as well to lose power.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from raftlog.errors import ConfigError
from raftlog.identity import ANONYMOUS, PeerIdentity
from raftlog.transport.api import Conversation, Probe, TransportLimits
from simulation.twins.loop import VirtualLoop
from simulation.twins.network_faults import LinkFaults
from simulation.twins.network_links import Connection, Flow
from simulation.twins.network_transport import SimDialer, SimListener, SimTransport


@dataclass(frozen=True, slots=True)
class NetworkParams:
    """One way takes ``delay_min_ms`` plus an exponential time of mean ``delay_extra_mean_ms``."""

    delay_min_ms: float = 0.05
    delay_extra_mean_ms: float = 0.15
    limits: TransportLimits = field(default_factory=TransportLimits)


class SimNetwork:
    """All hosts and links. Must be made on a running :class:`simulation.twins.loop.VirtualLoop`.
    ``handler_failures``: errors of link handlers, whose links were closed; tests assert there are
    none.
    """

    def __init__(self, rng: random.Random, params: NetworkParams | None = None) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise TypeError("a simulated network needs a VirtualLoop")
        self.loop: VirtualLoop = loop
        self.params = params or NetworkParams()
        self.handler_failures: list[Exception] = []
        self._seed = rng.getrandbits(64)
        self._rngs: dict[str, random.Random] = {}
        # Dicts for their order: nothing here may depend on hashes.
        self._transports: dict[str, list[SimTransport]] = {}
        self._listeners: dict[str, SimListener] = {}
        self._connections: dict[Connection, None] = {}
        self._blocked: dict[tuple[str, str], bool] = {}
        """Pair -> whether connects are refused, and not only dropped."""
        self._paused: dict[str, None] = {}
        self._hushed: dict[tuple[str, str, Conversation], None] = {}
        self._next_port: dict[tuple[str, str], int] = {}
        self.faults: LinkFaults | None = None
        self.held: Counter[tuple[str, str]] = Counter()
        """Number of messages and connects between two hosts held up by a block."""
        self.far_s: dict[tuple[str, str], float] = {}
        """Additional delay of a message from one host to another, in seconds."""
        self.identities: dict[str, PeerIdentity] = {}
        self.other_identity = ANONYMOUS
        self.addresses: dict[str, str] = {}
        """Source address of the connections of each host; by default its name."""
        self.taps: dict[str, Callable[[str, Any], None]] = {}
        """Listener of each message that a host passes to a link, as (peer's host, message)."""
        self.arrival_taps: dict[str, Callable[[str, Any], None]] = {}
        """Listener of each request to a controller that arrives at a host."""

    def tap(self, host: str, listener: Callable[[str, Any], None] | None) -> None:
        """Call ``listener`` with each message that ``host`` sends."""
        if listener is not None:
            self.taps[host] = listener

    def tap_arrivals(self, host: str, listener: Callable[[str, Any], None] | None) -> None:
        if listener is not None:
            self.arrival_taps[host] = listener

    def transport_for(self, host: str) -> SimTransport:
        """Return a transport for the current process on ``host``."""
        transport = SimTransport(self, host)
        self._transports.setdefault(host, []).append(transport)
        return transport

    def block(self, source: str, target: str) -> None:
        self._blocked[source, target] = False
        self._recheck()

    def reject(self, source: str, target: str) -> None:
        """Block two hosts by resets and refusals, as a firewall."""
        self._blocked[source, target] = True
        for connection in list(self._connections):
            if {end.site.host for end in connection.ends} == {source, target}:
                connection.break_off()
        self._recheck()

    def partition(self, one: str, other: str) -> None:
        self._blocked[one, other] = self._blocked[other, one] = False
        self._recheck()

    def isolate(self, host: str) -> None:
        for other in self._transports:
            if other != host:
                self._blocked[host, other] = self._blocked[other, host] = False
        self._recheck()

    def heal(self, one: str, other: str) -> None:
        """Unblock both directions; held messages arrive, unless their link broke."""
        self._blocked.pop((one, other), None)
        self._blocked.pop((other, one), None)
        self._recheck()

    def crash(self, host: str) -> None:
        """Kill a host's process as by kill -9: its peers see closed links at once."""
        # First: what a paused host whose code takes time has before it would run as it resumes.
        self.loop.drop_host(host)
        self.resume(host)
        for transport in self._transports.get(host, []):
            transport.die()
        self._transports[host] = []
        for connection in list(self._connections):
            for end in connection.ends:
                if end.site.host == host:
                    end.die()
        self.loop.drop_host(host)

    def pause(self, host: str) -> None:
        """Pause a host's process as by SIGSTOP: connects are accepted, and never answered."""
        self._paused[host] = None
        self.loop.pause_host(host)
        self._recheck()

    def resume(self, host: str) -> None:
        if host in self._paused:
            del self._paused[host]
            self.loop.resume_host(host)
            self._recheck()

    def break_links(self, host: str) -> int:
        """Break all connections of a host, losing messages in transit; return their number."""
        broken = [
            c for c in list(self._connections) if any(end.site.host == host for end in c.ends)
        ]
        for connection in broken:
            connection.break_off()
        return len(broken)

    def stall(
        self, source: str, target: str, seconds: float, conversation: Conversation | None = None
    ) -> int:
        """Delay everything on the current links in one direction, in order. Return their number."""
        flows = self._flows(source, target, conversation)
        for flow in flows:
            flow.stall(seconds)
        return len(flows)

    def mute(self, source: str, target: str, conversation: Conversation) -> int:
        """Drop all messages on a conversation's current links in one direction, silently and for
        good. Return their number.
        """
        flows = self._flows(source, target, conversation)
        for flow in flows:
            flow.mute()
        return len(flows)

    def _flows(self, source: str, target: str, conversation: Conversation | None) -> list[Flow]:
        return [
            end.flow
            for connection in self._connections
            if conversation is None or connection.conversation is conversation
            for end, other in (connection.ends, connection.ends[::-1])
            if (end.site.host, other.site.host) == (source, target)
        ]

    def hush(self, source: str, target: str, conversation: Conversation) -> int:
        """Do as ``mute``, and leave new connects for it unanswered until ``unhush``."""
        self._hushed[source, target, conversation] = None
        return self.mute(source, target, conversation)

    def unhush(self, source: str, target: str, conversation: Conversation) -> None:
        self._hushed.pop((source, target, conversation), None)

    def is_paused(self, host: str) -> bool:
        return host in self._paused

    def note_held(self, source: str, target: str) -> None:
        self.held[source, target] += 1

    def unblock(self, source: str, target: str) -> None:
        self._blocked.pop((source, target), None)
        self._recheck()

    def unblock_all(self, among: Container[str] | None = None) -> None:
        for source, target in list(self._blocked):
            if among is None or (source in among and target in among):
                self.unblock(source, target)

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def is_cut(self, one: str, other: str) -> bool:
        return self.is_blocked(one, other) or self.is_blocked(other, one)

    def is_disturbed(self, one: str, other: str) -> bool:
        """Return whether a keepalive ping between the two would go unanswered."""
        return self.is_cut(one, other) or one in self._paused or other in self._paused

    def rng_for(self, purpose: str) -> random.Random:
        if purpose not in self._rngs:
            self._rngs[purpose] = random.Random(f"{self._seed} {purpose}")
        return self._rngs[purpose]

    def delay_s(self, rng: random.Random) -> float:
        extra_ms = self.params.delay_extra_mean_ms
        return (
            self.params.delay_min_ms + (rng.expovariate(1 / extra_ms) if extra_ms else 0.0)
        ) / 1000

    def travel_s(self, rng: random.Random, source: str, target: str) -> float:
        return self.delay_s(rng) + self.far_s.get((source, target), 0.0)

    def keepalive_s(self, host: str) -> float:
        """Return the time in seconds until a host's next keepalive fails."""
        limits = self.params.limits
        due_ms = self.rng_for(f"keepalive {host}").uniform(0, limits.keepalive_time_ms)
        return (due_ms + limits.keepalive_timeout_ms) / 1000

    def free_address(self, host: str) -> str:
        """Return a port that nothing on this host listens on."""
        while (address := self._next_address(host, "server", 10000)) in self._listeners:
            pass
        return address

    def client_address(self, host: str) -> str:
        return self._next_address(self.addresses.get(host, host), "client", 40000)

    def identity_of(self, host: str) -> PeerIdentity:
        return self.identities.get(host, self.other_identity)

    def bind(self, listener: SimListener) -> None:
        if listener.address in self._listeners:
            raise ConfigError(f"cannot listen on {listener.address}: port in use")
        self._listeners[listener.address] = listener

    def unbind(self, listener: SimListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def connection_over(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    def connect(self, dialer: SimDialer) -> None:
        """Carry a connect and its response; a dialer on a blocked way times out."""
        host = dialer.address.rpartition(":")[0]
        rng = self.rng_for(f"connect {dialer.site.host}>{host}")
        source = dialer.site.host
        if self.is_cut(source, host):
            self.note_held(source, host)
        trouble = self.faults.connect(rng, source, host) if self.faults is not None else ""
        hushed = dialer.conversation
        if (source, host, hushed) in self._hushed or (host, source, hushed) in self._hushed:
            self.note_held(source, host)
            return
        if trouble == "refused" or self._blocked.get((source, host)):
            self._refuse(dialer, rng, "UNAVAILABLE: connection refused")
        elif not trouble and host in self._transports and not self.is_disturbed(source, host):
            self.loop.call_later_true(self.delay_s(rng), self._connect_arrives, dialer, rng)

    def _connect_arrives(self, dialer: SimDialer, rng: random.Random) -> None:
        listener = self._listeners.get(dialer.address)
        if not dialer.connecting:
            return
        if listener is None:
            self._refuse(dialer, rng, "UNAVAILABLE: connection refused")
            return
        if dialer.conversation not in listener.acceptors:
            self._refuse(dialer, rng, "UNIMPLEMENTED: no such conversation")
            return
        connection = Connection(self, dialer.site, listener.site, dialer.conversation)
        self._connections[connection] = None
        connection.recheck()
        dialer.begun(connection)
        self.loop.call_soon(
            listener.accept, connection, dialer.conversation, dialer, context=listener.site.context
        )

    def _refuse(self, dialer: SimDialer, rng: random.Random, reason: str) -> None:
        self.loop.call_later_true(
            self.delay_s(rng), dialer.refused, None, reason, context=dialer.site.context
        )

    async def probe(self, source: str, address: str, timeout_s: float) -> Probe:
        """Return an address's state as a connect sees it: a paused process accepts, and a host that
        is isolated or unknown is silent.
        """
        host = address.rpartition(":")[0]
        rng = self.rng_for(f"probe {source}>{host}")
        there_and_back_s = self.delay_s(rng) + self.delay_s(rng)
        if self._blocked.get((source, host)) and there_and_back_s <= timeout_s:
            await asyncio.sleep(there_and_back_s)
            return Probe.REFUSED
        cut = self.is_cut(source, host)
        if host not in self._transports or cut or there_and_back_s > timeout_s:
            await asyncio.sleep(timeout_s)
            return Probe.SILENT
        await asyncio.sleep(there_and_back_s)
        return Probe.ACCEPTED if address in self._listeners else Probe.REFUSED

    def _next_address(self, host: str, kind: str, first_port: int) -> str:
        port = self._next_port[host, kind] = self._next_port.get((host, kind), first_port - 1) + 1
        return f"{host}:{port}"

    def _recheck(self) -> None:
        for connection in list(self._connections):
            connection.recheck()
