"""Requests to the active controller, for the matrix of permissions: see matrix_requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matrix_callers import GONE, MINE, THEIRS
from matrix_facts import CONFIGS, FAR, MY_TOPIC, THEIR_TOPIC, UNKNOWN, Ask
from matrix_rpcs import THEIR_NAME

from raftlog.wire.controller.v1 import controller_pb2 as rpc_pb
from raftlog.wire.records.v1 import records_pb2 as records

DIRECTORY = "no-such-directory"
ANY, LITERAL, ALL, ALLOW = 1, 3, 2, 3


def _register(ask: Ask) -> Any:
    # Without listeners no broker is registered; under another's id that must never be looked at.
    listeners = [records.Listener(name="INTERNAL", host="127.0.0.1", port=1)] if ask.harm else []
    return rpc_pb.RegisterBrokerRequest(
        broker_id=ask.node_id, cluster_id=ask.cluster_id, incarnation_id="0" * 32,
        listeners=listeners, previous_broker_epoch=-1, registration_version=1,
    )  # fmt: skip


def _broker_epoch(ask: Ask) -> int:
    return int(ask.pick(ask.broker_epoch, -1))


def _heartbeat(ask: Ask) -> Any:
    return rpc_pb.BrokerHeartbeatRequest(
        broker_id=ask.node_id, broker_epoch=_broker_epoch(ask), want_shut_down=True,
        current_metadata_offset=FAR, controller_epoch=ask.facts.epoch,
    )  # fmt: skip


def _alter_partition(ask: Ask) -> Any:
    isr = [records.BrokerState(broker_id=ask.node_id, broker_epoch=-1)]
    change = rpc_pb.AlterPartitionData(partition_index=0, new_isr_with_epochs=isr)
    topic = rpc_pb.AlterPartitionTopic(topic_id=ask.facts.id_of(THEIR_TOPIC), partitions=[change])
    return rpc_pb.AlterPartitionRequest(
        broker_id=ask.node_id, broker_epoch=_broker_epoch(ask), topics=[topic]
    )


def _voter(ask: Ask, kind: Any, **more: str) -> Any:
    directory = ask.pick(ask.directory or DIRECTORY, DIRECTORY)
    return kind(voter_id=ask.node_id, voter_directory_id=directory, **more)


def _create_topics(ask: Ask) -> Any:
    names = (MY_TOPIC, f"{THEIRS}new" if 1 in ask.harms else THEIR_TOPIC)
    topics = [
        rpc_pb.CreatableTopic(name=one, num_partitions=1, replication_factor=1) for one in names
    ]
    return rpc_pb.CreateTopicsRequest(topics=topics)


def _delete_topics(ask: Ask) -> Any:
    return rpc_pb.DeleteTopicsRequest(
        names=[f"{MINE}{GONE}", THEIR_TOPIC if 1 in ask.harms else f"{THEIRS}{GONE}"]
    )


def _create_partitions(ask: Ask) -> Any:
    counts = [2 if index in ask.harms else -1 for index in range(2)]
    topics = [
        rpc_pb.CreatePartitionsTopic(name=name, count=count)
        for name, count in zip((MY_TOPIC, THEIR_TOPIC), counts, strict=True)
    ]
    return rpc_pb.CreatePartitionsRequest(topics=topics)


def _alter_configs(ask: Ask) -> Any:
    resources = []
    for index, (type_, name, key) in enumerate(CONFIGS):
        config = rpc_pb.AlterableConfig(name=key, value="7777" if index in ask.harms else "x")
        resources.append(
            rpc_pb.AlterConfigsResource(resource_type=type_, resource_name=name, configs=[config])
        )
    return rpc_pb.IncrementalAlterConfigsRequest(resources=resources)


def _reassign(ask: Ask) -> Any:
    replicas = records.IdList(ids=[ask.facts.nodes.broker])
    partition = rpc_pb.ReassignablePartition(partition_index=0, replicas=replicas)
    topic = rpc_pb.ReassignableTopic(
        name=ask.pick(THEIR_TOPIC, "not-there"), partitions=[partition]
    )
    return rpc_pb.AlterPartitionReassignmentsRequest(topics=[topic])


def _elect(ask: Ask) -> Any:
    topic = rpc_pb.ElectableTopic(name=ask.pick(THEIR_TOPIC, "not-there"), partition_indexes=[0])
    return rpc_pb.ElectLeadersRequest(election_type=rpc_pb.UNCLEAN, topics=[topic])


def _features(ask: Ask) -> Any:
    name = ask.pick("lao.version", "no.version")
    update = rpc_pb.FeatureUpdate(name=name, max_version_level=0, upgrade_type=2)
    return rpc_pb.UpdateFeaturesRequest(updates=[update])


def _hostnames(ask: Ask) -> Any:
    return rpc_pb.AlterHostnamesRequest(
        alterations=[
            rpc_pb.HostnameAlteration(
                hostname=f"{begin}host", broker_id=77,
                expected_offset=None if index in ask.harms else FAR,
            )
            for index, begin in enumerate((MINE, THEIRS))
        ]
    )  # fmt: skip


def _cursors(ask: Ask) -> Any:
    return rpc_pb.AlterExportCursorsRequest(
        alterations=[
            rpc_pb.ExportCursorAlteration(
                name=f"{begin}cursor", expected_offset=None if index in ask.harms else FAR
            )
            for index, begin in enumerate((MINE, THEIRS))
        ]
    )


def _key_values(ask: Ask) -> Any:
    return rpc_pb.AlterKeyValuesRequest(
        alterations=[
            rpc_pb.KeyValueAlteration(
                key=f"{begin}key", value=b"7", expected_offset=None if ask.harm else FAR
            )
            for begin in (MINE, THEIRS)
        ]
    )


def _create_acls(ask: Ask) -> Any:
    entry = rpc_pb.AccessControlEntry(
        resource_type=2, resource_name="*", pattern_type=LITERAL, principal="User:*", host="*",
        operation=ask.pick(ALL, 99), permission_type=ALLOW,
    )  # fmt: skip
    return rpc_pb.CreateAclsRequest(creations=[entry])


def _filter(**more: str) -> Any:
    return rpc_pb.AccessControlEntryFilter(
        resource_type=ANY, pattern_type=ANY, operation=ANY, permission_type=ANY, **more
    )


def _delete_acls(ask: Ask) -> Any:
    chosen = _filter() if ask.harm else _filter(principal="User:nobody-at-all")
    return rpc_pb.DeleteAclsRequest(filters=[chosen])


TO_CONTROLLER: Mapping[str, Callable[[Ask], Any]] = {
    "register_broker": _register,
    "broker_heartbeat": _heartbeat,
    "alter_partition": _alter_partition,
    "update_raft_voter": lambda ask: _voter(
        ask, rpc_pb.UpdateRaftVoterRequest, endpoint="127.0.0.1:1"
    ),
    "unregister_broker": lambda ask: rpc_pb.UnregisterBrokerRequest(
        broker_id=ask.pick(ask.facts.nodes.victim_broker, UNKNOWN)
    ),
    "add_raft_voter": lambda ask: _voter(ask, rpc_pb.AddRaftVoterRequest, endpoint="127.0.0.1:1"),
    "remove_raft_voter": lambda ask: _voter(ask, rpc_pb.RemoveRaftVoterRequest),
    "transfer_leadership": lambda ask: rpc_pb.TransferLeadershipRequest(
        target_id=ask.pick(ask.facts.nodes.victim_controller, UNKNOWN)
    ),
    "update_features": _features,
    "create_topics": _create_topics,
    "delete_topics": _delete_topics,
    "create_partitions": _create_partitions,
    "incremental_alter_configs": _alter_configs,
    "alter_partition_reassignments": _reassign,
    "elect_leaders": _elect,
    "open_client": lambda ask: rpc_pb.OpenClientRequest(
        name=f"{THEIRS if ask.variant == THEIR_NAME else MINE}session"
    ),
    "close_client": lambda ask: rpc_pb.CloseClientRequest(client_id=FAR),
    "alter_hostnames": _hostnames,
    "alter_export_cursors": _cursors,
    "alter_key_values": _key_values,
    "grant_lease": lambda ask: rpc_pb.GrantLeaseRequest(
        name=f"{THEIRS if ask.variant == THEIR_NAME else MINE}session",
        ttl_ms=ask.pick(60_000, 1),
    ),
    "keep_lease_alive": lambda ask: rpc_pb.KeepLeaseAliveRequest(lease_id=FAR),
    "revoke_lease": lambda ask: rpc_pb.RevokeLeaseRequest(lease_id=FAR),
    "describe_acls": lambda ask: rpc_pb.DescribeAclsRequest(filter=_filter()),
    "create_acls": _create_acls,
    "delete_acls": _delete_acls,
}
