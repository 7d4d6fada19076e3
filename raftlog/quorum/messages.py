"""Messages of peers: requests, checked in Kafka's order and answered; and the effect of a claim.

Nothing here raises, whatever a message contains. A request is a claim by a peer that reaches the
port, see ``admission``: a refused one changes nothing.

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
    """Answer one request; a message that is not a request of the quorum gets no answer."""
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
    """Serve a snapshot by position (KIP-630); in epoch -1 any node does.

    The shell checks the position against the size.
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
    """Note a voter that requests a vote, and so hears no leader, as a supporter or a rival."""
    log, peer_id = node.log, request.replica_id
    if not node.voters.includes(peer_id, request.replica_directory_id):
        return
    theirs = (request.last_offset_epoch, request.last_offset, -peer_id)
    if granted or theirs > (log.last_epoch, log.end, -node.config.node_id):
        # With proof that the leader is gone no candidate waits longer than the others back off.
        node.hints.note_rival(
            peer_id, node.now, node.backoff_s() if node.fast_election else node.hints.remembered_s
        )
    elif request.pre_vote:
        if not _may_hear_leader_again(node, request):
            node.hints.note_supporter(peer_id, node.now)
        node.role.on_doubter(peer_id)


def _may_hear_leader_again(node: Node, request: pb.VoteRequest) -> bool:
    """Return whether the requesting voter lost a leader that continued to answer this node for a
    fetch timeout.

    Then it sent its request while the leader led. The request may be late, so only its answer
    counts.

    [Two voters are cut off, one after the other. The request of the first arrives when it hears the
    leader again, and the second does not yet: mistaken for an answer, it deposed a leader that all
    others heard.]
    """
    heard = node.heard
    if node.fast_election or request.replica_id == node.leader_id or heard.epoch != node.epoch:
        # No voter hears a leader that is gone, or requests a vote of itself.
        return False
    lost_for_ms = heard.leading_ms - request.heard_leading_ms
    return request.HasField("heard_leading_ms") and lost_for_ms > node.config.fetch_timeout_ms


def _vote_refusal(node: Node, request: pb.VoteRequest) -> Refusal | None:
    """Return why a request for a vote is refused, checked in Kafka's order; None if it is
    considered.

    Changes nothing.
    """
    epoch, candidate = request.replica_epoch, request.replica_id
    if request.cluster_id != node.config.cluster_id:
        return _foreign(node)
    # A candidate has left the epoch of its log; a sender of pre-votes may still be in it.
    if not 0 <= request.last_offset_epoch <= (epoch if request.pre_vote else epoch - 1):
        return _invalid("last_offset_epoch", f"{request.last_offset_epoch} in epoch {epoch}")
    if not 0 <= request.last_offset <= MAX_OFFSET:
        return _invalid("last_offset", f"{request.last_offset} is not an offset")
    if candidate < 0 or candidate == node.config.node_id:
        return _invalid("replica_id", f"node {candidate} may request no vote here")
    if not is_directory_id(request.replica_directory_id):
        return _invalid("replica_directory_id", "too long, or not printable")
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
            f"this directory belongs to generation {bound} of the log, the"
            f" candidate's to {request.generation}",
            contradiction=True,
        )
    newer = node.log.is_up_to_date(request.last_offset_epoch, request.last_offset)
    if not _may_lead(node, candidate, request.voter_directory_id, newer=newer):
        return _stranger("replica_id", candidate)
    return None


def _may_lead(node: Node, node_id: int, my_directory_id: str, *, newer: bool) -> bool:
    """Return whether a node may open epochs: a voter of a set that is known here and not certainly
    over, or of one that may be newer.

    KIP-853: this log may lag behind the record that made the other a voter. Then the other's log is
    as complete as this one, its set names this replica by id and directory, and this node hears no
    leader. If it hears a leader it fetches from that one, and a higher epoch reaches it by an
    answer, which is proven.
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
        ErrorCode.FENCED_LEADER_EPOCH, field, f"epoch {epoch} is over, this is {node.epoch}"
    )


def _not_me(node: Node) -> Refusal:
    me = f"this is node {node.config.node_id}, directory {node.config.directory_id}"
    return Refusal(ErrorCode.INVALID_VOTER_KEY, "voter_id", me)


def _stranger(field: str, node_id: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        field,
        f"node {node_id} is not a known voter, nor provably a newer one",
    )


def _response(kind: type[Any], node: Node, request: Any, refusal: Refusal | None) -> Any:
    """Return an answer with the fields that all three kinds share. A refusal that contradicts a
    rule is reported to the shell, and a request from another cluster learns nothing of this one.
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
    # The candidate need not be of this node's voter set, nor this node: the log may lag behind that
    # which made them voters. Safe, since the candidate counts by its own set, which is as new if
    # its log is as complete. Where no log has named a set there is none newer: another disk than
    # the configured one is none of ours.
    candidate, directory_id = request.replica_id, request.replica_directory_id
    configured = node.history.offset == -1 and candidate in node.voters
    if configured and not node.voters.includes(candidate, directory_id):
        return False
    if not node.is_voter and not request.voter_directory_id:
        # The candidate counts by a set without directories: for it this node is the voter of that
        # id, on whatever disk. It is not, by all it knows: perhaps its disk is new, and the vote
        # would be that of a replica whose promises are lost.
        return False
    up_to_date = node.log.is_up_to_date(request.last_offset_epoch, request.last_offset)
    if request.pre_vote:
        claim = candidate, request.last_offset_epoch, request.last_offset
        return up_to_date and node.role.grants_pre_vote() and not node.role.outranks(*claim)
    if not node.role.grants_vote():
        return False
    if node.vote.voted_id != -1:
        # A candidate that repeats its request may have lost a part of its log since: if it crashes
        # before its own vote is durable, it may campaign in the same epoch once more.
        same = node.vote.voted_id == candidate
        return same and up_to_date and node.vote.voted_directory_id in ("", directory_id)
    if node.vote.leader_id != -1 or not up_to_date:
        return False
    node.grant_vote(request.replica_id, request.replica_directory_id)
    return True


