"""What goes into the quorum's state machine and what comes out of it.

Theory of operation: the shell (``raftlog.node.replica``) calls ``step(event, now)`` and carries
out the effects **in order**. Two rules carry the safety of it all:

* *persist before send*: every Send, SendFetch, SendFetchSnapshot, Reply, ReplyFetch and
  ReplySnapshot that follows a PersistVote waits until the vote is durable (and the shell has
  stepped VotePersisted); nothing else is reordered. Two things need no vote on the disk. A
  candidate's requests for votes come *before* its PersistVote: to ask is not a vote, and it counts
  its own only when that is durable. And nothing waits for a SaveLeader.
* *flush before acknowledge*: Append and Truncate make nothing durable. A Flush effect asks for it;
  Flushed reports how far. The core counts itself, and sends a fetch that acknowledges, only up to
  the flushed offset.

``now`` is seconds of a monotonic clock. Offsets of ends and high watermarks are exclusive. Node id
-1 means none.

Why: docs/decisions/001-pull-based-raft-as-a-state-machine.md
"""

from __future__ import annotations

from typing import Any

import msgspec

from raftlog.endpoint import Voter, VotersAt
from raftlog.metadata.control_records import GenerationAt
from raftlog.node.storage.api import SnapshotId, VoteState
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


class LogSpan(msgspec.Struct, frozen=True):
    """A chunk about to be appended: verified, contiguous.

    ``epochs``: (epoch, first offset) of each run of equal epochs. ``last_timestamp_ms``: of its
    last batch.

    ``voters``: the VotersRecords in it, by offset; each takes effect when it is appended (KIP-853).
    ``generations``: the generations that begin or end in it.
    """

    base_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    data: bytes
    last_timestamp_ms: int
    voters: tuple[VotersAt, ...] = ()
    generations: tuple[GenerationAt, ...] = ()


# --- events -------------------------------------------------------------------------------------


class Tick(msgspec.Struct, frozen=True):
    """A deadline may have passed.

    ``disk_busy_s``: how long the disk has been at the call under way, 0 if none is; None if
    unknown.
    """

    disk_busy_s: float | None = None


class RequestReceived(msgspec.Struct, frozen=True):
    """A peer asks: VoteRequest, BeginQuorumEpochRequest, EndQuorumEpochRequest, FetchRequest or
    FetchSnapshotRequest. The shell leaves ``last_batch`` in a FetchRequest only if the log here has
    another batch there.

    ``reply_to`` is opaque.
    """

    request: Any
    reply_to: Any


class ResponseReceived(msgspec.Struct, frozen=True):
    """A peer answers a Send, SendFetch or SendFetchSnapshot.

    ``span`` is the checked content of a FetchResponse, None if it has none.

    The shell drops answers that come on another link than the request went out on.
    """

    peer_id: int
    correlation_id: int
    response: Any
    span: LogSpan | None = None


class RequestFailed(msgspec.Struct, frozen=True):
    """A Send, SendFetch or SendFetchSnapshot certainly gets no answer: no link, or its link
    closed.
    """

    peer_id: int
    correlation_id: int


class PeerConnected(msgspec.Struct, frozen=True):
    """The control link to a peer is up."""

    peer_id: int


class PeerLost(msgspec.Struct, frozen=True):
    """Proof that a peer's process is gone: its stream broke, and a raw connect was refused."""

    peer_id: int


class Proposed(msgspec.Struct, frozen=True):
    """The leader's own batches, made for this epoch at the log end.

    Dropped by the core if it does not lead ``epoch``.

    ``more_follows``: the next proposal is about to come, and may go to the followers with this one.
    """

    epoch: int
    span: LogSpan
    more_follows: bool = False


class Flushed(msgspec.Struct, frozen=True):
    """Everything below ``end_offset`` is durable here (as the log is now: the shell drops reports
    from before a Truncate).
    """

    end_offset: int


class VotePersisted(msgspec.Struct, frozen=True):
    """The vote of a PersistVote or SaveLeader effect is durable."""

    vote: VoteState


