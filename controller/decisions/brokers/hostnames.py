"""The mapping from hostnames to broker ids (KIP-426): written with registrations, listed and edited
by hand, and cleaned up.

A mapping names the last broker that ran on a host. It is a hint for a broker that has lost its
disk, not a claim: the id belongs to the broker that registers.
"""

from __future__ import annotations

from typing import Any, cast

from controller.decision import (
    Reply,
    Write,
    check_item,
    check_record_count,
    own_error,
    refuse,
    write_or_reply,
)
from controller.state.state import ControllerState
from raftlog.endpoint import host_error
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import (
    MAPPING_VERSION,
    Hostname,
    HostnameCause,
    host_of,
    hostname_key,
)
from raftlog.metadata.image import Image, ImageView
from raftlog.metadata.records import Record, record
from raftlog.node.security.authorization import NONE_REFUSED, Refused
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

COLLECT_INTERVAL_S = 60.0
COLLECT_MAX = 100
"""Maximum number of mappings that one run of the collection deletes."""

_WORDS = {
    HostnameCause.BY_REGISTRATION: "registered",
    HostnameCause.BY_HAND: "set by hand",
    HostnameCause.STALE: "its broker has since registered from another host",
}
"""Descriptions of the causes, for operators."""


def mapping_of(view: ImageView, host: str, broker_id: int) -> list[Record]:
    """Return the record that maps a registering broker's host to it; empty if the mapping
    exists.
    """
    name = hostname_key(host)
    old = view.hostnames.get(name)
    if old is not None and (old.broker_id, old.cause) == (broker_id, HostnameCause.BY_REGISTRATION):
        return []
    return [mapping_change(name, broker_id, HostnameCause.BY_REGISTRATION)]


def mapping_change(name: str, broker_id: int | None, cause: HostnameCause) -> Record:
    """Return the record that maps a host to ``broker_id``, or deletes its mapping if that is
    None.
    """
    change = pb.HostnameRecord(
        hostname=name,
        version=MAPPING_VERSION,
        broker_id=broker_id,
        reason=_WORDS.get(cause, ""),
        cause=cast("Any", int(cause)),
    )
    return record(change)


def list_hostnames(state: ControllerState, now: float) -> Reply:
    """Return all mappings, sorted by name, the absent ids, and the brokers that wait for an id."""
    image = state.log.committed
    body = rpc.ListHostnamesResponse(
        offset=image.offset,
        hostnames=[
            rpc.MappedHostname(
                hostname=mapping.name,
                version=mapping.version,
                broker_id=mapping.broker_id,
                offset=mapping.offset,
                reason=mapping.reason,
                endpoint=_endpoint(image, mapping.broker_id),
                cause=cast("Any", int(mapping.cause)),
            )
            for mapping in (image.hostnames[name] for name in sorted(image.hostnames))
        ],
        absent_ids=[
            rpc.AbsentBrokerId(
                broker_id=one.broker_id,
                absent_for_ms=round(one.absent_for_s * 1000),
                missing=one.missing,
                replica_count=one.replica_count,
                endpoint=_endpoint(image, one.broker_id),
                missing_in_ms=round(one.missing_in_s * 1000),
            )
            for one in state.absent_ids.absent(image, state.sessions.is_alive, now)
        ],
        waiting_brokers=[
            rpc.WaitingBroker(
                endpoint=one.place,
                waiting_for_ms=round((now - one.since) * 1000),
                awaited_id=rpc.AwaitedBrokerId(
                    broker_id=one.broker_id, remaining_ms=max(0, round((one.until - now) * 1000))
                ),
            )
            for one in state.id_waits.listed(now)
        ],
    )
    return Reply(body)


def alter_hostnames(
    state: ControllerState, request: rpc.AlterHostnamesRequest, refused: Refused = NONE_REFUSED
) -> Write | Reply:
    """Set and delete mappings.

    Raises POLICY_VIOLATION. The error of a single alteration is in its result.
    """
    check_record_count(len(request.alterations), state.settings.max_records_per_request)
    records: list[Record] = []
    results: list[rpc.HostnameAlterationResult] = []
    seen: set[str] = set()
    for index, one in enumerate(request.alterations):
        result = rpc.HostnameAlterationResult(hostname=one.hostname, offset=-1)
        results.append(result)
        with own_error(result):
            check_item(refused, index)
            change = _alteration(state.log.pending, one, f"alterations[{index}]", seen)
            if change is not None and not request.validate_only:
                result.offset = (
                    state.log.end_offset + len(records) if one.HasField("broker_id") else -1
                )
                records.append(change)
            else:
                old = state.log.pending.hostnames.get(hostname_key(one.hostname))
                result.offset = -1 if old is None else old.offset
    return write_or_reply(records, rpc.AlterHostnamesResponse(results=results))


