"""What a node says of itself when asked: it needs no leader to answer."""

from __future__ import annotations

from controller.service import ControllerService
from raftlog.quorum.description import ReplicaDescription
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def describe_quorum(service: ControllerService) -> pb.DescribeQuorumResponse:
    """The reply to DescribeQuorum: this node's view, with the others' progress if it leads."""
    quorum = service.quorum
    seen = service.replica.core.describe(service.now())
    endpoints = {voter.node_id: voter.endpoint for voter in quorum.voters}
    leadership = service.leadership
    known = {replica.node_id: replica for replica in seen.voters}
    unknown = ReplicaDescription(-1, "", -1, -1, -1)
    return pb.DescribeQuorumResponse(
        cluster_id=quorum.cluster_id,
        node_id=quorum.node_id,
        directory_id=quorum.directory_id,
        role=seen.role,
        leader_id=seen.leader_id,
        leader_epoch=seen.epoch,
        voted_id=seen.voted_id,
        log_start_offset=seen.log_start_offset,
        log_end_offset=seen.log_end_offset,
        durable_end_offset=seen.flushed_end_offset,
        high_watermark=seen.high_watermark,
        voters=[_replica(known.get(id_, unknown), id_, endpoints[id_]) for id_ in sorted(endpoints)],
        observers=[_replica(replica, replica.node_id, "") for replica in seen.observers],
        lowest_acknowledged_offset=service.lowest_acknowledged_offset,
        lao_unknown_reason=leadership.lao.unknown_reason if leadership is not None else "this node is not the leader",
        generation=service.generation,
    )


def _replica(replica: ReplicaDescription, node_id: int, endpoint: str) -> pb.ReplicaState:
    return pb.ReplicaState(
        replica_id=node_id,
        replica_directory_id=replica.directory_id,
        endpoint=endpoint,
        log_end_offset=replica.log_end_offset,
        last_fetch_age_ms=replica.last_fetch_age_ms,
        last_caught_up_age_ms=replica.last_caught_up_age_ms,
    )
