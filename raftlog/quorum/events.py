"""The events and effects of the quorum's state machine.

Theory of operation: the shell (``raftlog.node.replica``) calls ``step(event, now)`` and carries out
the effects **in order**. Safety rests on two rules:

* *persist before send*: every Send, SendFetch, SendFetchSnapshot, Reply, ReplyFetch and
  ReplySnapshot that follows a PersistVote waits until the vote is durable (and the shell has
  stepped VotePersisted); nothing else is reordered. There are two exceptions. A candidate's vote
  requests come *before* its PersistVote: a request is not a vote, and the candidate counts its own
  vote only once that is durable. And nothing waits for a SaveLeader.
* *flush before acknowledge*: Append and Truncate make nothing durable. A Flush effect requests
  durability; Flushed reports how far the log is durable. The core counts its own log, and
  acknowledges with a Fetch, only up to the flushed offset.

``now`` is in seconds of a monotonic clock. End offsets and high watermarks are exclusive. Node id
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
    """A verified, contiguous chunk that is about to be appended.

    ``epochs``: (epoch, first offset) of each run of equal epochs. ``last_timestamp_ms``: the
    timestamp of the last batch. ``voters``: the VotersRecords in the chunk, by offset; each takes
    effect when it is appended (KIP-853). ``generations``: the generations that begin or end in the
    chunk.
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

    ``disk_busy_s``: duration so far of the current disk call, 0 if none, or None if unknown.
    """

    disk_busy_s: float | None = None


class RequestReceived(msgspec.Struct, frozen=True):
    """A peer has sent a request: VoteRequest, BeginQuorumEpochRequest, EndQuorumEpochRequest,
    FetchRequest or FetchSnapshotRequest.

    The shell removes ``last_batch`` from a FetchRequest unless the local log has a different batch
    there. ``reply_to`` is opaque.
    """

    request: Any
    reply_to: Any


class ResponseReceived(msgspec.Struct, frozen=True):
    """A peer has answered a Send, SendFetch or SendFetchSnapshot.

    ``span``: the verified content of a FetchResponse, or None if it has none. The shell drops
    responses that arrive on a link other than the request's.
    """

    peer_id: int
    correlation_id: int
    response: Any
    span: LogSpan | None = None


class RequestFailed(msgspec.Struct, frozen=True):
    """A Send, SendFetch or SendFetchSnapshot will certainly get no response: there is no link, or
    the link has closed.
    """

    peer_id: int
    correlation_id: int


class PeerConnected(msgspec.Struct, frozen=True):
    """The control link to a peer is up."""

    peer_id: int


class PeerLost(msgspec.Struct, frozen=True):
    """A peer's process is proven gone: its stream broke, and a raw connect was refused."""

    peer_id: int


class Proposed(msgspec.Struct, frozen=True):
    """The leader proposes batches made for this epoch at the log end. The core drops them if it
    does not lead ``epoch``.

    ``more_follows``: the next proposal is imminent, and may be sent to the followers together with
    this one.
    """

    epoch: int
    span: LogSpan
    more_follows: bool = False


class Flushed(msgspec.Struct, frozen=True):
    """Everything below ``end_offset`` is durable on this node. It describes the current log: the
    shell drops reports that predate a Truncate.
    """

    end_offset: int


class VotePersisted(msgspec.Struct, frozen=True):
    """The vote of a PersistVote or SaveLeader effect is durable."""

    vote: VoteState


class ReadIndexRequested(msgspec.Struct, frozen=True):
    """A request needs proof that this node leads *now*: a round that began at or after this event
    must be confirmed.
    """


class ResignRequested(msgspec.Struct, frozen=True):
    """Stop leading: for a shutdown, a transfer, or because the controller decided so. Ignored
    unless this node leads.

    ``successor``: the voter that campaigns first, or -1 for the most complete voter.
    """

    reason: str
    successor: int = -1


class SuccessorChosen(msgspec.Struct, frozen=True):
    """The leader is about to resign in favour of ``successor``, which learns this from the next
    response to its Fetch; -1 if the leader continues to lead. Ignored unless this node leads.
    """

    successor: int


class SnapshotFrozen(msgspec.Struct, frozen=True):
    """This node has made a snapshot of its committed state: it is complete and durable, and may be
    served.
    """

    snapshot_id: SnapshotId


class LogStartAdvanced(msgspec.Struct, frozen=True):
    """The log below the end of ``snapshot_id`` was dropped, with all earlier snapshots."""

    snapshot_id: SnapshotId


class SnapshotStored(msgspec.Struct, frozen=True):
    """The last StoreSnapshot was carried out: the snapshot is verified and durable; the log is
    empty and begins at the snapshot's end.

    ``error``: why the content was rejected, or empty; if rejected, nothing has changed, and the
    snapshot is fetched again. ``voters``: the voter set in the snapshot, or empty. ``generations``:
    the generations that the snapshot names.
    """

    snapshot_id: SnapshotId
    voters: tuple[Voter, ...] = ()
    generations: tuple[int, ...] = ()
    error: str = ""


class SpaceChanged(msgspec.Struct, frozen=True):
    """The disk's free space fell below the reserve (``low``), or rose above it again."""

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
    """Make this vote durable, then step VotePersisted. Later sends wait for it."""

    vote: VoteState


