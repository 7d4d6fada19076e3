"""One line of the audit log: the principal, the request, the address, and the result.

The fields are those of OCSF's *API Activity* (class 6003), where it has them; the rest is under
``unmapped``, as OCSF requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec

from raftlog.errors import ErrorCode
from raftlog.identity import PeerIdentity
from raftlog.metadata.acls import CLUSTER, AclOperation, Resource
from raftlog.node.security.authorizer import Caller, Verdict
from raftlog.node.security.permissions import (
    All,
    Each,
    EachPartition,
    Listed,
    Row,
    Whole,
    key_value,
    topic,
)

MAX_RESOURCES = 100
"""Most resources in one event; the number of further ones is in it."""
TEXT_MAX_CHARS = 249
"""Most characters of a name and of a message: foreign text must not fill the file."""
_CLASS_UID = 6003
_ACTIVITIES = {
    AclOperation.CREATE: (1, "Create"),
    AclOperation.READ: (2, "Read"),
    AclOperation.DESCRIBE: (2, "Read"),
    AclOperation.DESCRIBE_CONFIGS: (2, "Read"),
    AclOperation.CLUSTER_ACTION: (2, "Read"),
    AclOperation.ALTER: (3, "Update"),
    AclOperation.ALTER_CONFIGS: (3, "Update"),
    AclOperation.WRITE: (3, "Update"),
    AclOperation.DELETE: (4, "Delete"),
}
_OTHER = (99, "Other")
_METADATA: Mapping[str, Any] = {"product": {"name": "raftlog"}, "version": "1.3.0"}
_REMEMBERED = 1_024
"""Size of the cache for parts that many lines share."""


class Touched(NamedTuple):
    """A resource of a request, and its result. ``verdict`` None: there was no check."""

    resource: Resource
    error_code: int = 0
    verdict: Verdict | None = None


class Source(msgspec.Struct, frozen=True, eq=False):
    """What the events of one caller on one link have in common, for one kind of request."""

    node_id: int
    cluster_id: str
    service: str
    method: str
    caller: Caller
    identity: PeerIdentity
    peer: str
    """Address of the connection: a broker's, where it forwards."""
    operation: AclOperation | None


