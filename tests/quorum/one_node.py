"""Node 1 of three alone; the test sends the messages of its peers."""

from typing import Any

from quorum_harness import CLUSTER, Cluster, SimNode, effects_of, span_of

from raftlog.node.storage.api import VoteState
from raftlog.quorum.events import Reply, ReplyFetch, SendFetch
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def one(
    vote: VoteState | None = None,
    log: list[tuple[int, int]] | None = None,
    *,
    fatal_allowed: bool = True,
    **options: Any,
) -> SimNode:
    cluster = Cluster(3, start=False, checked=False, **options)
    cluster.fatal_allowed = fatal_allowed
    cluster[1].disk.vote = vote or VoteState()
    cluster[1].disk.log = log or []
    cluster[1].start()
    return cluster[1]


def leader_of_three(
    vote: VoteState | None = None, log: list[tuple[int, int]] | None = None, **options: Any
) -> SimNode:
    """Node 1 leads the next epoch, 1 by default; the first record of the epoch is flushed."""
    node = one(vote, log, fatal_allowed=False, **options)
    make_leader(node)
    return node


def make_leader(node: SimNode) -> None:
    node.wait_for_deadline()
    for pre_vote in (True, False):
        if not pre_vote:
            node.persist()
        # Without directory ids all voters found the quorum.
        for peer in (2,) if node.config.voters[0].directory_id else (2, 3):
            send = next(
                e for e in reversed(node.effects) if hasattr(e, "request") and e.peer_id == peer
            )
            node.answer(send, granted(send.peer_id, node.up.epoch, pre_vote=pre_vote))
    assert node.up.role == "leader"
    node.persist()
    node.flush()


def follower_of_two(
    log: list[tuple[int, int]] | None = None, epoch: int = 3, **options: Any
) -> SimNode:
    """Node 1 follows 2 in ``epoch``, with its first Fetch outstanding."""
    return one(VoteState(epoch, -1, "", 2), log, **options)


# --- what peers send ---


def ask(node: SimNode, request: object) -> Any:
    """Return the node's response, even if it is still held back."""
    return effects_of(node.receive(request), Reply)[0].response


def vote_request(to: int = 1, candidate: int = 2, **fields: Any) -> pb.VoteRequest:
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "voter_id": to,
        "voter_directory_id": f"dir{to}",
        "replica_id": candidate,
        "replica_directory_id": f"dir{candidate}",
        "replica_epoch": 5,
        "last_offset_epoch": 0,
        "last_offset": 0,
    }
    return pb.VoteRequest(**(values | fields))


def granted(voter_id: int, epoch: int, /, **fields: Any) -> pb.VoteResponse:
    """A vote of that voter, on the directory that the harness assigns to it."""
    values: dict[str, Any] = {
        "leader_id": -1,
        "leader_epoch": epoch,
        "vote_granted": True,
        "voter_id": voter_id,
        "voter_directory_id": f"dir{voter_id}",
    }
    return pb.VoteResponse(**(values | fields))


def begin(
    leader_id: int, epoch: int, endpoint: str = "", **fields: Any
) -> pb.BeginQuorumEpochRequest:
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "voter_id": 1,
        "voter_directory_id": "dir1",
        "leader_id": leader_id,
        "leader_epoch": epoch,
        "leader_endpoint": endpoint,
    }
    return pb.BeginQuorumEpochRequest(**(values | fields))


def end_request(leader: int, epoch: int, *preferred: int) -> pb.EndQuorumEpochRequest:
    candidates = [
        pb.PreferredCandidate(candidate_id=i, candidate_directory_id=f"dir{i}") for i in preferred
    ]
    return pb.EndQuorumEpochRequest(
        cluster_id=CLUSTER, leader_id=leader, leader_epoch=epoch, preferred_candidates=candidates
    )


def fetch_request(replica: int = 2, epoch: int = 1, **fields: Any) -> pb.FetchRequest:
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "replica_id": replica,
        "replica_directory_id": f"dir{replica}",
        "current_leader_epoch": epoch,
        "fetch_offset": 0,
        "last_fetched_epoch": 0,
        "high_watermark": -1,
        "max_wait_ms": 300,
        "max_bytes": 1000,
        "correlation_id": 7,
    }
    return pb.FetchRequest(**(values | fields))


def fetch(node: SimNode, replica: int = 2, **fields: Any) -> list[ReplyFetch]:
    """Return the node's responses to a Fetch, and to parked ones."""
    return effects_of(
        node.receive(fetch_request(replica, node.up.epoch, **fields), replica), ReplyFetch
    )


def caught_up(node: SimNode, replica: int = 2, **fields: Any) -> list[ReplyFetch]:
    """Return a Fetch of a replica that has and knows everything."""
    values: dict[str, Any] = {
        "fetch_offset": node.up.log_end_offset,
        "last_fetched_epoch": node.up.epoch,
        "high_watermark": node.up.high_watermark,
    }
    return fetch(node, replica, **(values | fields))


def respond(
    node: SimNode, data: list[tuple[int, int]] | None = None, base: int | None = None, **fields: Any
) -> None:
    send = node.last(SendFetch)
    values = {"leader_id": 2, "leader_epoch": node.up.epoch, "high_watermark": -1}
    span = span_of(data, node.up.log_end_offset if base is None else base) if data else None
    response = pb.FetchResponse(**(values | fields))
    node.answer(send, response, span)
