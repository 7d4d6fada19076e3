"""One line of the audit log: the principal, the request, the address and the result.

The fields are those of OCSF's *API Activity* class (6003) where it has them; all others are under
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
"""Maximum number of resources in one event; the event also has the number of the others."""
TEXT_MAX_CHARS = 249
"""Maximum length of a name or message, in characters: text from clients must not fill the file."""
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
"""Size of each cache of parts that many lines share."""


class Touched(NamedTuple):
    """A resource of a request, and its result; ``verdict`` is None if no permission was checked."""

    resource: Resource
    error_code: int = 0
    verdict: Verdict | None = None


class Source(msgspec.Struct, frozen=True, eq=False):
    """The fields shared by all events of one caller, on one link, for one kind of request."""

    node_id: int
    cluster_id: str
    service: str
    method: str
    caller: Caller
    identity: PeerIdentity
    peer: str
    """Address of the connection: the broker's, if a broker forwards the request."""
    operation: AclOperation | None


class Event(msgspec.Struct, frozen=True, gc=False):
    """One request and its result; ``left_out`` is the number of requests before it that were not
    written.
    """

    source: Source
    time_ms: int
    touched: tuple[Touched, ...]
    error_code: int = 0
    message: str = ""
    offset: int = -1
    """Offset of the last record that the request wrote (inclusive), or -1 if it wrote none."""
    epoch: int = -1
    item_codes: frozenset[int] = frozenset()
    """Error codes of all items, including items without a resource in ``touched``."""
    unknown: bool = False
    more_resources: int = 0
    left_out: int = 0
    acls: tuple[str, ...] = ()
    """Access control entries that the request added or removed, at most MAX_RESOURCES."""
    claimed: str = ""
    """Principal that the client stated, if it differs from the proved one; it has no effect."""

    @property
    def is_plain(self) -> bool:
        """Whether only ``source``, ``touched``, the time, offset and epoch are set."""
        return not (
            self.message or self.item_codes or self.acls or self.claimed or self.left_out
            or self.unknown or self.more_resources or self.failed
        )  # fmt: skip

    @property
    def refused(self) -> bool:
        """Whether the caller lacked a permission for at least one item."""
        return not REFUSALS.isdisjoint(self._codes)

    @property
    def failed(self) -> bool:
        """Whether the request or at least one item failed."""
        if self.error_code or self.item_codes:
            return True
        return any(one.error_code for one in self.touched)

    @property
    def _first_code(self) -> int:
        """Error code of the whole request, else of the first failed item, else 0."""
        named = self.touched[0].error_code if self.touched else 0
        return self.error_code or named or min(self.item_codes, default=0)

    @property
    def _codes(self) -> set[int]:
        named = {one.error_code for one in self.touched}
        return ({self.error_code} | named | self.item_codes) - {0}

    def document(self) -> dict[str, Any]:
        """Return the event as a JSON-compatible OCSF document."""
        ok, source = not self.failed, self.source
        activity_id, activity = (
            _ACTIVITIES.get(source.operation, _OTHER) if source.operation else _OTHER
        )
        host, port = _split(source.peer)
        return {
            # First, as AuditLog replaces it from one plain event to the next.
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
                # Last, as AuditLog replaces them from one plain event to the next.
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
"""Error codes of a missing permission."""


_WITH_OPERATION = (Whole, Each, All, EachPartition)


def operation_of(row: Row | None) -> AclOperation | None:
    """Return the operation that a request needs a permission for, or None if its row has none."""
    if isinstance(row, Listed):
        return AclOperation.DESCRIBE
    return row.operation if isinstance(row, _WITH_OPERATION) else None


def resources_of(row: Row | None, body: Any) -> list[Resource | None]:
    """Return the resources of a request, in request order; None for an item that names no known
    resource.
    """
    # Exact types instead of isinstance: every write passes here.
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
    """Return the JSON-compatible document of one resource."""
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
