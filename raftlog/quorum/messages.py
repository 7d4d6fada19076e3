"""Messages from peers: requests are checked in Kafka's order and answered; claims about epochs and
leaders take effect.

Nothing here raises, whatever a message contains. A request is a claim by any peer that reaches the
port (see ``admission``): a refused one changes nothing.

Why: docs/decisions/004-messages-are-claims.md
"""

from __future__ import annotations

from typing import Any, Protocol

from raftlog.errors import ErrorCode
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum.admission import (
    MAX_EPOCH,
    MAX_OFFSET,
    MAX_PREFERRED_CANDIDATES,
    Refusal,
    epoch_refusal,
    is_directory_id,
    is_endpoint,
)
from raftlog.quorum.events import Reply, ReplySnapshot
from raftlog.quorum.node import Node, receive_fetch
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def handle(node: Node, request: Any, reply_to: Any) -> None:
    """Answer one request. A message that is not a request of the quorum gets no answer."""
    if isinstance(request, pb.FetchRequest):
        receive_fetch(node, request, reply_to)
    elif isinstance(request, pb.FetchSnapshotRequest):
        handle_fetch_snapshot(node, request, reply_to)
    elif isinstance(request, pb.VoteRequest):
        handle_vote(node, request, reply_to)
    elif isinstance(request, pb.BeginQuorumEpochRequest):
        handle_begin_quorum_epoch(node, request, reply_to)
    elif isinstance(request, pb.EndQuorumEpochRequest):
        handle_end_quorum_epoch(node, request, reply_to)


def handle_fetch_snapshot(node: Node, request: pb.FetchSnapshotRequest, reply_to: Any) -> None:
    """Serve a part of a snapshot (KIP-630); any node serves a request with epoch -1. The shell
    checks the position against the size.
    """
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
    if not -1 <= epoch <= MAX_EPOCH or request.max_bytes <= 0:
        return ErrorCode.INVALID_REQUEST
    if epoch != -1:
        if request.replica_id < 0 or not is_directory_id(request.replica_directory_id):
            return ErrorCode.INVALID_REQUEST
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
    """Answer a request for a vote or a pre-vote (KIP-595, KIP-996)."""
    refusal = _vote_refusal(node, request)
    if refusal is None and request.replica_epoch > node.epoch:
        refusal = admit(node, request.replica_epoch, "replica_epoch", proven=False)
        if refusal is None:
            node.become_unattached(request.replica_epoch)
    granted = refusal is None and _grants(node, request)
    response = _response(pb.VoteResponse, node, request, refusal)
    response.vote_granted, response.pre_vote = granted, request.pre_vote
    if granted and not request.pre_vote and node.heard.epoch >= 0:
        response.last_heard_epoch = node.heard.epoch
        response.last_heard_age_ms = node.heard.age_ms(node.now)
    node.out.append(Reply(reply_to, response))
    if granted and not request.pre_vote:
        node.role.on_vote_answered()
    if refusal is None:
        _note_asker(node, request, granted=granted)


def _note_asker(node: Node, request: pb.VoteRequest, *, granted: bool) -> None:
    """Record the voter that sent this VoteRequest, and so hears no leader, as a supporter or a
    rival.
    """
    log, peer_id = node.log, request.replica_id
    if not node.voters.includes(peer_id, request.replica_directory_id):
        return
    theirs = (request.last_offset_epoch, request.last_offset, -peer_id)
    if granted or theirs > (log.last_epoch, log.end, -node.config.node_id):
        # With proof that the leader is gone, no candidate waits longer than the other voters back
        # off.
        node.hints.note_rival(
            peer_id, node.now, node.backoff_s() if node.fast_election else node.hints.remembered_s
        )
    elif request.pre_vote:
        if not _may_hear_leader_again(node, request):
            node.hints.note_supporter(peer_id, node.now)
        node.role.on_doubter(peer_id)


def _may_hear_leader_again(node: Node, request: pb.VoteRequest) -> bool:
    """Return whether the requesting voter lost a leader that continued to answer this node for
    another fetch timeout.

    If so, the voter sent its request while the leader led. The request may be late, so only the
    voter's response counts.

    (Two voters are partitioned, one after the other. The request of the first arrives when it hears
    the leader again, but the second does not yet. If the second took it for a grant, it would
    depose a leader that all others hear.)
    """
    heard = node.heard
    if node.fast_election or request.replica_id == node.leader_id or heard.epoch != node.epoch:
        # A leader that is gone, or that requests votes itself, is heard by no voter.
        return False
    lost_for_ms = heard.leading_ms - request.heard_leading_ms
    return request.HasField("heard_leading_ms") and lost_for_ms > node.config.fetch_timeout_ms


