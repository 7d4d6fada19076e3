"""Brokers (I15, I16).

I15: what a broker shows is a prefix of the committed log, and only grows during one process. I16: a
broker that is fenced in the log does not act as an unfenced one: the registration at the offset of
its newest image must be unfenced, and its LAO must come from the controller that unfenced it or a
later one. I10 (``states``) checks its state.
"""

from dataclasses import dataclass, field
from typing import Any

from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.records import RecordType
from simulation.checks.api import BrokerView, Checker, fail, present
from simulation.checks.golden import Standing
from simulation.checks.ledger import Ledger


@dataclass(slots=True)
class _Seen:
    """Answers of one process so far, of one generation."""

    generation: int = NO_GENERATION
    generations: set[int] = field(default_factory=set)
    applied: int = -1
    known_lao: int = -1
    controller_epoch: int = 0


class Brokers(Checker):
    """Checker of I15 and I16."""

    def __init__(self, ledger: Ledger) -> None:
        self._golden = ledger.golden
        self._seen: dict[str, _Seen] = {}
        self.repeatable = 0
        ledger.golden.on(self._led, RecordType.PARTITION)
        ledger.golden.on(self._changed, RecordType.PARTITION_CHANGE)

    def broker_started(self, host: BrokerView) -> None:
        self._seen[host.name] = _Seen()

    def broker_moved(self, host: BrokerView) -> None:
        view = present(host.service).view
        seen = self._seen[host.name]
        applied, known_lao, epoch = view.tip.offset, view.known_lao, view.controller_epoch
        if view.generation != seen.generation:
            if view.generation in seen.generations:
                fail(f"{host.name} goes back to generation {view.generation} of the log")
            seen.generations.add(seen.generation)
            seen.generation, seen.applied, seen.known_lao = view.generation, -1, -1
        if applied < seen.applied or known_lao < seen.known_lao or epoch < seen.controller_epoch:
            fail(
                f"I15: {host.name} goes back, from (applied, told, controller epoch)"
                f" {(seen.applied, seen.known_lao, seen.controller_epoch)} to"
                f" {(applied, known_lao, epoch)}"
            )
        seen.applied, seen.known_lao, seen.controller_epoch = applied, known_lao, epoch
        if known_lao > applied:
            fail(f"{host.name} has applied {applied} and says that it was told LAO {known_lao}")
        image = view.repeatable
        if image is None:
            return
        self.repeatable += 1
        if image.offset > known_lao or image.offset not in self._golden.hashes:
            fail(f"I15: {host.name} shows {image.offset} as repeatable, it was told {known_lao}")
        standing = self._standing_at(host.id, applied)
        if standing.fenced or view.known_lao_epoch < standing.controller_epoch:
            fail(
                f"I16: {host.name} serves repeatable reads at {image.offset} by LAO of epoch"
                f" {view.known_lao_epoch}; at its newest offset {applied} its registration is"
                f" {standing}"
            )

    def _standing_at(self, broker_id: int, offset: int) -> Standing:
        # Unfenced since when: later records of the same registration may have said so again.
        standing = self._golden.standing_at(broker_id, offset)
        while not standing.fenced:
            before = self._golden.standing_at(broker_id, standing.offset - 1)
            if before.fenced or before.broker_epoch != standing.broker_epoch:
                break
            standing = before
        return standing

    def _changed(self, message: Any, offset: int, epoch: int) -> None:
        if message.HasField("leader"):
            self._led(message, offset, epoch)

    def _led(self, message: Any, offset: int, epoch: int) -> None:
        if message.leader >= 0 and self._golden.standing(message.leader).fenced:
            fail(f"I16: {offset} lets fenced broker {message.leader} lead")
