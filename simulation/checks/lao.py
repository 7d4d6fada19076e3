"""LowestAcknowledgedOffset as controllers send it (KIP-343's promise to writers).

* Monotone within an epoch and across epochs, also while a deposed controller still sends.
* Below the announcer's high watermark, committed, and a batch end.
* By then every broker unfenced in the committed log has applied it, in that incarnation.
* Progress records are a lower bound: never above an announcement, never decreasing.
"""

from raftlog.metadata.records import Record, RecordType
from simulation.checks.api import Checker, ControllerView, fail
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged


class Lao(Checker):
    """Announced LAO, and the brokers for which it must be true."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.announcements = 0
        self._of_epoch: dict[int, tuple[int, int]] = {}
        """Controller epoch -> the lowest and the highest LAO announced in it."""
        self._known: dict[tuple[str, int], int] = {}
        """(controller, epoch) -> last LAO of that controller."""
        self._recorded = -1
        ledger.golden.listeners.append(self._committed)

    def lao_announced(self, host: ControllerView, controller_epoch: int, lao: int) -> None:
        self.announcements += 1
        # Within an epoch a reply may be told late, and say less than another one before it;
        # receivers keep the maximum.
        lowest, highest = self._of_epoch.get(controller_epoch, (lao, lao))
        self._of_epoch[controller_epoch] = min(lowest, lao), max(highest, lao)
        for epoch, (lowest, highest) in self._of_epoch.items():
            if (epoch < controller_epoch and highest > lao) or (
                epoch > controller_epoch and lowest < lao
            ):
                fail(f"LAO {lao} in epoch {controller_epoch}; {epoch} had {lowest} to {highest}")
        core = host.core
        if core is not None and core.epoch == controller_epoch and lao >= core.high_watermark:
            fail(f"LAO {lao} of {host.name} is not below its high watermark {core.high_watermark}")
        if lao not in self._ledger.golden.hashes:
            fail(f"LAO {lao} of {host.name} is not the end of a committed batch")
        self._check_brokers(host, lao)

    def sample(self) -> None:
        for host in self._ledger.world.controllers:
            service = host.service
            if service is None or service.node.leadership is None:
                continue
            lao = service.node.lowest_acknowledged_offset
            key = host.name, service.node.leadership.epoch
            if -1 < lao < self._known.get(key, -1):
                fail(f"LAO of {host.name} falls from {self._known[key]} to {lao} in epoch {key[1]}")
            self._known[key] = max(lao, self._known.get(key, -1))

    def _check_brokers(self, host: ControllerView, lao: int) -> None:
        golden = self._ledger.golden
        for broker in self._ledger.world.brokers:
            if not golden.is_unfenced(broker) or broker.service is None:
                continue
            applied = broker.service.image.offset
            if applied < lao:
                fail(
                    f"LAO {lao} is announced by {host.name}; {broker.name} is unfenced since"
                    f" {golden.standing(broker.id).offset} and has applied {applied}"
                )

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        for record in records:
            if record.type != RecordType.PROGRESS:
                continue
            lao = record.message.lowest_acknowledged_offset
            if lao < 0:
                continue
            if lao < self._recorded or lao >= logged.header.base_offset:
                fail(f"record {logged.header.base_offset} has LAO {lao}, after {self._recorded}")
            self._recorded = lao
