"""What peers ask: checks in Kafka's order, then the answer. Nothing here raises, whatever a request says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftlog.errors import ErrorCode
from raftlog.quorum.events import Reply, ReplySnapshot
from raftlog.storage.api import SnapshotId
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.transitions import Node


def handle(node: Node, request: Any, reply_to: Any) -> None:
    """Answer one request. Anything that is no request of the quorum gets no answer."""
    if isinstance(request, pb.FetchRequest):
        handle_fetch(node, request, reply_to)
    elif isinstance(request, pb.FetchSnapshotRequest):
        handle_fetch_snapshot(node, request, reply_to)
    elif isinstance(request, pb.VoteRequest):
        handle_vote(node, request, reply_to)
    elif isinstance(request, pb.BeginQuorumEpochRequest):
        handle_begin_quorum_epoch(node, request, reply_to)
    elif isinstance(request, pb.EndQuorumEpochRequest):
        handle_end_quorum_epoch(node, request, reply_to)


def handle_fetch(node: Node, request: pb.FetchRequest, reply_to: Any) -> None:
    """Check, then let the role answer: only a leader serves."""
    epoch = request.current_leader_epoch
    error = ErrorCode.NONE
    if request.cluster_id != node.config.cluster_id:
        error = ErrorCode.INCONSISTENT_CLUSTER_ID
    elif (
        request.replica_id < 0
        or request.fetch_offset < 0
        or not 0 <= request.last_fetched_epoch <= epoch
        or request.high_watermark < -1
        or request.max_wait_ms < 0
        or request.max_bytes <= 0
        or request.round < 0
        or (request.replica_id == node.config.node_id and request.replica_directory_id == node.config.directory_id)
    ):
        error = ErrorCode.INVALID_REQUEST
    elif epoch < node.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    elif epoch > node.epoch:
        error = ErrorCode.UNKNOWN_LEADER_EPOCH
    if error:
        node.role.refuse_fetch(request.correlation_id, reply_to, error)
    else:
        node.role.on_fetch(request, reply_to)


def handle_fetch_snapshot(node: Node, request: pb.FetchSnapshotRequest, reply_to: Any) -> None:
    """Serve a snapshot by position (KIP-630); in epoch -1 any node does. The shell checks the position against the size."""
    error = _fetch_snapshot_error(node, request)
    foreign = error == ErrorCode.INCONSISTENT_CLUSTER_ID
    response = pb.FetchSnapshotResponse(
        error_code=error,
        leader_id=-1 if foreign else node.leader_id,
        leader_epoch=0 if foreign else node.epoch,
        snapshot_id=request.snapshot_id,
        position=request.position,
        correlation_id=request.correlation_id,
    )
    if error:
        node.out.append(Reply(reply_to, response))
    else:
        max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
        node.out.append(ReplySnapshot(reply_to, response, request.position, max_bytes))


def _fetch_snapshot_error(node: Node, request: pb.FetchSnapshotRequest) -> ErrorCode:
    epoch, snapshot_id = request.current_leader_epoch, request.snapshot_id
    if request.cluster_id != node.config.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < -1 or request.max_bytes <= 0:
        return ErrorCode.INVALID_REQUEST
    if epoch != -1:
        if epoch < node.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > node.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if node.leader_id != node.config.node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.role.on_snapshot_fetch(request.replica_id, request.replica_directory_id)
    if SnapshotId(snapshot_id.end_offset, snapshot_id.epoch) not in node.log.snapshots:
        return ErrorCode.SNAPSHOT_NOT_FOUND
    return ErrorCode.POSITION_OUT_OF_RANGE if request.position < 0 else ErrorCode.NONE


def handle_vote(node: Node, request: pb.VoteRequest, reply_to: Any) -> None:
    """Vote and pre-vote (KIP-595, KIP-996)."""
    error, granted = _vote(node, request)
    foreign = error == ErrorCode.INCONSISTENT_CLUSTER_ID
    response = pb.VoteResponse(
        error_code=error,
        leader_id=-1 if foreign else node.leader_id,
        leader_epoch=0 if foreign else node.epoch,
        vote_granted=granted,
        voter_id=node.config.node_id,
        pre_vote=request.pre_vote,
        leader_endpoint="" if foreign else node.leader_endpoint,
    )
    node.out.append(Reply(reply_to, response))
    if granted and request.pre_vote:
        node.role.on_pre_vote_granted(request.replica_id, request.last_offset_epoch, request.last_offset)


def _vote(node: Node, request: pb.VoteRequest) -> tuple[ErrorCode, bool]:
    if request.cluster_id != node.config.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID, False
    # A candidate has left the epoch of its log; who only asks may still be in it.
    highest_log_epoch = request.replica_epoch if request.pre_vote else request.replica_epoch - 1
    if (
        request.last_offset < 0
        or not 0 <= request.last_offset_epoch <= highest_log_epoch
        or request.replica_id < 0
        or request.replica_id == node.config.node_id
    ):
        return ErrorCode.INVALID_REQUEST, False
    if request.replica_epoch < node.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH, False
    if request.replica_epoch > node.epoch:
        node.become_unattached(request.replica_epoch)
    if not _is_me(node, request.voter_id, request.voter_directory_id):
        return ErrorCode.INVALID_VOTER_KEY, False
    return ErrorCode.NONE, _grants(node, request)


def _grants(node: Node, request: pb.VoteRequest) -> bool:
    # The candidate need not be of this node's voter set, nor this node: the log may lag behind that which made them voters.
    # Safe, since the candidate counts by its own set, which is as new if its log is as complete. Where no log has named a set
    # there is none newer: another disk than the configured one is none of ours.
    candidate, directory_id = request.replica_id, request.replica_directory_id
    configured = node.history.offset == -1 and candidate in node.voters
    if configured and not node.voters.includes(candidate, directory_id):
        return False
    if not node.is_voter and not request.voter_directory_id:
        # The candidate counts by a set without directories: for it this node is the voter of that id, on whatever disk. It is not, by
        # all it knows: perhaps its disk is new, and the vote would be that of a replica whose promises are lost.
        return False
    complete = node.log.is_covered_by(request.last_offset_epoch, request.last_offset)
    if request.pre_vote:
        return complete and node.role.grants_pre_vote()
    if not node.role.grants_vote():
        return False
    if node.vote.voted_id != -1:
        return node.vote.voted_id == request.replica_id and node.vote.voted_directory_id in (
            "",
            request.replica_directory_id,
        )
    if node.vote.leader_id != -1 or not complete:
        return False
    node.grant_vote(request.replica_id, request.replica_directory_id)
    return True


def handle_begin_quorum_epoch(node: Node, request: pb.BeginQuorumEpochRequest, reply_to: Any) -> None:
    """Somebody was elected. Followed first, the voter key is checked after."""
    endpoint = request.leader_endpoint
    error = _leader_request_error(node, request.cluster_id, request.leader_id, request.leader_epoch, endpoint)
    if not error:
        node.learn(request.leader_epoch, request.leader_id, endpoint)
        if not _is_me(node, request.voter_id, request.voter_directory_id):
            error = ErrorCode.INVALID_VOTER_KEY
    foreign = error == ErrorCode.INCONSISTENT_CLUSTER_ID
    response = pb.BeginQuorumEpochResponse(
        error_code=error,
        leader_id=-1 if foreign else node.leader_id,
        leader_epoch=0 if foreign else node.epoch,
        voter_id=node.config.node_id,
    )
    node.out.append(Reply(reply_to, response))


def handle_end_quorum_epoch(node: Node, request: pb.EndQuorumEpochRequest, reply_to: Any) -> None:
    """A leader resigned; its preferred candidates go first."""
    error = _leader_request_error(node, request.cluster_id, request.leader_id, request.leader_epoch)
    foreign = error == ErrorCode.INCONSISTENT_CLUSTER_ID
    if not error:
        node.learn(request.leader_epoch, request.leader_id)
    response = pb.EndQuorumEpochResponse(
        error_code=error,
        leader_id=-1 if foreign else node.leader_id,
        leader_epoch=0 if foreign else node.epoch,
        voter_id=node.config.node_id,
    )
    node.out.append(Reply(reply_to, response))
    if not error and node.leader_id == request.leader_id:
        candidates = [candidate.candidate_id for candidate in request.preferred_candidates]
        me = node.config.node_id
        node.role.on_end_quorum_epoch(candidates.index(me) if me in candidates else None, len(candidates))


def _leader_request_error(
    node: Node, cluster_id: str, leader_id: int, leader_epoch: int, endpoint: str = ""
) -> ErrorCode:
    # A leader outside this node's voter set can be followed if it says where it listens.
    known = leader_id >= 0 and (leader_id in node.voters or leader_id == node.leader_id or endpoint != "")
    if cluster_id != node.config.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if leader_epoch < 1 or leader_id == node.config.node_id or not known:
        return ErrorCode.INVALID_REQUEST
    if leader_epoch < node.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.NONE


def _is_me(node: Node, voter_id: int, voter_directory_id: str) -> bool:
    return voter_id == node.config.node_id and voter_directory_id in ("", node.config.directory_id)
