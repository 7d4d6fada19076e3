"""The limits of every text, byte string and list that a client, a broker or another node sends.

A field without a line here is an error as soon as its message is checked, and a test checks all
requests of all services. The limits fit all later stores: the principal's length takes 16 bits of a
batch's header; names become parts of keys, of entities in snapshots and of metrics; every text is
printed somewhere.

Why: docs/decisions/022-a-peer-can-cost-only-so-much.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from google.protobuf.message import Message

from raftlog.bounds import DATA_REQUEST_MAX_PARTITIONS, MESSAGE_MAX_BYTES
from raftlog.limits.rules import (
    ENDPOINT,
    HOST,
    OPTIONAL_ENDPOINT,
    RACK,
    Allowed,
    ByHandler,
    Items,
    Octets,
    Rule,
    Text,
    name,
)
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.common.v1 import common_pb2 as common
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.node.v1 import node_pb2 as node
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as records

PRINCIPAL_MAX_CHARS = 1024
ENVELOPE = ByHandler(
    MESSAGE_MAX_BYTES, "the transport takes it apart; each request is checked by itself"
)
CLUSTER_ID = ByHandler(255, "compared with the cluster's own; a refusal shows 80 characters of it")
ID = Text(255)
DIRECTORY_ID = Text(255)
ERROR_MESSAGE = Text(2000)
TOPIC_NAME = Text(249)
TOPIC_ID = Octets(16)
RESOURCE_NAME = Text(249)
CONFIG_KEY = Text(249)
VALUE_MAX_BYTES = 16 << 10
"""Largest value in the key-value store: it holds the owner of a lock or a setting, no files."""
KEY_MAX_CHARS = 249
_KEY_SEGMENT = r"[A-Za-z0-9._:@=+,-]+"
_KEY_SEGMENTS = "ASCII letters, digits and . _ - : @ = + , with single slashes between them"
KEY = Allowed(
    KEY_MAX_CHARS,
    re.compile(rf"{_KEY_SEGMENT}(/{_KEY_SEGMENT})*"),
    f"key: segments of {_KEY_SEGMENTS}",
)
KEY_PREFIX = Allowed(
    KEY_MAX_CHARS,
    re.compile(rf"({_KEY_SEGMENT}(/{_KEY_SEGMENT})*/?)?"),
    f"beginning of a key: segments of {_KEY_SEGMENTS}",
)
SELECTOR = Text(2_000)
"""The path of an entity: two names, percent-encoded, behind their prefix."""
MANY = Items(100_000)
"""A list bounded by the size of its request: the handler counts the records that it would write."""
ACL_FILTERS = Items(100)
"""Filters of entries: each examines every entry."""
REPLICAS = Items(1_000)
READ_TOPICS = Items(20_000, TOPIC_NAME)
READ_RESOURCES = Items(1_000)
DATA_PARTITIONS = Items(DATA_REQUEST_MAX_PARTITIONS)
"""Partitions of one read, which is answered at once: its answer is many times larger than the
request.
"""
BROKER_FEATURES, BROKER_LISTENERS, BROKER_LOG_DIRS = Items(100), Items(100), Items(100, Text(4096))
CHUNK = ByHandler(MESSAGE_MAX_BYTES, "batches with checksums: the log's reader checks them")
PART = ByHandler(
    MESSAGE_MAX_BYTES, "of a snapshot: checked whole, by its footer, when it is complete"
)

FIELDS: Mapping[type[Message], Mapping[str, Rule]] = {
    common.ClientIdentity: {"principal": Text(PRINCIPAL_MAX_CHARS), "host": Text(255)},
    records.Listener: {"name": name(255), "host": HOST},
    records.FeatureRange: {"name": name()},
    records.ProcessProof: {"boot_id": ID, "directory_id": DIRECTORY_ID},
    records.IdList: {"ids": REPLICAS},
    # --- to the active controller
    controller.ControllerRequests: {"requests": ENVELOPE},
    controller.ControllerRequest: {
        "cluster_id": CLUSTER_ID,
        "traceparent": ByHandler(55, "raftlog.tracing: what is none is not looked at"),
    },
    controller.RegisterBrokerRequest: {
        "cluster_id": CLUSTER_ID,
        "incarnation_id": ID,
        "listeners": BROKER_LISTENERS,
        "features": BROKER_FEATURES,
        "rack": RACK,
        "log_dirs": BROKER_LOG_DIRS,
    },
    controller.AlterPartitionRequest: {"topics": MANY},
    controller.AlterPartitionTopic: {"topic_id": TOPIC_ID, "partitions": MANY},
    controller.AlterPartitionData: {"new_isr_with_epochs": REPLICAS},
    controller.CreateTopicsRequest: {"topics": MANY},
    controller.CreatableTopic: {
        "name": ByHandler(
            249, "controller.decisions.partitions.topics checks it, with an error for each topic"
        ),
        "assignments": MANY,
        "configs": Items(1_000),
    },
    controller.CreatableReplicaAssignment: {"broker_ids": REPLICAS},
    controller.ConfigEntry: {
        "name": ByHandler(249, "one of the keys there are: raftlog.metadata.config_keys"),
        "value": ByHandler(
            32_768, "controller.decisions.configs: config.value.max.bytes, printable"
        ),
    },
    controller.DeleteTopicsRequest: {"names": Items(100_000, TOPIC_NAME)},
    # The hot path: everything in it is looked up or checked by controller.decisions.configs.
    controller.IncrementalAlterConfigsRequest: {
        "resources": ByHandler(100_000, "controller.decisions.configs counts them")
    },
    controller.AlterConfigsResource: {
        "resource_name": ByHandler(
            249, "controller.decisions.configs: looked up, or 249 printable characters"
        ),
        "configs": ByHandler(
            1_000, "controller.decisions.configs: no key twice, so no more than there are keys"
        ),
    },
    controller.AlterableConfig: {
        "name": ByHandler(249, "one of the keys there are: raftlog.metadata.config_keys"),
        "value": ByHandler(
            32_768, "controller.decisions.configs: config.value.max.bytes, printable"
        ),
        "expected": ByHandler(
            32_768, "controller.decisions.configs: config.value.max.bytes, and only compared"
        ),
    },
    controller.AddRaftVoterRequest: {"voter_directory_id": DIRECTORY_ID, "endpoint": ENDPOINT},
    controller.RemoveRaftVoterRequest: {"voter_directory_id": DIRECTORY_ID},
    controller.UpdateRaftVoterRequest: {"voter_directory_id": DIRECTORY_ID, "endpoint": ENDPOINT},
    controller.OpenClientRequest: {"name": Text(249)},
    controller.UpdateFeaturesRequest: {"updates": Items(100)},
    controller.FeatureUpdate: {"name": name()},
    controller.CreatePartitionsRequest: {"topics": MANY},
    controller.CreatePartitionsTopic: {"name": TOPIC_NAME, "assignments": MANY},
    controller.CreatePartitionsAssignment: {"broker_ids": REPLICAS},
    controller.AlterPartitionReassignmentsRequest: {"topics": MANY},
    controller.ReassignableTopic: {"name": TOPIC_NAME, "partitions": MANY},
    controller.ListPartitionReassignmentsRequest: {"topics": MANY},
    controller.ListReassignmentsTopic: {"name": TOPIC_NAME, "partition_indexes": MANY},
    controller.ElectLeadersRequest: {"topics": MANY},
    controller.ElectableTopic: {"name": TOPIC_NAME, "partition_indexes": MANY},
    controller.AlterHostnamesRequest: {"alterations": MANY},
    controller.HostnameAlteration: {
        "hostname": ByHandler(
            255,
            "controller.decisions.brokers.hostnames: a host, or a mapping that is there and is to"
            " be deleted",
        )
    },
    controller.AlterExportCursorsRequest: {"alterations": MANY},
    controller.ExportCursorAlteration: {
        "name": ByHandler(
            249,
            "controller.decisions.clients.export_cursors checks it, with an error for each cursor",
        ),
        "target": ByHandler(
            1024, "controller.decisions.clients.export_cursors: 1024 printable characters"
        ),
    },
    controller.AlterKeyValuesRequest: {"alterations": MANY},
    controller.KeyValueAlteration: {
        "key": KEY,
        "value": Octets(VALUE_MAX_BYTES),
    },
    controller.GrantLeaseRequest: {"name": Text(249)},
    controller.DescribeAclsRequest: {},
    controller.CreateAclsRequest: {"creations": MANY},
    controller.DeleteAclsRequest: {"filters": ACL_FILTERS},
    controller.AccessControlEntry: {
        "resource_name": RESOURCE_NAME,
        "principal": Text(PRINCIPAL_MAX_CHARS),
        "host": Text(255),
    },
    controller.AccessControlEntryFilter: {
        "resource_name": RESOURCE_NAME,
        "principal": Text(PRINCIPAL_MAX_CHARS),
        "host": Text(255),
    },
    controller.MetadataFetchRequest: {"cluster_id": CLUSTER_ID},
    # --- to a broker
    broker.BrokerRequests: {"requests": ENVELOPE},
    broker.BrokerRequest: {
        "traceparent": ByHandler(55, "raftlog.tracing: what is none is not looked at"),
        "cluster_id": CLUSTER_ID,
    },
    broker.MetadataRequest: {"topics": READ_TOPICS, "cursor": TOPIC_NAME},
    broker.DescribeConfigsRequest: {"resources": READ_RESOURCES},
    broker.DescribeConfigsResource: {
        "resource_name": RESOURCE_NAME,
        "configuration_keys": Items(1_000, CONFIG_KEY),
    },
    broker.ListKeyValuesRequest: {
        "keys": Items(1_000, KEY),
        "prefix": KEY_PREFIX,
        "after": KEY_PREFIX,
    },
    broker.WatchManyRequests: {"requests": ENVELOPE},
    broker.WatchRequest: {"cluster_id": CLUSTER_ID, "selectors": Items(100, SELECTOR)},
    data.ProduceRequest: {"partitions": DATA_PARTITIONS},
    data.ProducePartition: {
        "topic_id": TOPIC_ID,
        "records": ByHandler(
            24 << 20, "broker.partition: max.message.bytes, and how many a request has"
        ),
    },
    data.FetchRequest: {"partitions": DATA_PARTITIONS},
    data.FetchPartition: {"topic_id": TOPIC_ID},
    data.ListOffsetsRequest: {"partitions": DATA_PARTITIONS},
    data.ListOffsetsPartition: {"topic_id": TOPIC_ID},
    data.BrokerMetadataRequest: {"partitions": MANY},
    data.PartitionKey: {"topic_id": TOPIC_ID},
    data.ReplicaFetchRequest: {"cluster_id": CLUSTER_ID, "partitions": MANY, "forgotten": MANY},
    data.ReplicaFetchPartition: {"topic_id": TOPIC_ID},
    # --- between the nodes of the quorum, both ways
    quorum.QuorumMessages: {"messages": ENVELOPE},
    quorum.VoteRequest: {
        "cluster_id": CLUSTER_ID,
        "replica_directory_id": DIRECTORY_ID,
        "voter_directory_id": DIRECTORY_ID,
    },
    quorum.VoteResponse: {"leader_endpoint": OPTIONAL_ENDPOINT, "error_message": ERROR_MESSAGE},
    quorum.BeginQuorumEpochRequest: {
        "cluster_id": CLUSTER_ID,
        "voter_directory_id": DIRECTORY_ID,
        "leader_endpoint": OPTIONAL_ENDPOINT,
    },
    quorum.BeginQuorumEpochResponse: {"error_message": ERROR_MESSAGE},
    quorum.EndQuorumEpochResponse: {"error_message": ERROR_MESSAGE},
    quorum.EndQuorumEpochRequest: {"cluster_id": CLUSTER_ID, "preferred_candidates": Items(1_000)},
    quorum.PreferredCandidate: {"candidate_directory_id": DIRECTORY_ID},
    quorum.FetchRequest: {"cluster_id": CLUSTER_ID, "replica_directory_id": DIRECTORY_ID},
    quorum.FetchResponse: {
        "records": CHUNK,
        "leader_endpoint": OPTIONAL_ENDPOINT,
        "preferred_candidates": Items(1_000),
    },
    quorum.FetchSnapshotRequest: {"cluster_id": CLUSTER_ID, "replica_directory_id": DIRECTORY_ID},
    quorum.FetchSnapshotResponse: {"bytes": PART},
    quorum.DescribeQuorumRequest: {"cluster_id": CLUSTER_ID},
    # --- of operators, to any node
    node.DescribeNodeRequest: {"cluster_id": CLUSTER_ID},
    node.DescribeNodeEventsRequest: {"cluster_id": CLUSTER_ID},
    node.DiagnoseNodeRequest: {"cluster_id": CLUSTER_ID},
    node.AlterLogLevelRequest: {"cluster_id": CLUSTER_ID, "level": name(32)},
}
