"""A valid request of each kind to the active controller, and access to each of its fields."""

from collections.abc import Iterator
from typing import Any

from deciding import CLUSTER_ID, Cell, registration
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from raftlog.endpoint import Voter
from raftlog.metadata.records import record
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

Path = tuple[str, ...]
ACL: dict[str, Any] = {
    "resource_type": 2, "resource_name": "orders", "pattern_type": 3, "principal": "User:alice",
    "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
TYPES = {
    field.name: type(getattr(rpc.ControllerRequest(), field.name))
    for field in rpc.ControllerRequest.DESCRIPTOR.oneofs_by_name["body"].fields
}
"""Type of each kind of request."""


VOTERS, OBSERVER = (1, 2, 3), 4


def replica(node_id: int) -> ReplicaDescription:
    return ReplicaDescription(node_id, f"dir-{node_id}", 50, 10, 10, 4)


def quorum(now: float) -> QuorumDescription:
    return QuorumDescription(
        "leader", 1, 1, 1, 0, 50, 50, 50, 0,
        voters=tuple(map(replica, VOTERS)),
        observers=(replica(OBSERVER),),
        voter_set=tuple(Voter(id_, f"c{id_}:9093", f"dir-{id_}") for id_ in VOTERS),
    )  # fmt: skip


def lease_of(cell: Cell) -> int:
    """Return the first lease; grant it if there is none."""
    found = sorted(cell.pending.snapshot().leases)
    if not found:
        cell.fold([record(pb.LeaseRecord(name="l", ttl_ms=5_000))])
        cell.commit()
        found = sorted(cell.pending.snapshot().leases)
        cell.decider.state.leases.start([(found[0], 5_000)], cell.now)
    return found[0]


def valid(cell: Cell, topic_id: bytes) -> dict[str, Any]:
    """Return a request for each field of ``body``; every list has an item, every text is one that a
    handler checks. A kind that is not named here has the texts "x" and no numbers.
    """
    end = cell.pending.offset + 1
    partition = rpc.ReassignablePartition(partition_index=0, replicas=pb.IdList(ids=[2, 3, 1]))
    proposal = rpc.AlterPartitionData(
        partition_index=0, new_isr_with_epochs=[pb.BrokerState(broker_id=1)]
    )
    return {kind: filled(body) for kind, body in TYPES.items()} | {
        "register_broker": registration(
            9,
            rack="r",
            log_dirs=["/d"],
            process=pb.ProcessProof(boot_id="b", directory_id="d", lock_device=1, lock_inode=2),
        ),
        "unregister_broker": rpc.UnregisterBrokerRequest(broker_id=3),
        "broker_heartbeat": cell.heartbeat(1),
        "alter_partition": rpc.AlterPartitionRequest(
            broker_id=1,
            broker_epoch=cell.broker(1).epoch,
            topics=[rpc.AlterPartitionTopic(topic_id=topic_id, partitions=[proposal])],
        ),
        "create_topics": rpc.CreateTopicsRequest(
            topics=[
                rpc.CreatableTopic(
                    name="new",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        rpc.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
                    ],
                    configs=[rpc.ConfigEntry(name="retention.ms", value="5")],
                )
            ]
        ),
        "delete_topics": rpc.DeleteTopicsRequest(names=["t"]),
        "apply_plan": rpc.ApplyPlanRequest(
            expected_topics=[
                rpc.ExpectedTopic(name="t", topic_id=cell.pending.topic_ids["t"], num_partitions=1)
            ],
            delete_topics=["t"],
            create_acls=[rpc.AccessControlEntry(**ACL)],
            keys=[rpc.KeyValueAlteration(key="k", value=b"v", expected_offset=-1)],
        ),
        "incremental_alter_configs": rpc.IncrementalAlterConfigsRequest(
            resources=[
                rpc.AlterConfigsResource(
                    resource_type=16,
                    resource_name="x",
                    configs=[rpc.AlterableConfig(name="metrics", value="m")],
                )
            ]
        ),
        "add_raft_voter": rpc.AddRaftVoterRequest(
            voter_id=4, voter_directory_id="dir-4", endpoint="c4:9093"
        ),
        "remove_raft_voter": rpc.RemoveRaftVoterRequest(voter_id=3, voter_directory_id="dir-3"),
        "update_raft_voter": rpc.UpdateRaftVoterRequest(
            voter_id=3, voter_directory_id="dir-3", endpoint="d3:9093"
        ),
        "transfer_leadership": rpc.TransferLeadershipRequest(target_id=2),
        "close_client": rpc.CloseClientRequest(client_id=1),
        "update_features": rpc.UpdateFeaturesRequest(
            updates=[rpc.FeatureUpdate(name="lao.version", max_version_level=0, upgrade_type=2)]
        ),
        "create_partitions": rpc.CreatePartitionsRequest(
            topics=[
                rpc.CreatePartitionsTopic(
                    name="t",
                    count=2,
                    assignments=[rpc.CreatePartitionsAssignment(broker_ids=[1, 2, 3])],
                )
            ]
        ),
        "alter_partition_reassignments": rpc.AlterPartitionReassignmentsRequest(
            topics=[rpc.ReassignableTopic(name="t", partitions=[partition])]
        ),
        "list_partition_reassignments": rpc.ListPartitionReassignmentsRequest(
            topics=[rpc.ListReassignmentsTopic(name="t", partition_indexes=[0])]
        ),
        "elect_leaders": rpc.ElectLeadersRequest(
            topics=[rpc.ElectableTopic(name="t", partition_indexes=[0])]
        ),
        "alter_hostnames": rpc.AlterHostnamesRequest(
            alterations=[rpc.HostnameAlteration(hostname="h", broker_id=7, expected_offset=-1)]
        ),
        "describe_acls": rpc.DescribeAclsRequest(filter=rpc.AccessControlEntryFilter(**ACL)),
        "create_acls": rpc.CreateAclsRequest(creations=[rpc.AccessControlEntry(**ACL)]),
        "delete_acls": rpc.DeleteAclsRequest(filters=[rpc.AccessControlEntryFilter(**ACL)]),
        "alter_key_values": rpc.AlterKeyValuesRequest(
            alterations=[
                rpc.KeyValueAlteration(
                    key="k",
                    value=b"v",
                    expected_offset=-1,
                    expected_create_offset=-1,
                    expected_generation=0,
                )
            ]
        ),
        "grant_lease": rpc.GrantLeaseRequest(name="l", ttl_ms=5_000),
        "keep_lease_alive": rpc.KeepLeaseAliveRequest(
            lease_id=lease_of(cell), generation=0, more_lease_ids=[lease_of(cell)]
        ),
        "revoke_lease": rpc.RevokeLeaseRequest(lease_id=lease_of(cell), generation=0),
        "alter_export_cursors": rpc.AlterExportCursorsRequest(
            alterations=[
                rpc.ExportCursorAlteration(name="c", end_offset=end, target="t", expected_offset=-1)
            ]
        ),
    }


