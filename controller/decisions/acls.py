"""CreateAcls, DeleteAcls and DescribeAcls (KIP-140) on the access control entries in the log."""

from __future__ import annotations

import ipaddress
import random
from collections import Counter
from collections.abc import Iterable, Iterator

from controller.decision import (
    Reply,
    Write,
    check_item_count,
    own_error,
    refuse,
    write_or_reply,
)
from controller.state.state import ControllerState
from raftlog.errors import ErrorCode
from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    CLUSTER_NAME,
    OPERATIONS_OF,
    AccessControlEntry,
    AclOperation,
    AclPermission,
    AclResourceType,
    Binding,
    PatternType,
)
from raftlog.metadata.records import Record, record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

MAX_ENTRIES = 20_000
"""Maximum number of entries in a cluster; every node's image holds all of them. Kafka has no such
bound; its clusters have some ten thousand.
"""
MAX_OF_ONE_PRINCIPAL = 200
"""Maximum number of entries of one principal on one resource pattern; a change examines all of
them.
"""
MAX_PREFIX_CHARS = 200_000
"""Maximum number of characters in all prefixes together: each takes a node of the index, about 250
bytes.
"""
ID_BYTES = 16
_PRINCIPAL = "User:"


def describe_acls(state: ControllerState, request: rpc.DescribeAclsRequest) -> Reply:
    """Return the entries that match a filter, sorted.

    Raises INVALID_REQUEST.
    """
    check_filter(request.filter, "filter")
    image = state.log.committed
    response = rpc.DescribeAclsResponse(
        entries=[_wire(one) for one in chosen(image.acls.values(), request.filter)],
        offset=image.offset,
    )
    if state.authorization is not None:
        authorizer = state.authorization.authorizer
        response.authorizer_enabled = True
        response.super_users.extend(sorted(authorizer.super_users))
        response.allow_everyone_if_no_acl_found = authorizer.allow_everyone_if_no_acl_found
    return Reply(response)


def create_acls(state: ControllerState, request: rpc.CreateAclsRequest) -> Write | Reply:
    """Add entries.

    Raises POLICY_VIOLATION. The error of a single entry is in its result.
    """
    view = state.log.pending
    check_item_count(len(request.creations), state.settings.max_records_per_request, "creations")
    there = {entry.binding for entry in view.snapshot().acls.values()}
    bounds = _Bounds(there)
    response, records = rpc.CreateAclsResponse(), list[Record]()
    for index, wanted in enumerate(request.creations):
        result = response.results.add()
        with own_error(result):
            binding = _checked(wanted, f"creations[{index}]")
            if binding in there:
                result.existed = True
                continue
            bounds.check(binding, f"creations[{index}]")
            there.add(binding)
            bounds.add(binding)
            records.append(_entry(binding, state.rng))
    return write_or_reply([] if request.validate_only else records, response)


class _Bounds:
    """Numbers of entries, per resource with a bound."""

    def __init__(self, there: Iterable[Binding]) -> None:
        self._count = self._prefix_chars = 0
        self._of_one: Counter[Binding] = Counter()
        for binding in there:
            self.add(binding)

    def add(self, binding: Binding) -> None:
        """Count an entry that exists or is about to be added."""
        self._count += 1
        self._prefix_chars += _prefix_chars(binding)
        self._of_one[_pattern(binding)] += 1

    def check(self, binding: Binding, field: str) -> None:
        """Raise POLICY_VIOLATION if adding an entry would exceed a bound."""
        for full, what in (
            (self._count >= MAX_ENTRIES, f"the cluster has {MAX_ENTRIES} ACL entries already"),
            (
                self._of_one[_pattern(binding)] >= MAX_OF_ONE_PRINCIPAL,
                f"{binding.principal} has {MAX_OF_ONE_PRINCIPAL} ACL entries on this resource"
                " already",
            ),
            (
                self._prefix_chars + _prefix_chars(binding) > MAX_PREFIX_CHARS,
                f"all prefixes together would exceed {MAX_PREFIX_CHARS} characters",
            ),
        ):
            if full:
                raise refuse(ErrorCode.POLICY_VIOLATION, f"{what}: remove some", field)


def _pattern(binding: Binding) -> Binding:
    """Return the fields that all entries of a principal on one resource pattern share."""
    return binding._replace(host="", operation=0, permission_type=0)


def _prefix_chars(binding: Binding) -> int:
    return len(binding.resource_name) if binding.pattern_type == PatternType.PREFIXED else 0


def delete_acls(state: ControllerState, request: rpc.DeleteAclsRequest) -> Write | Reply:
    """Remove the entries that match the filters.

    Raises POLICY_VIOLATION. The error of a single filter is in its result.
    """
    view = state.log.pending
    limit = state.settings.max_records_per_request
    check_item_count(len(request.filters), limit, "filters")
    left = dict(view.snapshot().acls.items())
    response, records = rpc.DeleteAclsResponse(), list[Record]()
    for index, one in enumerate(request.filters):
        result = response.results.add()
        with own_error(result):
            check_filter(one, f"filters[{index}]")
            for entry in chosen(left.values(), one):
                del left[entry.id]
                result.matching_acls.append(_wire(entry))
                records.append(record(pb.RemoveAccessControlEntryRecord(id=entry.id)))
    check_item_count(len(records), limit, "filters")
    return write_or_reply([] if request.validate_only else records, response)


