"""The status of a controller: entries in its log and journal while it runs, and answers to clients
even without a leader (DescribeQuorum, readiness, the status page).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from controller.decider import Decider
from controller.decisions.brokers.describe import describe_brokers
from controller.decisions.quorum.features import known_features
from controller.disk.snapshot_generator import SnapshotGenerator
from controller.service.node import ControllerNode
from raftlog.endpoint import Voter, endpoint_on
from raftlog.node.observability.figures import LATENCY_BOUNDS_S
from raftlog.node.observability.journal import Journal, Kind
from raftlog.node.replica.peers import PeerReach
from raftlog.node.storage.api import LogStore
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.text import printable
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from controller.service.service import ControllerService

log = structlog.get_logger(__name__)

FIRST_S = 1.0
"""Minimum length, in seconds, of an outage that is logged; an election takes less."""
AGAIN_S = 30.0
FOUNDING = " to found a quorum: a configured voter set begins with the votes of all"


class OutageWatch:
    """Detects outages: each tick checks whether this node knows a leader.

    While it knows none, ``node.directory.outage`` has the reason, for this node's answers.
    """

    def __init__(
        self, node: ControllerNode, report: Callable[[str], None] = lambda reason: None
    ) -> None:
        """``report``: called with each reason that is logged, and with "" when a leader is
        known.
        """
        self._node, self._report = node, report
        self._since: float | None = None
        self._say_at = 0.0
        self._reported = False

    def tick(self, now: float) -> None:
        """See ``Chore``."""
        node = self._node
        role = node.replica.core.role
        # A voter that lost a pre-vote follows the old leader again, even if that does not answer.
        ended = self._since is None or role != "follower" or node.replica.describe(now).hears_leader
        if ended and knows_leader(role, node.leader_id):
            node.directory.outage = ""
            self._end_outage(now)
            return
        if self._since is None:
            self._since, self._say_at, self._reported = now, now + FIRST_S, False
        seen, reach = node.replica.describe(now), node.replica.peer_reach()
        reason = outage_text(seen, node.quorum.node_id, reach)
        node.directory.outage = reason
        if now >= self._say_at:
            self._say_at, self._reported = now + AGAIN_S, True
            log.warning("no leader", reason=reason, for_ms=round((now - self._since) * 1000))
            self._report(reason)

    def _end_outage(self, now: float) -> None:
        since, self._since = self._since, None
        if since is not None and self._reported:
            self._report("")
            log.info("a leader is known again", after_ms=round((now - since) * 1000))


def knows_leader(role: str, leader_id: int) -> bool:
    """Return whether the node leads, or follows a leader; a candidate only remembers the former
    leader.
    """
    return role == "leader" or (leader_id >= 0 and role in ("follower", "observer"))


def outage_text(seen: QuorumDescription, node_id: int, peers: Sequence[PeerReach]) -> str:
    """Return one sentence: how many voters this node can reach, how many are needed, and what is
    wrong with the others.
    """
    voters = [voter.node_id for voter in seen.voter_set]
    if not voters:
        return f"no leader is known in epoch {seen.epoch}: this node knows no voters yet"
    needed = seen.votes_needed or len(voters) // 2 + 1
    by_id = {peer.node_id: peer for peer in peers}
    missing = [by_id.get(one, PeerReach(one, "not dialed yet")) for one in voters if one != node_id]
    missing = [peer for peer in missing if not peer.is_reachable]
    reached = len(voters) - len(missing)
    text = (
        f"no leader is known in epoch {seen.epoch}:"
        f" {reached} of {len(voters)} voters can be reached"
    )
    if reached < needed:
        text += f", {needed} are needed"
        if needed > len(voters) // 2 + 1:
            text += FOUNDING
    else:
        text += ", which is enough for an election"
    if missing:
        text += "; " + "; ".join(_lost(peer) for peer in missing)
    return text


def _lost(peer: PeerReach) -> str:
    return f"node {peer.node_id} for {peer.for_ms / 1000:.1f} s: {peer.reason}"


def log_stall(decider: Decider, now: float, journal: Journal) -> None:
    """Log the brokers that hold LAO back, and the time when it moves again."""
    lao = decider.state.log.lao
    # Without members no write waits.
    reason = lao.unknown_reason if lao.lao < 0 and lao.members else ""
    news = decider.state.lao_stall.update(
        now, lao.lao, decider.state.log.committed.offset, lao.held_back_by(), reason
    )
    if news is None:
        return
    for_ms = round(news.for_s * 1000)
    if news.by or news.reason:
        journal.note(
            Kind.LAO_STALLED,
            offset=lao.lao,
            brokers=",".join(map(str, news.by[:10])),
            reason=news.reason,
        )
    else:
        journal.note(Kind.LAO_RESUMED, offset=lao.lao, stood_ms=for_ms)
    if news.reason:
        log.warning("the lowest acknowledged offset is unknown", reason=news.reason, for_ms=for_ms)
    elif news.by:
        applied = {broker_id: lao.applied_of(broker_id) for broker_id in news.by[:10]}
        log.warning(
            "the lowest acknowledged offset is held back",
            lowest_acknowledged_offset=lao.lao if lao.lao >= 0 else None,
            high_watermark=decider.state.log.committed.offset + 1,
            applied=applied,
            for_ms=for_ms,
        )
    else:
        log.info(
            "the lowest acknowledged offset advances again",
            lowest_acknowledged_offset=lao.lao,
            stood_ms=for_ms,
        )


SLOW_FLUSH_S = 0.5
STALL_S = 1.0
"""Minimum length, in seconds, of a stall that is logged (a disk call, a silent peer, a missing
leader).
"""
LOOP_GAP_S = 0.5
TICK_S = 0.1
"""Interval of the housekeeping, in seconds."""
_CAMPAIGNS = ("prospective", "candidate")
_SLOW_FROM = bisect_left(LATENCY_BOUNDS_S, SLOW_FLUSH_S) + 1


class NodeLife:
    """Writes the events of one node's life to its log and journal. A ``Chore`` of the
    housekeeping.
    """

    def __init__(
        self, node: ControllerNode, snapshots: SnapshotGenerator, store: LogStore, journal: Journal
    ) -> None:
        self._node, self._snapshots, self._store, self._journal = node, snapshots, store, journal
        self._ticked_at: float | None = None
        self._campaign: tuple[int, str] | None = None
        self._outage_said = False
        self._lost: set[int] = set()
        self._lost_at: dict[int, float] = {}
        self._slow = 0
        self._stalled = self._low = self._decides = False
        self._refusal = ""
        self._taken = self._loaded = 0
        self._log_start: int | None = None

    # --- as it happens ---------------------------------------------------------------------------

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Log another leader; -1 for none, which ``outage`` logs if it lasts."""
        if leader_id not in (-1, self._node.quorum.node_id):
            self._journal.note(Kind.LEADER_CHANGED, epoch=epoch, leader_id=leader_id)

    def became_leader(self, epoch: int, start_offset: int) -> None:
        """Log that this node leads."""
        reason = self._node.replica.core.campaign_reason
        self._journal.note(
            Kind.BECAME_LEADER, epoch=epoch, reason=reason, start_offset=start_offset
        )

    def lost_leadership(self, epoch: int, reason: str, *, handed_over: bool) -> None:
        """Log that this node no longer leads."""
        self._decides = False
        self._journal.note(
            Kind.LOST_LEADERSHIP, epoch=epoch, reason=reason, handed_over=handed_over
        )

    # --- once a tick -----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """See ``Chore``."""
        last, self._ticked_at = self._ticked_at, now
        if last is not None and now - last > TICK_S + LOOP_GAP_S:
            gap_ms = round((now - last - TICK_S) * 1000)
            self._journal.note(Kind.LOOP_STALL, gap_ms=gap_ms)
        self._look_at_role()
        self._look_at_peers(now)
        self._look_at_disk()
        self._look_at_snapshots()

    def _look_at_role(self) -> None:
        node = self._node
        core = node.replica.core
        campaign = (core.epoch, core.campaign_reason) if core.role in _CAMPAIGNS else None
        if campaign is not None and (self._campaign is None or self._campaign[1] != campaign[1]):
            self._journal.note(
                Kind.CAMPAIGN_BEGAN,
                epoch=core.epoch,
                reason=core.campaign_reason,
                last_leader_id=node.leader_id,
            )
        if campaign is not None or core.campaign_reason == "":
            self._campaign = campaign
        decides = node.decider is not None
        if decides and not self._decides and node.leadership is not None:
            self._journal.note(
                Kind.ACTIVE_CONTROLLER,
                epoch=node.leadership.epoch,
                offset=node.leadership.log.pending.offset,
            )
        self._decides = decides

    def outage(self, reason: str) -> None:
        """Log that no leader has been known for a second, with the reason.

        Called repeatedly while that lasts, and with "" when a leader is known.
        """
        if reason and not self._outage_said:
            epoch = self._node.replica.core.epoch
            self._journal.note(Kind.NO_LEADER, epoch=epoch, reason=reason)
        self._outage_said = bool(reason)

    def _look_at_peers(self, now: float) -> None:
        for peer in self._node.replica.peer_reach():
            known = peer.node_id in self._lost
            if not peer.is_reachable and not known and peer.for_ms >= STALL_S * 1000:
                self._lost.add(peer.node_id)
                self._lost_at[peer.node_id] = now - peer.for_ms / 1000
                self._journal.note(Kind.PEER_LOST, peer_id=peer.node_id, reason=peer.reason)
            elif peer.is_reachable and known:
                self._lost.discard(peer.node_id)
                after_ms = max(0, round((now - self._lost_at.pop(peer.node_id)) * 1000))
                self._journal.note(Kind.PEER_REGAINED, peer_id=peer.node_id, after_ms=after_ms)

    def _look_at_disk(self) -> None:
        node, journal = self._node, self._journal
        slow = sum(node.replica.sync_latency.counts[_SLOW_FROM:])
        if slow > self._slow:
            above_ms = round(SLOW_FLUSH_S * 1000)
            journal.note(Kind.SLOW_FLUSH, above_ms=above_ms, count=slow - self._slow)
        self._slow = slow
        busy_s = self._store.busy_s or 0.0
        if busy_s >= STALL_S and not self._stalled:
            journal.note(Kind.DISK_STALL, busy_ms=round(busy_s * 1000))
        self._stalled = busy_s >= STALL_S
        if node.space.low != self._low:
            self._low = node.space.low
            kind = Kind.SPACE_LOW if self._low else Kind.SPACE_REGAINED
            journal.note(kind, free_bytes=node.space.free_bytes)
        refusal = node.space.verdict.refusal
        if refusal and refusal != self._refusal:
            journal.note(Kind.WRITES_REFUSED, reason=refusal)
        elif self._refusal and not refusal:
            journal.note(Kind.WRITES_RESUMED)
        self._refusal = refusal

    def _look_at_snapshots(self) -> None:
        node, made = self._node, self._snapshots
        newest = node.newest_snapshot
        if made.generated > self._taken and newest is not None:
            self._taken = made.generated
            self._journal.note(
                Kind.SNAPSHOT_TAKEN, end_offset=newest.end_offset, bytes=made.generated_bytes
            )
        if made.loaded > self._loaded and not node.loading:
            self._loaded = made.loaded
            self._journal.note(Kind.SNAPSHOT_LOADED, end_offset=node.committed.offset + 1)
        start = node.log_start_offset
        if self._log_start is not None and start > self._log_start:
            self._journal.note(Kind.LOG_START_ADVANCED, offset=start)
        self._log_start = start