def _vote_refusal(node: Node, request: pb.VoteRequest) -> Refusal | None:
    """Return why a request for a vote is refused, checked in Kafka's order, or None if it is
    considered. Changes nothing.
    """
    epoch, candidate = request.replica_epoch, request.replica_id
    if request.cluster_id != node.config.cluster_id:
        return _foreign(node)
    # A candidate has left the epoch of its last record; a prospective node may still be in it.
    if not 0 <= request.last_offset_epoch <= (epoch if request.pre_vote else epoch - 1):
        return _invalid(
            "last_offset_epoch",
            f"{request.last_offset_epoch} is not possible for a candidate of epoch {epoch}",
        )
    if not 0 <= request.last_offset <= MAX_OFFSET:
        return _invalid("last_offset", f"{request.last_offset} must be in 0 .. {MAX_OFFSET}")
    if candidate < 0 or candidate == node.config.node_id:
        return _invalid(
            "replica_id", f"node {candidate} cannot request a vote from node {node.config.node_id}"
        )
    if not is_directory_id(request.replica_directory_id):
        return _invalid("replica_directory_id", "the directory id is too long or not printable")
    if epoch < node.epoch:
        return _over("replica_epoch", epoch, node)
    refusal = epoch_refusal(epoch, "replica_epoch")
    if refusal is not None:
        return refusal
    if not _is_me(node, request.voter_id, request.voter_directory_id):
        return _not_me(node)
    bound = node.bound_generation
    if (
        bound
        and request.generation not in (0, bound)
        and request.generation not in node.log.lineage
    ):
        return Refusal(
            ErrorCode.INCONSISTENT_GENERATION,
            "generation",
            f"this directory belongs to generation {bound} of the log, but the candidate's to"
            f" generation {request.generation}",
            contradiction=True,
        )
    newer = node.log.is_up_to_date(request.last_offset_epoch, request.last_offset)
    if not _may_lead(node, candidate, request.voter_directory_id, newer=newer):
        return _stranger("replica_id", candidate)
    return None


def _may_lead(node: Node, node_id: int, my_directory_id: str, *, newer: bool) -> bool:
    """Return whether a node may open epochs: it is a voter of a known set that is not certainly
    obsolete, or of a set that may be newer.

    KIP-853: this log may lag behind the record that made the other node a voter. In that case the
    other log is as complete as this one, its voter set contains this replica by id and directory,
    and this node hears no leader. If this node hears a leader, it fetches from that, and a higher
    epoch reaches it in a proven response.
    """
    if node.history.may_lead(node_id, node.high_watermark):
        return True
    return newer and my_directory_id == node.config.directory_id and node.role.grants_pre_vote()


def _foreign(node: Node) -> Refusal:
    return Refusal(
        ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster_id", f"this is cluster {node.config.cluster_id}"
    )


def _invalid(field: str, reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, field, reason)


def _over(field: str, epoch: int, node: Node) -> Refusal:
    return Refusal(
        ErrorCode.FENCED_LEADER_EPOCH,
        field,
        f"epoch {epoch} is over: node {node.config.node_id} is in epoch {node.epoch}",
    )


def _not_me(node: Node) -> Refusal:
    me = f"this is node {node.config.node_id}, directory {node.config.directory_id}"
    return Refusal(ErrorCode.INVALID_VOTER_KEY, "voter_id", me)


def _stranger(field: str, node_id: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        field,
        f"node {node_id} is in no voter set that this node knows, and proves no newer set",
    )


def _response(kind: type[Any], node: Node, request: Any, refusal: Refusal | None) -> Any:
    """Return a response with the fields that all kinds of response have. The refusal of a message
    that no correct node sends is reported to the shell. A node of another cluster learns nothing
    about this cluster.
    """
    response = kind(leader_id=-1, voter_id=node.config.node_id)
    if refusal is not None:
        if refusal.contradiction or refusal.code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            node.refuse(type(request).__name__, refusal)
        response.error_code, response.error_message = refusal.code, str(refusal)
        if refusal.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            return response
    response.leader_id, response.leader_epoch = node.leader_id, node.epoch
    if kind is pb.VoteResponse:
        response.leader_endpoint = node.leader_endpoint
        response.voter_directory_id = node.config.directory_id
    return response


