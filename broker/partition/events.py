"""The events and effects of a broker's partition replicas: the contract with the shell.

The shell calls ``Partitions.step(event, now)``, carries out the effects **in order** before the
next step, and steps Tick at ``next_deadline()``. ``now`` is in seconds of a monotonic clock. End
offsets and high watermarks are exclusive; a node id, epoch or offset of -1 means none. Messages are
those of ``raftlog.wire.data.v1``; ``reply_to`` and ``session`` are opaque.

* *Flush before acknowledge*: Append, Truncate, AdvanceStart, Reset and Delete make nothing durable.
  A Flush effect requests durability, after all writes of its step; Flushed(token) states that
  everything before that Flush is durable. Flushes may be combined; reports arrive in order.
* *Reads are effects*: an answer names what to read; the shell reads it at once, so that the result
  shows the log as of this step.
* Any error of the store is fatal for the node: nothing is stepped after it, and every outstanding
  answer has an unknown outcome.

Why: docs/decisions/024-data-plane-group-flush.md
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import msgspec

from raftlog.errors import ErrorCode
from raftlog.metadata.image import ConfigKey, Image
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.data.v1 import data_pb2 as pb

# --- events --------------------------------------------------------------------------------------


class Tick(msgspec.Struct, frozen=True):
    """A deadline may have passed."""


class Changes(msgspec.Struct, frozen=True):
    """The entities touched by the batches between two images.

    Order does not matter; duplicates are harmless.
    """

    partitions: tuple[PartitionKey, ...] = ()
    """Partitions named by a PartitionRecord or PartitionChangeRecord."""
    removed_topics: tuple[bytes, ...] = ()
    """Topic ids of RemoveTopicRecords."""
    brokers: tuple[int, ...] = ()
    """Broker ids of registrations, their changes, and unregistrations."""
    configs: tuple[ConfigKey, ...] = ()
    """(resource type, resource name) of ConfigRecords."""


class ImageMoved(msgspec.Struct, frozen=True):
    """The newest image of this broker.

    ``changes``: None if anything may differ (a snapshot, another generation, the first image).
    """

    image: Image
    changes: Changes | None = None


class BrokerStatusChanged(msgspec.Struct, frozen=True):
    """This broker's knowledge of its registration, sent whenever it registers, a heartbeat is
    answered, or the registration is lost.

    ``broker_epoch``: of its *current* registration; -1 if none. Roles are taken only from an image
    that shows exactly this epoch; such an image is newer than anything that an earlier process of
    this broker did. ``serve_until``: time at which the broker must consider itself fenced unless an
    answer arrives first; -inf if it is fenced. From then on no new request is accepted, and pending
    ones are answered with errors. ``why``: for the error text. ``shown_from``: offset at which the
    registration was decided; an image below it gives no roles and deletes no replica, even if it
    shows this epoch.
    """

    broker_epoch: int
    serve_until: float
    why: str = ""
    shown_from: int = -1


class SpaceChanged(msgspec.Struct, frozen=True):
    """The disk has fallen below its free-space reserve, or is above it again.

    Below it, records from leaders are not stored.
    """

    low: bool


class Client(NamedTuple):
    """The sender of a request.

    When a link closes, its waiting requests are dropped; all links of a peer share its places.
    """

    peer: Hashable
    link: Hashable


class ProduceReceived(msgspec.Struct, frozen=True):
    """A produce request.

    ``timestamp_ms``: timestamp of the batches made from it. AnswerProduce answers it once, unless
    the client's link closes first.
    """

    request: pb.ProduceRequest
    timestamp_ms: int
    reply_to: Any
    client: Client | None = None


class FetchReceived(msgspec.Struct, frozen=True):
    """A consumer's fetch.

    AnswerFetch answers it once, unless the client's link closes first.
    """

    request: pb.FetchRequest
    reply_to: Any
    client: Client | None = None


class ClientClosed(msgspec.Struct, frozen=True):
    """A client's link has closed, which ends its parked requests."""

    client: Client


class ReplicaFetchReceived(msgspec.Struct, frozen=True):
    """A follower's fetch.

    ``session`` identifies its link; each link has a new one.
    """

    session: Hashable
    request: pb.ReplicaFetchRequest


class SessionClosed(msgspec.Struct, frozen=True):
    """A follower's link has closed: its parked fetch will never be answered."""

    session: Hashable


class LinkOpened(msgspec.Struct, frozen=True):
    """The link to a leader, requested by WantLink, is up. This begins a new session."""

    leader_id: int


class LinkLost(msgspec.Struct, frozen=True):
    """The link to a leader broke; the shell reconnects as long as the link is wanted."""

    leader_id: int


class ReplicaFetchAnswered(msgspec.Struct, frozen=True):
    """The leader's answer on its current link; the shell drops answers of an older link."""

    leader_id: int
    response: pb.ReplicaFetchResponse


class Flushed(msgspec.Struct, frozen=True):
    """Everything before the Flush with this token, or a lower one, is durable."""

    token: int


class RetentionDue(msgspec.Struct, frozen=True):
    """Retention must be checked for these partitions.

    ``time_ms``: current time, comparable to timestamps.
    """

    keys: tuple[PartitionKey, ...]
    time_ms: int