class ReadIndexRequested(msgspec.Struct, frozen=True):
    """A request waits for proof that this node leads *now*: a round begun at or after this event
    must be confirmed.
    """


class ResignRequested(msgspec.Struct, frozen=True):
    """Stop leading: shutdown, the controller's wish, a transfer.

    A node that does not lead ignores it.

    ``successor``: the voter that is to campaign first (-1: the most complete voter).
    """

    reason: str
    successor: int = -1


class SuccessorChosen(msgspec.Struct, frozen=True):
    """The leader is about to resign for ``successor``, which learns that from its next Fetch; -1:
    the leader leads on.

    A node that does not lead ignores it.
    """

    successor: int


class SnapshotFrozen(msgspec.Struct, frozen=True):
    """This node made a snapshot of what it has committed: complete and durable, it may be
    served.
    """

    snapshot_id: SnapshotId


class LogStartAdvanced(msgspec.Struct, frozen=True):
    """The log below the end of ``snapshot_id`` was dropped, and the snapshots before that one."""

    snapshot_id: SnapshotId


class SnapshotStored(msgspec.Struct, frozen=True):
    """The last StoreSnapshot was carried out: the snapshot is verified and durable, the log is
    empty and begins at its end.

    ``error`` not empty: its content is not sound, nothing has changed, fetch it again. ``voters``:
    the set it holds, empty if none. ``generations``: those that it names.
    """

    snapshot_id: SnapshotId
    voters: tuple[Voter, ...] = ()
    generations: tuple[int, ...] = ()
    error: str = ""


class SpaceChanged(msgspec.Struct, frozen=True):
    """The free space of the disk fell below the reserve (``low``), or rose above it again."""

    low: bool


Event = (
    Tick
    | RequestReceived
    | ResponseReceived
    | RequestFailed
    | PeerConnected
    | PeerLost
    | Proposed
    | Flushed
    | VotePersisted
    | ReadIndexRequested
    | ResignRequested
    | SuccessorChosen
    | SnapshotFrozen
    | LogStartAdvanced
    | SnapshotStored
    | SpaceChanged
)

# --- effects -------------------------------------------------------------------------------------


class PersistVote(msgspec.Struct, frozen=True):
    """Make this vote durable, then step VotePersisted. Sends after it wait."""

    vote: VoteState


class SaveLeader(msgspec.Struct, frozen=True):
    """Note in the durable vote the leader of its epoch, when the disk has time, then step
    VotePersisted.

    No promise rests on it: nothing waits for it, and a PersistVote after it replaces it. It spares
    a restarted node the search for the leader.
    """

    vote: VoteState


class Send(msgspec.Struct, frozen=True):
    """A request to a peer on its control link. Lost if there is no link: step RequestFailed."""

    peer_id: int
    correlation_id: int
    request: Any


class SendFetch(msgspec.Struct, frozen=True):
    """A Fetch to the leader on the replication link."""

    peer_id: int
    correlation_id: int
    request: pb.FetchRequest
    compare: bool = False
    """The shell adds the last batch of the log."""


class SendFetchSnapshot(msgspec.Struct, frozen=True):
    """A FetchSnapshot to the leader on a link of its own: bulk, behind nothing and before
    nothing.
    """

    peer_id: int
    correlation_id: int
    request: pb.FetchSnapshotRequest


class Reply(msgspec.Struct, frozen=True):
    """An answer to a RequestReceived."""

    reply_to: Any
    response: Any


class ReplyFetch(msgspec.Struct, frozen=True):
    """An answer to a FetchRequest.

    If ``max_bytes`` > 0 the shell adds that much from ``offset`` on, whole batches, at least one.
    """

    reply_to: Any
    response: pb.FetchResponse
    offset: int
    max_bytes: int


class ReplySnapshot(msgspec.Struct, frozen=True):
    """An answer to a FetchSnapshotRequest: the shell adds ``size`` and up to ``max_bytes`` from
    ``position`` on.

    A position beyond the end becomes POSITION_OUT_OF_RANGE, a snapshot that is gone meanwhile
    SNAPSHOT_NOT_FOUND.
    """

    reply_to: Any
    response: pb.FetchSnapshotResponse
    position: int
    max_bytes: int


