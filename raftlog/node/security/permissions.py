"""The permissions of requests: one row for every kind of request of every conversation.

The checks, the tests and the site's table of permissions are derived from these rows. A kind of
request without a row is refused, and a node with an authorizer does not start until every kind has
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from raftlog.metadata.acls import CLUSTER, AclOperation, AclResourceType, Resource
from raftlog.metadata.config_keys import ResourceType as ConfigResourceType
from raftlog.metadata.selectors import PLURAL
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller


class OfNode(NamedTuple):
    """The request is permitted to the node whose id it contains, as proved by its certificate; see
    ``node_claims``.
    """


class OfAnybody(NamedTuple):
    """The request is permitted to every connected peer; ``why``: the reason, or who needs it."""

    why: str


class Whole(NamedTuple):
    """The request needs one permission.

    ``own_field`` names a field with a node id: that node itself needs no permission.
    """

    operation: AclOperation
    resource: Callable[[Any], Resource] = lambda _: CLUSTER
    of: str = "CLUSTER"
    """Description of the resource, for the table of permissions."""
    own_field: str = ""


class Each(NamedTuple):
    """Each item needs a permission, and is refused separately.

    ``instead`` is a permission that replaces those of all items. ``resource`` returns None for an
    item that names no known resource, which the handler reports.
    """

    operation: AclOperation
    items: str
    resource: Callable[[Any], Resource | None]
    of: str
    instead: Whole | None = None


class All(NamedTuple):
    """Each item needs a permission, and the whole request is refused if one is missing.

    ``also`` names an optional field whose message needs another permission.
    """

    operation: AclOperation
    items: str
    resource: Callable[[Any], Resource]
    of: str
    also: tuple[str, Whole] | None = None

    def operation_on(self, resource: Resource) -> AclOperation:
        """Return the operation on one of its resources for which the request needs a permission."""
        also = None if self.also is None else self.also[1]
        return also.operation if also and also.of == resource.type.name else self.operation


class Listed(NamedTuple):
    """The answer contains only the items that the caller may describe; items that are requested by
    name are refused separately.

    ``of_cluster`` names further fields of the answer, for callers that may describe the cluster.
    """

    items: str
    resource: Callable[[Any], Resource]
    of: str
    of_cluster: tuple[str, ...] = ()


class EachPartition(NamedTuple):
    """As ``Each``, for partitions, which requests name by topic id."""

    operation: AclOperation


class Forwarded(NamedTuple):
    """The active controller checks the permission of the principal that the broker forwards."""


Row = OfNode | OfAnybody | Whole | Each | All | EachPartition | Listed | Forwarded


class RequestKind(NamedTuple):
    """The properties of one kind of request to the active controller."""

    right: Row
    claims: str = ""
    """Field with the node id of the sender; empty if operators and clients send the request."""
    early: bool = False
    """Whether a new leader may propose its records together with the inherited tail, before the
    tail is committed, as the decision does not depend on the progress of voters, none of which has
    fetched from this leader yet.
    """
    held_partitions: bool = False
    """Whether the number of its records is bounded by the partitions of one broker and not by the
    size of the request.
    """
    without_space: bool = False
    """Whether its records are accepted while the voters' disks are below their reserve.

    Removing a voter is the remedy if its disk cannot be enlarged. While space is low, a heartbeat
    writes at most one record, which fences its broker; no broker is unfenced. It must not be
    refused: its arrival renews the session, but the broker treats an error as no contact and fences
    itself, so a broker in controlled shutdown would serve nothing and yet continue to lead.
    """
    brings_work: bool = False
    """Whether its records may create work for the controller's background tasks."""
    clears_up: bool = False
    """Whether a client with ALTER on CLUSTER may send it for objects of another principal, for
    example to clean up before a downgrade.
    """

    @property
    def reads(self) -> bool:
        """Whether it never writes, whatever its content."""
        operation = getattr(self.right, "operation", None)
        return isinstance(self.right, Listed) or operation is AclOperation.DESCRIBE


def topic(name: str) -> Resource:
    """Return the resource of a topic name."""
    return Resource(AclResourceType.TOPIC, name)


def hostname(name: str) -> Resource:
    """Return the resource of a hostname mapping."""
    return Resource(AclResourceType.HOSTNAME, name)


def export_cursor(name: str) -> Resource:
    """Return the resource of an export cursor."""
    return Resource(AclResourceType.EXPORT_CURSOR, name)


def key_value(key: str) -> Resource:
    """Return the resource of a key in the key-value store."""
    return Resource(AclResourceType.KEY_VALUE, key)


def config_resource(item: Any) -> Resource:
    """Return the resource that the configs of an item belong to.

    As in Kafka, the configs of brokers and client metrics belong to the cluster.
    """
    return config_resource_of(item.resource_type, item.resource_name)


