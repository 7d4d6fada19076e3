"""The key-value store: AlterKeyValues (puts, deletions and conditions on keys, all or nothing) and
leases.

Conditions are compared with the pending image, which is the end of the log: of two requests with
the same condition, the second sees the first. One batch, one outcome: if a condition fails, nothing
has changed.

A request may also grant a lease for its keys, in the same batch. Its answer then counts the other
keys in each directory, in the same image, so a client whose key is the first in a queue knows
without a read that it holds the lock.

Leases are granted, kept alive, and then revoked or expired, which deletes their keys. Keep-alives
are not in the log: a thousand clients would write a thousand records every few seconds. The answer
to a keep-alive waits for a read-index round, as each answer without records does: so no other
controller led before the request, and each later one extends the lease by its whole TTL. A client
may therefore count the TTL from the moment it *sent* the request.

Why: docs/decisions/027-key-values-and-leases.md
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.decision import (
    LeaseBegun,
    LeaseEnded,
    LeaseKeptAlive,
    Reply,
    Write,
    check_item_count,
    refuse,
    write_or_reply,
)
from controller.settings import ControllerSettings
from controller.state.state import ControllerState
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import KeyValue, Lease
from raftlog.metadata.fold import directory_of
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

NOT_THERE = -1
"""Offset of a key that does not exist."""
NEW_LEASE = -1
"""Lease id of a put whose key belongs to the lease that its request grants."""
_OPERATIONS = frozenset(rpc.KeyValueOperation.values())


def alter_key_values(
    state: ControllerState, request: rpc.AlterKeyValuesRequest, owner: str | None
) -> Write | Reply:
    """Change all keys, or raise an error and change none.

    ``owner``: principal whose leases the request may name, or None for all. Raises INVALID_REQUEST;
    INVALID_UPDATE_VERSION for a condition that does not hold; RESOURCE_NOT_FOUND for a lease that
    does not exist; POLICY_VIOLATION if a bound of the store would be exceeded.
    """
    view, settings, alterations = state.log.pending, state.settings, request.alterations
    grants = request.HasField("lease")
    check_item_count(len(alterations) + grants, settings.max_records_per_request, "alterations")
    if not alterations:
        raise refuse(
            ErrorCode.INVALID_REQUEST, "alterations is empty; give at least one", "alterations"
        )
    records: list[Record] = []
    offsets: list[int] = []
    granted = _granted(state, alterations, request.lease, owner) if grants else None
    if granted is not None:
        records += granted.records
    count, size = len(view.key_values), view.key_value_bytes
    seen: set[str] = set()
    for index, one in enumerate(alterations):
        field = f"alterations[{index}]"
        key = one.key
        if key in seen:
            raise refuse(ErrorCode.INVALID_REQUEST, f"key {key} is given twice", f"{field}.key")
        seen.add(key)
        old = view.key_values.get(key)
        _check_fields(one, field)
        _check_generation(one, state.generation, field)
        _compare(old, one, field)
        offset = NOT_THERE if old is None else old.offset
        if one.operation == rpc.KEY_VALUE_PUT:
            lease_id = one.lease_id
            if granted is not None and lease_id == NEW_LEASE:
                lease_id = granted.body.lease_id
            else:
                check_lease(view, lease_id, owner, f"{field}.lease_id")
            offset = state.log.end_offset + len(records)
            records.append(record(pb.KeyValueRecord(key=key, value=one.value, lease_id=lease_id)))
            count += old is None
            size += len(key) + len(one.value)
        elif one.operation == rpc.KEY_VALUE_DELETE:
            offset = NOT_THERE
            if old is not None:
                records.append(deletion(key))
                count -= 1
        if old is not None and one.operation != rpc.KEY_VALUE_COMPARE:
            size -= len(key) + len(old.value)
        offsets.append(offset)
    _check_room(view, settings, count, size)
    answer = rpc.AlterKeyValuesResponse(offsets=offsets)
    if granted is not None:
        answer.lease.CopyFrom(granted.body)
        answer.sibling_counts.extend(_siblings(view, one.key) for one in alterations)
    if request.validate_only:
        return Reply(answer)
    return write_or_reply(records, answer, *(() if granted is None else granted.effects))


def _granted(
    state: ControllerState,
    alterations: Iterable[rpc.KeyValueAlteration],
    lease: rpc.GrantLeaseRequest,
    owner: str | None,
) -> Write:
    """Return the grant of a lease with the keys of a request.

    Raises INVALID_REQUEST if no key is put with the lease, and the errors of ``grant_lease``.
    """
    if all(one.lease_id != NEW_LEASE for one in alterations):
        raise refuse(
            ErrorCode.INVALID_REQUEST, "no key is put with the granted lease (lease_id -1)", "lease"
        )
    try:
        return grant_lease(state, lease, owner)
    except ApiError as error:
        raise refuse(error.code, error.message, error.field and f"lease.{error.field}") from None


def _siblings(view: ImageView, key: str) -> int:
    """Return the number of other keys in a key's directory."""
    return view.keys_in.get(directory_of(key), 0) - (key in view.key_values)