def may_do_everything(principal: str, rng: random.Random) -> list[Record]:
    """Return entries that allow a principal everything until they are removed."""
    return [
        _entry(
            Binding(
                type_,
                CLUSTER_NAME if type_ is AclResourceType.CLUSTER else ALL_RESOURCES,
                PatternType.LITERAL,
                principal,
                ANY_HOST,
                AclOperation.ALL,
                AclPermission.ALLOW,
            ),
            rng,
        )
        for type_ in OPERATIONS_OF
    ]


def _entry(binding: Binding, rng: random.Random) -> Record:
    id_ = rng.getrandbits(8 * ID_BYTES).to_bytes(ID_BYTES, "big")
    return record(pb.AccessControlEntryRecord(id=id_, **binding._asdict()))


def chosen(
    entries: Iterable[AccessControlEntry], wanted: rpc.AccessControlEntryFilter
) -> list[AccessControlEntry]:
    """Return the entries that match a filter, sorted by binding."""
    return sorted((one for one in entries if _matches(one, wanted)), key=lambda one: one.binding)


def check_filter(wanted: rpc.AccessControlEntryFilter, field: str) -> None:
    """Raise INVALID_REQUEST if a filter contains an unknown enum value."""
    _known(AclResourceType, wanted.resource_type, f"{field}.resource_type")
    _known(PatternType, wanted.pattern_type, f"{field}.pattern_type")
    _known(AclOperation, wanted.operation, f"{field}.operation")
    _known(AclPermission, wanted.permission_type, f"{field}.permission_type")


def _matches(entry: AccessControlEntry, wanted: rpc.AccessControlEntryFilter) -> bool:
    return (
        wanted.resource_type in (AclResourceType.ANY, entry.resource_type)
        and wanted.operation in (AclOperation.ANY, entry.operation)
        and wanted.permission_type in (AclPermission.ANY, entry.permission_type)
        and (not wanted.HasField("principal") or wanted.principal == entry.principal)
        and (not wanted.HasField("host") or wanted.host == entry.host)
        and _matches_pattern(entry, wanted)
    )


def _matches_pattern(entry: AccessControlEntry, wanted: rpc.AccessControlEntryFilter) -> bool:
    name, pattern = entry.resource_name, wanted.pattern_type
    if pattern not in (PatternType.ANY, PatternType.MATCH, entry.pattern_type):
        return False
    if not wanted.HasField("resource_name") or wanted.resource_name == name:
        return True
    if pattern != PatternType.MATCH:
        return False
    if entry.pattern_type == PatternType.PREFIXED:
        return wanted.resource_name.startswith(name)
    return name == ALL_RESOURCES


def _checked(wanted: rpc.AccessControlEntry, field: str) -> Binding:
    """Return the binding of an entry.

    Raises INVALID_REQUEST if the entry is invalid.
    """
    for wrong, name in _mistakes(wanted, field):
        raise refuse(ErrorCode.INVALID_REQUEST, wrong, f"{field}.{name}")
    return Binding.of(wanted)


def _mistakes(wanted: rpc.AccessControlEntry, field: str) -> Iterator[tuple[str, str]]:
    """Yield (error, field) for each mistake in an entry."""
    _known(AclResourceType, wanted.resource_type, f"{field}.resource_type")
    _known(PatternType, wanted.pattern_type, f"{field}.pattern_type")
    _known(AclOperation, wanted.operation, f"{field}.operation")
    _known(AclPermission, wanted.permission_type, f"{field}.permission_type")
    type_, name = wanted.resource_type, wanted.resource_name
    if type_ == AclResourceType.ANY:
        yield "resource_type must be one type, not ANY", "resource_type"
    if wanted.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        yield "pattern_type must be LITERAL or PREFIXED", "pattern_type"
    if not name or not name.isprintable():
        yield "resource_name must be 1 to 249 printable characters", "resource_name"
    if type_ == AclResourceType.CLUSTER and (
        name != CLUSTER_NAME or wanted.pattern_type != PatternType.LITERAL
    ):
        yield f"a CLUSTER resource must be the literal {CLUSTER_NAME}", "resource_name"
    if name == ALL_RESOURCES and wanted.pattern_type == PatternType.PREFIXED:
        yield "a prefix must not be *; for all resources use the literal *", "pattern_type"
    if not wanted.principal.startswith(_PRINCIPAL) or len(wanted.principal) == len(_PRINCIPAL):
        yield "principal must be User: and a name, or User:* for everyone", "principal"
    if not wanted.principal.isprintable():
        yield "principal must contain only printable characters", "principal"
    if wanted.host != ANY_HOST and not _is_address(wanted.host):
        yield "host must be an IP address in its shortest form, or *", "host"
    if wanted.permission_type == AclPermission.ANY:
        yield "permission_type must be ALLOW or DENY", "permission_type"
    possible = OPERATIONS_OF.get(AclResourceType(type_), frozenset())
    if wanted.operation != AclOperation.ALL and wanted.operation not in possible:
        names = ", ".join(sorted(one.name for one in possible))
        yield f"operation on {AclResourceType(type_).name} must be ALL, {names}", "operation"


def _known(
    kind: type[AclResourceType | PatternType | AclOperation | AclPermission],
    number: int,
    field: str,
) -> None:
    if number not in kind.__members__.values():
        known = ", ".join(f"{one.value} {one.name}" for one in kind)
        raise refuse(ErrorCode.INVALID_REQUEST, f"{number} is unknown; use one of {known}", field)


def _is_address(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
        # Compared as text with the address of a connection, which is never an IPv4-mapped one.
        return str(address) == host and getattr(address, "ipv4_mapped", None) is None
    except ValueError:
        return False


def _wire(entry: AccessControlEntry) -> rpc.AccessControlEntry:
    return rpc.AccessControlEntry(**entry.binding._asdict())