def config_resource_of(type_: int, name: str) -> Resource:
    """Return the resource that configs of this type and name belong to; see ``config_resource``."""
    if type_ == ConfigResourceType.TOPIC:
        return topic(name)
    if type_ == ConfigResourceType.GROUP:
        return Resource(AclResourceType.GROUP, name)
    return CLUSTER


_ALTER_CLUSTER = Whole(AclOperation.ALTER)
_DESCRIBE_CLUSTER = Whole(AclOperation.DESCRIBE)
_READ_LOG = Whole(AclOperation.CLUSTER_ACTION)
_NEW_SESSION = Whole(
    AclOperation.CREATE,
    lambda body: Resource(AclResourceType.CLIENT_SESSION, body.name),
    "CLIENT_SESSION",
)

REQUESTS: Mapping[str, RequestKind] = {
    "register_broker": RequestKind(OfNode(), claims="broker_id", held_partitions=True),
    "broker_heartbeat": RequestKind(
        OfNode(), claims="broker_id", held_partitions=True, without_space=True
    ),
    "alter_partition": RequestKind(OfNode(), claims="broker_id"),
    "update_raft_voter": RequestKind(OfNode(), claims="voter_id"),
    "unregister_broker": RequestKind(_ALTER_CLUSTER, held_partitions=True),
    "add_raft_voter": RequestKind(Whole(AclOperation.ALTER, own_field="voter_id")),
    "remove_raft_voter": RequestKind(
        Whole(AclOperation.ALTER, own_field="voter_id"), without_space=True
    ),
    "transfer_leadership": RequestKind(_ALTER_CLUSTER),
    "update_features": RequestKind(_ALTER_CLUSTER, brings_work=True),
    "describe_brokers": RequestKind(_DESCRIBE_CLUSTER),
    "create_topics": RequestKind(
        Each(
            AclOperation.CREATE,
            "topics",
            lambda item: topic(item.name),
            "TOPIC",
            instead=Whole(AclOperation.CREATE),
        )
    ),
    "delete_topics": RequestKind(Each(AclOperation.DELETE, "names", topic, "TOPIC")),
    "create_partitions": RequestKind(
        Each(AclOperation.ALTER, "topics", lambda item: topic(item.name), "TOPIC")
    ),
    "incremental_alter_configs": RequestKind(
        Each(AclOperation.ALTER_CONFIGS, "resources", config_resource, "TOPIC, GROUP or CLUSTER"),
        early=True,
    ),
    "alter_partition_reassignments": RequestKind(_ALTER_CLUSTER),
    "list_partition_reassignments": RequestKind(_DESCRIBE_CLUSTER),
    "elect_leaders": RequestKind(_ALTER_CLUSTER),
    "open_client": RequestKind(_NEW_SESSION, brings_work=True),
    "close_client": RequestKind(
        OfAnybody("by the principal that has opened the client, or with ALTER on CLUSTER"),
        clears_up=True,
    ),
    "list_hostnames": RequestKind(
        Listed(
            "hostnames",
            lambda item: hostname(item.hostname),
            "HOSTNAME",
            of_cluster=("absent_ids", "waiting_brokers"),
        )
    ),
    "alter_hostnames": RequestKind(
        Each(AclOperation.ALTER, "alterations", lambda item: hostname(item.hostname), "HOSTNAME")
    ),
    "list_export_cursors": RequestKind(
        Listed("cursors", lambda item: export_cursor(item.name), "EXPORT_CURSOR")
    ),
    "alter_export_cursors": RequestKind(
        Each(
            AclOperation.ALTER,
            "alterations",
            lambda item: export_cursor(item.name),
            "EXPORT_CURSOR",
        )
    ),
    "alter_key_values": RequestKind(
        All(
            AclOperation.ALTER,
            "alterations",
            lambda item: key_value(item.key),
            "KEY_VALUE",
            also=("lease", _NEW_SESSION),
        )
    ),
    "grant_lease": RequestKind(_NEW_SESSION),
    "keep_lease_alive": RequestKind(OfAnybody("by the principal that holds the lease")),
    "revoke_lease": RequestKind(
        OfAnybody("by the principal that holds the lease, or with ALTER on CLUSTER"),
        clears_up=True,
    ),
    "list_leases": RequestKind(_DESCRIBE_CLUSTER),
    "describe_acls": RequestKind(_DESCRIBE_CLUSTER),
    "create_acls": RequestKind(_ALTER_CLUSTER),
    "delete_acls": RequestKind(_ALTER_CLUSTER),
    # A caller with ALTER on CLUSTER can grant itself every other permission anyway.
    "apply_plan": RequestKind(_ALTER_CLUSTER),
}
"""Properties of each kind of request, by the body of a ControllerRequest.

Claims, permissions, queues and decisions are derived from this table. The function that decides a
kind of request has the same name: see ``DECISIONS`` in controller/decider.py.
"""
CONTROLLER: Mapping[str, Row] = {body: kind.right for body, kind in REQUESTS.items()}
"""Permissions by the body of a ControllerRequest."""

