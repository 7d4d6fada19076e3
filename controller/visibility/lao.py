"""LowestAcknowledgedOffset (LAO): the highest offset that every unfenced broker has applied and
made readable.

Theory of operation. LAO is the lowest offset applied by a *member*. A member is a registration
(broker id, broker epoch) that is unfenced in **any** image from the high watermark to the log end:
it counts from the moment its unfencing is proposed and stops counting when its fencing is
committed. Each of those images may be the one that a broker, or the next controller, acts on. The
images between the batches of an inherited tail count, too. (Suppose the tail unfences B and then
fences it. Neither the committed nor the pending image shows B unfenced; if a failover truncates the
tail between the two, LAO was too high.)

Three rules keep LAO from ever decreasing, even through failover:

* LAO is unknown until every member has reported in *this* controller epoch. Then the minimum cannot
  be below any LAO announced earlier, because each member had applied that offset before it was
  announced.
* A broker reports only under the highest controller epoch it has seen, and only reports under this
  controller's epoch count. Once a broker has accepted a controller, nothing that it applies later
  can move a deposed controller's LAO.
* A broker joins only when it has applied LAO and the first record of this epoch. That record lies
  above every LAO that an earlier controller announced.

Offsets are inclusive, except the high watermark, the log end and the ends of batches. -1 means
unknown. Everything here is soft state of one controller epoch.

:class:`Registrations` keeps the members and their offsets. :class:`LaoView` is for readers;
:class:`LaoTracker` updates LAO from the log of the epoch and the brokers' reports.
:class:`Positions` groups brokers by offset, as they move together from one offset to the next: most
moves take a few steps in two sets, however many brokers there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sortedcontainers import SortedList

from raftlog.batch import Body
from raftlog.metadata.entities import UNVOUCHED
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType, parse_body
from raftlog.metadata.versions import (
    BROKER_HEARTBEAT_VERSION,
    LAO_VERSION,
    METADATA_VERSION,
    heartbeats_enabled,
)

Position = tuple[int, int, int]
"""A broker's known progress: (offset, broker id, broker epoch)."""
NOWHERE = 1 << 63
"""Greater than every offset; the lowest offset of an empty set."""


