"""Requests that wait to be decided: a bounded queue, in order of arrival for each connection, with
a deadline for each request. Nothing is decided here.

Connections take turns, so that one that sends ten thousand requests delays only itself. Heartbeats
are decided before all other requests and have their own bound: behind a backlog longer than
``broker.fencing.timeout.ms`` no broker would get an answer in time, and all would fence themselves.
Heartbeats that change nothing are gathered for a moment, so that many are decided in one turn and
their answers share one read-index round.

Read-only requests are decided after all others, as each costs as much as many writes and blocks
them meanwhile. A read is never decided before an earlier request of its connection, unless that was
deferred.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from controller.decision import Decision, Write
from raftlog import bounds as limits
from raftlog.bounds import FairQueue, Shares, bounded_timeout_ms
from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import cluster_error
from raftlog.node.security.permissions import REQUESTS
from raftlog.transport.api import Link
from raftlog.wire.controller.v1 import controller_pb2 as pb

if TYPE_CHECKING:
    from controller.service.node import ControllerNode
    from controller.service.replies import Answers
    from controller.service.transfer import ConnectionDrain, LeadershipTransfer
    from controller.service.upkeep import BrokerProbes

SLACK = 1_024
"""Number of done items that the heap may contain beyond twice the number of waiting ones."""

NEW_A_LOOK = 8_192
"""Maximum number of items that one call moves into the heap: more in a tenth of a second is a
flood, and the excess times out a little late.
"""


class Awaited(Protocol):
    """An item with a deadline, which may be done before it."""

    deadline: float
    done: bool


T = TypeVar("T", bound=Awaited)


class Deadlines(Generic[T]):
    """Deadlines of the items of one queue, without examining each item.

    Most items are done before ``late`` is called: they cost one append. An item that still waits
    then costs O(log n); done items are removed when they are more than half of the heap.
    """

    __slots__ = ("_count", "_heap", "_new", "add")

    def __init__(self) -> None:
        self._new: deque[T] = deque()
        self.add: Callable[[T], None] = self._new.append
        """Adds an item. An attribute, as each request calls it."""
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._heap)

    def late(self, now: float, waiting: int) -> Iterator[T]:
        """Yield the items whose deadline has passed.

        Resumable: the next call continues. ``waiting``: number of items that are not done. The
        caller marks each item as done before it asks for the next one.
        """
        new = self._new
        for _ in range(min(len(new), NEW_A_LOOK)):
            one = new.popleft()
            if not one.done:
                self._count += 1
                heapq.heappush(self._heap, (one.deadline, self._count, one))
        if len(self._heap) > 2 * waiting + SLACK:
            self._heap = [entry for entry in self._heap if not entry[2].done]
            heapq.heapify(self._heap)
        while self._heap and self._heap[0][0] <= now:
            one = heapq.heappop(self._heap)[2]
            if not one.done:
                yield one


MAX_WAITING = limits.CONTROLLER_MAX_WAITING_REQUESTS
MAX_REQUEST_BYTES = limits.CONTROLLER_REQUEST_MAX_BYTES
READS = frozenset(body for body, kind in REQUESTS.items() if kind.reads)
_HEARTBEATS, _REQUESTS, _READS = range(3)
"""Indexes of the queues in which requests wait, in the order of decision."""
GATHER_S = 0.02
"""Maximum time in seconds that a heartbeat that changes nothing waits for others, to be decided
together with them: a hundredth of the default heartbeat interval.
"""


class PendingRequest(msgspec.Struct, eq=False):
    """A request, or a group of config writes, that waits to be decided and answered."""

    link: Any
    message: pb.ControllerRequest | ConfigWrites
    deadline: float
    """Deadline of the answer, in seconds of the loop's clock."""
    size: int
    peer: str | None = None
    """Peer whose share the request uses, the same for all links of a connection; None for this
    node's own requests.
    """
    charged: bool = False
    """True while the request is charged to the share of its peer."""
    line: int = _REQUESTS
    """Index of the queue in which the request waits."""
    done: bool = False
    """True once the request was taken or dropped."""
    queued: bool = True
    """False while the request is deferred."""
    kind: str = ""
    """Name of the body."""
    count: int = 1
    """Number of requests; above 1 only in a group."""
    begun: float = 0.0
    """Time of arrival, by the stopwatch."""
    first: int = 0
    """Index of a group's first undecided request."""

    @property
    def cost_bytes(self) -> int:
        """Bytes charged to the peer's share."""
        return self.size + self.count * limits.CONTROLLER_WAITING_REQUEST_BYTES

    def part(self, decision: Decision) -> PendingRequest:
        """Return the requests that a decision answers: in a group, those that it writes, or the
        first undecided one.
        """
        message: Any = self.message
        if type(message) is not ConfigWrites:
            return self
        group = decision.group if type(decision) is Write else None
        message = next(message.requests(self.first)) if group is None else group
        if message is self.message:
            return self
        count = len(message.counts) if type(message) is ConfigWrites else 1
        return msgspec.structs.replace(
            self, message=message, size=message.ByteSize(), count=count, charged=False, first=0
        )


