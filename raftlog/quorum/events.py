"""What goes into the quorum's state machine and what comes out of it.

Theory of operation: the shell (``raftlog.replica``) calls ``step(event, now)`` and carries out the effects **in order**.
Two rules carry the safety of it all:

* *persist before send*: every Send, SendFetch, Reply and ReplyFetch that follows a PersistVote waits until the vote is durable (and the
  shell has stepped VotePersisted); nothing else is reordered.
* *flush before acknowledge*: Append and Truncate make nothing durable. A Flush effect asks for it; Flushed reports how
  far. The core counts itself, and sends a fetch that acknowledges, only up to the flushed offset.

``now`` is seconds of a monotonic clock. Offsets of ends and high watermarks are exclusive. Node id -1 means none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raftlog.storage.api import VoteState
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


@dataclass(frozen=True, slots=True)
class LogSpan:
    """A chunk about to be appended: verified, contiguous. ``epochs``: (epoch, first offset) of each run of equal epochs."""

    base_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    data: bytes


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline may have passed."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A peer asks: VoteRequest, BeginQuorumEpochRequest, EndQuorumEpochRequest or FetchRequest. ``reply_to`` is opaque."""

    request: Any
    reply_to: Any


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A peer answers a Send or SendFetch. ``span`` is the checked content of a FetchResponse, None if it has none.

    The shell drops answers that come on another link than the request went out on.
    """

    peer_id: int
    correlation_id: int
    response: Any
    span: LogSpan | None = None


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A Send or SendFetch certainly gets no answer: no link, or its link closed."""

    peer_id: int
    correlation_id: int


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The control link to a peer is up."""

    peer_id: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Proof that a peer's process is gone: its stream broke, and a raw connect was refused."""

    peer_id: int


@dataclass(frozen=True, slots=True)
class Proposed:
    """The leader's own batches, made for this epoch at the log end. Dropped by the core if it does not lead ``epoch``."""

    epoch: int
    span: LogSpan


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything below ``end_offset`` is durable here (as the log is now: the shell drops reports from before a Truncate)."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class VotePersisted:
    """The vote of the PersistVote effect is durable."""

    vote: VoteState


@dataclass(frozen=True, slots=True)
class RoundRequested:
    """Somebody waits for proof that this node leads *now*: a round begun at or after this event must be confirmed."""


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """Stop leading: shutdown, a full disk, the controller's wish. A node that does not lead ignores it."""

    reason: str


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
    | RoundRequested
    | ResignRequested
)

# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PersistVote:
    """Make this vote durable, then step VotePersisted. Sends behind it wait."""

    vote: VoteState


@dataclass(frozen=True, slots=True)
class Send:
    """A request to a peer on its control link. Lost if there is no link: step RequestFailed."""

    peer_id: int
    correlation_id: int
    request: Any


@dataclass(frozen=True, slots=True)
class SendFetch:
    """A Fetch to the leader on the replication link."""

    peer_id: int
    correlation_id: int
    request: pb.FetchRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a RequestReceived."""

    reply_to: Any
    response: Any


@dataclass(frozen=True, slots=True)
class ReplyFetch:
    """An answer to a FetchRequest. If ``max_bytes`` > 0 the shell adds that much from ``offset`` on, whole batches, at least one."""

    reply_to: Any
    response: pb.FetchResponse
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Append:
    """Write a span at the log end."""

    span: LogSpan


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop everything at or above ``end_offset``; never below the high watermark."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Make the log durable, then step Flushed."""


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Everything below ``offset`` is committed, for ever."""

    offset: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """This node knows a new (leader, epoch); ``leader_id`` -1: none known in this epoch."""

    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """This node leads ``epoch``. The shell at once builds the LeaderChange batch at the log end and steps Proposed with it."""

    epoch: int
    granting_voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LostLeadership:
    """This node leads ``epoch`` no more: what is not committed has an unknown outcome."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The answer to RoundRequested: wait for RoundConfirmed of this number or a higher one, in this epoch."""

    round: int


@dataclass(frozen=True, slots=True)
class RoundConfirmed:
    """A majority has echoed ``round``: this node led after the round began."""

    round: int


@dataclass(frozen=True, slots=True)
class Fatal:
    """A rule of Raft is broken (a truncation below the high watermark, two leaders in one epoch): stop the process."""

    reason: str


Effect = (
    PersistVote
    | Send
    | SendFetch
    | Reply
    | ReplyFetch
    | Append
    | Truncate
    | Flush
    | HighWatermarkAdvanced
    | LeaderChanged
    | BecameLeader
    | LostLeadership
    | RoundStarted
    | RoundConfirmed
    | Fatal
)