BROKER: Mapping[str, Row] = {
    "metadata": Listed("topics", lambda item: topic(item.name), "TOPIC"),
    "describe_configs": Each(
        AclOperation.DESCRIBE_CONFIGS, "resources", config_resource, "TOPIC, GROUP or CLUSTER"
    ),
    "list_key_values": Listed("key_values", lambda item: key_value(item.key), "KEY_VALUE"),
    "describe_cluster": _DESCRIBE_CLUSTER,
    "describe_broker": _DESCRIBE_CLUSTER,
    "broker_metadata": _DESCRIBE_CLUSTER,
    "api_versions": OfAnybody("a client asks for it before anything else"),
    "write": Forwarded(),
    "produce": EachPartition(AclOperation.WRITE),
    "fetch": EachPartition(AclOperation.READ),
    "list_offsets": EachPartition(AclOperation.DESCRIBE),
}
"""Permissions by the body of a BrokerRequest."""

QUORUM: Mapping[str, Row] = {
    "vote_request": OfNode(),
    "begin_quorum_epoch_request": OfNode(),
    "end_quorum_epoch_request": OfNode(),
}
"""Permissions by the body of a QuorumMessage that is a request."""

LOG: Mapping[str, Row] = {
    "Fetch": _READ_LOG,
    "FetchSnapshot": _READ_LOG,
    "MetadataFetch": _READ_LOG,
    "ReplicaFetch": OfNode(),
    "DescribeQuorum": _DESCRIBE_CLUSTER,
    "FetchMissingRecords": _READ_LOG,
    "DescribeNode": _DESCRIBE_CLUSTER,
    "DescribeNodeEvents": _DESCRIBE_CLUSTER,
    "DiagnoseNode": _ALTER_CLUSTER,
    "AlterLogLevel": _ALTER_CLUSTER,
}
"""Permissions by method, for requests without a node id; those with one need OfNode."""
OF_ANY_NODE = frozenset({"DescribeNode", "DescribeNodeEvents", "DiagnoseNode", "AlterLogLevel"})
"""Methods of LOG that brokers serve too, and that concern the node itself."""


class Watched(NamedTuple):
    """The permission to watch a kind of entity; ``resource`` maps the entity's key to a
    resource.
    """

    operation: AclOperation
    resource: Callable[[str], Resource] = lambda _: CLUSTER
    of: str = "CLUSTER"


def _config_of(key: str) -> Resource:
    """Return the resource of a watched config key: ``topic:orders:retention.ms`` or
    ``topic:orders``.
    """
    type_, _, rest = key.partition(":")
    name = rest.rpartition(":")[0] or rest
    if type_ == "topic":
        return topic(name)
    return Resource(AclResourceType.GROUP, name) if type_ == "group" else CLUSTER


WATCH: Mapping[str, Watched] = {
    "topic": Watched(AclOperation.DESCRIBE, topic, "TOPIC"),
    "partition": Watched(
        AclOperation.DESCRIBE, lambda key: topic(key.rpartition("-")[0]), "its TOPIC"
    ),
    "config": Watched(AclOperation.DESCRIBE_CONFIGS, _config_of, "TOPIC, GROUP or CLUSTER"),
    "hostname": Watched(AclOperation.DESCRIBE, hostname, "HOSTNAME"),
    "export_cursor": Watched(AclOperation.DESCRIBE, export_cursor, "EXPORT_CURSOR"),
    "kv": Watched(AclOperation.DESCRIBE, key_value, "KEY_VALUE"),
}
WATCH = {kind: WATCH.get(kind, Watched(AclOperation.DESCRIBE)) for kind in PLURAL}
"""Permissions to watch, by kind of entity."""


class UnlistedError(Exception):
    """A kind of request has no row, so the node must not start."""


def check_rows() -> None:
    """Raise UnlistedError if a kind of request has no row."""
    for request, rows in (
        (controller.ControllerRequest, CONTROLLER), (broker.BrokerRequest, BROKER)
    ):  # fmt: skip
        bodies = {field.name for field in request.DESCRIPTOR.oneofs_by_name["body"].fields}
        if unlisted := bodies - rows.keys():
            raise UnlistedError(
                f"raftlog/node/security/permissions.py has no row for the requests"
                f" {sorted(unlisted)}"
            )