class Event(msgspec.Struct, frozen=True, gc=False):
    """One request and its result. ``left_out``: number of refusals before it without a line."""

    source: Source
    time_ms: int
    touched: tuple[Touched, ...]
    error_code: int = 0
    message: str = ""
    offset: int = -1
    """Offset of the last record that it wrote (inclusive); -1: none."""
    epoch: int = -1
    item_codes: frozenset[int] = frozenset()
    """Errors of all items, named or not."""
    unknown: bool = False
    """True if the outcome is unknown."""
    more_resources: int = 0
    left_out: int = 0
    acls: tuple[str, ...] = ()
    """Entries that it added or removed, at most MAX_RESOURCES."""
    claimed: str = ""
    """Principal that the client stated, if it has proved to be another; it has no effect."""

    @property
    def is_plain(self) -> bool:
        """True if nothing but ``source``, ``touched``, time, offset and epoch is set."""
        return not (
            self.message or self.item_codes or self.acls or self.claimed or self.left_out
            or self.unknown or self.more_resources or self.failed
        )  # fmt: skip

    @property
    def refused(self) -> bool:
        """True if a permission was missing for a part of it."""
        return not REFUSALS.isdisjoint(self._codes)

    @property
    def failed(self) -> bool:
        """True if a part of it failed."""
        if self.error_code or self.item_codes:
            return True
        return any(one.error_code for one in self.touched)

    @property
    def _first_code(self) -> int:
        """Code of the whole request, else of the first failed item, which is named first."""
        named = self.touched[0].error_code if self.touched else 0
        return self.error_code or named or min(self.item_codes, default=0)

    @property
    def _codes(self) -> set[int]:
        named = {one.error_code for one in self.touched}
        return ({self.error_code} | named | self.item_codes) - {0}

    def document(self) -> dict[str, Any]:
        """Return the document of the line."""
        ok, source = not self.failed, self.source
        activity_id, activity = (
            _ACTIVITIES.get(source.operation, _OTHER) if source.operation else _OTHER
        )
        host, port = _split(source.peer)
        return {
            # First, for the same reason as the last.
            "time": self.time_ms,
            "class_uid": _CLASS_UID,
            "class_name": "API Activity",
            "category_uid": 6,
            "activity_id": activity_id,
            "activity_name": activity,
            "type_uid": _CLASS_UID * 100 + activity_id,
            "severity_id": 3 if self.refused else 1,
            "metadata": _METADATA,
            "api": {"operation": source.method, "service": {"name": source.service}},
            "actor": {"user": {"name": source.caller.principal}},
            "src_endpoint": {"ip": source.caller.host or host},
            "tls": _tls(source.identity.subject, source.identity.fingerprint),
            "resources": [resource_document(one) for one in self.touched],
            "status_id": 0 if self.unknown else 1 if ok else 2,
            "status": "Unknown" if self.unknown else "Success" if ok else "Failure",
            "status_code": _code(self._first_code),
            "status_detail": self.message,
            "unmapped": {
                "node_id": source.node_id,
                "cluster_id": source.cluster_id,
                "peer": {"ip": host, "port": port},
                "acl_entries": self.acls,
                "claimed_principal": self.claimed,
                "more_resources": self.more_resources,
                "left_out": self.left_out,
                # Last, for AuditLog: what differs from one plain event to the next.
                "offset": self.offset,
                "epoch": self.epoch,
            },
        }


REFUSALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Codes of a missing permission."""


_WITH_OPERATION = (Whole, Each, All, EachPartition)


def operation_of(row: Row | None) -> AclOperation | None:
    """Return the operation of a request, if its row has one."""
    if isinstance(row, Listed):
        return AclOperation.DESCRIBE
    return row.operation if isinstance(row, _WITH_OPERATION) else None


def resources_of(row: Row | None, body: Any) -> list[Resource | None]:
    """Return the resources of a request, in its order; None: an item without a known one."""
    # Compared by type: this is on the way of every write.
    kind = type(row)
    if kind is Each or kind is All:
        of = cast("Each | All", row)
        found = [of.resource(item) for item in getattr(body, of.items)]
        also = cast("All", row).also if kind is All else None
        if also is not None and body.HasField(also[0]):
            found += resources_of(also[1], getattr(body, also[0]))
        return found
    if isinstance(row, Whole):
        return [row.resource(body)]
    if isinstance(row, Listed):
        # The items that the request names.
        return [
            *(topic(name) for name in getattr(body, "topics", ())),
            *(key_value(key) for key in getattr(body, "keys", ())),
        ]
    return [] if isinstance(row, EachPartition) else [CLUSTER]


def resource_document(one: Touched) -> dict[str, Any]:
    """Return the document of a resource, part of the line's."""
    document: dict[str, Any] = {"type": one.resource.type.name, "name": one.resource.name}
    if one.error_code:
        document["status_code"] = _code(one.error_code)
    if one.verdict is not None:
        entry = one.verdict.entry
        document["decided_by"] = one.verdict.why.name if entry is None else _text_of(entry)
    return document


@lru_cache(_REMEMBERED)
def _tls(subject: str, fingerprint: str) -> Mapping[str, Any]:
    prints = [{"algorithm_id": 3, "algorithm": "SHA-256", "value": fingerprint}]
    return {"certificate": {"subject": subject, "fingerprints": prints if fingerprint else []}}


_text_of = lru_cache(_REMEMBERED)(str)


def _code(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


@lru_cache(_REMEMBERED)
def _split(peer: str) -> tuple[str, int]:
    host, _, port = peer.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
