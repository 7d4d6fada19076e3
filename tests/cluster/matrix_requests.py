"""Requests of the permission matrix, each in two forms. One does damage where it is accepted: it is
sent where it must be refused, and the cluster's state shows whether it was. The other fails after
the authorization or changes nothing: it is sent where it must be authorized.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from matrix_callers import BY_NAME, GONE, MINE, NOBODYS, OWN, THEIR_NAME, THEIRS, Nodes, Rpc

from raftlog.metadata.acls import Binding
from raftlog.metadata.config_keys import ResourceType
from raftlog.node.security.node_claims import CONTROLLER_CLAIMS, NOBODY
from raftlog.node.security.permissions import REQUESTS
from raftlog.transport.api import WATCHES, Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as rpc_pb
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.node.v1 import node_pb2 as node
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as records

UNKNOWN, FAR = 4_000, 1 << 40
"""An id and a partition that are not there; an offset that no log has."""
MY_TOPIC, THEIR_TOPIC = f"{MINE}topic", f"{THEIRS}topic"
CONFIGS = (
    (ResourceType.TOPIC, MY_TOPIC, "retention.ms"),
    (ResourceType.TOPIC, THEIR_TOPIC, "retention.ms"),
    (ResourceType.GROUP, f"{MINE}group", "consumer.session.timeout.ms"),
    (ResourceType.GROUP, f"{THEIRS}group", "consumer.session.timeout.ms"),
    (ResourceType.CLIENT_METRICS, "metrics", "interval.ms"),
    (ResourceType.BROKER, "", "retention.ms"),
)
"""One of each type of resource, and a key of it that takes numbers."""


class Facts(NamedTuple):
    """Resources of requests. ``topics``: names by id; ``directories``: of voters, by id."""

    cluster_id: str
    epoch: int
    nodes: Nodes
    leader_id: int
    topics: Mapping[bytes, str]
    directories: Mapping[int, str]
    broker_epochs: Mapping[int, int]
    entries: Sequence[Binding]
    generation: int

    def id_of(self, name: str) -> bytes:
        return next(id_ for id_, one in self.topics.items() if one == name)


class Ask(NamedTuple):
    """``node_id``: under which the request is sent; ``harms``: indexes of the items that would do
    damage, {0} for a request without items.
    """

    facts: Facts
    node_id: int
    harms: Collection[int] = ()
    variant: str = ""

    @property
    def harm(self) -> bool:
        return bool(self.harms)

    def pick(self, harmful: Any, harmless: Any) -> Any:
        return harmful if self.harms else harmless

    @property
    def cluster_id(self) -> str:
        """Return a wrong cluster id, for which a node's request fails after authorization."""
        reads = self.node_id == NOBODY
        return self.facts.cluster_id if self.harm or reads else "another-cluster"

    @property
    def broker_epoch(self) -> int:
        """Return the epoch of the broker that the request claims to come from."""
        return self.facts.broker_epochs.get(self.node_id, -1)

    @property
    def directory(self) -> str:
        """Return the directory of the voter that the request claims to come from."""
        return self.facts.directories.get(self.node_id, "")


EPOCHS_ON = 5
"""Number of epochs by which a forged vote is ahead."""


def _vote(ask: Ask) -> Any:
    epoch = ask.facts.epoch + EPOCHS_ON
    return quorum.VoteRequest(
        cluster_id=ask.cluster_id, replica_id=ask.node_id, voter_id=ask.facts.leader_id,
        replica_epoch=epoch, last_offset_epoch=epoch - 1, last_offset=FAR,
        replica_directory_id=ask.directory,
        voter_directory_id=ask.facts.directories[ask.facts.leader_id],
    )  # fmt: skip


def _begin(ask: Ask) -> Any:
    return quorum.BeginQuorumEpochRequest(
        cluster_id=ask.cluster_id, leader_id=ask.node_id, leader_epoch=ask.facts.epoch + EPOCHS_ON,
        voter_id=ask.facts.leader_id, leader_endpoint="127.0.0.1:1",
        voter_directory_id=ask.facts.directories[ask.facts.leader_id],
    )  # fmt: skip


