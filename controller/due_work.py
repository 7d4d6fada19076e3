"""Work of the active controller that no request asks for: it is due by time, by a report, or by the
log itself.

No I/O, no clock, no randomness.
"""

from __future__ import annotations

import math

from controller.decision import ProgressRecorded, Write
from controller.decisions.acls import may_do_everything
from controller.decisions.brokers.heartbeats import (
    fence_gone,
    fence_silent,
    fence_stuck,
    may_unfence,
    on_probation,
    unfence_decision,
)
from controller.decisions.brokers.hostnames import HostnameCollector
from controller.decisions.clients.clients import ClientExpiry
from controller.decisions.clients.key_values import expire_lease
from controller.decisions.partitions.leader_elections import LeaderBalance
from controller.decisions.quorum.membership import Membership
from controller.state.state import ControllerState
from raftlog.metadata import versions
from raftlog.metadata.entities import Broker
from raftlog.metadata.records import record
from raftlog.wire.records.v1 import records_pb2 as pb

LOOK_AT_ALL_S = 0.1
"""Interval in seconds at which all brokers that wait to be unfenced are examined, for changes that
no report shows: a probation that ends.
"""


class DueWork:
    """The decisions on due work, made from ``state``; the shell adds the records and notifies the
    decider.
    """

    def __init__(self, state: ControllerState, membership: Membership) -> None:
        self._state = state
        self._membership = membership
        self._look_at_all = now = state.began_at
        self._unparked = state.log.lao.unparked
        self._next_due = -math.inf
        """Time before which nothing becomes due: kept, so that a write need not query each kind of
        work. Only ``look``, ``at`` and LAO bring it forward.
        """
        self._lao = state.log.lao.lao
        self._expiry = ClientExpiry(state.settings, now)
        self._balance = LeaderBalance(state.settings, now)
        self._hostnames = HostnameCollector(now)

    def look(self) -> None:
        """Note that something may be due now."""
        self._next_due = -math.inf

    def at(self, time: float) -> None:
        """Note that something may become due at ``time``."""
        self._next_due = min(self._next_due, time)

    def is_urgent(self) -> bool:
        """Return whether ``next`` may have work that must not wait for a timer: the bootstrap,
        leader epochs of an earlier generation, a broker that is ready to be unfenced, or half
        fenced.
        """
        state, looks = self._state, self._wants_a_look()
        if self._next_due > -math.inf and not looks:
            return False
        return (
            self._needs_bootstrap()
            or state.epoch_floor.is_due(state.log.pending)
            or bool(state.isr_removals)
            or (looks and self._next_admitted() is not None)
        )

    def _wants_a_look(self) -> bool:
        """Return whether LAO, or a broker that waits to be unfenced, has new information."""
        state = self._state
        return bool(state.to_look_at) or state.log.lao.unparked != self._unparked

    def next(self, now: float, *, fencing_only: bool = False) -> Write | None:
        """Return the next work, always with records; None: nothing is due. The caller proposes it
        and calls again.

        ``fencing_only``: the disks are full; only fencing, which is bounded.
        """
        if self._is_quiet(now):
            return None
        found = self._find(now, fencing_only=fencing_only)
        self._next_due = -math.inf if found is not None else self._earliest()
        return found

    def _is_quiet(self, now: float) -> bool:
        """Return whether ``next`` has nothing to do."""
        return now < self.next_deadline() and not self._wants_a_look()

    def next_deadline(self) -> float:
        """Return a time before which ``next`` has nothing to do, if nothing happens. O(1)."""
        log, progress = self._state.log, self._state.progress
        count = log.end_offset - progress.observed_end
        if count > 0:
            # Everything but its own records is news to the progress policy.
            progress.observe_news(count, progress.observed_end)
            progress.observed_end = log.end_offset
        if log.lao.lao != self._lao:
            self._lao = log.lao.lao
            self._next_due = min(self._next_due, progress.next_due(self._lao))
        return self._next_due

    def _find(self, now: float, *, fencing_only: bool = False) -> Write | None:
        state, pending = self._state, self._state.log.pending
        if now >= state.absent_ids.next_check:
            # The committed image: until then an operator's request may be lost, and the broker that
            # it removes is at work [the commit takes a second, and its id is assigned to another].
            state.absent_ids.look(state.log.committed, state.sessions.is_alive, now)
        if fencing_only:
            return (
                self.begin_generation()
                or fence_silent(state, now)
                or fence_gone(state, now)
                or state.isr_removals.due(pending)
                or fence_stuck(state, now)
            )
        return (
            self.bootstrap()
            or self.begin_generation()
            or fence_silent(state, now)
            or fence_gone(state, now)
            or state.isr_removals.due(pending)
            or self.unfence_ready(now)
            or fence_stuck(state, now)
            or self._membership.first_set(now)
            or self._write_progress(now)
            or self._expiry.due(pending, now)
            or self._balance.due(pending, state.log.committed, now)
            or self._hostnames.due(pending, now)
            or expire_lease(state, now)
        )

    def _earliest(self) -> float:
        """Return the earliest deadline of all kinds of work."""
        state = self._state
        if (
            self._needs_bootstrap()
            or state.isr_removals
            or state.epoch_floor.is_due(state.log.pending)
            or len(state.log.pending.clients) > state.settings.max_clients
        ):
            return -math.inf
        expiry = state.sessions.next_expiry()
        return min(
            state.lag_watch.next_check,
            state.gone.next_check,
            self._membership.next_deadline() if self._membership.is_static else math.inf,
            self._expiry.next_check,
            self._balance.next_deadline(),
            self._hostnames.next_check,
            self._look_at_all if state.wants_unfence else math.inf,
            state.absent_ids.next_check,
            math.inf if expiry is None else expiry[0],
            state.progress.next_due(state.log.lao.lao),
            state.leases.next_due(),
        )

    def bootstrap(self) -> Write | None:
        """Return the feature levels that a new cluster starts with.

        The log itself decides whether they are missing: a flag would outlive a lost epoch.
        """
        if not self._needs_bootstrap():
            return None
        level = self._state.settings.bootstrap_metadata_version or versions.LATEST_METADATA_VERSION
        levels = {
            versions.METADATA_VERSION: level,
            versions.LAO_VERSION: 1,
            versions.BROKER_HEARTBEAT_VERSION: 1,
        }
        records = [
            record(pb.FeatureLevelRecord(name=name, feature_level=level))
            for name, level in levels.items()
        ]
        for principal in self._state.settings.bootstrap_super_users:
            records += may_do_everything(principal, self._state.rng)
        return Write(records)

    def begin_generation(self) -> Write | None:
        """Return the next batch for a log that was taken back: all brokers are fenced, and leader
        epochs raised above all earlier ones.
        """
        return self._state.epoch_floor.due(self._state)

    def unfence_ready(self, now: float) -> Write | None:
        """Unfence a broker that has asked for it and has become ready."""
        if self._state.wants_unfence and now >= self._look_at_all:
            self._look_at_all = now + LOOK_AT_ALL_S
            self._state.to_look_at.update(dict.fromkeys(sorted(self._state.wants_unfence)))
        while (broker := self._next_admitted()) is not None:
            if not on_probation(self._state, broker, now):
                return unfence_decision(self._state, broker)
            del self._state.to_look_at[broker.id]
        return None

    def _needs_bootstrap(self) -> bool:
        return versions.METADATA_VERSION not in self._state.log.pending.features

    def _next_admitted(self) -> Broker | None:
        """Return a fenced broker that has asked to be unfenced and has applied enough, among the
        brokers with new reports.
        """
        state = self._state
        to_look_at = state.to_look_at
        if state.log.lao.unparked != self._unparked:
            self._unparked = state.log.lao.unparked
            to_look_at.update(dict.fromkeys(sorted(state.wants_unfence)))
        while to_look_at:
            broker_id = next(iter(to_look_at))
            broker = state.log.pending.brokers[broker_id]
            if may_unfence(state, broker):
                return broker
            del to_look_at[broker_id]
        return None

    def _write_progress(self, now: float) -> Write | None:
        log = self._state.log
        # Images are made chunk by chunk: brokers, and LAO, may be at a committed record of the next
        # one.
        high_watermark = max(log.committed.offset + 1, log.lao.high_watermark)
        message = self._state.progress.decide(
            log.lao.lao, high_watermark, log.lao.applied_offsets(), now
        )
        if message is None:
            return None
        if log.log_hash.is_known:
            message.log_hash_begin_offset = log.log_hash.begin_offset
            message.log_hash_end_offset = log.log_hash.end_offset
            message.log_hash = log.log_hash.digest
        self._state.sketches.into(message)
        return Write([record(message)], effects=(ProgressRecorded(message),))
