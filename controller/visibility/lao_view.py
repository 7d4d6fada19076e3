"""LowestAcknowledgedOffset as others see it: they ask, and change nothing.

``lao.py`` has the theory of operation, and what changes LAO.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from controller.visibility.registrations import Registrations
from raftlog.metadata.versions import BROKER_HEARTBEAT_VERSION, LAO_VERSION, METADATA_VERSION

WAITING_MAX = 100
"""The maximum number of broker ids that an answer names."""


class LaoView:
    """LAO of one controller epoch, to read. Offsets are inclusive where nothing else is said; -1:
    unknown.
    """

    def __init__(self, epoch: int, epoch_start_offset: int) -> None:
        """``epoch_start_offset``: the offset of this epoch's LeaderChange record."""
        self.epoch: Final = epoch
        self._epoch_start_offset = epoch_start_offset
        """Inclusive."""
        self._high_watermark = 0
        """Exclusive, as known in this epoch; 0: nothing known yet."""
        self._log_end = 0
        """Exclusive."""
        self._highest_lao = -1
        """The highest LAO of this epoch so far (inclusive).

        It does not move while the minimum cannot rise, or while there is no member.
        """
        self._highest_min_known_lao = -1
        """The highest minimum of ``known_lao`` in this epoch (inclusive): writes up to there may
        have been answered ``visible``.
        """
        self._features: dict[str, int] = {}
        """The feature levels at the log end."""
        self._level_is_zero = False
        """Whether ``lao.version`` is not finalized in them; false for a log without any levels,
        which has not begun.
        """
        self._heartbeats_off = False
        """Heartbeats are not in force at the log end: brokers join without having applied anything,
        and LAO is unknown.
        """
        self._heartbeats_off_from = epoch_start_offset
        """The offset at which ``_heartbeats_off`` became true, as far as this epoch knows: of the
        last record of that batch (inclusive).
        """
        self._vouched_from = epoch_start_offset
        """An offset above every LAO announced before heartbeats last came into force, as far as
        this epoch knows: an unvouched registration's report counts from there on (inclusive).
        """
        self._registrations = Registrations()
        self.unparked = 0
        """How many parked reports have counted since the claim: they may make a broker that waits
        to be unfenced ready.
        """

    @property
    def lao(self) -> int:
        """LAO, inclusive; -1 if unknown.

        Always below the high watermark; a known LAO is never lower than an earlier one.
        """
        if self._highest_lao < 0:
            return -1
        silent = self._registrations.by_applied.lowest < 0
        unknown = self._heartbeats_off or silent or self._level_is_zero
        return -1 if unknown else self._highest_lao

    @property
    def min_known_lao(self) -> int:
        """The lowest LAO told to a member; -1 if a member was told none, if there is no member, or
        if heartbeats are not in force.
        """
        by_known_lao = self._registrations.by_known_lao
        return by_known_lao.lowest if by_known_lao.count and not self._heartbeats_off else -1

    @property
    def high_watermark(self) -> int:
        """The high watermark as known in this epoch, exclusive; 0: nothing known yet."""
        return self._high_watermark

    @property
    def members(self) -> Sequence[int]:
        """Ids of the brokers that count, ascending. O(members)."""
        return sorted({broker_id for _, broker_id, _ in self._registrations.by_applied})

    # --- one broker ------------------------------------------------------------------------------

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
        broker = self._registrations.current.get(broker_id)
        if broker is None:
            return False
        if broker.legacy:
            return True
        if self._heartbeats_off:
            # The broker must know that LAO counts for nothing now [B does not know that it was
            # fenced at 7, reads at LAO 5, and is unfenced again]. A process that registered since
            # then has never been told an LAO.
            since = self._heartbeats_off_from
            return broker.epoch > since or broker.applied >= since
        if broker.applied < max(self._highest_lao, self._epoch_start_offset):
            return False
        # If LAO is not known in this epoch, no broker was told one in it. An LAO of an earlier
        # epoch counts for nothing at a broker that this epoch unfences.
        return self._highest_lao < 0 or broker.known_lao >= (
            self._highest_min_known_lao if self._registrations.by_known_lao else self._highest_lao
        )

    def unfenced_throughout(self, broker_id: int) -> bool:
        """Whether *every* image from the high watermark to the log end shows the present
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
        """What a broker reported as applied in this epoch, under its present registration; -1:
        nothing yet.
        """
        broker = self._registrations.current.get(broker_id)
        return -1 if broker is None else broker.applied

    def known_lao_of(self, broker_id: int) -> int:
        """What a broker reported as told in this epoch, under its present registration; -1: nothing
        yet.
        """
        broker = self._registrations.current.get(broker_id)
        return -1 if broker is None else broker.known_lao

    # --- all brokers -----------------------------------------------------------------------------

    def applied_offsets(self) -> Iterator[tuple[int, int, int]]:
        """(broker id, broker epoch, applied) of each broker that has reported, member or not,
        ascending. O(brokers).
        """
        current = self._registrations.current
        for broker_id in sorted(current):
            broker = current[broker_id]
            if broker.applied >= 0:
                yield broker_id, broker.epoch, broker.applied

    def held_back_by(self) -> list[int]:
        """Members with the lowest applied offset, ascending, if it is below the last committed
        one.
        """
        by_applied = self._registrations.by_applied
        if not by_applied or by_applied.lowest >= self._high_watermark - 1:
            return []
        return sorted({b for _, b, _ in by_applied.until(by_applied.lowest)})

    def waiting_for_applied(self, offset: int) -> list[int]:
        """Members that have not applied ``offset`` yet: the first 100, ascending."""
        return _ids(b for _, b, _ in self._registrations.by_applied.until(offset - 1))

    def waiting_for_known_lao(self, offset: int) -> list[int]:
        """Members that were not told an LAO that covers ``offset`` yet: the first 100,
        ascending.
        """
        return _ids(b for _, b, _ in self._registrations.by_known_lao.until(offset - 1))

    # --- why -------------------------------------------------------------------------------------

    @property
    def unknown_reason(self) -> str:
        """Why LAO is unknown, for people; empty if it is known."""
        if self.lao >= 0:
            return ""
        if not self._high_watermark:
            return f"no record of controller epoch {self.epoch} is committed yet"
        if self._heartbeats_off:
            return (
                f"{BROKER_HEARTBEAT_VERSION} is 0: brokers {self.members[:WAITING_MAX]} do not"
                " heartbeat"
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
        """``_features`` is another one."""
        self._level_is_zero = (
            LAO_VERSION not in self._features and METADATA_VERSION in self._features
        )


def _ids(broker_ids: Iterable[int]) -> list[int]:
    return sorted(set(broker_ids))[:WAITING_MAX]