class StoreSnapshot(msgspec.Struct, frozen=True):
    """Write a part of a fetched snapshot; position 0 begins it anew.

    After the ``last`` one: verify, make durable, empty the log, step SnapshotStored.
    """

    snapshot_id: SnapshotId
    position: int
    data: bytes
    last: bool


class DropSnapshot(msgspec.Struct, frozen=True):
    """Give up a snapshot half fetched."""

    snapshot_id: SnapshotId


class LoadSnapshot(msgspec.Struct, frozen=True):
    """What is committed begins with this snapshot, at the start and when one was installed: the
    state machine takes it for what it had.

    HighWatermarkAdvanced to its end follows at once.
    """

    snapshot_id: SnapshotId


class VotersChanged(msgspec.Struct, frozen=True):
    """Another voter set is in force, by appending, truncating, or loading; at the start it says
    which one.

    ``offset``: as in VotersAt; -1: the configured set.
    """

    offset: int
    voters: tuple[Voter, ...]


class PeersChanged(msgspec.Struct, frozen=True):
    """Whom this node talks to, itself not included, by id: all voters, and the leader if it is
    none.

    While this node observes, the bootstrap servers too, by the ids of
    ``QuorumConfig.bootstrap_peers``. The shell dials accordingly.
    """

    peers: tuple[Voter, ...]


class Append(msgspec.Struct, frozen=True):
    """Add a span at the log end.

    A ReplyFetch after it may need its bytes, and does not wait for the disk.
    """

    span: LogSpan


class Truncate(msgspec.Struct, frozen=True):
    """Drop everything at or above ``end_offset``; never below the high watermark."""

    end_offset: int


class Flush(msgspec.Struct, frozen=True):
    """Make the log durable, then step Flushed."""


class HighWatermarkAdvanced(msgspec.Struct, frozen=True):
    """Everything below ``offset`` is committed, for ever."""

    offset: int


class BindGeneration(msgspec.Struct, frozen=True):
    """This generation of the log is committed: note in the directory's identity that it belongs to
    it. Nothing waits for that.
    """

    generation: int


class LeaderChanged(msgspec.Struct, frozen=True):
    """This node knows a new (leader, epoch); ``leader_id`` -1: none known in this epoch."""

    leader_id: int
    epoch: int


class BecameLeader(msgspec.Struct, frozen=True):
    """This node leads ``epoch``.

    The shell at once builds the LeaderChange batch at the log end and steps Proposed with it.
    """

    epoch: int
    granting_voters: tuple[int, ...]


class LostLeadership(msgspec.Struct, frozen=True):
    """This node leads ``epoch`` no more: what is not committed has an unknown outcome."""

    epoch: int
    reason: str


class ReadIndexStarted(msgspec.Struct, frozen=True):
    """The answer to ReadIndexRequested: wait for ReadIndexConfirmed of this number or a higher one,
    in this epoch.
    """

    round: int


class ReadIndexConfirmed(msgspec.Struct, frozen=True):
    """A majority has echoed ``round``: this node led after the round began."""

    round: int


class Refused(msgspec.Struct, frozen=True):
    """A message claims what this node does not believe, see ``admission``: count it, and say so at
    a bounded rate.

    ``message`` is its type. ``contradiction``: no node that keeps the rules sends it.
    """

    message: str
    field: str
    reason: str
    contradiction: bool


class Fatal(msgspec.Struct, frozen=True):
    """This node contradicts itself, or its shell does: stop the process. No message causes it."""

    reason: str


Effect = (
    PersistVote
    | SaveLeader
    | Send
    | SendFetch
    | SendFetchSnapshot
    | Reply
    | ReplyFetch
    | ReplySnapshot
    | StoreSnapshot
    | DropSnapshot
    | LoadSnapshot
    | VotersChanged
    | PeersChanged
    | Append
    | Truncate
    | Flush
    | HighWatermarkAdvanced
    | BindGeneration
    | LeaderChanged
    | BecameLeader
    | LostLeadership
    | ReadIndexStarted
    | ReadIndexConfirmed
    | Refused
    | Fatal
)