class Intake:
    """The queue of requests in front of the controller."""

    def __init__(self, default_timeout_ms: int, max_timeout_ms: int = 2**31 - 1) -> None:
        """``default_timeout_ms``: timeout of a request that sets none. ``max_timeout_ms``: upper
        bound of the timeouts that requests set.
        """
        self._default_timeout_ms = default_timeout_ms
        self._max_timeout_ms = max_timeout_ms
        self._lines: tuple[FairQueue[PendingRequest], ...] = tuple(FairQueue() for _ in range(3))
        self._heartbeats, self._queue, self._reads = self._lines
        self._deferred: list[tuple[float, int, PendingRequest]] = []
        """A heap of (time to queue it again, tie-breaker, request)."""
        self._deferred_count = 0
        self._deadlines: Deadlines[PendingRequest] = Deadlines()
        self._dead = [0, 0, 0]
        """Number of done requests in each queue."""
        self.gathering = False
        """True while the queued heartbeats, which all change nothing, wait for others."""
        self._more = 0
        """Number of queued requests in groups, without the first of each group."""
        self.shares = Shares(limits.CONTROLLER_MAX_WAITING_BYTES)
        """Bytes of the queued requests, by peer."""
        self.waiting_bytes = 0
        """Total size of the queued requests, in bytes."""

    def __len__(self) -> int:
        # Called several times per request, so without a loop.
        dead = self._dead
        queued = self._queue.length + self._reads.length + self._more - dead[1] - dead[2]
        return queued if self.gathering else queued + self._heartbeats.length - dead[0]

    @property
    def reads(self) -> int:
        """Number of queued read-only requests."""
        return self._reads.length - self._dead[_READS]

    def add(
        self,
        link: Any,
        message: Any,
        now: float,
        *,
        heartbeat: bool = False,
        patient: bool = False,
        kind: str = "",
        begun: float = 0.0,
    ) -> None:
        """Queue a request, or a group of them.

        Raises MESSAGE_TOO_LARGE, INVALID_REQUEST for a negative timeout, and
        THROTTLING_QUOTA_EXCEEDED if too many requests wait; a refused request has had no effect.
        ``link``: None for this node's own request, which has no peer and no share. ``patient``: a
        heartbeat that may wait for others until the caller ends ``gathering``. ``kind``: name of
        the body, "" if not known. ``begun``: time of arrival, by the stopwatch.
        """
        size = message.ByteSize()
        count = len(message.counts) if type(message) is ConfigWrites else 1
        kind = kind or message.WhichOneof("body") or ""
        if size > MAX_REQUEST_BYTES:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the request has {size} bytes, but at most {MAX_REQUEST_BYTES} are allowed",
                field=kind,
            )
        peer = None if link is None else link.peer
        if (
            heartbeat
            and self._heartbeats.length_of(peer) >= limits.CONTROLLER_MAX_WAITING_HEARTBEATS_A_PEER
        ):
            heartbeat = False
        dead = self._dead
        if heartbeat:
            line, waiting_now = _HEARTBEATS, self._heartbeats.length - dead[_HEARTBEATS]
        else:
            # A read that follows another request of its connection waits in the same queue.
            line = _READS if kind in READS and not self._queue.length_of(peer) else _REQUESTS
            waiting_now = self._queue.length + self._reads.length - dead[_REQUESTS] - dead[_READS]
        if waiting_now + self._more + len(self._deferred) >= MAX_WAITING:
            raise _throttled(f"{MAX_WAITING} requests are already waiting")
        timeout_ms = bounded_timeout_ms(
            message.timeout_ms,
            "timeout_ms",
            default_ms=self._default_timeout_ms,
            max_ms=self._max_timeout_ms,
        )
        charged = peer is not None
        if charged and not self.shares.take(
            peer, size + count * limits.CONTROLLER_WAITING_REQUEST_BYTES
        ):
            raise _throttled("this connection has used up its share of the request queue")
        pending = PendingRequest(
            link,
            message,
            now + timeout_ms / 1000,
            size,
            peer,
            charged,
            line,
            kind=kind,
            count=count,
            begun=begun,
        )
        if line == _HEARTBEATS:
            self.gathering = patient and (self.gathering or not waiting_now)
        self._lines[line].push(peer, pending)
        self._more += count - 1
        self._deadlines.add(pending)
        self.waiting_bytes += size

    def take(self, *, reads: bool = False) -> PendingRequest | None:
        """Remove and return the next request that is not a read, heartbeats first (unless they are
        gathering), or with ``reads`` the next read.

        Returns None if there is none.
        """
        first, then = (self._reads, self._reads) if reads else (self._heartbeats, self._queue)
        if self.gathering and not reads:
            first = then
        while first.length or then.length:
            pending = (first if first.length else then).pop()
            assert pending is not None
            if pending.done:
                self._dead[pending.line] -= 1
                continue
            # Like ``_gone``, inlined on the hot path of every request.
            size, count = pending.size, pending.count
            pending.done = True
            self.waiting_bytes -= size
            self._more -= count - 1
            if pending.charged:
                pending.charged = False
                self.shares.give_back(
                    pending.peer, size + count * limits.CONTROLLER_WAITING_REQUEST_BYTES
                )
            return pending
        return None

    def next_kind(self) -> str:
        """Return the kind of the request that ``take`` would return without ``reads``, or ""."""
        for queue in (self._queue,) if self.gathering else (self._heartbeats, self._queue):
            for pending in queue:
                if not pending.done:
                    return pending.kind
        return ""

    def defer(self, pending: PendingRequest, until: float) -> None:
        """Put back a request that cannot be decided before ``until``."""
        pending.done = pending.queued = False
        self._deferred_count += 1
        heapq.heappush(self._deferred, (until, self._deferred_count, pending))
        self._deadlines.add(pending)

    def wake(self, now: float) -> bool:
        """Queue the deferred requests that are due. Return whether there were any."""
        woken = False
        while self._deferred and self._deferred[0][0] <= now:
            pending = heapq.heappop(self._deferred)[2]
            if not pending.done:
                pending.queued, pending.line = True, _REQUESTS
                pending.charged = pending.peer is not None and self.shares.take(
                    pending.peer, pending.cost_bytes
                )
                self._queue.push(pending.peer, pending)
                self.waiting_bytes += pending.size
                self._more += pending.count - 1
                woken = True
        return woken

    def abandon(self, links: Collection[Any]) -> None:
        """Drop the deferred requests of links that have closed; queued ones are still decided."""
        for _, _, pending in self._deferred:
            if pending.link in links:
                pending.done = True

    def drain(self) -> Iterator[PendingRequest]:
        """Remove and yield all requests.

        Resumable: the next call continues.
        """
        self.wake(math.inf)
        self.gathering = False
        for reads in (False, True):
            while (pending := self.take(reads=reads)) is not None:
                yield pending

    def expired(self, now: float) -> Iterator[PendingRequest]:
        """Remove and yield the requests whose deadline has passed before they were decided.

        Resumable: the next call continues.
        """
        if sum(self._dead) > len(self) + SLACK:
            for line in self._lines:
                line.remove(lambda pending: pending.done)
            self._dead = [0, 0, 0]
        for pending in self._deadlines.late(now, len(self) + len(self._deferred)):
            pending.done = True
            if pending.queued:
                self._dead[pending.line] += 1
                self._gone(pending)
            yield pending

    def _gone(self, pending: PendingRequest) -> None:
        self.waiting_bytes -= pending.size
        self._more -= pending.count - 1
        if pending.charged:
            pending.charged = False
            self.shares.give_back(pending.peer, pending.cost_bytes)