def describe_quorum(service: ControllerService, listener: str = "") -> pb.DescribeQuorumResponse:
    """Return the reply to DescribeQuorum: this node's view, with the others' progress if it leads.

    ``listener``: name of the listener that received the request; the endpoints returned are those
    of the same name.
    """
    quorum = service.quorum
    seen = service.replica.core.describe(service.node.now())
    low = {quorum.node_id: service.node.space.low}
    leadership, image = service.node.leadership, service.image
    log_hash = service.node.committed.log_hash
    features = image.features
    known = {replica.node_id: replica for replica in seen.voters}
    reach = {peer.node_id: peer for peer in service.replica.peer_reach()}
    decider = service.node.decider
    return pb.DescribeQuorumResponse(
        cluster_id=quorum.cluster_id,
        node_id=quorum.node_id,
        directory_id=quorum.directory_id,
        role=seen.role,
        leader_id=seen.leader_id,
        leader_epoch=seen.epoch,
        voted_id=seen.voted_id,
        log_start_offset=seen.log_start_offset,
        log_end_offset=seen.log_end_offset,
        durable_end_offset=seen.flushed_end_offset,
        high_watermark=seen.high_watermark,
        voters=[
            _voter(
                voter,
                known.get(voter.node_id),
                listener,
                low=low,
                reach=reach.get(voter.node_id, PeerReach(voter.node_id)),
            )
            for voter in seen.voter_set
        ],
        observers=[
            _observer(replica, service.replica.fetch_address(replica.node_id, replica.directory_id))
            for replica in seen.observers
        ],
        lowest_acknowledged_offset=service.node.lowest_acknowledged_offset,
        writes_refused=service.node.space.verdict.refusal if leadership is not None else "",
        lao_unknown_reason=leadership.log.lao.unknown_reason
        if leadership is not None
        else "this node is not the leader",
        generation=service.node.committed_generation,
        previous_generations=service.node.previous_generations,
        snapshots=[
            pb.SnapshotId(end_offset=one.end_offset, epoch=one.epoch)
            for one in service.replica.snapshots.ids
        ],
        voters_offset=seen.voters_offset,
        leader_endpoint=service.node.leader_endpoint(seen.leader_id, listener),
        features=[
            pb.FeatureState(
                name=name,
                finalized_level=features.get(name, 0),
                min_supported_version=lowest,
                max_supported_version=highest,
            )
            for name, (lowest, highest) in sorted(known_features().items())
        ],
        image_offset=image.offset,
        image_epoch=image.epoch,
        state_hash=image.state_hash.to_bytes(16, "big"),
        log_hash_begin_offset=log_hash.begin_offset if log_hash.is_known else 0,
        log_hash=log_hash.digest if log_hash.is_known else b"",
        clock_ahead_ms=service.replica.clock_ahead_ms,
        votes_needed=seen.votes_needed,
        autopilot=None if decider is None else decider.autopilot.describe(service.node.now()),
    )


