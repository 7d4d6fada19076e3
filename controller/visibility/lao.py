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

Offsets are inclusive, except the high watermark, the log end and the ends of batches. -1 means
unknown. Everything here is soft state of one controller epoch.

``registrations.py`` keeps who is a member and how far each is; ``lao_view.py`` is what others may
ask. Here is what changes LAO: the log of the epoch, and the reports of brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.visibility.lao_view import LaoView
from controller.visibility.registrations import Registration
from raftlog.batch import Body
from raftlog.metadata.causes import UNVOUCHED
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType, parse_body
from raftlog.metadata.versions import heartbeats_in_force

_MEMBERSHIP_TYPES = frozenset(
    (
        RecordType.REGISTER_BROKER,
        RecordType.UNREGISTER_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.FEATURE_LEVEL,
    )
)


class LaoTracker(LaoView):
    """LAO of one controller epoch, for who may change it. Pure; O(log brokers) a report."""

    # --- the log ---------------------------------------------------------------------------------

    def seed(self, image: Image) -> None:
        """Begin with the committed image at the claim: each broker that is unfenced in it is a
        member. O(brokers), once an epoch.
        """
        self._features = {name: image.features[name] for name in image.features}
        self._levels_changed()
        self._heartbeats_off = not heartbeats_in_force(self._features)
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            registration = self._registrations.register(
                broker_id, broker.epoch, broker.registration_version, broker.fenced, leaves_at=-1
            )
            registration.unvouched = broker.cause in UNVOUCHED
        self._log_end = image.offset + 1

    def proposed(self, records: Sequence[Record], base_offset: int) -> None:
        """One batch of this controller's own at the log end.

        Raises ValueError if a batch was left out: a membership change could hide in it.
        """
        self.passed(len(records), base_offset)
        changed = False
        for record in records:
            if record.type in _MEMBERSHIP_TYPES:
                self._membership_changed(record.type, record.message, self._log_end)
                changed = True
        if changed:
            # The first member raises both minima at once: they are what the next broker to join is
            # checked against.
            self._advance()

    def inherited(self, bodies: Sequence[Body], base_offset: int) -> None:
        """One batch of the inherited tail, all of which comes before any other; most of its records
        are nobody's membership, and need not be parsed.

        Raises ValueError as ``proposed`` does.
        """
        self.passed(len(bodies), base_offset)
        changes = [body for body in bodies if body[0] in _MEMBERSHIP_TYPES]
        for type_, version, body in changes:
            self._membership_changed(type_, parse_body(type_, version, body), self._log_end)
        if changes:
            self._advance()

    def passed(self, count: int, base_offset: int) -> None:
        """As ``proposed``, of records that change no membership."""
        if base_offset != self._log_end:
            raise ValueError(
                f"batch at offset {base_offset} does not follow the log end {self._log_end}"
            )
        self._log_end = base_offset + count

    def committed(self, high_watermark: int) -> None:
        """Everything below ``high_watermark`` is committed: memberships end, parked reports count.

        Ignored until it covers the first record of this epoch. A new leader may know a lower high
        watermark than the one from which its predecessor announced LAO: [B's fencing was committed
        and LAO went on without B. The new controller does not know of the commit: LAO goes back to
        B's offset].
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
        """A feature level was written: heartbeats may have come into force, or out of force.

        [LAO was 5; B joined with 3 applied while heartbeats were off: 5 must not be announced again
        before B has applied it.]
        """
        was_off = self._heartbeats_off
        self._heartbeats_off = not heartbeats_in_force(self._features)
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
        """Take the report in a fetch or heartbeat: how far a broker has applied, and the highest
        LAO that it was told.

        A report under another controller epoch is ignored: a lower one means that the broker has
        not accepted this controller yet, a higher one that this controller is deposed. A report
        under another broker epoch is ignored, and so is one beyond the log end: no broker can have
        applied that, and if it were parked it would keep true reports from counting. Late and
        repeated reports change nothing.
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
