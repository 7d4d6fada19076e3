"""The model of ``partition_model``, and now and then the metadata is taken back: an unsafe recovery
of anything that was ever committed.

Brokers go on under the old log for as long as they have not noticed; then they register in the new
one, which they read from its beginning. What was acknowledged stays if every member of the ISR that
the recovered state knows has it on its disk; the rest is excused. No two histories may meet in one
leader epoch, and in the end every partition serves.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from partition_driver import DrivenWorld
from partition_model import (
    BROKERS,
    SERVE_S,
    BrokenPromiseError,
    Controller,
    Disk,
    Node,
    Written,
)

from broker.partition import events as ev
from controller.decision import LeaderEpochsRaised
from controller.rules.partition_change import removals
from controller.state.batched_changes import EpochFloor
from raftlog.metadata import versions
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.records.v1 import records_pb2


class RecoveredController(Controller):
    """Its log may be taken back, as often as it takes."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.generation = 0

    def take_back(self, index: int) -> None:
        """Drop every entry after the given one; a controller of another generation starts from
        there.
        """
        del self.log[index + 1 :]
        self.builder = ImageBuilder(self.image)
        self.generation += 1
        floor = EpochFloor(self.generation)
        state: Any = SimpleNamespace(log=SimpleNamespace(pending=self.builder))
        while (decision := floor.due(state)) is not None:
            self.commit(decision.records)
            for effect in decision.effects:
                if isinstance(effect, LeaderEpochsRaised):
                    floor.raised(effect.partition_count)

    def register_as(self, broker_id: int, incarnation: str, *, same_disk: bool) -> int:
        """Register a process; one that is registered keeps its registration, as in the real
        controller.
        """
        old = self.builder.brokers.get(broker_id)
        if old is not None and old.incarnation_id == incarnation:
            return int(old.epoch)
        epoch = self.builder.offset + 1
        registration = records_pb2.RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=incarnation,
            broker_epoch=epoch,
            end_points=[records_pb2.Listener(name="P", host="h", port=9000 + broker_id)],
            fenced=True,
            registration_version=1,
        )
        gone = (
            removals(self.builder, broker_id, on_purpose=True, same_disk=same_disk) if old else []
        )
        self.commit([record(registration), *gone])
        return epoch


