"""raftlog: a metadata service that knows when a change is visible on every broker.

Applications use :class:`Client`, or :class:`AsyncClient` on an event loop::

    import raftlog

    with raftlog.connect("127.0.0.1:9092") as client:
        client.topics.create("orders", partitions=6, acks="visible")

The names below are imported on first use, as nodes and commands do not need them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Not typing's: that import would take half of a command's start.

if TYPE_CHECKING:
    from typing import Any

    from raftlog import errors, recipes, tracing
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.client import Client, connect
    from raftlog.client.cluster import (
        AbsentId,
        AclListing,
        AclResult,
        CursorListing,
        ExportCursor,
        Hostname,
        HostnameListing,
        WaitingBroker,
    )
    from raftlog.client.consumer import Record
    from raftlog.client.key_values import Delete, Expect, KeyValue, Put
    from raftlog.client.leases import LeaseInfo
    from raftlog.client.options import ClientOptions
    from raftlog.client.producer import RecordMetadata
    from raftlog.client.topics import (
        Election,
        PartitionResult,
        PartitionState,
        Reassignment,
        TopicListing,
    )
    from raftlog.client.values import (
        ABSENT,
        UNCONDITIONAL,
        Acl,
        AclFilter,
        Api,
        ApiVersions,
        Broker,
        BrokerState,
        BrokerStatus,
        Cluster,
        ConfigEntry,
        ConfigSource,
        Feature,
        FeatureUpdate,
        ItemResult,
        Listing,
        NewTopic,
        OffsetResult,
        Partition,
        PartitionCounts,
        PlaceResult,
        QuorumInfo,
        QuorumNode,
        ReadMode,
        ReadOptions,
        Topic,
        TopicResult,
        TopicsPage,
        Unconditional,
        Visibility,
        Voter,
        WaitOptions,
        WriteOptions,
    )
    from raftlog.client.watch import Change, CompactedError
    from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
    from raftlog.metadata.config_keys import ResourceType
    from raftlog.outcome import Acks, LogOffset, Token, WriteResult

    __version__: str

_FROM = {
    "raftlog.client.async_client": "AsyncClient",
    "raftlog.client.client": "Client connect",
    "raftlog.client.cluster": (
        "AbsentId AclListing AclResult CursorListing ExportCursor Hostname HostnameListing "
        "WaitingBroker"
    ),
    "raftlog.client.consumer": "Record",
    "raftlog.client.key_values": "Delete Expect KeyValue Put",
    "raftlog.client.leases": "LeaseInfo",
    "raftlog.client.options": "ClientOptions",
    "raftlog.client.producer": "RecordMetadata",
    "raftlog.client.topics": "Election PartitionResult PartitionState Reassignment TopicListing",
    "raftlog.client.values": (
        "ABSENT Acl AclFilter Api ApiVersions Broker BrokerState BrokerStatus Cluster "
        "ConfigEntry ConfigSource Feature FeatureUpdate ItemResult Listing NewTopic "
        "OffsetResult Partition PartitionCounts PlaceResult QuorumInfo QuorumNode ReadMode "
        "ReadOptions Topic TopicResult TopicsPage UNCONDITIONAL Unconditional Visibility Voter "
        "WaitOptions WriteOptions"
    ),
    "raftlog.client.watch": "Change CompactedError",
    "raftlog.metadata.acls": "AclOperation AclPermission AclResourceType PatternType",
    "raftlog.metadata.config_keys": "ResourceType",
    "raftlog.outcome": "Acks LogOffset Token WriteResult",
}
_MODULES = frozenset({"errors", "recipes", "tracing"})
_HOME = {name: module for module, names in _FROM.items() for name in names.split()}

__all__ = [
    "ABSENT",
    "UNCONDITIONAL",
    "AbsentId",
    "Acks",
    "Acl",
    "AclFilter",
    "AclListing",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
    "AclResult",
    "Api",
    "ApiVersions",
    "AsyncClient",
    "Broker",
    "BrokerState",
    "BrokerStatus",
    "Change",
    "Client",
    "ClientOptions",
    "Cluster",
    "CompactedError",
    "ConfigEntry",
    "ConfigSource",
    "CursorListing",
    "Delete",
    "Election",
    "Expect",
    "ExportCursor",
    "Feature",
    "FeatureUpdate",
    "Hostname",
    "HostnameListing",
    "ItemResult",
    "KeyValue",
    "LeaseInfo",
    "Listing",
    "LogOffset",
    "NewTopic",
    "OffsetResult",
    "Partition",
    "PartitionCounts",
    "PartitionResult",
    "PartitionState",
    "PatternType",
    "PlaceResult",
    "Put",
    "QuorumInfo",
    "QuorumNode",
    "ReadMode",
    "ReadOptions",
    "Reassignment",
    "Record",
    "RecordMetadata",
    "ResourceType",
    "Token",
    "Topic",
    "TopicListing",
    "TopicResult",
    "TopicsPage",
    "Unconditional",
    "Visibility",
    "Voter",
    "WaitOptions",
    "WaitingBroker",
    "WriteOptions",
    "WriteResult",
    "connect",
    "errors",
    "recipes",
    "tracing",
]


if not TYPE_CHECKING:  # Type checkers see the names above, and no others.

    def __getattr__(name: str) -> Any:
        import importlib

        if name == "__version__":
            from raftlog.process import version_text

            return version_text()
        if name in _MODULES:
            return importlib.import_module(f"raftlog.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'raftlog' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