def _end(ask: Ask) -> Any:
    return quorum.EndQuorumEpochRequest(
        cluster_id=ask.cluster_id, leader_id=ask.node_id, leader_epoch=ask.facts.epoch + EPOCHS_ON
    )


def _fetch(ask: Ask) -> Any:
    # One that reads on behalf of nobody is not served here: its answer is an error.
    return quorum.FetchRequest(
        cluster_id=ask.cluster_id, replica_id=ask.node_id, current_leader_epoch=ask.facts.epoch,
        replica_directory_id=ask.directory,
        fetch_offset=1 << 20, last_fetched_epoch=ask.facts.epoch, high_watermark=-1, max_bytes=1 << 20,
    )  # fmt: skip


def _fetch_snapshot(ask: Ask) -> Any:
    return quorum.FetchSnapshotRequest(
        cluster_id=ask.cluster_id, replica_id=ask.node_id, current_leader_epoch=-1,
        snapshot_id=quorum.SnapshotId(end_offset=1, epoch=1), max_bytes=1 << 20,
    )  # fmt: skip


def _metadata_fetch(ask: Ask) -> Any:
    return rpc_pb.MetadataFetchRequest(
        cluster_id=ask.cluster_id, replica_id=ask.node_id, controller_epoch=ask.facts.epoch,
        broker_epoch=ask.broker_epoch, applied_offset=FAR,
        told_lowest_acknowledged_offset=FAR, high_watermark=-1, max_bytes=1 << 20, generation=0,
    )  # fmt: skip


def _replica_fetch(ask: Ask) -> Any:
    partition = data.ReplicaFetchPartition(
        topic_id=ask.facts.id_of(THEIR_TOPIC), partition_index=0, fetch_offset=FAR
    )
    state = data.ReplicaState(replica_id=ask.node_id, replica_epoch=ask.broker_epoch)
    return data.ReplicaFetchRequest(
        cluster_id=ask.cluster_id, replica_state=state, leader_id=ask.facts.nodes.broker,
        max_bytes=1 << 20, partitions=[partition],
    )  # fmt: skip


QUORUM_REQUESTS: Mapping[str, Callable[[Ask], Any]] = {
    "vote_request": _vote,
    "begin_quorum_epoch_request": _begin,
    "end_quorum_epoch_request": _end,
}
LOG_REQUESTS: Mapping[str, Callable[[Ask], Any]] = {
    "Fetch": _fetch,
    "FetchSnapshot": _fetch_snapshot,
    "MetadataFetch": _metadata_fetch,
    "ReplicaFetch": _replica_fetch,
    "DescribeQuorum": lambda ask: quorum.DescribeQuorumRequest(),
    "FetchMissingRecords": lambda ask: quorum.FetchMissingRecordsRequest(section=-1),
    "DescribeNode": lambda ask: node.DescribeNodeRequest(),
    "DescribeNodeEvents": lambda ask: node.DescribeNodeEventsRequest(),
    "DiagnoseNode": lambda ask: node.DiagnoseNodeRequest(),
    "AlterLogLevel": lambda ask: node.AlterLogLevelRequest(),
}


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


def _plan(ask: Ask) -> Any:
    return rpc_pb.ApplyPlanRequest(
        generation=ask.facts.generation,
        keys=[
            rpc_pb.KeyValueAlteration(
                key=f"{THEIRS}planned", value=b"7", expected_offset=ask.pick(-1, FAR)
            )
        ],
    )


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
        name=f"{THEIRS if ask.variant == THEIR_NAME else MINE}session", ttl_ms=ask.pick(60_000, 1)
    ),
    "keep_lease_alive": lambda ask: rpc_pb.KeepLeaseAliveRequest(lease_id=FAR),
    "revoke_lease": lambda ask: rpc_pb.RevokeLeaseRequest(lease_id=FAR),
    "describe_acls": lambda ask: rpc_pb.DescribeAclsRequest(filter=_filter()),
    "create_acls": _create_acls,
    "delete_acls": _delete_acls,
    "apply_plan": _plan,
}


