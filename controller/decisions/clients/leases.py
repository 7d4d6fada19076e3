"""Leases: granted, kept alive, revoked, expired; and the keys that go with them.

What keeps a lease alive is not in the log: a thousand clients that live would write a thousand
records every few seconds to say so. The answer to a keep-alive waits for a read-index round, as
each answer without records does: so nobody else led before it was asked for, and whoever leads
later gives the lease its whole time again. A client may therefore count from when it *sent* the
request.

Why: docs/decisions/027-key-values-and-leases.md
"""

from __future__ import annotations

from controller.decision import Reply, Write, refuse
from controller.decisions.clients.key_values import check_lease, check_supported, deletion, no_lease
from controller.effects import LeaseBegun, LeaseEnded, LeaseKeptAlive
from controller.state.state import ControllerState
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Lease
from raftlog.metadata.records import Record, record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

EXPIRED, REVOKED = "expired", "revoked"


def grant_lease(state: ControllerState, request: rpc.GrantLeaseRequest, owner: str | None) -> Write:
    """Grant a lease; with an ``owner``, to that principal alone.

    Raises UNSUPPORTED_VERSION, INVALID_REQUEST, POLICY_VIOLATION.
    """
    pending, settings = state.log.pending, state.settings
    check_supported(pending)
    low, high = settings.lease_ttl_min_ms, settings.lease_ttl_max_ms
    if not low <= request.ttl_ms <= high:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"a lease lives {low} to {high} ms, not {request.ttl_ms}",
            "ttl_ms",
        )
    if len(pending.leases) >= settings.lease_max_count:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"there are {len(pending.leases)} leases, lease.max.count is"
            f" {settings.lease_max_count}: revoke some, or let them expire",
        )
    lease_id = state.log.end_offset
    message = pb.LeaseRecord(name=request.name, ttl_ms=request.ttl_ms, principal=owner or "")
    return Write(
        [record(message)],
        rpc.GrantLeaseResponse(lease_id=lease_id, ttl_ms=request.ttl_ms),
        (LeaseBegun(lease_id, request.ttl_ms),),
    )


def keep_lease_alive(
    state: ControllerState, request: rpc.KeepLeaseAliveRequest, owner: str | None, now: float
) -> Reply:
    """Give a lease its whole time again.

    Raises UNSUPPORTED_VERSION, RESOURCE_NOT_FOUND, also for one that is due: some of its keys may
    be gone already.
    """
    lease = _lease_of(state, request, owner)
    if not state.leases.remaining_s(lease.id, now):
        raise no_lease(lease.id, "lease_id")
    return Reply(
        rpc.KeepLeaseAliveResponse(ttl_ms=lease.ttl_ms), (LeaseKeptAlive(lease.id, lease.ttl_ms),)
    )


def revoke_lease(
    state: ControllerState, request: rpc.RevokeLeaseRequest, owner: str | None
) -> Write:
    """End a lease, and delete its keys, in one batch.

    Raises UNSUPPORTED_VERSION, RESOURCE_NOT_FOUND, POLICY_VIOLATION if it has more keys than a
    batch takes.
    """
    lease = _lease_of(state, request, owner)
    records, is_whole = _end(state, lease.id, REVOKED)
    if not is_whole:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"lease {lease.id} has more keys than one batch takes: delete some first",
            "lease_id",
        )
    return Write(records, rpc.RevokeLeaseResponse(), (LeaseEnded(lease.id),))


def list_leases(state: ControllerState, now: float) -> Reply:
    """All leases by id, as of the committed image. Raises UNSUPPORTED_VERSION."""
    check_supported(state.log.pending)
    image = state.log.committed
    leases = [
        rpc.ListedLease(
            lease_id=one.id,
            name=one.name,
            ttl_ms=one.ttl_ms,
            remaining_ms=int(state.leases.remaining_s(one.id, now) * 1000),
            principal=one.principal,
            key_count=len(image.keys_of_lease.get(one.id) or ()),
        )
        for _, one in sorted(image.leases.items())
    ]
    return Reply(
        rpc.ListLeasesResponse(leases=leases, generation=state.generation, offset=image.offset)
    )


def expire_lease(state: ControllerState, now: float) -> Write | None:
    """End the lease that has been due the longest, or delete as many of its keys as one batch
    takes; None: none is due.
    """
    lease_id = state.leases.expired(now)
    if lease_id is None:
        return None
    records, is_whole = _end(state, lease_id, EXPIRED)
    return Write(records, effects=(LeaseEnded(lease_id),) if is_whole else ())


def _end(state: ControllerState, lease_id: int, reason: str) -> tuple[list[Record], bool]:
    """The records that end a lease, and whether they are all of them."""
    keys = sorted(state.log.pending.keys_of_lease.get(lease_id) or ())
    most = max(1, state.settings.max_records_per_request - 1)
    records = [deletion(key) for key in keys[:most]]
    if len(keys) > most:
        return records, False
    return [*records, record(pb.RemoveLeaseRecord(lease_id=lease_id, reason=reason))], True


def _lease_of(
    state: ControllerState,
    request: rpc.KeepLeaseAliveRequest | rpc.RevokeLeaseRequest,
    owner: str | None,
) -> Lease:
    pending, lease_id = state.log.pending, request.lease_id
    check_supported(pending)
    if not lease_id:
        raise no_lease(lease_id, "lease_id")
    if request.HasField("generation") and request.generation != state.generation:
        # Offsets begin again where the log was recovered or restored [the holder of a lease that
        # is lost keeps alive the one that has its id now, and both hold the lock].
        raise refuse(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"lease {lease_id} was of generation {request.generation} of the log, which is of"
            f" generation {state.generation} since it was recovered or restored",
            "generation",
        )
    check_lease(pending, lease_id, owner, "lease_id")
    return pending.leases[lease_id]