def _voter(
    voter: Voter,
    progress: ReplicaDescription | None,
    listener: str,
    *,
    low: dict[int, bool],
    reach: PeerReach,
) -> pb.ReplicaState:
    if progress is None:
        progress = ReplicaDescription(voter.node_id, voter.directory_id, -1, -1, -1)
    endpoint = endpoint_on(voter.endpoint, listener)
    shown = _replica(progress, endpoint, low=low.get(voter.node_id, progress.low_on_space))
    shown.endpoints = voter.endpoint
    if not reach.is_reachable:
        shown.unreachable_ms, shown.unreachable_reason = reach.for_ms, printable(reach.reason)
    return shown


def _observer(replica: ReplicaDescription, address: str) -> pb.ReplicaState:
    shown = _replica(replica, "", low=replica.low_on_space)
    shown.connected_from = printable(address)
    return shown


def _replica(replica: ReplicaDescription, endpoint: str, *, low: bool) -> pb.ReplicaState:
    return pb.ReplicaState(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        endpoint=endpoint,
        log_end_offset=replica.log_end_offset,
        last_fetch_age_ms=replica.last_fetch_age_ms,
        last_caught_up_age_ms=replica.last_caught_up_age_ms,
        max_metadata_version=replica.max_metadata_version,
        low_on_space=low,
    )