class AlterPartitionAnswered(msgspec.Struct, frozen=True):
    """The response to the last SendAlterPartition, committed."""

    response: rpc.AlterPartitionResponse


class AlterPartitionFailed(msgspec.Struct, frozen=True):
    """The last SendAlterPartition has no response: the request failed as a whole, or timed out."""

    code: ErrorCode
    outcome_unknown: bool


Event = (
    Tick
    | ImageMoved
    | BrokerStatusChanged
    | SpaceChanged
    | ProduceReceived
    | FetchReceived
    | ClientClosed
    | ReplicaFetchReceived
    | SessionClosed
    | LinkOpened
    | LinkLost
    | ReplicaFetchAnswered
    | Flushed
    | RetentionDue
    | AlterPartitionAnswered
    | AlterPartitionFailed
)

# --- effects -------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True):
    """Write whole batches at the end of a replica's log; a replica without a log begins at 0."""

    key: PartitionKey
    chunk: bytes
    base_offset: int
    end_offset: int


class Truncate(msgspec.Struct, frozen=True):
    """Drop everything at or above ``end_offset``, a batch boundary."""

    key: PartitionKey
    end_offset: int


class AdvanceStart(msgspec.Struct, frozen=True):
    """Drop everything below ``start_offset``, a batch boundary in the replica: about
    ``dropped_bytes``.
    """

    key: PartitionKey
    start_offset: int
    dropped_bytes: int


class Reset(msgspec.Struct, frozen=True):
    """Drop everything. A later Append for the same key begins at ``start_offset``."""

    key: PartitionKey
    start_offset: int


class Delete(msgspec.Struct, frozen=True):
    """Drop a replica completely. A later Append for the same key begins at 0 again."""

    key: PartitionKey


class Flush(msgspec.Struct, frozen=True):
    """Make everything written so far durable, then step Flushed with this token. Tokens ascend."""

    token: int


class Read(msgspec.Struct, frozen=True):
    """Read whole batches, from the one that holds ``offset`` up to ``until``, into
    ``response.partitions[index].records``.

    At least one batch, then as many as fit into ``max_bytes``. ``charged``: bytes charged to the
    throttle beforehand, or -1 if none were; the shell then reports the actual number by
    ``Partitions.was_read``.
    """

    index: int
    key: PartitionKey
    offset: int
    until: int
    max_bytes: int
    charged: int = -1


class AnswerProduce(msgspec.Struct, frozen=True):
    """The answer to a ProduceReceived."""

    reply_to: Any
    response: pb.ProduceResponse


class AnswerFetch(msgspec.Struct, frozen=True):
    """The answer to a FetchReceived, sent once its reads are done, in order.

    After ``max_bytes`` of records the remaining results stay empty.
    """

    reply_to: Any
    response: pb.FetchResponse
    reads: tuple[Read, ...] = ()
    max_bytes: int = 0


class AnswerReplicaFetch(msgspec.Struct, frozen=True):
    """The answer to a follower, sent once its reads are done, in order; dropped if its link has
    closed.

    Batches may be larger than estimated: after ``max_bytes`` of records the results of further
    reads get the error THROTTLING_QUOTA_EXCEEDED instead of records, so that the follower fetches
    them again.
    """

    session: Hashable
    response: pb.ReplicaFetchResponse
    reads: tuple[Read, ...] = ()
    max_bytes: int = 0


class WantLink(msgspec.Struct, frozen=True):
    """Keep a replica fetch link to this broker at this endpoint from now on; step LinkOpened and
    LinkLost.

    When repeated with another endpoint, the old link must be closed (no LinkLost needed), and the
    new one opens a new session.
    """

    leader_id: int
    endpoint: str


class DropLink(msgspec.Struct, frozen=True):
    """Close the link, as no partition is followed from this broker any more. No LinkLost is
    expected.
    """

    leader_id: int


class SendReplicaFetch(msgspec.Struct, frozen=True):
    """Send a fetch on the link to this leader.

    At most two are outstanding: a newer one makes the leader answer the older one at once.
    """

    leader_id: int
    request: pb.ReplicaFetchRequest


class SendAlterPartition(msgspec.Struct, frozen=True):
    """Send a request to the active controller, which answers when the change is committed.

    One at a time: AlterPartitionAnswered or AlterPartitionFailed ends it. If the outcome is
    unknown, the shell reports that and does not retry; after a definite NOT_CONTROLLER it may try
    another controller.
    """

    request: rpc.AlterPartitionRequest


class Note(msgspec.Struct, frozen=True):
    """An entry for the node's log, e.g. an ISR change, a truncation, or a lasting refusal.

    ``fields``: arguments for the logger.
    """

    event: str
    fields: dict[str, Any] = {}


Effect = (
    Append
    | Truncate
    | AdvanceStart
    | Reset
    | Delete
    | Flush
    | AnswerProduce
    | AnswerFetch
    | AnswerReplicaFetch
    | WantLink
    | DropLink
    | SendReplicaFetch
    | SendAlterPartition
    | Note
)
