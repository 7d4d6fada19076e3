"""Exactly-once writes: opening and closing clients, looking up the result of a numbered write, and
closing idle clients.

A client's id is the offset of its OpenClientRecord. An id that is not open is an error, never a new
client: otherwise an evicted client's retry would be executed twice. All look-ups use the pending
image, which includes the inherited tail, so a retry right after a failover finds the previous
controller's writes that are not committed yet.

Why: docs/decisions/017-exactly-once-writes.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from controller.decision import Write, refuse
from controller.settings import ControllerSettings
from controller.state.state import ControllerState
from raftlog.clock import STAND_STILL_MAX_MS
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import FIRST_SEQUENCE, WINDOW, Client, ClientResult
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import record
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

CHECK_INTERVAL_S = 10.0
"""Interval in seconds at which idle clients are looked for; clients beyond the maximum number are
closed at once.
"""
CLOSED_BY_OWNER, IDLE, TOO_MANY = (
    "closed by its owner",
    "idle for too long",
    "the longest idle of too many",
)


def find_result(
    view: ImageView, identity: common_pb2.ClientIdentity, generation: int
) -> ClientResult | None:
    """Return the result of the write that ``identity`` names, or None if it was not executed and
    may be executed now.

    Raises INCONSISTENT_GENERATION, UNKNOWN_PRODUCER_ID, INVALID_REQUEST, DUPLICATE_SEQUENCE_NUMBER
    for a number that the client has declared done, and OUT_OF_ORDER_SEQUENCE_NUMBER for one beyond
    the window.
    """
    client = view.clients.get(identity.client_id)
    if identity.generation != generation:
        raise refuse(
            ErrorCode.INCONSISTENT_GENERATION,
            f"client {identity.client_id} belongs to generation {identity.generation}, but the log"
            f" has generation {generation}",
            "client.generation",
        )
    sequence, asked_done = identity.sequence, identity.all_below_done
    if client is None:
        raise refuse(
            ErrorCode.UNKNOWN_PRODUCER_ID,
            f"client {identity.client_id} is not open",
            "client.client_id",
        )
    if sequence < FIRST_SEQUENCE:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"sequence {sequence} is below {FIRST_SEQUENCE}, the first sequence number",
            "client.sequence",
        )
    if asked_done < 0 or asked_done > sequence:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"all_below_done is {asked_done}; it must be in 0 .. {sequence}, the write's own"
            " number",
            "client.all_below_done",
        )
    if sequence < client.all_below_done:
        raise refuse(
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            f"the client has declared all writes below {client.all_below_done} done, and"
            f" {sequence} is one",
            "client.sequence",
        )
    result = view.client_results.get((client.id, sequence))
    if result is None and sequence >= max(client.all_below_done, asked_done) + WINDOW:
        raise refuse(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"write {sequence} is {WINDOW} or more beyond the first write that is not declared"
            " done",
            "client.sequence",
        )
    return result


def check_owner(view: ImageView, client_id: int, principal: str) -> None:
    """Raise UNKNOWN_PRODUCER_ID for another principal's client, as if it were not open."""
    client = view.clients.get(client_id)
    if client is not None and client.principal not in ("", principal):
        raise refuse(
            ErrorCode.UNKNOWN_PRODUCER_ID, f"client {client_id} is not open", "client.client_id"
        )


def open_client(state: ControllerState, request: rpc.OpenClientRequest, owner: str | None) -> Write:
    """Open a client. With an ``owner``, only that principal may use it.

    Raises INVALID_REQUEST.
    """
    return Write(
        [record(pb.OpenClientRecord(name=request.name, principal=owner or ""))],
        rpc.OpenClientResponse(client_id=state.log.end_offset),
    )


