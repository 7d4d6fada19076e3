"""Leadership transfer: the choice of a successor, and the time to resign, so that no accepted write
is lost or has an unknown outcome.

The active controller stops deciding; queued requests wait. Once everything proposed is committed,
answered, and durable at the target, the controller resigns, and the target campaigns first (Raft
thesis 3.10). If that does not happen in time, the controller continues to lead.

Why: docs/decisions/023-leadership-transfer.md
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.decision import Decision, Reply, TransferLeadership, refuse
from controller.decisions.quorum.membership import Look
from raftlog.errors import ErrorCode
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc

LIVE_WITHIN_MS = 1_500
"""Longest age, in ms, of a live voter's last fetch."""
TRANSFER_TIMEOUT_S = 1.0
"""Longest time, in seconds, for which a transfer may stop writes."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer under way, without a successor if ``target_id`` is -1.

    ``deadline``: seconds of the loop's clock.
    """

    target_id: int
    reason: str
    deadline: float

    def may_resign(self, seen: QuorumDescription) -> bool:
        """Return whether all proposed records are committed, and durable at the target."""
        end = seen.log_end_offset
        if self.target_id < 0:
            return seen.high_watermark >= end
        target = self._target(seen)
        return target is not None and seen.high_watermark >= end and target.log_end_offset >= end

    def is_awaited(self, seen: QuorumDescription, named_s: float) -> bool:
        """Return whether the target knows that it is the successor: it has fetched since it was
        named, ``named_s`` ago, and has all committed records.

        Requests that arrive at such a target wait until it leads.
        """
        target = self._target(seen)
        return (
            target is not None
            # Ages are whole milliseconds, rounded down.
            and 0 <= target.last_fetch_age_ms <= named_s * 1000 - 1
            and target.log_end_offset >= seen.high_watermark
        )

    def _target(self, seen: QuorumDescription) -> ReplicaDescription | None:
        return _voter(seen, self.target_id)

    def why_not(self, seen: QuorumDescription) -> str:
        """Describe what the transfer still waits for."""
        target = self._target(seen)
        if target is None:
            return (
                f"node {self.target_id} is no longer a voter"
                if self.target_id >= 0
                else "no other voter is alive"
            )
        return (
            f"node {self.target_id} has the log up to {target.log_end_offset} of"
            f" {seen.log_end_offset}; the high watermark is {max(0, seen.high_watermark)}"
        )


def transfer_leadership(
    request: rpc.TransferLeadershipRequest, node_id: int, look: Look | None, now: float
) -> Decision:
    """Decide whether there is a successor.

    The shell carries out the transfer, and answers at its end.
    """
    target_id = request.target_id
    if look is None:
        raise refuse(
            ErrorCode.UNSUPPORTED_VERSION, "this controller does not know the other voters"
        )
    seen = look(now)
    if target_id == node_id:
        return Reply(rpc.TransferLeadershipResponse(target_id=node_id))
    if target_id < 0:
        target_id = best_successor(seen, node_id)
        if target_id < 0:
            raise refuse(ErrorCode.REQUEST_TIMED_OUT, "no other voter is alive", "target_id")
    target = _voter(seen, target_id)
    if target is None:
        raise refuse(ErrorCode.VOTER_NOT_FOUND, f"node {target_id} is not a voter", "target_id")
    if not _is_live(target):
        raise refuse(
            ErrorCode.REQUEST_TIMED_OUT,
            f"node {target_id} has not fetched from the leader recently",
            "target_id",
        )
    if target.low_on_space:
        # It would back off for voters with space, and the cluster would have no leader meanwhile.
        raise refuse(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the disk of node {target_id} is below its free-space reserve",
            "target_id",
        )
    return TransferLeadership(target_id, rpc.TransferLeadershipResponse(target_id=target_id))


def best_successor(seen: QuorumDescription, node_id: int) -> int:
    """Return the live voter that can lead soonest, preferring those with disk space; -1 if none."""
    others = [one for one in seen.voters if one.node_id != node_id and _is_live(one)]
    best = min(
        others, key=lambda one: (one.low_on_space, -one.log_end_offset, one.node_id), default=None
    )
    return -1 if best is None else best.node_id


def _voter(seen: QuorumDescription, node_id: int) -> ReplicaDescription | None:
    return next((one for one in seen.voters if one.node_id == node_id), None)


def _is_live(replica: ReplicaDescription) -> bool:
    return 0 <= replica.last_fetch_age_ms <= LIVE_WITHIN_MS