def deletion(key: str) -> Record:
    """Return the record that deletes a key."""
    return record(pb.KeyValueRecord(key=key))


def check_lease(view: ImageView, lease_id: int, owner: str | None, field: str) -> None:
    """Raise RESOURCE_NOT_FOUND for a lease that does not exist or belongs to another principal,
    which the client cannot tell apart.

    0 stands for no lease.
    """
    if not lease_id:
        return
    lease = view.leases.get(lease_id)
    if lease is None or (owner is not None and lease.principal not in ("", owner)):
        raise no_lease(lease_id, field)


def no_lease(lease_id: int, field: str) -> ApiError:
    """Return the error for a lease that does not exist, or that the client may not use."""
    return refuse(
        ErrorCode.RESOURCE_NOT_FOUND,
        f"lease {lease_id} does not exist: it has expired, or was revoked",
        field,
    )


def _check_fields(one: rpc.KeyValueAlteration, field: str) -> None:
    if one.operation not in _OPERATIONS:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"operation is {one.operation}; it must be in 0 .. {max(_OPERATIONS)}",
            f"{field}.operation",
        )
    if one.operation != rpc.KEY_VALUE_PUT and (one.value or one.lease_id):
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            "value and lease_id are allowed only with KEY_VALUE_PUT",
            f"{field}.value" if one.value else f"{field}.lease_id",
        )


def _check_generation(one: rpc.KeyValueAlteration, generation: int, field: str) -> None:
    """Raise INVALID_UPDATE_VERSION if the expected offset belongs to another log, as a recovery or
    restore reuses offsets: otherwise the condition of a lost lock could hold for a later lock with
    the same key and offset.
    """
    if one.HasField("expected_generation") and one.expected_generation != generation:
        raise refuse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"the condition on key {one.key} belongs to generation {one.expected_generation} of the"
            f" log, which was recovered or restored since: it now has generation {generation}",
            f"{field}.expected_generation",
        )


def _compare(old: KeyValue | None, one: rpc.KeyValueAlteration, field: str) -> None:
    """Raise INVALID_UPDATE_VERSION unless the key is as expected."""
    for name, found in (
        ("expected_offset", NOT_THERE if old is None else old.offset),
        ("expected_create_offset", NOT_THERE if old is None else old.create_offset),
    ):
        if not one.HasField(name) or getattr(one, name) == found:
            continue
        what = "created" if name == "expected_create_offset" else "put"
        present = "does not exist" if old is None else f"was {what} at offset {found}"
        expected = getattr(one, name)
        wanted = "not to exist" if expected == NOT_THERE else f"at offset {expected}"
        raise refuse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"key {one.key} {present}, but the request expects it {wanted}",
            f"{field}.{name}",
        )


def _check_room(view: ImageView, settings: ControllerSettings, count: int, size: int) -> None:
    """Raise POLICY_VIOLATION if a request would exceed a bound of the store.

    A request that reduces the store is always accepted.
    """
    if count > settings.kv_max_keys and count > len(view.key_values):
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"the key-value store would have {count} keys, but kv.max.keys is"
            f" {settings.kv_max_keys}: delete some",
        )
    if size > settings.kv_max_bytes and size > view.key_value_bytes:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"the key-value store would hold {size} bytes, but kv.max.bytes is"
            f" {settings.kv_max_bytes}: delete some keys",
        )


EXPIRED, REVOKED = "expired", "revoked"