class Positions:
    """A sorted set of positions. Pure.

    A change takes O(log distinct offsets), plus a step for each offset in between.
    """

    __slots__ = ("_at", "_offsets", "count", "lowest")

    def __init__(self) -> None:
        self._at: dict[int, set[tuple[int, int]]] = {}
        """Offset -> the (broker id, broker epoch) of the brokers at it."""
        self._offsets: list[int] = []
        """The keys of ``_at``, ascending."""
        self.count = 0
        """Number of positions. An attribute, like ``lowest``, because each broker's report reads
        both.
        """
        self.lowest = NOWHERE
        """The lowest offset, or NOWHERE."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Position]:
        """Iterate in ascending order."""
        return self.until(self._offsets[-1]) if self._offsets else iter(())

    def until(self, offset: int) -> Iterator[Position]:
        """Yield the positions at ``offset`` and below, ascending."""
        for each in self._offsets[: bisect_right(self._offsets, offset)]:
            for broker_id, epoch in sorted(self._at[each]):
                yield each, broker_id, epoch

    def add(self, position: Position) -> None:
        """Add a broker that has no position."""
        offset, broker_id, epoch = position
        there = self._at.get(offset)
        if there is None:
            there = self._at[offset] = set()
            offsets = self._offsets
            if offsets and offset < offsets[-1]:
                offsets.insert(bisect_left(offsets, offset), offset)
            else:
                offsets.append(offset)
            self.lowest = offsets[0]
        there.add((broker_id, epoch))
        self.count += 1

    def remove(self, position: Position) -> None:
        """Remove a position.

        Raises KeyError if it does not exist.
        """
        offset, broker_id, epoch = position
        there = self._at[offset]
        there.remove((broker_id, epoch))
        self.count -= 1
        if not there:
            del self._at[offset]
            offsets = self._offsets
            del offsets[bisect_left(offsets, offset)]
            self.lowest = offsets[0] if offsets else NOWHERE

    def move(self, position: Position, offset: int) -> None:
        """Move a broker to another offset, usually one where other brokers are, or above all of
        them.

        Raises KeyError if the position does not exist.
        """
        before, broker_id, epoch = position
        to, there = self._at.get(offset), self._at[before]
        if to is None or len(there) == 1:
            self.remove(position)
            self.add((offset, broker_id, epoch))
            return
        broker = (broker_id, epoch)
        there.remove(broker)
        to.add(broker)


@dataclass(slots=True, eq=False)
class Registration:
    """One broker epoch of a broker, and its reports in this controller epoch."""

    broker_id: int
    epoch: int
    legacy: bool
    """Whether the broker reports no applied offset."""
    unvouched: bool = False
    """Whether the broker was unfenced while heartbeats were disabled, and so without a check of
    what it had applied.
    """
    member: bool = False
    leaves_at: int = -1
    """End (exclusive) of the batch whose commit ends the membership; -1 if unfenced at the log
    end.
    """
    unfenced_from: int = -1
    """End (exclusive) of the batch that last unfenced the broker; -1 if before the claim.

    Images from there to ``leaves_at`` show it unfenced.
    """
    applied: int = -1
    """Highest applied offset that counts (inclusive); -1 if none was reported."""
    known_lao: int = -1
    """Highest received LAO that counts (inclusive); -1 if none was reported."""
    parked: tuple[int, int] | None = None
    """(applied, known LAO), both inclusive, of a report above the known high watermark; None if
    there is none.
    """


class Registrations:
    """All registrations of one controller epoch.

    O(log brokers) per change.
    """

    def __init__(self) -> None:
        self.current: dict[int, Registration] = {}
        """Broker id -> its registration at the log end."""
        self.by_id_and_epoch: dict[tuple[int, int], Registration] = {}
        """The current registrations, and former ones that stay members until the batch that ends
        them is committed.
        """
        self.by_applied = Positions()
        """(applied, broker id, broker epoch) of the members."""
        self.by_known_lao = Positions()
        """(known LAO, broker id, broker epoch) of the members."""
        self._parked: SortedList[Position] = SortedList()
        """(offset, broker id, broker epoch) of parked reports; each counts once its offset
        (inclusive) is committed.
        """
        self._leaving: deque[tuple[int, Registration]] = deque()
        """(leaves_at, registration), in log order; an entry is obsolete if the registration's
        leaves_at has changed since.
        """

    # --- the log ---------------------------------------------------------------------------------

    def register(
        self, broker_id: int, epoch: int, version: int, fenced: bool, *, leaves_at: int
    ) -> Registration:
        """Register a broker.

        A new epoch starts without reports; the same epoch only amends the registration.
        """
        broker = self.current.get(broker_id)
        if broker is None or broker.epoch != epoch:
            former, broker = broker, Registration(broker_id, epoch, legacy=version == 0)
            self.current[broker_id] = self.by_id_and_epoch[broker_id, epoch] = broker
            if former is not None:
                self._retire(former, leaves_at)
        broker.legacy = version == 0
        self.set_fenced(broker, fenced, leaves_at)
        return broker

    def unregister(self, broker_id: int, batch_end: int) -> None:
        """Unregister a broker, by the batch that ends at ``batch_end`` (exclusive)."""
        self._retire(self.current.pop(broker_id), batch_end)

    def set_fenced(self, broker: Registration, fenced: bool, batch_end: int) -> None:
        """Fence or unfence a broker, by the batch that ends at ``batch_end`` (exclusive)."""
        if not fenced:
            if not broker.member or broker.leaves_at >= 0:
                broker.unfenced_from = batch_end
            # An earlier fencing no longer ends the membership: an image above it shows the broker
            # unfenced.
            broker.leaves_at = -1
            if not broker.member:
                broker.member = True
                self.by_applied.add((broker.applied, broker.broker_id, broker.epoch))
                self.by_known_lao.add((broker.known_lao, broker.broker_id, broker.epoch))
        elif broker.member and broker.leaves_at < 0:
            broker.leaves_at = batch_end
            self._leaving.append((batch_end, broker))

    def end_memberships(self, high_watermark: int) -> None:
        """End each membership whose last batch ends at or below ``high_watermark`` (exclusive)."""
        while self._leaving and self._leaving[0][0] <= high_watermark:
            leaves_at, broker = self._leaving.popleft()
            if broker.leaves_at == leaves_at:
                self._end_membership(broker)

    def _retire(self, broker: Registration, batch_end: int) -> None:
        """End a registration that was replaced or unregistered.

        While it is a member, its process may still read and report.
        """
        self.set_fenced(broker, True, batch_end)
        if not broker.member:
            self._forget(broker)

    def _end_membership(self, broker: Registration) -> None:
        broker.member, broker.leaves_at = False, -1
        self.by_applied.remove((broker.applied, broker.broker_id, broker.epoch))
        self.by_known_lao.remove((broker.known_lao, broker.broker_id, broker.epoch))
        if self.current.get(broker.broker_id) is not broker:
            self._forget(broker)

    def _forget(self, broker: Registration) -> None:
        del self.by_id_and_epoch[broker.broker_id, broker.epoch]
        if broker.parked is not None:
            self._parked.remove((max(broker.parked), broker.broker_id, broker.epoch))

    # --- reports ---------------------------------------------------------------------------------

    def set_applied(self, broker: Registration, applied: int) -> None:
        """Set the applied offset that counts, which must be higher than before, or -1."""
        if broker.member:
            self.by_applied.move((broker.applied, broker.broker_id, broker.epoch), applied)
        broker.applied = applied

    def set_known_lao(self, broker: Registration, known_lao: int) -> None:
        """Set the known LAO that counts."""
        if broker.member:
            self.by_known_lao.move((broker.known_lao, broker.broker_id, broker.epoch), known_lao)
        broker.known_lao = known_lao

    def park(self, broker: Registration, applied: int, known_lao: int) -> None:
        """Keep a report until both of its offsets are committed."""
        if broker.parked is not None:
            self._parked.remove((max(broker.parked), broker.broker_id, broker.epoch))
            applied, known_lao = max(applied, broker.parked[0]), max(known_lao, broker.parked[1])
        broker.parked = (applied, known_lao)
        self._parked.add((max(applied, known_lao), broker.broker_id, broker.epoch))

    def unpark(self, high_watermark: int) -> Iterator[tuple[Registration, int, int]]:
        """Remove and yield the parked reports below ``high_watermark`` (exclusive), with their
        registrations.
        """
        while self._parked and self._parked[0][0] < high_watermark:
            _, broker_id, broker_epoch = self._parked.pop(0)
            broker = self.by_id_and_epoch[broker_id, broker_epoch]
            applied, known_lao = broker.parked or (-1, -1)
            broker.parked = None
            yield broker, applied, known_lao


WAITING_MAX = 100
"""Maximum number of broker ids that an answer lists."""


class LaoView:
    """LAO of one controller epoch, read-only.

    Offsets are inclusive unless stated otherwise; -1 means unknown.
    """

    def __init__(self, epoch: int, epoch_start_offset: int) -> None:
        """``epoch_start_offset``: offset of this epoch's LeaderChange record."""
        self.epoch: Final = epoch
        self._epoch_start_offset = epoch_start_offset
        """Inclusive."""
        self._high_watermark = 0
        self._log_end = 0
        """Log end offset, exclusive."""
        self._highest_lao = -1
        """Highest LAO of this epoch so far (inclusive).

        It does not move while the minimum cannot rise, or while there is no member.
        """
        self._highest_min_known_lao = -1
        """Highest minimum of ``known_lao`` in this epoch (inclusive): writes up to it may have been
        answered ``visible``.
        """
        self._features: dict[str, int] = {}
        """Feature levels at the log end."""
        self._level_is_zero = False
        """Whether ``lao.version`` is not among the feature levels. False if there are no levels:
        the log has not been bootstrapped.
        """
        self._heartbeats_off = False
        """Whether heartbeats are disabled at the log end: brokers join without having applied
        anything, and LAO is unknown.
        """
        self._heartbeats_off_from = epoch_start_offset
        """Offset (inclusive) of the last record of the batch that made ``_heartbeats_off`` true, as
        far as this epoch knows.
        """
        self._vouched_from = epoch_start_offset
        """An offset above every LAO announced before heartbeats were last enabled, as far as this
        epoch knows: an unvouched registration's report counts from there on (inclusive).
        """
        self._registrations = Registrations()
        self.unparked = 0
        """Number of parked reports that have counted since the claim: each may make a broker ready
        to be unfenced.
        """

    @property
    def lao(self) -> int:
        """LAO, inclusive; -1 if unknown.

        Always below the high watermark. A known LAO is never lower than an earlier one.
        """
        if self._highest_lao < 0:
            return -1
        silent = self._registrations.by_applied.lowest < 0
        unknown = self._heartbeats_off or silent or self._level_is_zero
        return -1 if unknown else self._highest_lao

    @property
    def min_known_lao(self) -> int:
        """Lowest of the LAOs that the members know; -1 if one of them knows none, if there are no
        members, or if heartbeats are disabled.
        """
        by_known_lao = self._registrations.by_known_lao
        return by_known_lao.lowest if by_known_lao.count and not self._heartbeats_off else -1

    @property
    def high_watermark(self) -> int:
        """High watermark as known in this epoch, exclusive; 0 if unknown."""
        return self._high_watermark

    @property
    def members(self) -> Sequence[int]:
        """Broker ids of the members, ascending.

        O(members).
        """
        return sorted({broker_id for _, broker_id, _ in self._registrations.by_applied})

    # --- one broker ------------------------------------------------------------------------------

    def may_join(self, broker_id: int) -> bool:
        """Return whether unfencing this broker now keeps every promise made so far.

        Call this at every report, and if it returns True propose the unfencing at once. The broker
        must have applied LAO and, because LAO may not be known yet, the first record of this epoch.
        It must know an LAO that covers every write that may have been answered ``visible``
        (otherwise, if members know 5 and B knew 3 when it was fenced, B would join and read at 3).
        If there are no members it must know LAO itself. A broker with a legacy registration may
        always join: it does not report what it has applied, and while it is a member LAO is
        unknown.
        """
        broker = self._registrations.current.get(broker_id)
        if broker is None:
            return False
        if broker.legacy:
            return True
        if self._heartbeats_off:
            # The broker must know that LAO is void now [B does not know that it was fenced at 7,
            # reads at LAO 5, and is unfenced again]. A process that has registered since then has
            # never received an LAO.
            since = self._heartbeats_off_from
            return broker.epoch > since or broker.applied >= since
        if broker.applied < max(self._highest_lao, self._epoch_start_offset):
            return False
        # If LAO is not known in this epoch, no broker received one in it. A broker that this epoch
        # unfences does not use an LAO of an earlier epoch.
        return self._highest_lao < 0 or broker.known_lao >= (
            self._highest_min_known_lao if self._registrations.by_known_lao else self._highest_lao
        )

    def unfenced_throughout(self, broker_id: int) -> bool:
        """Return whether *every* image from the high watermark to the log end shows the present
        registration unfenced.

        Only then may the broker get a read lease: whatever part of the log survives a failover, the
        broker is a member.
        """
        broker = self._registrations.current.get(broker_id)
        return (
            broker is not None
            and broker.member
            and broker.leaves_at < 0
            and broker.unfenced_from <= self._high_watermark
            and self._high_watermark > 0
        )

    def applied_of(self, broker_id: int) -> int:
        """Return the applied offset that a broker reported in this epoch under its present
        registration, or -1 if it reported none.
        """
        broker = self._registrations.current.get(broker_id)
        return -1 if broker is None else broker.applied

    def known_lao_of(self, broker_id: int) -> int:
        """Return the known LAO that a broker reported in this epoch under its current registration,
        or -1 if it reported none.
        """
        broker = self._registrations.current.get(broker_id)
        return -1 if broker is None else broker.known_lao

    # --- all brokers -----------------------------------------------------------------------------

    def applied_offsets(self) -> Iterator[tuple[int, int, int]]:
        """Yield (broker id, broker epoch, applied offset) for each broker that has reported, member
        or not, ascending.

        O(brokers).
        """
        current = self._registrations.current
        for broker_id in sorted(current):
            broker = current[broker_id]
            if broker.applied >= 0:
                yield broker_id, broker.epoch, broker.applied

    def held_back_by(self) -> list[int]:
        """Return the members with the lowest applied offset, ascending, if it is below the last
        committed offset.
        """
        by_applied = self._registrations.by_applied
        if not by_applied or by_applied.lowest >= self._high_watermark - 1:
            return []
        return sorted({b for _, b, _ in by_applied.until(by_applied.lowest)})

    def waiting_for_applied(self, offset: int) -> list[int]:
        """Return the first WAITING_MAX members, ascending, that have not applied ``offset`` yet."""
        return _ids(b for _, b, _ in self._registrations.by_applied.until(offset - 1))

    def waiting_for_known_lao(self, offset: int) -> list[int]:
        """Return the first WAITING_MAX members, ascending, that know no LAO that covers ``offset``
        yet.
        """
        return _ids(b for _, b, _ in self._registrations.by_known_lao.until(offset - 1))

    # --- why -------------------------------------------------------------------------------------

    @property
    def unknown_reason(self) -> str:
        """Why LAO is unknown, or "" if it is known."""
        if self.lao >= 0:
            return ""
        if not self._high_watermark:
            return f"no record of controller epoch {self.epoch} is committed yet"
        if self._heartbeats_off:
            return (
                f"{BROKER_HEARTBEAT_VERSION} is 0: brokers {self.members[:WAITING_MAX]} send no"
                " heartbeats"
            )
        if self._level_is_zero:
            return f"{LAO_VERSION} is 0"
        registrations = self._registrations
        if not registrations.by_applied:
            return "no broker is unfenced"
        silent = list(registrations.by_applied.until(-1))
        legacy = [
            broker_id
            for _, broker_id, epoch in silent
            if registrations.by_id_and_epoch[broker_id, epoch].legacy
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

    def _levels_changed(self) -> None:
        """Update the facts derived from ``_features``."""
        self._level_is_zero = (
            LAO_VERSION not in self._features and METADATA_VERSION in self._features
        )


def _ids(broker_ids: Iterable[int]) -> list[int]:
    return sorted(set(broker_ids))[:WAITING_MAX]


_MEMBERSHIP_TYPES = frozenset(
    (
        RecordType.REGISTER_BROKER,
        RecordType.UNREGISTER_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.FEATURE_LEVEL,
    )
)


class LaoTracker(LaoView):
    """LAO of one controller epoch, writable, for its owner. Pure.

    O(log brokers) per report.
    """

    # --- the log ---------------------------------------------------------------------------------

    def seed(self, image: Image) -> None:
        """Begin with the committed image at the claim: each broker unfenced in it is a member.

        O(brokers), once per epoch.
        """
        self._features = {name: image.features[name] for name in image.features}
        self._levels_changed()
        self._heartbeats_off = not heartbeats_enabled(self._features)
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            registration = self._registrations.register(
                broker_id, broker.epoch, broker.registration_version, broker.fenced, leaves_at=-1
            )
            registration.unvouched = broker.cause in UNVOUCHED
        self._log_end = image.offset + 1

    def proposed(self, records: Sequence[Record], base_offset: int) -> None:
        """Process one of this controller's own batches at the log end.

        Raises ValueError if a batch was skipped: it could contain a membership change.
        """
        self.passed(len(records), base_offset)
        changed = False
        for record in records:
            if record.type in _MEMBERSHIP_TYPES:
                self._membership_changed(record.type, record.message, self._log_end)
                changed = True
        if changed:
            # The first member raises both minima at once: the next broker to join is checked
            # against them.
            self._advance()

    def inherited(self, bodies: Sequence[Body], base_offset: int) -> None:
        """Process one batch of the inherited tail; call this before ``proposed``.

        Most records in the tail affect no membership, and need not be parsed. Raises ValueError as
        ``proposed`` does.
        """
        self.passed(len(bodies), base_offset)
        changes = [body for body in bodies if body[0] in _MEMBERSHIP_TYPES]
        for type_, version, body in changes:
            self._membership_changed(type_, parse_body(type_, version, body), self._log_end)
        if changes:
            self._advance()

    def passed(self, count: int, base_offset: int) -> None:
        """Process records at the log end that change no membership.

        Raises ValueError as ``proposed`` does.
        """
        if base_offset != self._log_end:
            raise ValueError(
                f"batch at offset {base_offset} does not follow the log end {self._log_end}"
            )
        self._log_end = base_offset + count

    def committed(self, high_watermark: int) -> None:
        """Record that everything below ``high_watermark`` is committed, so that memberships end and
        parked reports count.

        Ignored until it covers the first record of this epoch, as a new leader may know a lower
        high watermark than its predecessor did. (If B's fencing was committed and LAO advanced
        without B, a new controller that did not know of the commit would move LAO back to B's
        offset.)
        """
        if high_watermark <= max(self._epoch_start_offset, self._high_watermark):
            return
        self._high_watermark = high_watermark
        registrations = self._registrations
        if not registrations.by_id_and_epoch:
            return
        registrations.end_memberships(high_watermark)
        for broker, applied, known_lao in registrations.unpark(high_watermark):
            self.unparked += 1
            self._count(broker, applied, known_lao)
        self._advance()

    def _membership_changed(self, type_: int, message: Any, batch_end: int) -> None:
        registrations = self._registrations
        if type_ == RecordType.FEATURE_LEVEL:
            if message.feature_level:
                self._features[message.name] = message.feature_level
            else:
                self._features.pop(message.name, None)
            self._levels_changed()
            self._heartbeats_changed(batch_end)
        elif type_ == RecordType.REGISTER_BROKER:
            registrations.register(
                message.broker_id,
                message.broker_epoch,
                message.registration_version,
                message.fenced,
                leaves_at=batch_end,
            )
        elif type_ == RecordType.UNREGISTER_BROKER:
            registrations.unregister(message.broker_id, batch_end)
        else:
            broker = registrations.current[message.broker_id]
            broker.unvouched = message.cause in UNVOUCHED
            if message.HasField("fenced"):
                registrations.set_fenced(broker, message.fenced, batch_end)

    def _heartbeats_changed(self, batch_end: int) -> None:
        """Process a written feature level, which may have enabled or disabled heartbeats.

        If LAO was 5 and B joined with 3 applied while heartbeats were disabled, 5 must not be
        announced again before B has applied it.
        """
        was_off = self._heartbeats_off
        self._heartbeats_off = not heartbeats_enabled(self._features)
        if self._heartbeats_off and not was_off:
            self._heartbeats_off_from = batch_end - 1
        if was_off and not self._heartbeats_off:
            self._vouched_from = batch_end - 1
            for broker in self._registrations.by_id_and_epoch.values():
                if broker.unvouched:
                    self._registrations.set_applied(broker, -1)

    # --- reports ---------------------------------------------------------------------------------

    def report(
        self, broker_id: int, broker_epoch: int, controller_epoch: int, applied: int, known_lao: int
    ) -> None:
        """Process the report in a fetch or heartbeat: the offset that a broker has applied, and the
        highest LAO that it knows.

        A report under another controller epoch is ignored: a lower one means that the broker has
        not accepted this controller yet, a higher one that this controller is deposed. A report
        under another broker epoch is ignored, and so is one beyond the log end: no broker can have
        applied that, and parking it would keep true reports from counting. Late and repeated
        reports change nothing.
        """
        broker = self._registrations.by_id_and_epoch.get((broker_id, broker_epoch))
        if controller_epoch != self.epoch or broker is None or broker.legacy:
            return
        if applied >= self._log_end or known_lao >= self._log_end:
            return
        if max(applied, known_lao) < self._high_watermark:
            self._count(broker, applied, known_lao)
            self._advance()
        else:
            self._registrations.park(broker, applied, known_lao)

    def _count(self, broker: Registration, applied: int, known_lao: int) -> None:
        if applied > broker.applied and not (broker.unvouched and applied < self._vouched_from):
            self._registrations.set_applied(broker, applied)
        if known_lao > broker.known_lao:
            self._registrations.set_known_lao(broker, known_lao)

    def _advance(self) -> None:
        members = self._registrations
        if members.by_applied.count:
            self._highest_lao = max(self._highest_lao, members.by_applied.lowest)
            self._highest_min_known_lao = max(
                self._highest_min_known_lao, members.by_known_lao.lowest
            )