class SaveLeader(msgspec.Struct, frozen=True):
    """Save the epoch's leader in the durable vote when the disk has time, then step VotePersisted.

    No promise depends on it: nothing waits for it, and a later PersistVote replaces it. It spares a
    restarted node the search for the leader.
    """

    vote: VoteState


class Send(msgspec.Struct, frozen=True):
    """Send a request to a peer on its control link. If there is no link, drop it and step
    RequestFailed.
    """

    peer_id: int
    correlation_id: int
    request: Any


class SendFetch(msgspec.Struct, frozen=True):
    """Send a Fetch to the leader on the replication link."""

    peer_id: int
    correlation_id: int
    request: pb.FetchRequest
    compare: bool = False
    """Whether the shell must add the last batch of the log."""


class SendFetchSnapshot(msgspec.Struct, frozen=True):
    """Send a FetchSnapshot to the leader on a separate link, so that bulk data and other messages
    do not delay each other.
    """

    peer_id: int
    correlation_id: int
    request: pb.FetchSnapshotRequest


class Reply(msgspec.Struct, frozen=True):
    """Answer a RequestReceived."""

    reply_to: Any
    response: Any


class ReplyFetch(msgspec.Struct, frozen=True):
    """Answer a FetchRequest.

    If ``max_bytes`` > 0, the shell adds up to that many bytes from ``offset`` onwards, in whole
    batches, but at least one batch.
    """

    reply_to: Any
    response: pb.FetchResponse
    offset: int
    max_bytes: int


class ReplySnapshot(msgspec.Struct, frozen=True):
    """Answer a FetchSnapshotRequest: the shell adds ``size`` and up to ``max_bytes`` from
    ``position`` onwards.

    If the position is beyond the end, the shell answers POSITION_OUT_OF_RANGE; if the snapshot has
    since been removed, SNAPSHOT_NOT_FOUND.
    """

    reply_to: Any
    response: pb.FetchSnapshotResponse
    position: int
    max_bytes: int


class StoreSnapshot(msgspec.Struct, frozen=True):
    """Write a part of a fetched snapshot; position 0 starts over.

    After the ``last`` part: verify the snapshot, make it durable, empty the log, step
    SnapshotStored.
    """

    snapshot_id: SnapshotId
    position: int
    data: bytes
    last: bool


class DropSnapshot(msgspec.Struct, frozen=True):
    """Discard a partially fetched snapshot."""

    snapshot_id: SnapshotId


class LoadSnapshot(msgspec.Struct, frozen=True):
    """Load this snapshot as the committed state, at startup or after it was installed.
    HighWatermarkAdvanced to the snapshot's end follows at once.
    """

    snapshot_id: SnapshotId


class VotersChanged(msgspec.Struct, frozen=True):
    """The current voter set has changed because a record was appended, truncated or loaded; at
    startup, it names the initial set.

    ``offset``: as in VotersAt; -1 for the configured set.
    """

    offset: int
    voters: tuple[Voter, ...]


class PeersChanged(msgspec.Struct, frozen=True):
    """The nodes that this node dials have changed: all voters, and the leader if it is not a voter;
    without this node; by ascending id.

    While this node is an observer they include the bootstrap servers, with the ids of
    ``QuorumConfig.bootstrap_peers``.
    """

    peers: tuple[Voter, ...]


class Append(msgspec.Struct, frozen=True):
    """Append a span at the log end. A later ReplyFetch may need its bytes, and does not wait for
    the disk.
    """

    span: LogSpan


class Truncate(msgspec.Struct, frozen=True):
    """Drop everything at or above ``end_offset``, which is never below the high watermark."""

    end_offset: int


class Flush(msgspec.Struct, frozen=True):
    """Make the log durable, then step Flushed."""


class HighWatermarkAdvanced(msgspec.Struct, frozen=True):
    """Everything below ``offset`` is now committed."""

    offset: int


class BindGeneration(msgspec.Struct, frozen=True):
    """This generation of the log is committed: record in the directory's identity that the
    directory belongs to it. Nothing waits for this.
    """

    generation: int


class LeaderChanged(msgspec.Struct, frozen=True):
    """This node has learned a new (leader, epoch); ``leader_id`` is -1 if the epoch's leader is
    unknown.
    """

    leader_id: int
    epoch: int


class BecameLeader(msgspec.Struct, frozen=True):
    """This node leads ``epoch``. The shell at once builds the LeaderChange batch at the log end and
    steps Proposed with it.
    """

    epoch: int
    granting_voters: tuple[int, ...]


class LostLeadership(msgspec.Struct, frozen=True):
    """This node no longer leads ``epoch``: the outcome of everything uncommitted is unknown."""

    epoch: int
    reason: str


class ReadIndexStarted(msgspec.Struct, frozen=True):
    """The answer to ReadIndexRequested: wait in this epoch for ReadIndexConfirmed with this number
    or a higher one.
    """

    round: int


class ReadIndexConfirmed(msgspec.Struct, frozen=True):
    """A majority has echoed ``round``: this node still led after the round began."""

    round: int


class Refused(msgspec.Struct, frozen=True):
    """A message makes a claim that this node does not believe (see ``admission``): count it, and
    log it at a bounded rate.

    ``message``: the type of the message. ``contradiction``: no correct node sends it.
    """

    message: str
    field: str
    reason: str
    contradiction: bool


class Fatal(msgspec.Struct, frozen=True):
    """This node or its shell contradicts itself: stop the process. No message causes this."""

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