def ready(service: ControllerService) -> tuple[bool, str]:
    """Return whether this node can serve, and why.

    It can if it leads, has claimed, and hears a majority of the voters within the fetch timeout, or
    if it follows a leader that answers its fetches.
    """
    if service.node.loading:
        return False, "loading the snapshot at which its log begins"
    leadership, epoch, leader = (
        service.node.leadership,
        service.node.controller_epoch,
        service.node.leader_id,
    )
    if conflict := service.replica.core.log_conflict:
        return False, conflict
    also = f"; {service.log_contradiction}" if service.log_contradiction else ""
    seen = service.replica.describe(service.node.now())
    if leadership is not None:
        if leadership.decider is not None:
            if unheard := _unheard_majority(seen, service.node.quorum.fetch_timeout_ms):
                return False, f"leads epoch {epoch}, but {unheard}"
            refusal = service.node.space.verdict.refusal
            if refusal:
                also = f"; writes are refused: {refusal}{also}"
            return True, f"active controller of epoch {epoch}{also}"
        return (
            False,
            f"claiming epoch {epoch}: folding the log, at offset {leadership.log.pending.offset}",
        )
    role = service.replica.core.role
    is_spare = role == "observer" and leader >= 0 and service.quorum.is_spare
    if leader < 0 or (role != "follower" and not is_spare):
        # A candidate still remembers the former leader.
        if role == "observer" and leader >= 0:
            # Not ready: if another node were stopped because this one is up, the quorum would stop.
            return False, (
                f"following node {leader} in epoch {epoch} as an observer, not as a voter:"
                " run raftlog quorum add-voter"
            )
        last = f"; the last leader was node {leader}" if leader >= 0 else ""
        why = service.node.directory.outage or f"no leader is known in epoch {epoch}"
        return False, f"{why}; this node is {role}{last}"
    if not seen.hears_leader:
        lost = [one for one in service.replica.peer_reach() if one.node_id == leader]
        since = "" if not lost or lost[0].is_reachable else f": {_lost(lost[0])}"
        return False, f"following node {leader} in epoch {epoch}, which answers no fetch{since}"
    if service.node.committed_end < 0:
        return False, f"following node {leader}, but the high watermark is not known yet"
    if is_spare:
        voters = service.image.voters
        if voters is not None and (
            len(voters.voters) < voters.seats
            or any(one.id == service.quorum.node_id for one in voters.voters)
        ):
            # Not ready: as above.
            why = "autopilot will make it a voter"
            return False, f"following node {leader} in epoch {epoch}: {why}"
        also = f" as a spare{also}"
    return True, f"following node {leader} in epoch {epoch}{also}"


