"""LowestAcknowledgedOffset: the highest offset that every unfenced broker has applied and made
readable.

Theory of operation. LAO is the minimum of what the *members* have applied. A member is a
registration (broker id, broker epoch) that is unfenced in **any** image from the high watermark to
the log end: it counts from the moment its unfencing is proposed and stops counting when its fencing
is committed. Each of those images may be the one that a broker, or the next controller, acts on.
The images between the batches of an inherited tail count too: [tail: unfence B, fence B. Neither
the committed nor the pending image shows B; the tail is cut between the two by a failover, and LAO
was too high].

Three rules keep LAO from ever going back, through failover too:

* LAO is unknown until every member has reported in *this* controller epoch. Then the minimum cannot
  be below any LAO announced before, because each member had applied that offset before it was
  announced.
* A broker reports only under the highest controller epoch it has seen, and only reports under this
  controller's epoch count. Once a broker has accepted a controller, nothing that it applies later
  can move LAO at a deposed one.
* A broker joins only when it has applied LAO and the first record of this epoch. That record lies
  above every LAO that an earlier controller announced.

Offsets are inclusive, except the high watermark. -1 means unknown. Everything here is soft state of
one controller epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sortedcontainers import SortedList

from raftlog.metadata.causes import UNVOUCHED, cause_of
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType
from raftlog.metadata.versions import (
    BROKER_HEARTBEAT_VERSION,
    LAO_VERSION,
    METADATA_VERSION,
    heartbeats_in_force,
)

WAITING_MAX = 100
"""The maximum number of broker ids that an answer names."""

_MEMBERSHIP_TYPES = frozenset(
    (
        RecordType.REGISTER_BROKER,
        RecordType.UNREGISTER_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.FEATURE_LEVEL,
    )
)


@dataclass(slots=True, eq=False)
class _Registration:
    """One broker epoch of one broker, and what was reported under it in this controller epoch."""

    broker_id: int
    epoch: int
    legacy: bool
    unvouched: bool = False
    """It was unfenced while heartbeats were not in force, whatever it had applied.

    Only reports from ``_vouched_from`` on count.
    """
    member: bool = False
    leaves_at: int = -1
    """End (exclusive) of the batch whose commit ends the membership; -1: unfenced at the log
    end.
    """
    unfenced_from: int = -1
    """End (exclusive) of the batch that last unfenced it; -1: before the claim.

    Images from there to ``leaves_at`` show it unfenced.
    """
    applied: int = -1
    known_lao: int = -1
    parked: tuple[int, int] | None = None
    """(applied, known LAO) of a report above what is known as committed."""


_Position = tuple[int, int, int]
"""(offset, broker id, broker epoch): how far a broker is known to be."""


class LaoTracker:
    """LAO of one controller epoch. Pure; O(log brokers) a report."""

    def __init__(self, epoch: int, epoch_start_offset: int) -> None:
        """``epoch_start_offset``: the offset of this epoch's LeaderChange record."""
        self.epoch = epoch
        self.epoch_start_offset = epoch_start_offset
        self._high_watermark = 0
        self._log_end = 0
        self._floor = -1
        """The highest LAO of this epoch so far.

        It does not move while the minimum cannot rise, or while there is no member.
        """
        self._known_lao_floor = -1
        """The highest minimum of ``known_lao`` in this epoch: writes up to there may have been
        answered ``visible``.
        """
        self._features: dict[str, int] = {}
        self._off = False
        """Heartbeats are not in force at the log end: brokers join without having applied anything,
        and LAO is unknown.
        """
        self._off_from = epoch_start_offset
        """The offset at which ``_off`` became true, as far as this epoch knows."""
        self._vouched_from = epoch_start_offset
        """An offset above every LAO announced before heartbeats last came into force, as far as
        this epoch knows.
        """
        self._current: dict[int, _Registration] = {}
        """The registrations at the log end, by broker id."""
        self._registrations: dict[tuple[int, int], _Registration] = {}
        """The current registrations, and former ones that stay members until the batch that ends
        them is committed.
        """
        self._by_applied: SortedList[_Position] = SortedList()
        """(applied, broker id, broker epoch) of the members."""
        self._by_known_lao: SortedList[_Position] = SortedList()
        """(known LAO, broker id, broker epoch) of the members."""
        self.unparked = 0
        """How many parked reports have counted since: they may make a broker that waits to be
        unfenced ready.
        """
        self._parked: SortedList[_Position] = SortedList()
        """(offset, broker id, broker epoch): counts when the offset is committed."""
        self._leaving: deque[tuple[int, _Registration]] = deque()
        """(leaves_at, registration), in log order; out of date when leaves_at has changed since."""

    # --- the log ---------------------------------------------------------------------------------

    def seed(self, image: Image) -> None:
        """Begin with the committed image at the claim: each broker that is unfenced in it is a
        member. O(brokers), once an epoch.
        """
        self._features = {name: image.features[name] for name in image.features}
        self._off = not heartbeats_in_force(self._features)
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            self._register(
                broker_id, broker.epoch, broker.registration_version, broker.fenced, leaves_at=-1
            )
            self._current[broker_id].unvouched = broker.cause in UNVOUCHED
        self._log_end = image.offset + 1

    def proposed(self, records: Sequence[Record], base_offset: int) -> None:
        """One batch at the log end: first those of the inherited tail, then every one of this
        controller's own.

        Raises ValueError if a batch was left out: a membership change could hide in it.
        """
        if base_offset != self._log_end:
            raise ValueError(
                f"batch at offset {base_offset} does not follow the log end {self._log_end}"
            )
        self._log_end = base_offset + len(records)
        changed = False
        for record in records:
            if record.type in _MEMBERSHIP_TYPES:
                self._membership_changed(record.type, record.message, self._log_end)
                changed = True
        if changed:
            # The first member raises both minima at once: they are what the next broker to join is
            # checked against.
            self._advance()

    def committed(self, high_watermark: int) -> None:
        """Everything below ``high_watermark`` is committed: memberships end, parked reports count.

        Ignored until it covers the first record of this epoch. A new leader may know a lower high
        watermark than the one from which its predecessor announced LAO: [B's fencing was committed
        and LAO went on without B. The new controller does not know of the commit: LAO goes back to
        B's offset].
        """
        if high_watermark <= max(self.epoch_start_offset, self._high_watermark):
            return
        self._high_watermark = high_watermark
        while self._leaving and self._leaving[0][0] <= high_watermark:
            leaves_at, broker = self._leaving.popleft()
            if broker.leaves_at == leaves_at:
                self._end_membership(broker)
        while self._parked and self._parked[0][0] < high_watermark:
            _, broker_id, broker_epoch = self._parked.pop(0)
            broker = self._registrations[broker_id, broker_epoch]
            applied, known_lao = broker.parked or (-1, -1)
            broker.parked = None
            self.unparked += 1
            self._count(broker, applied, known_lao)
        self._advance()

    def _membership_changed(self, type_: int, message: Any, batch_end: int) -> None:
        if type_ == RecordType.FEATURE_LEVEL:
            if message.feature_level:
                self._features[message.name] = message.feature_level
            else:
                self._features.pop(message.name, None)
            self._heartbeats_changed(batch_end)
        elif type_ == RecordType.REGISTER_BROKER:
            self._register(
                message.broker_id,
                message.broker_epoch,
                message.registration_version,
                message.fenced,
                leaves_at=batch_end,
            )
        elif type_ == RecordType.UNREGISTER_BROKER:
            self._retire(self._current.pop(message.broker_id), batch_end)
        else:
            broker = self._current[message.broker_id]
            broker.unvouched = cause_of(message.cause, message.reason) in UNVOUCHED
            if message.HasField("fenced"):
                self._set_fenced(broker, message.fenced, batch_end)

    def _heartbeats_changed(self, batch_end: int) -> None:
        """A feature level was written: heartbeats may have come into force, or out of force.

        [LAO was 5; B joined with 3 applied while heartbeats were off: 5 must not be announced again
        before B has applied it.]
        """
        was_off, self._off = self._off, not heartbeats_in_force(self._features)
        if self._off and not was_off:
            self._off_from = batch_end - 1
        if was_off and not self._off:
            self._vouched_from = batch_end - 1
            for broker in self._registrations.values():
                if broker.unvouched:
                    self._restate(broker, -1)

    def _register(
        self, broker_id: int, epoch: int, version: int, fenced: bool, *, leaves_at: int
    ) -> None:
        """A new epoch starts without reports; the same epoch again only amends the registration."""
        broker = self._current.get(broker_id)
        if broker is None or broker.epoch != epoch:
            former, broker = broker, _Registration(broker_id, epoch, legacy=version == 0)
            self._current[broker_id] = self._registrations[broker_id, epoch] = broker
            if former is not None:
                self._retire(former, leaves_at)
        broker.legacy = version == 0
        self._set_fenced(broker, fenced, leaves_at)

    def _set_fenced(self, broker: _Registration, fenced: bool, batch_end: int) -> None:
        if not fenced:
            if not broker.member or broker.leaves_at >= 0:
                broker.unfenced_from = batch_end
            # An earlier fencing no longer ends the membership: an image above it shows the broker
            # unfenced.
            broker.leaves_at = -1
            if not broker.member:
                broker.member = True
                self._by_applied.add((broker.applied, broker.broker_id, broker.epoch))
                self._by_known_lao.add((broker.known_lao, broker.broker_id, broker.epoch))
        elif broker.member and broker.leaves_at < 0:
            broker.leaves_at = batch_end
            self._leaving.append((batch_end, broker))

    def _retire(self, broker: _Registration, batch_end: int) -> None:
        """End a registration that was replaced or unregistered.

        While it is a member, its process may still read and report.
        """
        self._set_fenced(broker, True, batch_end)
        if not broker.member:
            self._forget(broker)

    def _end_membership(self, broker: _Registration) -> None:
        broker.member, broker.leaves_at = False, -1
        self._by_applied.remove((broker.applied, broker.broker_id, broker.epoch))
        self._by_known_lao.remove((broker.known_lao, broker.broker_id, broker.epoch))
        if self._current.get(broker.broker_id) is not broker:
            self._forget(broker)

    def _forget(self, broker: _Registration) -> None:
        del self._registrations[broker.broker_id, broker.epoch]
        if broker.parked is not None:
            self._parked.remove((max(broker.parked), broker.broker_id, broker.epoch))

    # --- reports ---------------------------------------------------------------------------------

    def report(
        self, broker_id: int, broker_epoch: int, controller_epoch: int, applied: int, known_lao: int
    ) -> None:
        """Take the report in a fetch or heartbeat: how far a broker has applied, and the highest
        LAO that it was told.

        A report under another controller epoch is ignored: a lower one means that the broker has
        not accepted this controller yet, a higher one that this controller is deposed. A report
        under another broker epoch is ignored, and so is one beyond the log end: no broker can have
        applied that, and if it were parked it would keep true reports from counting. Late and
        repeated reports change nothing.
        """
        broker = self._registrations.get((broker_id, broker_epoch))
        if controller_epoch != self.epoch or broker is None or broker.legacy:
            return
        if max(applied, known_lao) >= self._log_end:
            return
        if max(applied, known_lao) < self._high_watermark:
            self._count(broker, applied, known_lao)
            self._advance()
        else:
            self._park(broker, applied, known_lao)

    def _park(self, broker: _Registration, applied: int, known_lao: int) -> None:
        if broker.parked is not None:
            self._parked.remove((max(broker.parked), broker.broker_id, broker.epoch))
            applied, known_lao = max(applied, broker.parked[0]), max(known_lao, broker.parked[1])
        broker.parked = (applied, known_lao)
        self._parked.add((max(applied, known_lao), broker.broker_id, broker.epoch))

    def _count(self, broker: _Registration, applied: int, known_lao: int) -> None:
        if applied > broker.applied and not (broker.unvouched and applied < self._vouched_from):
            self._restate(broker, applied)
        if known_lao > broker.known_lao:
            if broker.member:
                self._by_known_lao.remove((broker.known_lao, broker.broker_id, broker.epoch))
                self._by_known_lao.add((known_lao, broker.broker_id, broker.epoch))
            broker.known_lao = known_lao

    def _restate(self, broker: _Registration, applied: int) -> None:
        if broker.member:
            self._by_applied.remove((broker.applied, broker.broker_id, broker.epoch))
            self._by_applied.add((applied, broker.broker_id, broker.epoch))
        broker.applied = applied

    def _advance(self) -> None:
        if self._by_applied:
            self._floor = max(self._floor, self._by_applied[0][0])
            self._known_lao_floor = max(self._known_lao_floor, self._by_known_lao[0][0])

    def may_join(self, broker_id: int) -> bool:
        """Whether unfencing this broker now keeps every promise made so far.

        Ask at every report, and propose at once if so.

        The broker must have applied LAO and, because LAO may not be known yet, the first record of
        this epoch. It must have been told an LAO that covers every write that may have been
        answered ``visible`` [members were told 5; B was told 3 while it was fenced, joins, and
        reads from 3]. Without members it must have been told LAO itself. A broker with a legacy
        registration may always join: it does not report what it has applied, and while it is a
        member LAO is unknown.
        """
        broker = self._current.get(broker_id)
        if broker is None:
            return False
        if broker.legacy:
            return True
        if self._off:
            # The broker must know that LAO counts for nothing now [B does not know that it was
            # fenced at 7, reads at LAO 5, and is unfenced again]. A process that registered since
            # then has never been told an LAO.
            return broker.epoch > self._off_from or broker.applied >= self._off_from
        if broker.applied < max(self._floor, self.epoch_start_offset):
            return False
        # If LAO is not known in this epoch, no broker was told one in it. An LAO of an earlier
        # epoch counts for nothing at a broker that this epoch unfences.
        return self._floor < 0 or broker.known_lao >= (
            self._known_lao_floor if self._by_known_lao else self._floor
        )

    # --- answers ---------------------------------------------------------------------------------

    @property
    def lao(self) -> int:
        """LAO, inclusive; -1 if unknown.

        Always below the high watermark; a known LAO is never lower than an earlier one.
        """
        silent = self._by_applied and self._by_applied[0][0] < 0
        return -1 if self._off or silent or self._level_is_zero else self._floor

    @property
    def high_watermark(self) -> int:
        """The high watermark as known in this epoch, exclusive; 0: nothing known yet."""
        return self._high_watermark

    @property
    def _level_is_zero(self) -> bool:
        """Whether ``lao.version`` is not finalized.

        False for a log without any levels, which has not begun.
        """
        return LAO_VERSION not in self._features and METADATA_VERSION in self._features

    @property
    def unknown_reason(self) -> str:
        """Why LAO is unknown, for people; empty if it is known."""
        if self.lao >= 0:
            return ""
        if not self._high_watermark:
            return f"no record of controller epoch {self.epoch} is committed yet"
        if self._off:
            return (
                f"{BROKER_HEARTBEAT_VERSION} is 0: brokers {self.members[:WAITING_MAX]} do not"
                " heartbeat"
            )
        if self._level_is_zero:
            return f"{LAO_VERSION} is 0"
        if not self._by_applied:
            return "no broker is unfenced"
        silent = list(self._by_applied.irange(maximum=_below(0)))
        legacy = [
            broker_id
            for _, broker_id, epoch in silent
            if self._registrations[broker_id, epoch].legacy
        ]
        if legacy:
            return (
                f"brokers {_ids(legacy)} have a legacy registration, which reports no applied"
                " offset"
            )
        return (
            f"brokers {_ids(b for _, b, _ in silent)} have not reported in controller epoch"
            f" {self.epoch}"
        )

    @property
    def min_known_lao(self) -> int:
        """The lowest LAO told to a member; -1 if a member was told none, if there is no member, or
        if heartbeats are not in force.
        """
        return self._by_known_lao[0][0] if self._by_known_lao and not self._off else -1

    @property
    def members(self) -> Sequence[int]:
        """Ids of the brokers that count, ascending. O(members)."""
        return sorted({broker_id for _, broker_id, _ in self._by_applied})

    def held_back_by(self) -> list[int]:
        """Members with the lowest applied offset, ascending, if it is below the last committed
        one.
        """
        if not self._by_applied or self._by_applied[0][0] >= self._high_watermark - 1:
            return []
        lowest = self._by_applied[0][0]
        return sorted({b for _, b, _ in self._by_applied.irange(maximum=_below(lowest + 1))})

    def unfenced_throughout(self, broker_id: int) -> bool:
        """Whether *every* image from the high watermark to the log end shows the present
        registration unfenced.

        Only then may the broker get a read lease: whatever part of the log survives a failover, the
        broker is a member.
        """
        broker = self._current.get(broker_id)
        return (
            broker is not None
            and broker.member
            and broker.leaves_at < 0
            and broker.unfenced_from <= self._high_watermark
            and self._high_watermark > 0
        )

    def waiting_for_applied(self, offset: int) -> list[int]:
        """Members that have not applied ``offset`` yet: the first 100, ascending."""
        return _ids(b for _, b, _ in self._by_applied.irange(maximum=_below(offset)))

    def waiting_for_known_lao(self, offset: int) -> list[int]:
        """Members that were not told an LAO that covers ``offset`` yet: the first 100,
        ascending.
        """
        return _ids(b for _, b, _ in self._by_known_lao.irange(maximum=_below(offset)))

    def applied_of(self, broker_id: int) -> int:
        """What a broker reported as applied in this epoch, under its present registration; -1:
        nothing yet.
        """
        broker = self._current.get(broker_id)
        return -1 if broker is None else broker.applied

    def known_lao_of(self, broker_id: int) -> int:
        """What a broker reported as told in this epoch, under its present registration; -1: nothing
        yet.
        """
        broker = self._current.get(broker_id)
        return -1 if broker is None else broker.known_lao

    def applied_offsets(self) -> Iterator[tuple[int, int, int]]:
        """(broker id, broker epoch, applied) of each broker that has reported, member or not,
        ascending. O(brokers).
        """
        for broker_id in sorted(self._current):
            broker = self._current[broker_id]
            if broker.applied >= 0:
                yield broker_id, broker.epoch, broker.applied


def _below(offset: int) -> _Position:
    """Above every broker that stands below ``offset``, and below all others: no id is negative."""
    return offset, -1, -1


def _ids(broker_ids: Iterable[int]) -> list[int]:
    return sorted(set(broker_ids))[:WAITING_MAX]
