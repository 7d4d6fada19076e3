"""What all roles have in common: each reacts to the events that concern it, and ignores the
rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from raftlog.deadline import NEVER
from raftlog.errors import ErrorCode
from raftlog.quorum.events import LogSpan, ReplyFetch, ResponseReceived
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.fetcher import Fetcher
    from raftlog.quorum.node import Node


class Role:
    """One role in one epoch.

    A new object for every transition, so that what was in flight before finds nobody.

    The time is ``node.now``. A handler that makes a transition must not touch ``self`` afterwards.
    """

    name: ClassVar[str]
    start_offset = -1
    """Where a leader's epoch begins in the log; -1 for the others."""
    nearer = True
    """Whether its deadline may have come nearer since it was last asked for."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.epoch = node.epoch

    def enter(self) -> None:
        """The node has just taken this role."""

    def leave(self) -> None:
        """The node is about to take another role; ``node.epoch`` may already be the new one."""

    def deadline(self) -> float:
        """When on_tick has something to do."""
        return NEVER

    @property
    def election_timer(self) -> float | None:
        """When this node would next have asked for votes: a higher epoch must not postpone that.

        None: start afresh.
        """
        return None

    def early_fetcher(self, leader_id: int) -> Fetcher | None:
        """One that has asked this node already, before it was known to lead."""
        return None

    @property
    def hears_leader(self) -> bool:
        """Whether the leader of this epoch has answered this node's Fetches lately."""
        return False

    def postpone_election(self, until: float) -> None:
        """This node would ask for votes now, but leaves it to others until then; they get its
        pre-vote.
        """

    def grants_pre_vote(self) -> bool:
        """Whether a pre-vote is granted to a candidate whose log is good enough."""
        return False

    def grants_vote(self) -> bool:
        """Whether a vote may be granted at all, if none was given in this epoch."""
        return False

    def outranks(self, candidate_id: int, last_epoch: int, end_offset: int) -> bool:
        """Whether this node is asking for pre-votes itself, and goes before that candidate."""
        return False

    def on_tick(self) -> None:
        """Time has passed."""

    def on_response(self, event: ResponseReceived) -> None:
        """A peer has answered, perhaps to a role before this one."""

    def on_request_failed(self, peer_id: int, correlation_id: int) -> None:
        """A request gets no answer."""

    def on_peer_connected(self, peer_id: int) -> None:
        """The control link to a peer is up."""

    def on_peer_lost(self, peer_id: int) -> None:
        """A peer's process is gone."""

    def on_vote_persisted(self) -> None:
        """``node.durable_vote`` has changed."""

    def on_flushed(self) -> None:
        """``node.log.flushed_end`` may have moved."""

    def on_proposed(self, span: LogSpan, *, more_follows: bool) -> None:
        """The shell proposes; only a leader takes it."""

    def on_read_index_requested(self) -> None:
        """Somebody wants proof of leadership; only a leader can give it."""

    def on_resign_requested(self, reason: str, successor: int) -> None:
        """Stop leading, if this is a leader; ``successor`` is to go first, -1: whoever has most."""

    def on_successor_chosen(self, successor: int) -> None:
        """Tell the voters who is to lead next; only a leader does."""

    def on_vote_granted(self) -> None:
        """This node has just given its vote of this epoch to another."""

    def on_vote_told(self) -> None:
        """The answer with that vote is on its way, once the vote is durable."""

    def on_doubter(self, peer_id: int) -> None:
        """A voter hears no leader, and may not lead itself: its log is shorter than this one, or
        this node outranks it.
        """

    def on_end_quorum_epoch(self, place: int | None, candidates: int) -> None:
        """The leader resigned; ``place`` is this node's among the preferred candidates, None if it
        is not one.
        """

    def on_snapshot_stored(self, *, sound: bool) -> None:
        """The disk has the snapshot that was fetched, and no log before it; or it found that the
        snapshot is not sound.
        """

    def on_snapshot_fetch(self, replica_id: int, directory_id: str) -> None:
        """A replica of this epoch fetches a snapshot here; only a leader counts with it."""

    def on_voters_changed(self) -> None:
        """Another voter set is in force, or it is committed, and this role goes with it."""

    def on_fetch(self, request: pb.FetchRequest, reply_to: Any) -> None:
        """A sound Fetch of this epoch."""
        self.decline_fetch(request, reply_to)

    def decline_fetch(self, request: pb.FetchRequest, reply_to: Any) -> None:
        """This node does not lead."""
        self.refuse_fetch(request.correlation_id, reply_to, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def refuse_fetch(
        self,
        correlation_id: int,
        reply_to: Any,
        error: ErrorCode,
        preferred: tuple[int, ...] = (),
    ) -> None:
        """Answer a Fetch with an error, and with who leads if that is known.

        ``preferred``: who is to campaign, by a leader that resigns.
        """
        node = self.node
        response = pb.FetchResponse(
            error_code=error,
            leader_id=node.leader_id,
            leader_epoch=node.epoch,
            high_watermark=node.high_watermark,
            log_start_offset=node.log.start,
            correlation_id=correlation_id,
            leader_endpoint=node.leader_endpoint,
            preferred_candidates=preferred,
        )
        node.out.append(ReplyFetch(reply_to, response, offset=-1, max_bytes=0))