UNKNOWN_TOPIC = bytes(range(16))


def request_of(rpc: Rpc, own_id: int | None, facts: Facts, harms: Collection[int] = ()) -> Any:
    """Return the message of a request. ``own_id``: of the node that the caller's certificate names.
    A read that is not named below has no fields. Raises KeyError for such a write.
    """
    ask = Ask(facts, _claimed(rpc, own_id, facts), harms, rpc.variant)
    if rpc.conversation is Conversation.QUORUM:
        return QUORUM_REQUESTS[rpc.kind](ask)
    if rpc.carried or (rpc.method.service.endswith(".Controller") and rpc.body):
        if rpc.kind in TO_CONTROLLER or not REQUESTS[rpc.kind].reads:
            return TO_CONTROLLER[rpc.kind](ask)
        return getattr(rpc_pb.ControllerRequest(), rpc.kind)
    if rpc.conversation in WATCHES:
        return broker.WatchRequest(selectors=["brokers"])
    if rpc.body:
        return _TO_BROKER[rpc.kind](ask)
    return LOG_REQUESTS[rpc.kind](ask)


def _claimed(rpc: Rpc, own_id: int | None, facts: Facts) -> int:
    if rpc.variant == OWN and own_id is not None:
        return own_id
    if rpc.variant == NOBODYS:
        return NOBODY
    of_brokers = CONTROLLER_CLAIMS.get(rpc.kind) == "broker_id" or rpc.kind in _OF_BROKERS
    return facts.nodes.victim_broker if of_brokers else facts.nodes.victim_controller


_OF_BROKERS = ("MetadataFetch", "ReplicaFetch")


def _partitions(ask: Ask, kind: Any, **more: Any) -> list[Any]:
    """One of mine, one of theirs, and one of an unknown topic, which is refused to nobody."""
    ids = (ask.facts.id_of(MY_TOPIC), ask.facts.id_of(THEIR_TOPIC), UNKNOWN_TOPIC)
    return [
        kind(topic_id=id_, partition_index=0 if index in ask.harms else UNKNOWN,
             current_leader_epoch=-1, **more)
        for index, id_ in enumerate(ids)
    ]  # fmt: skip


def _produce(ask: Ask) -> Any:
    value = data.DataRecord(value=b"not to be there").SerializeToString()
    return data.ProduceRequest(
        acks=1,
        timeout_ms=5_000,
        partitions=_partitions(ask, data.ProducePartition, records=[value]),
    )


def _describe_configs(ask: Ask) -> Any:
    return broker.DescribeConfigsRequest(
        resources=[
            broker.DescribeConfigsResource(resource_type=type_, resource_name=name)
            for type_, name, _ in CONFIGS
        ]
    )


_TO_BROKER: Mapping[str, Callable[[Ask], Any]] = {
    "metadata": lambda ask: broker.MetadataRequest(
        topics=[MY_TOPIC, THEIR_TOPIC] if ask.variant == BY_NAME else []
    ),
    "describe_configs": _describe_configs,
    "list_key_values": lambda ask: broker.ListKeyValuesRequest(),
    "describe_cluster": lambda ask: broker.DescribeClusterRequest(),
    "describe_broker": lambda ask: broker.DescribeBrokerRequest(),
    "broker_metadata": lambda ask: data.BrokerMetadataRequest(),
    "api_versions": lambda ask: broker.ApiVersionsRequest(),
    "produce": _produce,
    "fetch": lambda ask: data.FetchRequest(
        max_bytes=1 << 20, partitions=_partitions(ask, data.FetchPartition)
    ),
    "list_offsets": lambda ask: data.ListOffsetsRequest(
        partitions=_partitions(ask, data.ListOffsetsPartition, timestamp=-1)
    ),
}