def _throttled(message: str) -> ApiError:
    return ApiError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=limits.RETRY_AFTER_MS
    )


class Reception:
    """Receives requests from links.

    ``wake``: run a turn soon. ``soon``: call back after a number of seconds.
    """

    def __init__(
        self,
        node: ControllerNode,
        intake: Intake,
        answers: Answers,
        transfer: LeadershipTransfer,
        drain: ConnectionDrain,
        probes: BrokerProbes,
        wake: Callable[[], None],
        soon: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._node, self._intake, self._answers = node, intake, answers
        self._transfer, self._drain = transfer, drain
        self._wake, self._soon = wake, soon
        self._gathered_due = False
        """True while the end of a gathering of heartbeats is scheduled."""
        self._gone: set[Any] = set()
        """Links that have closed since the last tick."""
        self._probes = probes

    def accept(self, link: Link) -> Reception:
        """Register a new link, and return the handler of its events."""
        self._drain.opened(link)
        return self

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Queue the requests of one envelope, or refuse them."""
        refused = self._node.not_controller()
        now, begun = self._node.now(), self._answers.figures.stopwatch()
        self._drain.heard_at = now
        if refused is not None and self._transfer.holds(now) and not self._drain.begun:
            refused = None
        for request in messages:
            if refused is not None:
                # Any node of a cluster can tell a client that it has another cluster's addresses.
                other = cluster_error(self._node.cluster_id, request.cluster_id)
                self._answers.refuse(link, request, other or refused)
                continue
            body = request.WhichOneof("body")
            if body is None:
                link.unknown_kind("the request has no body")
                self._answers.refuse(
                    link,
                    request,
                    ApiError(ErrorCode.INVALID_REQUEST, "the request has no body", field="body"),
                )
                continue
            heartbeat = body == "broker_heartbeat"
            patient = heartbeat and self._heard(link, request.broker_heartbeat)
            try:
                self._intake.add(
                    link,
                    request,
                    now,
                    heartbeat=heartbeat,
                    patient=patient,
                    kind=body,
                    begun=begun,
                )
            except ApiError as error:
                self._answers.refuse(link, request, error)
                if error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                    link.throttled(error.message)
        if self._intake.gathering and not self._gathered_due:
            self._gathered_due = True
            self._soon(GATHER_S, self._gathered)
        if self._intake:
            self._wake()

    def _gathered(self) -> None:
        """Stop gathering heartbeats, and wake the decider."""
        self._gathered_due = self._intake.gathering = False
        self._wake()

    def closed(self, link: Link, reason: str) -> None:
        """Process the end of a link.

        ``forget_gone`` drops its parked replies and deferred requests; its queued requests are
        still decided.
        """
        self._gone.add(link)
        self._drain.closed(link)
        self._probes.closed(link)

    def forget_gone(self) -> None:
        """Drop the requests of links that have closed since the last call."""
        gone, self._gone = self._gone, set()
        leadership = self._node.leadership
        if gone and leadership is not None:
            leadership.parking.abandon(gone)
            self._intake.abandon(gone)

    def _heard(self, link: Any, heartbeat: pb.BrokerHeartbeatRequest) -> bool:
        """Renew the broker's session. Return whether the heartbeat seems to change nothing.

        A heartbeat counts on arrival, not when it is decided: a long or full queue must not fence
        brokers.
        """
        decider = self._node.decider
        if decider is None:
            return False
        broker = decider.heard(heartbeat.broker_id, heartbeat.broker_epoch, self._node.now())
        if broker is None:
            return False
        self._probes.heard(link, heartbeat.broker_id, heartbeat.broker_epoch)
        return broker.active and not (
            heartbeat.target_state != pb.ACTIVE
            or heartbeat.want_shut_down
            or heartbeat.want_fence
            or heartbeat.want_read_lease
            or heartbeat.disk_hangs_ms
        )