def filled(type_: type[Any]) -> Any:
    """Return a message in which every text is "x" and every list has one item."""
    message: Any = type_()
    for field in type_.DESCRIPTOR.fields:
        inner, value = field.message_type, getattr(message, field.name)
        if inner is not None:
            one = filled(GetMessageClass(inner))
            value.append(one) if field.is_repeated else value.CopyFrom(one)
        elif field.is_repeated:
            value.append("x" if field.type == FieldDescriptor.TYPE_STRING else 0)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, "x")
    return message


def envelope_of(kind: str, body: Any) -> rpc.ControllerRequest:
    request = rpc.ControllerRequest(cluster_id=CLUSTER_ID, timeout_ms=1000)
    getattr(request, kind).CopyFrom(body)
    request.client.principal = "User:me"
    return request


def leaves(message: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path (names and indexes) and descriptor of each field that is not a message."""
    for field in message.DESCRIPTOR.fields:
        here = (*path, field.name)
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            yield here, field
        elif field.is_repeated:
            for index in range(len(getattr(message, field.name))):
                yield from leaves(getattr(message, field.name)[index], (*here, str(index)))
        elif message.HasField(field.name):
            yield from leaves(getattr(message, field.name), here)


def holder(message: Any, path: Path) -> Any:
    """Return the message that holds the last field of a path."""
    for name in path[:-1]:
        message = message[int(name)] if name.isdigit() else getattr(message, name)
    return message


def put(message: Any, path: Path, value: Any, field: Any) -> None:
    """Set a field; a list gets this item only."""
    owner = holder(message, path)
    if field.is_repeated:
        del getattr(owner, path[-1])[:]
        getattr(owner, path[-1]).append(value)
    else:
        setattr(owner, path[-1], value)


def dotted(path: Path, *, item: bool = False) -> str:
    """Return the field path as errors name it."""
    text = ""
    for name in path:
        text += f"[{name}]" if name.isdigit() else f".{name}" if text else name
    return text + ("[0]" if item else "")
