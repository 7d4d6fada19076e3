"""What a node says of itself when asked, also without a leader: DescribeQuorum, readiness, the page
for people.
"""

from __future__ import annotations

from controller.decisions.brokers.describe import describe_brokers
from controller.decisions.quorum.features import known_features
from controller.service.service import ControllerService
from raftlog.endpoint import endpoint_on
from raftlog.printable import printable
from raftlog.quorum.description import ReplicaDescription
from raftlog.replica.peer_reach import PeerReach
from raftlog.voter import Voter
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def describe_quorum(service: ControllerService, listener: str = "") -> pb.DescribeQuorumResponse:
    """The reply to DescribeQuorum: this node's view, with the others' progress if it leads.

    ``listener``: the one that was asked; the endpoints are those of the same name.
    """
    quorum = service.quorum
    seen = service.replica.core.describe(service.node.now())
    low = {quorum.node_id: service.node.space.low}
    leadership, image = service.node.leadership, service.image
    log_hash = service.node.committed.log_hash
    features = image.features
    known = {replica.node_id: replica for replica in seen.voters}
    reach = {peer.node_id: peer for peer in service.replica.peer_reach()}
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
        voters=[
            _voter(
                voter,
                known.get(voter.node_id),
                listener,
                low=low,
                reach=reach.get(voter.node_id, PeerReach(voter.node_id)),
            )
            for voter in seen.voter_set
        ],
        observers=[
            _observer(
                replica, service.replica.visitor_address(replica.node_id, replica.directory_id)
            )
            for replica in seen.observers
        ],
        lowest_acknowledged_offset=service.node.lowest_acknowledged_offset,
        writes_refused=service.node.space.verdict.refusal if leadership is not None else "",
        lao_unknown_reason=leadership.log.lao.unknown_reason
        if leadership is not None
        else "this node is not the leader",
        generation=service.node.committed_generation,
        previous_generations=service.node.previous_generations,
        snapshots=[
            pb.SnapshotId(end_offset=one.end_offset, epoch=one.epoch)
            for one in service.replica.snapshots.ids
        ],
        voters_offset=seen.voters_offset,
        leader_endpoint=service.node.leader_endpoint(seen.leader_id, listener),
        features=[
            pb.FeatureState(
                name=name,
                finalized_level=features.get(name, 0),
                min_supported_version=lowest,
                max_supported_version=highest,
            )
            for name, (lowest, highest) in sorted(known_features().items())
        ],
        image_offset=image.offset,
        image_epoch=image.epoch,
        state_hash=image.state_hash.to_bytes(16, "big"),
        log_hash_begin_offset=log_hash.begin_offset if log_hash.is_known else 0,
        log_hash=log_hash.digest if log_hash.is_known else b"",
        clock_ahead_ms=service.replica.clock_ahead_ms,
        votes_needed=seen.votes_needed,
    )


def _voter(
    voter: Voter,
    progress: ReplicaDescription | None,
    listener: str,
    *,
    low: dict[int, bool],
    reach: PeerReach,
) -> pb.ReplicaState:
    if progress is None:
        progress = ReplicaDescription(voter.node_id, voter.directory_id, -1, -1, -1)
    endpoint = endpoint_on(voter.endpoint, listener)
    shown = _replica(progress, endpoint, low=low.get(voter.node_id, progress.low_on_space))
    shown.endpoints = voter.endpoint
    if not reach.is_reached:
        shown.unreachable_ms, shown.unreachable_reason = reach.for_ms, printable(reach.reason)
    return shown


def _observer(replica: ReplicaDescription, address: str) -> pb.ReplicaState:
    shown = _replica(replica, "", low=replica.low_on_space)
    shown.connected_from = printable(address)
    return shown


def _replica(replica: ReplicaDescription, endpoint: str, *, low: bool) -> pb.ReplicaState:
    return pb.ReplicaState(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        endpoint=endpoint,
        log_end_offset=replica.log_end_offset,
        last_fetch_age_ms=replica.last_fetch_age_ms,
        last_caught_up_age_ms=replica.last_caught_up_age_ms,
        max_metadata_version=replica.max_metadata_version,
        low_on_space=low,
    )


def ready(service: ControllerService) -> tuple[bool, str]:
    """Whether this node takes part in serving: it leads and has claimed, or follows a leader it
    knows. And why.
    """
    if service.node.loading:
        return False, "loading the snapshot that its log begins with"
    leadership, epoch, leader = (
        service.node.leadership,
        service.node.controller_epoch,
        service.node.leader_id,
    )
    if conflict := service.replica.core.log_conflict:
        return False, conflict
    also = f"; {service.log_contradiction}" if service.log_contradiction else ""
    if leadership is not None:
        if leadership.decider is not None:
            refusal = service.node.space.verdict.refusal
            if refusal:
                also = f"; writes are refused: {refusal}{also}"
            return True, f"active controller of epoch {epoch}{also}"
        return (
            False,
            f"claiming epoch {epoch}: folding the log, at offset {leadership.log.pending.offset}",
        )
    role = service.replica.core.role
    if leader < 0 or role != "follower":
        # A node that asks for votes still remembers who led.
        if role == "observer" and leader >= 0:
            # Not ready: who may stop another node because this one is there would stop the quorum.
            return False, (
                f"following node {leader} in epoch {epoch} as an observer, which is no voter:"
                " raftlog quorum add-voter"
            )
        last = f"; the last leader was node {leader}" if leader >= 0 else ""
        why = service.node.directory.outage or f"no leader is known in epoch {epoch}"
        return False, f"{why}; this node is {role}{last}"
    if service.node.committed_end < 0:
        return False, f"following node {leader}, but what is committed is not known yet"
    return True, f"following node {leader} in epoch {epoch}{also}"


def status(service: ControllerService) -> dict[str, object]:
    """What a person looks at first."""
    return {
        "role": service.replica.core.role,
        "leader": service.node.leader_id,
        "epoch": service.node.controller_epoch,
        "log start": service.replica.log_start_offset,
        "log end": service.replica.log_end_offset,
        "high watermark": service.node.committed_end,
        "lowest acknowledged offset": service.node.lowest_acknowledged_offset,
        "brokers": len(service.image.brokers),
        "topics": len(service.image.topics),
    }


def known_brokers(service: ControllerService) -> controller_pb2.DescribeBrokersResponse:
    """What the active controller knows of the brokers, for its metrics; nothing on any other
    node.
    """
    decider = service.node.decider
    if decider is None:
        return controller_pb2.DescribeBrokersResponse()
    found: controller_pb2.DescribeBrokersResponse = describe_brokers(
        decider.state, service.node.now()
    ).body
    return found
