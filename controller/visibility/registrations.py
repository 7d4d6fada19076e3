"""The registrations that LAO may depend on: which are members, until when, and how far each is.

Keeps the orders true by which the minima are found; the rules are in ``lao.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from sortedcontainers import SortedList

from controller.visibility.positions import Position, Positions


@dataclass(slots=True, eq=False)
class Registration:
    """One broker epoch of one broker, and what was reported under it in this controller epoch."""

    broker_id: int
    epoch: int
    legacy: bool
    """It reports no applied offset."""
    unvouched: bool = False
    """It was unfenced while heartbeats were not in force, whatever it had applied."""
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
    """The highest offset applied (inclusive) that counts; -1: none reported."""
    known_lao: int = -1
    """The highest LAO received (inclusive) that counts; -1: none reported."""
    parked: tuple[int, int] | None = None
    """(applied, known LAO), both inclusive, of a report above what is known as committed."""


class Registrations:
    """All registrations of one controller epoch. O(log brokers) a change."""

    def __init__(self) -> None:
        self.current: dict[int, Registration] = {}
        """The registrations at the log end, by broker id."""
        self.by_id_and_epoch: dict[tuple[int, int], Registration] = {}
        """The current registrations, and former ones that stay members until the batch that ends
        them is committed.
        """
        self.by_applied = Positions()
        """(applied, broker id, broker epoch) of the members."""
        self.by_known_lao = Positions()
        """(known LAO, broker id, broker epoch) of the members."""
        self._parked: SortedList[Position] = SortedList()
        """(offset, broker id, broker epoch): counts when the offset is committed (inclusive)."""
        self._leaving: deque[tuple[int, Registration]] = deque()
        """(leaves_at, registration), in log order; out of date when leaves_at has changed since."""

    # --- the log ---------------------------------------------------------------------------------

    def register(
        self, broker_id: int, epoch: int, version: int, fenced: bool, *, leaves_at: int
    ) -> Registration:
        """A new epoch starts without reports; the same epoch again only amends the registration."""
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
        """The broker has no registration any more."""
        self._retire(self.current.pop(broker_id), batch_end)

    def set_fenced(self, broker: Registration, fenced: bool, batch_end: int) -> None:
        """The batch that ends at ``batch_end`` (exclusive) fences or unfences the broker."""
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
        """End each membership whose last batch is below ``high_watermark``, which is exclusive."""
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
        """So much counts as applied: more than before, or -1."""
        if broker.member:
            self.by_applied.move((broker.applied, broker.broker_id, broker.epoch), applied)
        broker.applied = applied

    def set_known_lao(self, broker: Registration, known_lao: int) -> None:
        """This LAO counts as received."""
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
        """Take out the reports below ``high_watermark`` (exclusive): whose, and its offsets."""
        while self._parked and self._parked[0][0] < high_watermark:
            _, broker_id, broker_epoch = self._parked.pop(0)
            broker = self.by_id_and_epoch[broker_id, broker_epoch]
            applied, known_lao = broker.parked or (-1, -1)
            broker.parked = None
            yield broker, applied, known_lao
