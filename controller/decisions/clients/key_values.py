"""AlterKeyValues: puts, deletions and conditions on keys, all or nothing.

Everything is compared with the pending image, which is the end of the log: of two requests that
expect the same, the second sees the first. One batch, one outcome: a program that finds its
condition broken knows that nothing has changed.

Why: docs/decisions/027-key-values-and-leases.md
"""

from __future__ import annotations

from controller.decision import Reply, Write, check_item_count, refuse, write_or_reply
from controller.settings import ControllerSettings
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import KeyValue
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.metadata.versions import supports_key_values
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

NOT_THERE = -1
"""The offset of a key that is not there."""
_OPERATIONS = frozenset(rpc.KeyValueOperation.values())


def alter_key_values(
    view: ImageView,
    settings: ControllerSettings,
    request: rpc.AlterKeyValuesRequest,
    end_offset: int,
    owner: str | None = None,
    *,
    generation: int = 0,
) -> Write | Reply:
    """Change the keys, or raise why none of them is changed.

    ``end_offset``: where the first record goes. ``owner``: whose leases may be named; None:
    anybody's. ``generation``: of the log.

    Raises UNSUPPORTED_VERSION, INVALID_REQUEST, INVALID_UPDATE_VERSION for a condition that does
    not hold, RESOURCE_NOT_FOUND for a lease that is not there, POLICY_VIOLATION for what there is
    no room for.
    """
    check_supported(view)
    alterations = request.alterations
    check_item_count(len(alterations), settings.max_records_per_request, "alterations")
    if not alterations:
        raise refuse(ErrorCode.INVALID_REQUEST, "there is nothing to alter", "alterations")
    records: list[Record] = []
    offsets: list[int] = []
    count, size = len(view.key_values), view.key_value_bytes
    seen: set[str] = set()
    for index, one in enumerate(alterations):
        field = f"alterations[{index}]"
        key = one.key
        if key in seen:
            raise refuse(ErrorCode.INVALID_REQUEST, f"key {key} is named twice", f"{field}.key")
        seen.add(key)
        old = view.key_values.get(key)
        _check_fields(one, field)
        _check_generation(one, generation, field)
        _compare(old, one, field)
        offset = NOT_THERE if old is None else old.offset
        if one.operation == rpc.KEY_VALUE_PUT:
            check_lease(view, one.lease_id, owner, f"{field}.lease_id")
            offset = end_offset + len(records)
            records.append(
                record(pb.KeyValueRecord(key=key, value=one.value, lease_id=one.lease_id))
            )
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
    return write_or_reply(
        [] if request.validate_only else records, rpc.AlterKeyValuesResponse(offsets=offsets)
    )


def deletion(key: str) -> Record:
    """The record that deletes a key."""
    return record(pb.KeyValueRecord(key=key))


def check_supported(view: ImageView) -> None:
    """Raise UNSUPPORTED_VERSION below the level of metadata.version that has keys and leases."""
    if not supports_key_values(view.features):
        raise refuse(
            ErrorCode.UNSUPPORTED_VERSION,
            "the key-value store needs metadata.version 8: raise it with UpdateFeatures",
        )


def check_lease(view: ImageView, lease_id: int, owner: str | None, field: str) -> None:
    """Raise RESOURCE_NOT_FOUND for a lease that is not there, or that is somebody else's: both look
    the same. 0 is no lease.
    """
    if not lease_id:
        return
    lease = view.leases.get(lease_id)
    if lease is None or (owner is not None and lease.principal not in ("", owner)):
        raise no_lease(lease_id, field)


def no_lease(lease_id: int, field: str) -> ApiError:
    """There is no such lease, or not for whoever asks."""
    return refuse(
        ErrorCode.RESOURCE_NOT_FOUND,
        f"there is no lease {lease_id}: it has expired, or was revoked",
        field,
    )


def _check_fields(one: rpc.KeyValueAlteration, field: str) -> None:
    if one.operation not in _OPERATIONS:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"there is no operation {one.operation}",
            f"{field}.operation",
        )
    if one.operation != rpc.KEY_VALUE_PUT and (one.value or one.lease_id):
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            "a value and a lease go with KEY_VALUE_PUT only",
            f"{field}.value" if one.value else f"{field}.lease_id",
        )


def _check_generation(one: rpc.KeyValueAlteration, generation: int, field: str) -> None:
    """Raise INVALID_UPDATE_VERSION if what is expected is of another log: offsets begin again where
    it was recovered or restored [the guard of a lock that is lost holds for another one's, which
    has its key and its offset].
    """
    if one.HasField("expected_generation") and one.expected_generation != generation:
        raise refuse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"what is expected of key {one.key} is of generation {one.expected_generation} of the"
            f" log, which is of generation {generation} since it was recovered or restored",
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
        what = "made" if name == "expected_create_offset" else "put"
        present = "is not there" if old is None else f"was {what} at offset {found}"
        expected = getattr(one, name)
        wanted = "to be absent" if expected == NOT_THERE else f"as of offset {expected}"
        raise refuse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"key {one.key} {present}, expected {wanted}",
            f"{field}.{name}",
        )


def _check_room(view: ImageView, settings: ControllerSettings, count: int, size: int) -> None:
    """Raise POLICY_VIOLATION if a request would leave more than there may be; one that leaves less
    than there is is welcome.
    """
    if count > settings.kv_max_keys and count > len(view.key_values):
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"the key-value store would have {count} keys, kv.max.keys is"
            f" {settings.kv_max_keys}: delete some",
        )
    if size > settings.kv_max_bytes and size > view.key_value_bytes:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"the key-value store would hold {size} bytes, kv.max.bytes is"
            f" {settings.kv_max_bytes}: delete some keys",
        )