def grant_lease(state: ControllerState, request: rpc.GrantLeaseRequest, owner: str | None) -> Write:
    """Grant a lease. With an ``owner``, only that principal may use it.

    Raises INVALID_REQUEST, POLICY_VIOLATION.
    """
    pending, settings = state.log.pending, state.settings
    low, high = settings.lease_ttl_min_ms, settings.lease_ttl_max_ms
    if not low <= request.ttl_ms <= high:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"ttl_ms is {request.ttl_ms}; it must be in {low} .. {high}",
            "ttl_ms",
        )
    if len(pending.leases) >= settings.lease_max_count:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"there are {len(pending.leases)} leases, and lease.max.count is"
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
    """Extend each lease by its whole TTL from now on.

    For a single lease, raises RESOURCE_NOT_FOUND if it does not exist, or is due, as some of its
    keys may already have been deleted. For several leases, each has its own answer.
    """
    _check_lease_generation(state, request)
    lease_ids = (request.lease_id, *request.more_lease_ids)
    found = [_kept(state, lease_id, owner, now) for lease_id in lease_ids]
    if found == [None]:
        raise no_lease(request.lease_id, "lease_id")
    kept = tuple(LeaseKeptAlive(lease.id, lease.ttl_ms) for lease in found if lease is not None)
    ttl_ms, *more = (0 if lease is None else lease.ttl_ms for lease in found)
    return Reply(rpc.KeepLeaseAliveResponse(ttl_ms=ttl_ms, more_ttl_ms=more), kept)


def _kept(state: ControllerState, lease_id: int, owner: str | None, now: float) -> Lease | None:
    """Return the lease with this id if it has not expired and the owner may use it, else None."""
    lease = state.log.pending.leases.get(lease_id)
    if lease is None or (owner is not None and lease.principal not in ("", owner)):
        return None
    return lease if state.leases.remaining_s(lease_id, now) else None


def revoke_lease(
    state: ControllerState, request: rpc.RevokeLeaseRequest, owner: str | None
) -> Write:
    """End a lease and delete its keys, in one batch.

    Raises RESOURCE_NOT_FOUND, or POLICY_VIOLATION if it has more keys than fit into a batch.
    """
    lease = _lease_of(state, request, owner)
    records, is_whole = _end(state, lease.id, REVOKED)
    if not is_whole:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"lease {lease.id} has more keys than fit into one batch: delete some first",
            "lease_id",
        )
    return Write(records, rpc.RevokeLeaseResponse(), (LeaseEnded(lease.id),))


def list_leases(state: ControllerState, now: float) -> Reply:
    """Return all leases, sorted by id, as of the committed image."""
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
    """End the lease that has been due the longest, or delete as many of its keys as fit into one
    batch; None if none is due.
    """
    lease_id = state.leases.expired(now)
    if lease_id is None:
        return None
    records, is_whole = _end(state, lease_id, EXPIRED)
    return Write(records, effects=(LeaseEnded(lease_id),) if is_whole else ())


def _end(state: ControllerState, lease_id: int, reason: str) -> tuple[list[Record], bool]:
    """Return (records, True) if they end a lease, or (records, False) if they delete only some of
    its keys.
    """
    keys = sorted(state.log.pending.keys_of_lease.get(lease_id) or ())
    most = max(1, state.settings.max_records_per_request - 1)
    records = [deletion(key) for key in keys[:most]]
    if len(keys) > most:
        return records, False
    return [*records, record(pb.RemoveLeaseRecord(lease_id=lease_id, reason=reason))], True


def _lease_of(
    state: ControllerState,
    request: rpc.RevokeLeaseRequest,
    owner: str | None,
) -> Lease:
    pending, lease_id = state.log.pending, request.lease_id
    if not lease_id:
        raise no_lease(lease_id, "lease_id")
    _check_lease_generation(state, request)
    check_lease(pending, lease_id, owner, "lease_id")
    return pending.leases[lease_id]


def _check_lease_generation(
    state: ControllerState, request: rpc.KeepLeaseAliveRequest | rpc.RevokeLeaseRequest
) -> None:
    if request.HasField("generation") and request.generation != state.generation:
        # Offsets begin again after a recovery or restore [the holder of a lost lease keeps alive
        # the one that has its id now, and both hold the lock].
        raise refuse(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"lease {request.lease_id} belongs to generation {request.generation} of the log,"
            f" which was recovered or restored since: it now has generation {state.generation}",
            "generation",
        )