def _grants(node: Node, request: pb.VoteRequest) -> bool:
    # Neither the candidate nor this node need be in this node's voter set: its log may lag behind
    # the records that made them voters. This is safe: the candidate counts votes by its own set,
    # which is at least as new if its log is at least as complete. While no log contains a voter
    # set, there is none newer: then a candidate on another disk than the configured one is refused.
    candidate, directory_id = request.replica_id, request.replica_directory_id
    configured = node.history.offset == -1 and candidate in node.voters
    if configured and not node.voters.includes(candidate, directory_id):
        return False
    if not node.is_voter and not request.voter_directory_id:
        # The candidate's voter set has no directory ids: to the candidate, this node is the voter
        # with that id on any disk. But as far as this node knows it is not a voter: its disk may be
        # new, and its vote would be that of a replica whose promises are lost.
        return False
    up_to_date = node.log.is_up_to_date(request.last_offset_epoch, request.last_offset)
    if request.pre_vote:
        claim = candidate, request.last_offset_epoch, request.last_offset
        return up_to_date and node.role.grants_pre_vote() and not node.role.outranks(*claim)
    if not node.role.grants_vote():
        return False
    if node.vote.voted_id != -1:
        # A candidate that repeats its request may since have lost part of its log: if it crashes
        # before its own vote is durable, it may campaign again in the same epoch.
        same = node.vote.voted_id == candidate
        return same and up_to_date and node.vote.voted_directory_id in ("", directory_id)
    if node.vote.leader_id != -1 or not up_to_date:
        return False
    node.grant_vote(request.replica_id, request.replica_directory_id)
    return True


def handle_begin_quorum_epoch(
    node: Node, request: pb.BeginQuorumEpochRequest, reply_to: Any
) -> None:
    """Follow a newly elected leader."""
    present = node.epoch, node.leader_id
    refusal = _begin_refusal(node, request) or learn(
        node, request.leader_epoch, request.leader_id, request.leader_endpoint
    )
    still_leads = refusal is None and present == (request.leader_epoch, request.leader_id)
    if still_leads and node.lost_leader == -1:
        # The report that the leader has resigned was false.
        node.end_fast_election()
    response = _response(pb.BeginQuorumEpochResponse, node, request, refusal)
    node.out.append(Reply(reply_to, response))


def _begin_refusal(node: Node, request: pb.BeginQuorumEpochRequest) -> Refusal | None:
    leader_id, endpoint = request.leader_id, request.leader_endpoint
    refusal = _leader_refusal(node, request)
    if refusal is not None:
        return refusal
    # A leader outside this node's voter set can be followed if its endpoint is known.
    newer = endpoint != ""
    if leader_id != node.leader_id and not _may_lead(
        node, leader_id, request.voter_directory_id, newer=newer
    ):
        return _stranger("leader_id", leader_id)
    if endpoint and not is_endpoint(endpoint):
        return _invalid(
            "leader_endpoint",
            f"{endpoint[:80]!r} is not host:port, or NAME://host:port of each listener",
        )
    return None if _is_me(node, request.voter_id, request.voter_directory_id) else _not_me(node)


def handle_end_quorum_epoch(node: Node, request: pb.EndQuorumEpochRequest, reply_to: Any) -> None:
    """Start the election after a leader's resignation, in which the leader's preferred candidates
    go first.
    """
    refusal = _end_refusal(node, request) or learn(node, request.leader_epoch, request.leader_id)
    response = _response(pb.EndQuorumEpochResponse, node, request, refusal)
    node.out.append(Reply(reply_to, response))
    if refusal is None and node.leader_id == request.leader_id:
        candidates = [candidate.candidate_id for candidate in request.preferred_candidates]
        me = node.config.node_id
        node.role.on_end_quorum_epoch(
            candidates.index(me) if me in candidates else None, len(candidates)
        )


def _end_refusal(node: Node, request: pb.EndQuorumEpochRequest) -> Refusal | None:
    refusal = _leader_refusal(node, request)
    if refusal is None and len(request.preferred_candidates) > MAX_PREFERRED_CANDIDATES:
        refusal = _invalid(
            "preferred_candidates",
            f"{len(request.preferred_candidates)} candidates: the limit is"
            f" {MAX_PREFERRED_CANDIDATES}",
        )
    known = request.leader_id == node.leader_id or node.history.may_lead(
        request.leader_id, node.high_watermark
    )
    if refusal is None and not known:
        refusal = _stranger("leader_id", request.leader_id)
    return refusal


