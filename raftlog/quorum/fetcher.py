"""Pulling the log from one peer: at most one request outstanding, each Fetch an acknowledgement."""

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
"""A part that does not come in time is asked for in smaller pieces, down to this: on a slow link
the same part would never come within the timeout, and the leader would seem silent (KIP-1219)."""


class SnapshotFetcher:
    """The fetch of one snapshot from the leader, part after part by position (KIP-630). A failed
    request is repeated for the same position.
    """

    def __init__(self, node: Node, snapshot_id: SnapshotId) -> None:
        self.snapshot_id = snapshot_id
        self._node = node
        self._position = 0
        self._size: int | None = None
        self._part_bytes = node.config.fetch_snapshot_max_bytes

    @property
    def complete(self) -> bool:
        """True if all parts have been stored."""
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
        """Halve the size of the parts: the last one did not arrive in time."""
        self._part_bytes = min(self._part_bytes, max(MIN_PART_BYTES, self._part_bytes // 2))

    def store(self, response: pb.FetchSnapshotResponse) -> bool:
        """Store a part. False if it is not the requested one: begin anew."""
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
        """Give up the snapshot."""
        if self._position:
            self._node.out.append(DropSnapshot(self.snapshot_id))


RETRY_BACKOFF_S = 0.020
"""Pause after a failed Fetch."""


FETCHED = (pb.FetchResponse, pb.FetchSnapshotResponse)
"""The responses that a fetcher processes."""


class Verdict(Enum):
    """The verdict on an answer to a Fetch."""

    ACCEPTED = "from the leader of this epoch, and used"
    NOT_LEADER = "the peer says that it does not lead"
    REFUSED = "an error, or not what was asked for; to be asked again"


class Fetcher:
    """The fetch of the log from one peer. The next Fetch leaves when all of the log is flushed:
    then its offset acknowledges what is durable.

    Where the leader's log begins too late it names a snapshot instead: then that is fetched, and
    the log goes on after it.
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
        """The leader has the last batch of this log, as it says."""
        self.leading_ms = 0
        """Time for which the leader had led when it last answered a Fetch, by its clock."""
        self._snapshot: SnapshotFetcher | None = None
        config = node.config
        # What is the same in every request: copying it is half the price of naming it again.
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
        """Return whether the disk must finish first."""
        node = self.node
        return (
            node.log.flushed_end < node.log.end
            or node.installing is not None
            # The truncation must not be lost once the snapshot is there: it would stand beside a
            # log that has another past.
            or (self._snapshot is not None and node.truncation_unflushed)
        )

    def awaits(self, peer_id: int, correlation_id: int) -> bool:
        """Return whether this is the awaited answer, not a late, duplicate or foreign one."""
        return correlation_id == self._awaited and peer_id == self.peer_id

    def pump(self) -> None:
        """Send the next Fetch if it is time."""
        node = self.node
        if (
            self._awaited is not None
            or node.now < self._not_before
            or self._blocked()
            or node.role_stale
        ):
            # If the role is stale another one is about to ask.
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
        """True if the answer is late."""
        return self.node.now >= self._request_deadline

    def on_tick(self) -> None:
        """Give up a late answer, and send if it is time."""
        if self.overdue:
            self._awaited, self._request_deadline = None, NEVER
            if self._snapshot is not None:
                self._snapshot.ask_for_less()
        self.pump()

    def on_snapshot_stored(self, *, sound: bool) -> None:
        """Continue: the disk has the fetched snapshot, or has rejected it."""
        if not sound:
            self._not_before = self.node.now + RETRY_BACKOFF_S
        self.pump()

    def back_off(self, peer_id: int | None = None) -> None:
        """Fetch again after a pause, from ``peer_id`` if given: the outstanding Fetch failed."""
        self._awaited, self._request_deadline = None, NEVER
        self._not_before = self.node.now + RETRY_BACKOFF_S
        if peer_id is not None:
            self.peer_id = peer_id

    def stop(self) -> None:
        """Send no more Fetches."""
        self._awaited, self._request_deadline, self._not_before = None, NEVER, NEVER
        self.drop_snapshot()

    def drop_snapshot(self) -> None:
        """Give up the snapshot that is being fetched."""
        if self._snapshot is not None:
            self._snapshot.drop()
            self._snapshot = None

    def process(
        self, response: pb.FetchResponse | pb.FetchSnapshotResponse, span: LogSpan | None
    ) -> Verdict:
        """Use the awaited answer.

        The caller has processed its claims about leaders, and is still in the same role.
        """
        self._awaited, self._request_deadline = None, NEVER
        if (
            response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            and response.leader_epoch == self._epoch
            # Who names the leader that was asked is another node, at its address.
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
            # The leader may have named a round that it does not know itself. An echo too low
            # promises too little, never too much.
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
                f"the log of node {self.peer_id}, which leads epoch {self._epoch}, does not descend"
                f" from generation {self.node.bound_generation}, which this directory belongs to",
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
        """Append the records of a response, and move the high watermark.

        False if the data is not what continues this log.
        """
        node, log = self.node, self.node.log
        if span is not None:
            if not log.accepts(span, self._epoch):
                return False
            for entry in span.voters:
                flaw = VoterSet.flaw(entry.voters)
                if flaw:
                    self._refuse(
                        "records", f"the VotersRecord at {entry.offset} makes no sense: {flaw}"
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
        """Fetch a snapshot: the leader's log begins too late for this one.

        False for a snapshot that would take back what is committed here.
        """
        node = self.node
        if (
            not max(0, node.high_watermark) < snapshot_id.end_offset <= MAX_OFFSET
            or not 0 < snapshot_id.epoch <= self._epoch
        ):
            return False
        # The log stays as it is until the snapshot is durable. It may be another history, longer
        # than the snapshot; but what of it is committed, and counted on here, this node cannot
        # tell.
        self._snapshot = SnapshotFetcher(node, snapshot_id)
        return True

    def _take_part(self, response: pb.FetchSnapshotResponse) -> Verdict:
        """Store a part of a snapshot, or begin anew if the leader has it no more."""
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
        """Drop the records that the leader does not have.

        False if that would drop nothing, or what is committed: no leader asks for it.
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
        """Do not follow the leader's log, which contradicts this one."""
        self.node.log_conflict = reason
        self._refuse(field, reason)

    def _refuse(self, field: str, reason: str) -> None:
        """Report a response that no leader sends."""
        refusal = Refusal(ErrorCode.INVALID_REQUEST, field, reason, contradiction=True)
        self.node.refuse(pb.FetchResponse.__name__, refusal)

    def _truncate_to(self, end_offset: int) -> None:
        node = self.node
        node.log.truncate(end_offset)
        node.truncation_unflushed = True
        node.out.append(Truncate(end_offset))
        node.out.append(Flush())
        node.truncate_voters(end_offset)