class HostnameCollector:
    """Deletes stale mappings: those of host g to broker N, when N has since registered from host h
    (KIP-426).

    A mapping that is newer than the registration is kept: an operator set it for the broker's next
    start.
    """

    def __init__(self, now: float) -> None:
        self.next_check = now + COLLECT_INTERVAL_S

    def due(self, pending: ImageView, now: float) -> Write | None:
        """Return the deletions of stale mappings, at most COLLECT_MAX, or None."""
        if now < self.next_check:
            return None
        self.next_check = now + COLLECT_INTERVAL_S
        image = pending.snapshot()
        stale = [
            name for name in sorted(image.hostnames) if is_stale(image, image.hostnames[name])
        ][:COLLECT_MAX]
        return (
            Write([mapping_change(name, None, HostnameCause.STALE) for name in stale])
            if stale
            else None
        )


def is_stale(image: ImageView, mapping: Hostname) -> bool:
    """Return whether the mapped broker has registered from another host since the mapping was
    written.

    If a process has amended its registration, which keeps its epoch, the offset of the mapping
    written with the amendment is compared instead.
    """
    broker = image.brokers.get(mapping.broker_id)
    if broker is None or host_of(broker) == mapping.name:
        return False
    own = image.hostnames.get(host_of(broker))
    amended = own is not None and (own.broker_id, own.cause) == (
        broker.id,
        HostnameCause.BY_REGISTRATION,
    )
    return max(broker.epoch, own.offset if own is not None and amended else -1) > mapping.offset


def _alteration(
    view: ImageView, one: rpc.HostnameAlteration, field: str, seen: set[str]
) -> Record | None:
    """Return the record of one alteration, or None if it changes nothing."""
    name = _name(view, one, field)
    if name in seen:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"host {name!r} is given twice; alter it once per request",
            f"{field}.hostname",
        )
    seen.add(name)
    if one.version != MAPPING_VERSION:
        raise refuse(
            ErrorCode.UNSUPPORTED_VERSION,
            f"mapping version {one.version} is not supported; it must be {MAPPING_VERSION}",
            f"{field}.version",
        )
    if one.HasField("broker_id") and one.broker_id < 0:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"broker id {one.broker_id} is negative; it must be 0 or more",
            f"{field}.broker_id",
        )
    old = view.hostnames.get(name)
    _check_expected(name, old, one, field)
    if one.HasField("broker_id"):
        # Setting the broker that a registration has mapped is a change: the mapping then counts as
        # set by hand.
        same = old is not None and (old.broker_id, old.cause) == (
            one.broker_id,
            HostnameCause.BY_HAND,
        )
        return None if same else mapping_change(name, one.broker_id, HostnameCause.BY_HAND)
    if old is None:
        raise refuse(
            ErrorCode.RESOURCE_NOT_FOUND, f"host {name} is not mapped", f"{field}.hostname"
        )
    return mapping_change(name, None, HostnameCause.BY_HAND)


def _name(view: ImageView, one: rpc.HostnameAlteration, field: str) -> str:
    """Return the hostname of an alteration.

    Raises INVALID_REQUEST if it is invalid. An existing mapping may be deleted whatever its name:
    logs written before hosts were checked contain names without a letter.
    """
    if not one.HasField("broker_id") and one.hostname in view.hostnames:
        return one.hostname
    error = host_error(one.hostname)
    if error:
        raise refuse(ErrorCode.INVALID_REQUEST, error, f"{field}.hostname")
    return hostname_key(one.hostname)


def _check_expected(
    name: str, old: Hostname | None, one: rpc.HostnameAlteration, field: str
) -> None:
    if not one.HasField("expected_offset"):
        return
    offset = -1 if old is None else old.offset
    if offset != one.expected_offset:
        found = (
            "is not mapped"
            if old is None
            else f"is mapped to broker {old.broker_id} since offset {offset}"
        )
        raise refuse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"host {name} {found}, but expected_offset is {one.expected_offset}: read the mapping"
            " again before changing it",
            f"{field}.expected_offset",
        )


def _endpoint(image: Image, broker_id: int) -> str:
    broker = image.brokers.get(broker_id)
    return "" if broker is None else broker.endpoint