def _leader_refusal(
    node: Node, request: pb.BeginQuorumEpochRequest | pb.EndQuorumEpochRequest
) -> Refusal | None:
    """Return why a leader's request fails the checks common to all such requests, or None."""
    leader_id, epoch = request.leader_id, request.leader_epoch
    if request.cluster_id != node.config.cluster_id:
        return _foreign(node)
    if leader_id < 0 or leader_id == node.config.node_id:
        return _invalid(
            "leader_id", f"node {leader_id} cannot be the leader of node {node.config.node_id}"
        )
    if epoch < 1:
        return _invalid(
            "leader_epoch", f"epoch {epoch} cannot have a leader: the lowest epoch with one is 1"
        )
    if epoch < node.epoch:
        return _over("leader_epoch", epoch, node)
    return epoch_refusal(epoch, "leader_epoch")


def _is_me(node: Node, voter_id: int, voter_directory_id: str) -> bool:
    return voter_id == node.config.node_id and voter_directory_id in ("", node.config.directory_id)


# --- claims -------------------------------------------------------------------------------------


class LeaderHint(Protocol):
    """The fields that every response has: the error, and the epoch and leader that the responder
    knows.
    """

    error_code: int
    leader_id: int
    leader_epoch: int


def admit(node: Node, epoch: int, field: str, *, proven: bool) -> Refusal | None:
    """Return why this node refuses to enter ``epoch``, a higher one, or None if it may. An unproven
    epoch uses up part of the allowance.
    """
    refusal = epoch_refusal(epoch, field)
    if refusal is None and not proven and not node.allowance.spend(epoch - node.epoch, node.now):
        reason = f"epoch {epoch} is too far above {node.epoch} for an unproven claim"
        refusal = Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH, field, reason)
    return refusal


def learn(
    node: Node, epoch: int, leader_id: int, endpoint: str = "", *, proven: bool = False
) -> Refusal | None:
    """Process the claim that ``leader_id`` (-1: no node known) leads ``epoch`` at ``endpoint``
    (empty: unknown).

    The leader may be outside of this node's voter set, as this log may lag. ``proven``: as in
    ``admission``. A refused claim changes nothing.
    """
    known = leader_id != node.config.node_id and (
        leader_id in node.voters or (leader_id >= 0 and endpoint != "")
    )
    if leader_id in node.lost and not node.participates:
        # An observer does not follow a leader that it knows to be gone; it keeps fetching from
        # other nodes.
        known = False
    if epoch > node.epoch:
        refusal = admit(node, epoch, "leader_epoch", proven=proven)
        if refusal is not None:
            return refusal
        if known:
            node.become_follower(leader_id, epoch, endpoint)
        else:
            node.become_unattached(epoch)
    elif epoch == node.epoch and known and leader_id != node.leader_id:
        if node.vote.leader_id not in (-1, leader_id) and not (proven and _leader_is_claimed(node)):
            reason = f"two leaders in epoch {epoch}: {node.vote.leader_id} and {leader_id}"
            return Refusal(ErrorCode.INVALID_REQUEST, "leader_id", reason, contradiction=True)
        node.become_follower(leader_id, epoch, endpoint)
    return None


def _knows_leader(node: Node) -> bool:
    """Return whether this node has led this epoch, or the epoch's leader has answered a Fetch."""
    return node.leader_confirmed or node.vote.leader_id == node.config.node_id


def _leader_is_claimed(node: Node) -> bool:
    """Return whether this node knows the epoch's leader only from an unproven claim."""
    return not node.leader_confirmed and node.vote.leader_id != node.config.node_id


def process_response(node: Node, response: LeaderHint, peer_id: int) -> bool:
    """Process the epoch and the leader that a response names. Return False if that caused a
    transition: the caller then ignores the rest of the response.
    """
    if response.leader_epoch == node.epoch and response.leader_id == node.leader_id:
        # Nothing new, as in nearly every response from a leader.
        return not node.halted
    before = node.role
    if response.leader_id == -1 and not node.participates:
        # An observer does not enter an epoch without a leader. [A peer was removed, does not know
        # it, and continues to campaign, so its epoch is far above all others: every leader would
        # refuse an observer in that epoch.]
        return not node.halted
    if response.error_code != ErrorCode.INCONSISTENT_CLUSTER_ID:
        endpoint = getattr(response, "leader_endpoint", "")
        refusal = learn(
            node,
            response.leader_epoch,
            response.leader_id,
            endpoint if is_endpoint(endpoint) else "",
            proven=node.is_proven(peer_id),
        )
        if refusal is not None:
            node.refuse(type(response).__name__, refusal)
            if refusal.contradiction and node.is_proven(peer_id) and _knows_leader(node):
                node.log_conflict = (
                    f"{refusal.reason}: the directory of one of them was restored from a copy, or"
                    " copied, and committed records may be lost"
                )
    return node.role is before and not node.halted