def _unheard_majority(seen: QuorumDescription, fetch_timeout_ms: int) -> str:
    """Return for how long a leader has not heard a majority of the voters, or "" if it hears
    one.
    """
    ages_ms = sorted(one.last_fetch_age_ms for one in seen.voters if one.last_fetch_age_ms >= 0)
    needed = len(seen.voters) // 2 + 1
    if len(ages_ms) < needed:
        return "no majority of the voters has fetched from it yet"
    age_ms = ages_ms[needed - 1]
    if age_ms <= fetch_timeout_ms:
        return ""
    return f"no majority of the voters has fetched from it for {age_ms / 1000:.1f} s"


def status(service: ControllerService) -> dict[str, object]:
    """Return the facts that an operator needs first."""
    return {
        "role": service.replica.core.role,
        "leader": service.node.leader_id,
        "epoch": service.node.controller_epoch,
        "log start": service.replica.log_start_offset,
        "log end": service.replica.log_end_offset,
        "high watermark": service.node.committed_end,
        "lowest acknowledged offset": service.node.lowest_acknowledged_offset,
        "brokers": len(service.image.brokers),
        "topics": len(service.image.topics),
    }


def known_brokers(service: ControllerService) -> controller_pb2.DescribeBrokersResponse:
    """Return the active controller's facts on brokers, for its metrics; empty on any other node."""
    decider = service.node.decider
    if decider is None:
        return controller_pb2.DescribeBrokersResponse()
    found: controller_pb2.DescribeBrokersResponse = describe_brokers(
        decider.state, service.node.now()
    ).body
    return found