def handle_begin_quorum_epoch(
    node: Node, request: pb.BeginQuorumEpochRequest, reply_to: Any
) -> None:
    """Follow a leader that was elected."""
    present = node.epoch, node.leader_id
    refusal = _begin_refusal(node, request) or learn(
        node, request.leader_epoch, request.leader_id, request.leader_endpoint
    )
    still_leads = refusal is None and present == (request.leader_epoch, request.leader_id)
    if still_leads and node.lost_leader == -1:
        # The report that it has resigned was false.
        node.end_fast_election()
    response = _response(pb.BeginQuorumEpochResponse, node, request, refusal)
    node.out.append(Reply(reply_to, response))


def _begin_refusal(node: Node, request: pb.BeginQuorumEpochRequest) -> Refusal | None:
    leader_id, endpoint = request.leader_id, request.leader_endpoint
    refusal = _leader_refusal(node, request)
    if refusal is not None:
        return refusal
    # A leader outside this node's voter set can be followed if it says where it listens.
    newer = endpoint != ""
    if leader_id != node.leader_id and not _may_lead(
        node, leader_id, request.voter_directory_id, newer=newer
    ):
        return _stranger("leader_id", leader_id)
    if endpoint and not is_endpoint(endpoint):
        return _invalid(
            "leader_endpoint", "host:port is wanted, or NAME://host:port of each listener"
        )
    return None if _is_me(node, request.voter_id, request.voter_directory_id) else _not_me(node)


def handle_end_quorum_epoch(node: Node, request: pb.EndQuorumEpochRequest, reply_to: Any) -> None:
    """Elect another leader after one has resigned, its preferred candidates first."""
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
        refusal = _invalid("preferred_candidates", f"more than {MAX_PREFERRED_CANDIDATES}")
    known = request.leader_id == node.leader_id or node.history.may_lead(
        request.leader_id, node.high_watermark
    )
    if refusal is None and not known:
        refusal = _stranger("leader_id", request.leader_id)
    return refusal


def _leader_refusal(
    node: Node, request: pb.BeginQuorumEpochRequest | pb.EndQuorumEpochRequest
) -> Refusal | None:
    """Return why a leader's request is refused, by the checks that all of them share."""
    leader_id, epoch = request.leader_id, request.leader_epoch
    if request.cluster_id != node.config.cluster_id:
        return _foreign(node)
    if leader_id < 0 or leader_id == node.config.node_id:
        return _invalid("leader_id", f"node {leader_id} does not lead this node")
    if epoch < 1:
        return _invalid("leader_epoch", f"epoch {epoch} has no leader")
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
    """Return why this node refuses to enter ``epoch``, a higher one; None if it may.

    An unproven epoch uses up part of the allowance.
    """
    refusal = epoch_refusal(epoch, field)
    if refusal is None and not proven and not node.allowance.spend(epoch - node.epoch, node.now):
        reason = f"epoch {epoch} is too far above {node.epoch} for an unproven claim"
        refusal = Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH, field, reason)
    return refusal


def learn(
    node: Node, epoch: int, leader_id: int, endpoint: str = "", *, proven: bool = False
) -> Refusal | None:
    """Process the claim that ``leader_id`` (-1: none is known) leads ``epoch`` at ``endpoint``, if
    not empty.

    The leader may be outside of this node's voter set: this log may lag behind. ``proven``: as
    in ``admission``. A refused claim changes nothing.
    """
    known = leader_id != node.config.node_id and (
        leader_id in node.voters or (leader_id >= 0 and endpoint != "")
    )
    if leader_id in node.lost and not node.participates:
        # An observer does not follow a leader that it knows to be dead; it goes on asking other
        # nodes.
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
    """Return whether this node has led this epoch, or the leader of it has answered a Fetch."""
    return node.leader_confirmed or node.vote.leader_id == node.config.node_id


def _leader_is_claimed(node: Node) -> bool:
    """Return whether this node knows the leader of this epoch only by a claim, which gives way to
    proof.
    """
    return not node.leader_confirmed and node.vote.leader_id != node.config.node_id


def process_response(node: Node, response: LeaderHint, peer_id: int) -> bool:
    """Process the epoch and the leader that a response names.

    False if that caused a transition: the caller then ignores the rest of the response.
    """
    if response.leader_epoch == node.epoch and response.leader_id == node.leader_id:
        # What it says is known. So it is with nearly every answer of a leader.
        return not node.halted
    before = node.role
    if response.leader_id == -1 and not node.participates:
        # An observer has nothing to do in an epoch that has no leader. [One of the peers that
        # it asks was removed, does not know it, and campaigns on, far ahead of everybody: an
        # observer that took its epoch would be refused by each leader.]
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
                    f"{refusal.reason}: the directory of one of them was put back or copied,"
                    " and committed records may be lost"
                )
    return node.role is before and not node.halted
