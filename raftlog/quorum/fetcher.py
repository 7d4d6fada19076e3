"""The fetch of the log from one peer: at most one request is outstanding, and each Fetch is an
acknowledgement.
"""

from __future__ import annotations

from enum import Enum

from raftlog.clock import NEVER
from raftlog.errors import ErrorCode
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum.admission import MAX_OFFSET, Refusal
from raftlog.quorum.events import (
    Append,
    DropSnapshot,
    Flush,
    LogSpan,
    SendFetch,
    SendFetchSnapshot,
    StoreSnapshot,
    Truncate,
)
from raftlog.quorum.node import Node
from raftlog.quorum.voters import VoterSet
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

MIN_PART_BYTES = 64 << 10
"""Smallest part of a snapshot that is requested after timeouts. On a slow link a larger part would
never arrive within the timeout, and the leader would seem silent (KIP-1219).
"""


class SnapshotFetcher:
    """The fetch of one snapshot from the leader, part by part (KIP-630). A failed request is
    repeated for the same position.
    """

    def __init__(self, node: Node, snapshot_id: SnapshotId) -> None:
        self.snapshot_id = snapshot_id
        self._node = node
        self._position = 0
        self._size: int | None = None
        self._part_bytes = node.config.fetch_snapshot_max_bytes

    @property
    def complete(self) -> bool:
        """Whether all parts have been stored."""
        return self._position == self._size

    def request(self, epoch: int, correlation_id: int) -> pb.FetchSnapshotRequest:
        """Return the request for the next part."""
        config = self._node.config
        return pb.FetchSnapshotRequest(
            cluster_id=config.cluster_id,
            replica_id=config.node_id,
            replica_directory_id=config.directory_id,
            current_leader_epoch=epoch,
            snapshot_id=pb.SnapshotId(
                end_offset=self.snapshot_id.end_offset, epoch=self.snapshot_id.epoch
            ),
            position=self._position,
            max_bytes=self._part_bytes,
            correlation_id=correlation_id,
        )

    def ask_for_less(self) -> None:
        """Halve the part size: the last part did not arrive in time."""
        self._part_bytes = min(self._part_bytes, max(MIN_PART_BYTES, self._part_bytes // 2))

    def store(self, response: pb.FetchSnapshotResponse) -> bool:
        """Store a part. Return False if it is not the requested one: the caller then starts
        over.
        """
        named, data = response.snapshot_id, response.bytes
        end = self._position + len(data)
        if (
            (named.end_offset, named.epoch) != (self.snapshot_id.end_offset, self.snapshot_id.epoch)
            or response.position != self._position
            or self._size not in (None, response.size)
            or not data
            or end > response.size
        ):
            return False
        self._size = response.size
        self._node.out.append(
            StoreSnapshot(self.snapshot_id, self._position, data, last=end == response.size)
        )
        self._position = end
        return True

    def drop(self) -> None:
        """Discard the stored parts."""
        if self._position:
            self._node.out.append(DropSnapshot(self.snapshot_id))


RETRY_BACKOFF_S = 0.020
"""Pause after a failed Fetch, in seconds."""


FETCHED = (pb.FetchResponse, pb.FetchSnapshotResponse)
"""The responses that a fetcher processes."""


class Verdict(Enum):
    """The result of processing a response to a Fetch."""

    ACCEPTED = "processed: from the leader of this epoch"
    NOT_LEADER = "the peer reports that it does not lead"
    REFUSED = "an error, or not the requested data: to be fetched again"


class Fetcher:
    """The fetch of the log from one peer. The next Fetch is sent once the whole log is flushed, so
    that its offset acknowledges durable records.

    If the leader's log begins too late, the leader names a snapshot instead. The fetcher fetches
    it, and continues the log after it.
    """

    def __init__(self, node: Node, peer_id: int) -> None:
        self.node = node
        self.peer_id = peer_id
        self._epoch = node.epoch
        self._awaited: int | None = None
        self._request_deadline = NEVER
        self._not_before = node.now
        self._round = 0
        self._compared = False
        """Whether the leader has confirmed that it has the last batch of this log."""
        self.leading_ms = 0
        """Time in milliseconds, on its own clock, for which the leader had led when it last
        answered a Fetch.
        """
        self._snapshot: SnapshotFetcher | None = None
        config = node.config
        # The fields common to all requests: copying them costs half as much as setting them again.
        self._template = pb.FetchRequest(
            cluster_id=config.cluster_id,
            replica_id=config.node_id,
            replica_directory_id=config.directory_id,
            current_leader_epoch=node.epoch,
            max_wait_ms=config.fetch_max_wait_ms,
            max_bytes=config.fetch_max_bytes,
            max_metadata_version=config.max_metadata_version,
            leader_priority=config.leader_priority,
        )

    def deadline(self) -> float:
        """Return the time of the next tick that the fetcher needs."""
        if self._awaited is not None:
            return self._request_deadline
        return NEVER if self._blocked() else self._not_before

    def _blocked(self) -> bool:
        """Return whether the next Fetch must wait for the disk."""
        node = self.node
        return (
            node.log.flushed_end < node.log.end
            or node.installing is not None
            # The truncation must be durable before the snapshot is: otherwise, after a crash, the
            # snapshot could exist together with a log of a different history.
            or (self._snapshot is not None and node.truncation_unflushed)
        )

    def awaits(self, peer_id: int, correlation_id: int) -> bool:
        """Return whether this is the awaited response, not a late, duplicate or foreign one."""
        return correlation_id == self._awaited and peer_id == self.peer_id

    def pump(self) -> None:
        """Send the next Fetch if it is due."""
        node = self.node
        if (
            self._awaited is not None
            or node.now < self._not_before
            or self._blocked()
            or node.role_stale
        ):
            # If the role is stale, another role is about to fetch.
            return
        self._awaited = correlation_id = node.next_correlation_id()
        config, log = node.config, node.log
        self._request_deadline = node.now + config.request_timeout_ms / 1000
        if self._snapshot is not None:
            part = self._snapshot.request(self._epoch, correlation_id)
            node.out.append(SendFetchSnapshot(self.peer_id, correlation_id, part))
            return
        request = pb.FetchRequest()
        request.CopyFrom(self._template)
        request.fetch_offset = log.end
        request.last_fetched_epoch = log.last_epoch
        request.high_watermark = node.high_watermark
        request.round = self._round
        request.correlation_id = correlation_id
        request.low_on_space = node.low_on_space
        if config.is_spare and not node.is_voter:
            request.spare_endpoint = config.endpoint
        if not self._compared:
            request.generation = node.bound_generation
        node.out.append(SendFetch(self.peer_id, correlation_id, request, not self._compared))

    @property
    def overdue(self) -> bool:
        """Whether the response is late."""
        return self.node.now >= self._request_deadline

    def on_tick(self) -> None:
        """Give up on a late response, and send the next Fetch if it is due."""
        if self.overdue:
            self._awaited, self._request_deadline = None, NEVER
            if self._snapshot is not None:
                self._snapshot.ask_for_less()
        self.pump()

    def on_snapshot_stored(self, *, sound: bool) -> None:
        """Continue after the disk has stored the fetched snapshot, or rejected it (not
        ``sound``).
        """
        if not sound:
            self._not_before = self.node.now + RETRY_BACKOFF_S
        self.pump()

    def back_off(self, peer_id: int | None = None) -> None:
        """Fetch again after a pause, from ``peer_id`` if given, because the outstanding Fetch
        failed.
        """
        self._awaited, self._request_deadline = None, NEVER
        self._not_before = self.node.now + RETRY_BACKOFF_S
        if peer_id is not None:
            self.peer_id = peer_id

    def stop(self) -> None:
        """Send no more Fetches."""
        self._awaited, self._request_deadline, self._not_before = None, NEVER, NEVER
        self.drop_snapshot()

    def drop_snapshot(self) -> None:
        """Discard the snapshot that is being fetched."""
        if self._snapshot is not None:
            self._snapshot.drop()
            self._snapshot = None

    def process(
        self, response: pb.FetchResponse | pb.FetchSnapshotResponse, span: LogSpan | None
    ) -> Verdict:
        """Process the awaited response.

        The caller has processed its claims about leaders, and is still in the same role.
        """
        self._awaited, self._request_deadline = None, NEVER
        if (
            response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            and response.leader_epoch == self._epoch
            # A response that names the requested leader comes from another node at its address.
            and response.leader_id != self.peer_id
        ):
            return Verdict.NOT_LEADER
        if response.leader_epoch != self._epoch or response.leader_id != self.peer_id:
            return Verdict.REFUSED
        if self.node.leader_id != self.peer_id:
            return Verdict.REFUSED
        verdict = self._use(response, span)
        if verdict is Verdict.ACCEPTED:
            self.node.leader_confirmed = True
        elif response.error_code == ErrorCode.INVALID_REQUEST:
            # The leader may have sent a round that it no longer knows. An echo that is too low
            # proves too little, never too much.
            self._round = 0
        return verdict

    def _use(
        self, response: pb.FetchResponse | pb.FetchSnapshotResponse, span: LogSpan | None
    ) -> Verdict:
        if isinstance(response, pb.FetchSnapshotResponse):
            return self._take_part(response)
        if response.error_code == ErrorCode.INCONSISTENT_GENERATION:
            self._refuse_log(
                "generation",
                f"this directory belongs to generation {self.node.bound_generation}, from which the"
                f" log of node {self.peer_id}, the leader of epoch {self._epoch}, does not descend",
            )
            return Verdict.REFUSED
        if response.error_code or self._snapshot is not None:
            return Verdict.REFUSED
        if span is not None:
            sound = self._append(response, span)
        elif response.HasField("snapshot_id"):
            sound = self._begin_snapshot(
                SnapshotId(response.snapshot_id.end_offset, response.snapshot_id.epoch)
            )
        elif response.HasField("diverging_epoch"):
            sound = self._truncate(
                response.diverging_epoch.epoch, response.diverging_epoch.end_offset
            )
        else:
            sound = self._append(response, span)
        if not sound:
            return Verdict.REFUSED
        self._compared = not response.HasField("diverging_epoch")
        self.node.log_conflict = ""
        self._round = max(self._round, response.round)
        self.leading_ms = response.leading_ms
        return Verdict.ACCEPTED

    def _append(self, response: pb.FetchResponse, span: LogSpan | None) -> bool:
        """Append the records of a response, and advance the high watermark. Return False if the
        data does not continue this log.
        """
        node, log = self.node, self.node.log
        if span is not None:
            if not log.accepts(span, self._epoch):
                return False
            for entry in span.voters:
                flaw = VoterSet.flaw(entry.voters)
                if flaw:
                    self._refuse(
                        "records", f"the VotersRecord at {entry.offset} is invalid: {flaw}"
                    )
                    return False
            log.append(span)
            node.out.append(Append(span))
            node.out.append(Flush())
            if span.voters:
                node.append_voters(span.voters)
        elif response.records:
            return False
        node.advance_high_watermark(min(log.end, response.high_watermark))
        return True

    def _begin_snapshot(self, snapshot_id: SnapshotId) -> bool:
        """Start fetching a snapshot, because the leader's log begins too late for this one. Return
        False if the snapshot would revert committed records.
        """
        node = self.node
        if (
            not max(0, node.high_watermark) < snapshot_id.end_offset <= MAX_OFFSET
            or not 0 < snapshot_id.epoch <= self._epoch
        ):
            return False
        # The log is kept until the snapshot is durable. It may be a diverged log longer than the
        # snapshot; but this node cannot know which of its records are committed and counted as
        # acknowledged here.
        self._snapshot = SnapshotFetcher(node, snapshot_id)
        return True

    def _take_part(self, response: pb.FetchSnapshotResponse) -> Verdict:
        """Store a part of a snapshot, or start over if the leader no longer has the snapshot."""
        snapshot = self._snapshot
        if snapshot is None:
            return Verdict.REFUSED
        if response.error_code in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            self.drop_snapshot()
            self._not_before = self.node.now + RETRY_BACKOFF_S
            return Verdict.ACCEPTED
        if response.error_code:
            return Verdict.REFUSED
        if not snapshot.store(response):
            self.drop_snapshot()
            return Verdict.REFUSED
        if snapshot.complete:
            self.node.installing, self._snapshot = snapshot.snapshot_id, None
        return Verdict.ACCEPTED

    def _truncate(self, epoch: int, end_offset: int) -> bool:
        """Drop the records that the leader does not have. Return False if that would drop no
        records, or committed ones, which no correct leader requests.
        """
        node, log = self.node, self.node.log
        target = log.truncation_point(epoch, end_offset)
        if target is None:
            return False
        if target < node.high_watermark:
            self._refuse_log(
                "diverging_epoch",
                f"the leader {self.peer_id} of epoch {self._epoch} asks to truncate to {target}, "
                f"below the high watermark {node.high_watermark}: it lacks committed records",
            )
            return False
        self._truncate_to(target)
        return True

    def _refuse_log(self, field: str, reason: str) -> None:
        """Refuse to follow the leader, whose log contradicts this one."""
        self.node.log_conflict = reason
        self._refuse(field, reason)

    def _refuse(self, field: str, reason: str) -> None:
        """Report a response that no correct leader sends."""
        refusal = Refusal(ErrorCode.INVALID_REQUEST, field, reason, contradiction=True)
        self.node.refuse(pb.FetchResponse.__name__, refusal)

    def _truncate_to(self, end_offset: int) -> None:
        node = self.node
        node.log.truncate(end_offset)
        node.truncation_unflushed = True
        node.out.append(Truncate(end_offset))
        node.out.append(Flush())
        node.truncate_voters(end_offset)