def close_client(
    state: ControllerState, request: rpc.CloseClientRequest, owner: str | None
) -> Write:
    """Close a client; its id is never valid again.

    ``owner``: principal that must own the client, or None to allow any. Raises UNKNOWN_PRODUCER_ID.
    """
    view = state.log.pending
    if owner is not None:
        check_owner(view, request.client_id, owner)
    # [A program that has lived through an unsafe recovery ends, and closes the client that now has
    # its client's id, and has writes under way.]
    other = request.HasField("generation") and request.generation != state.generation
    if other or request.client_id not in view.clients:
        raise refuse(
            ErrorCode.UNKNOWN_PRODUCER_ID, f"client {request.client_id} is not open", "client_id"
        )
    return _close([request.client_id], CLOSED_BY_OWNER, rpc.CloseClientResponse())


class ClientExpiry:
    """Closes clients that have been idle too long and, if there are too many, the longest idle
    clients of the principal with the most clients.

    Idle time is measured in log time, but never exceeds the time since this controller began by the
    monotonic clock. (Otherwise all clients would become idle at once after a clock jump, or at the
    first write after a quiet week.)
    """

    def __init__(self, settings: ControllerSettings, now: float) -> None:
        self._began_at, self._began_ms = now, -1
        """Start of this controller: seconds of the loop's clock, and log time in milliseconds (-1
        until determined).
        """
        self._idle_max_ms = settings.producer_id_expiration_ms
        self._max_clients = settings.max_clients
        self._max_records = settings.max_records_per_request
        self.next_check = now + CHECK_INTERVAL_S
        """Time of the next check, in seconds of the loop's clock."""

    def due(self, pending: ImageView, now: float) -> Write | None:
        """Return the closing of the clients that are due, or None if none is due.

        Log time is that of the newest batch: an idle log evicts no client.
        """
        excess = len(pending.clients) - self._max_clients
        if excess <= 0 and now < self.next_check:
            return None
        log_ms, elapsed_ms = pending.timestamp_ms, (now - self._began_at) * 1000
        # Log time may have gone back: for a client whose last write has a later time, the real time
        # is unknown.
        known_ms = log_ms + STAND_STILL_MAX_MS
        # Sorted, as the order of a map is arbitrary, and every run of a seed must choose the same
        # clients.
        clients = sorted(
            pending.snapshot().clients.values(),
            key=lambda one: (one.last_write_ms <= known_ms, one.last_write_ms, one.id),
        )
        if excess > 0:
            chosen = too_many(clients, min(excess, self._max_records))
            return _close([client.id for client in chosen], TOO_MANY)
        written = [one.last_write_ms for one in clients if one.last_write_ms <= known_ms]
        if self._began_ms < 0:
            self._began_ms = max(written, default=log_ms)
        horizon = min(log_ms, self._began_ms + elapsed_ms) - self._idle_max_ms
        idle = [client.id for client in clients if client.last_write_ms < horizon]
        if elapsed_ms > self._idle_max_ms:
            idle += [client.id for client in clients if client.last_write_ms > known_ms]
        if idle:
            return _close(idle[: self._max_records], IDLE)
        self.next_check = now + CHECK_INTERVAL_S
        return None


def too_many(clients: Sequence[Client], excess: int) -> list[Client]:
    """Return the clients to close, given all clients in the order of their last write.

    No principal loses a client because another one opens many.
    """
    queues: dict[str, deque[Client]] = {}
    for client in clients:
        queues.setdefault(client.principal, deque()).append(client)
    most = [(-len(queue), owner) for owner, queue in queues.items()]
    heapify(most)
    chosen: list[Client] = []
    while len(chosen) < excess:
        count, owner = heappop(most)
        chosen.append(queues[owner].popleft())
        heappush(most, (count + 1, owner))
    return chosen


def _close(
    client_ids: Iterable[int], reason: str, body: rpc.CloseClientResponse | None = None
) -> Write:
    records = [
        record(pb.CloseClientRecord(client_id=client_id, reason=reason)) for client_id in client_ids
    ]
    return Write(records, body)