class RecoveredWorld(DrivenWorld):
    """One schedule with recoveries."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.controller: RecoveredController = RecoveredController(
            options.get("level", versions.LATEST_METADATA_VERSION)
        )
        self.generation_of = dict.fromkeys(BROKERS, 0)
        self.shown_from = dict.fromkeys(BROKERS, -1)
        self.names: dict[int, str] = {}
        self.created = -1
        self.recoveries = self.kept = self.forgotten = self.truncated = 0

    def begin(self) -> None:
        super().begin()
        self.created = len(self.controller.log) - 1

    def _actions(self) -> list[tuple[float, Callable[[], None]]]:
        often = self.rng.choice((0.15, 0.5))
        return [
            *super()._actions(),
            (often, self._recover),
            (self.rng.choice((1, 10)), self._notice_some),
        ]

    # --- recovery --------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Recover the metadata log without loss, or from any moment after the topic was created."""
        last = len(self.controller.log) - 1
        self.take_back(last if self.rng.random() < 0.3 else self.rng.randint(self.created, last))

    def take_back(self, index: int) -> None:
        self.trace.append(
            f"{self.now:.3f} the log is taken back from {len(self.controller.log) - 1} to {index}"
        )
        self.forgotten += len(self.controller.log) - 1 - index
        self.controller.take_back(index)
        self.recoveries += 1
        self.joined = {
            (key, m): self.nodes[m].disk.number for key in self.keys for m in self.isr_of(key)
        }
        for written in self.written.values():
            if written.acked_at >= 0 and not written.excused:
                disks = [self.nodes[member].disk for member in self.isr_of(written.key)]
                written.excused = not all(_holds(disk, written) for disk in disks)
                self.kept += not written.excused

    def _is_old(self, node: Node) -> bool:
        return self.generation_of[node.id] != self.controller.generation

    def _notice_some(self) -> None:
        old = [node for node in self._alive() if self._is_old(node)]
        if old:
            self.notice(self.rng.choice(old))

    def notice(self, node: Node) -> None:
        """The log is another one: nothing that was known holds, and it is read from its
        beginning.
        """
        self.generation_of[node.id] = self.controller.generation
        node.epoch, node.applied = -1, -1
        self._stand(node)
        self.step(node, ev.ImageMoved(Image(), None))

    # --- what is another thing with several generations ------------------------------------------

    def _start(self, node: Node) -> None:
        super()._start(node)
        self.generation_of[node.id] = self.controller.generation
        self.names.pop(node.id, None)

    def _register_some(self) -> None:
        unregistered = [node for node in self._alive() if node.epoch < 0]
        if unregistered:
            self._register(self.rng.choice(unregistered))

    def _register(self, node: Node) -> None:
        if self._is_old(node):
            self.notice(node)
        self.numbers += 1
        name = self.names.setdefault(node.id, f"{node.id}-{node.incarnation}-{self.numbers}")
        old = self.controller.image.brokers.get(node.id)
        same_disk = old is not None and self.disk_of.get(old.epoch) == node.disk.number
        node.epoch = self.controller.register_as(node.id, name, same_disk=same_disk)
        self.shown_from[node.id] = max(node.epoch, self.controller.builder.offset)
        self.disk_of[node.epoch] = node.disk.number
        self.trace.append(f"{self.now:.3f} broker {node.id} registers: {node.epoch}")
        self._isr_moved()
        self._stand(node)

    def _stand(self, node: Node) -> None:
        if node.core is None:
            return
        if not self._is_old(node):
            image = self.controller.log[node.applied][0] if node.applied >= 0 else Image()
            mine = image.brokers.get(node.id)
            shown = image.offset >= self.shown_from[node.id]
            node.serving = (
                node.contact
                and shown
                and mine is not None
                and mine.epoch == node.epoch
                and not mine.fenced
            )
        elif not node.contact:
            node.serving = False
        until = self.now + SERVE_S if node.serving else float("-inf")
        self.step(node, ev.BrokerStatusChanged(node.epoch, until, "", self.shown_from[node.id]))

    def _apply(self, node: Node) -> None:
        if self._is_old(node):
            return
        super()._apply(node)

    def _skip_image(self) -> None:
        if not any(self._is_old(node) for node in self._alive()):
            super()._skip_image()

    def _may_unfence(self, node: Node) -> bool:
        if self._is_old(node) or node.epoch < 0 or node.applied < 0:
            return False
        reached = self.controller.log[node.applied][0].offset >= self.shown_from[node.id]
        return reached and super()._may_unfence(node)

    def _fence(self) -> None:
        if all(id_ in self.controller.image.brokers for id_ in BROKERS):
            super()._fence()

    def _apply_image(self) -> None:
        behind = [
            node
            for node in self._alive()
            if not self._is_old(node) and node.applied < len(self.controller.log) - 1
        ]
        if behind:
            self._apply(self.rng.choice(behind))

    def _turn(self, turn: int) -> None:
        for node in self._alive():
            if self._is_old(node):
                self.notice(node)
        super()._turn(turn)

    def _noted(self, node: Node, effect: ev.Note) -> None:
        self.truncated += effect.event == "truncated"
        super()._noted(node, effect)

    def _check_acked(self, node: Node, written: Written) -> None:
        if self._is_old(node):
            written.excused = True  # By the word of metadata that is no more.
        else:
            super()._check_acked(node, written)

    def _check_high_watermark(self, node: Node, key: PartitionKey, high_watermark: int) -> None:
        if not self._is_old(node):
            super()._check_high_watermark(node, key, high_watermark)


def _holds(disk: Disk, written: Written) -> bool:
    return any(base == written.acked_at for base, _, _ in disk.durable.get(written.key, []))


def run(seed: int, **options: Any) -> RecoveredWorld:
    """One schedule; what it breaks is raised with the seed."""
    world = RecoveredWorld(seed, **options)
    try:
        world.run()
    except BrokenPromiseError as error:
        raise BrokenPromiseError(f"seed {seed}: {error}") from None
    return world


if __name__ == "__main__":
    import sys

    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            run(number)
        except Exception as problem:
            print(number, type(problem).__name__, str(problem)[:300])
    random.seed(0)
