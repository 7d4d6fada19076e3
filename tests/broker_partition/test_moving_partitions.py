"""Random schedules with the controller's real rules: partitions are reassigned, led by whom they
prefer, taken off brokers that stop.
"""

from __future__ import annotations

import pytest
from partition_driver import DrivenWorld
from partition_model import BROKERS, TOPIC_ID, BrokenPromiseError, Node

from broker.partition import events as ev
from controller.decisions.partitions.leader_elections import elect, wants_preferred
from controller.decisions.partitions.reassignment import _change, _reassign
from controller.rules.fencing import begin_shutdown
from controller.rules.partition_change import Assignment, Brokers, Election, assignment_of
from raftlog.errors import ApiError
from raftlog.metadata.records import record
from raftlog.wire.records.v1 import records_pb2
from simulation.mutants.edits import Edit, edited


class Moving(DrivenWorld):
    """Nobody's disk is replaced here: so what is acknowledged is on as many disks as the topic asks
    for. Images come several at a time.
    """

    moved = cancelled = 0

    def kill(self, node: Node, *, replace_disk: bool) -> None:
        super().kill(node, replace_disk=False)

    def _commit(self, change: records_pb2.PartitionChangeRecord | None) -> None:
        if change is not None:
            self.controller.commit([record(change)])
            self._isr_moved()

    def _reassign(self) -> None:
        partition = self._partition((TOPIC_ID, self.rng.randrange(self.partitions)))
        view = self.controller.builder
        ongoing = partition.adding_replicas or partition.removing_replicas
        try:
            if ongoing and self.rng.random() < 0.3:
                self.cancelled += 1
                self._commit(
                    _change(
                        view, partition, Assignment(assignment_of(partition).original, (), ()), ""
                    )
                )
            else:
                self.moved += 1
                target = tuple(self.rng.sample(BROKERS, self.rng.randint(1, len(BROKERS))))
                self._commit(_reassign(view, partition, target, "", may_resize=True))
        except ApiError:
            return  # None of the ISR would be left.

    def _prefer(self) -> None:
        partition = self._partition((TOPIC_ID, self.rng.randrange(self.partitions)))
        brokers = Brokers(self.controller.builder)
        if wants_preferred(brokers, partition):
            self._commit(elect(brokers, partition, Election.PREFERRED))

    def _stop(self) -> None:
        registered = self.controller.image.brokers
        broker = registered[self.rng.choice(BROKERS)]
        if broker.active and sum(one.active for one in registered.values()) > 1:
            self.controller.commit(begin_shutdown(self.controller.builder, broker))
            self._isr_moved()

    def _skip_image(self) -> None:
        """Several images at once, and what they changed together."""
        node, log = self._some(), self.controller.log
        if node is None or not 0 <= node.applied < len(log) - 1:
            return
        begin, node.applied = node.applied, self.rng.randint(node.applied + 1, len(log) - 1)
        passed = [changes for _, changes in log[begin + 1 : node.applied + 1]]
        changes = ev.Changes(
            tuple(key for one in passed for key in one.partitions),
            (),
            tuple(id_ for one in passed for id_ in one.brokers),
        )
        self.step(node, ev.ImageMoved(log[node.applied][0], changes))
        self._stand(node)

    def _actions(self) -> list:
        own = {
            self._skip_image: self.rng.choice((0.5, 3)),
            self._reassign: self.rng.choice((0.3, 1.5)),
        }
        found = [(own.get(action, weight), action) for weight, action in super()._actions()]
        return [
            *found,
            (self.rng.choice((0, 0.5)), self._prefer),
            (self.rng.choice((0, 0.1)), self._stop),
        ]

    def _answer_produce(self, node: Node, effect: ev.AnswerProduce) -> None:
        written = self.waiting[effect.reply_to]
        super()._answer_produce(node, effect)
        seen, present = node.core._host.partition(written.key), self._partition(written.key)
        if written.acked_at < 0 or set(seen.replicas) != set(present.replicas):
            return
        copies = sum(
            one.disk.end(written.key, durable=True) > written.acked_at
            for one in self.nodes.values()
        )
        if copies < min(self.min_isr, len(seen.replicas) - len(seen.adding_replicas)):
            raise BrokenPromiseError(f"{written} is acknowledged, and on {copies} disks")

    def heal(self) -> None:
        self.hold_alters = False
        while self.alters:
            self.carry_alter()
        for node in self.nodes.values():
            if node.core is None:
                self._start(node)
            if self.controller.image.brokers[node.id].in_controlled_shutdown:
                node.epoch = -1
        for key in self.keys:
            self._commit(
                _reassign(
                    self.controller.builder, self._partition(key), BROKERS, "", may_resize=True
                )
            )
        super().heal()


def test_moving_partitions_lose_nothing() -> None:
    worlds = [Moving(seed) for seed in range(40)]
    for world in worlds:
        world.run()
    assert sum(world.acked for world in worlds) > 100
    assert sum(world.moved for world in worlds) > 50
    assert sum(world.cancelled for world in worlds) > 2


LEADER_EPOCH_STAYS = Edit(
    "raftlog.metadata.partitions:changed_partition",
    'has("leader") or (replicas is not old.replicas and not set(old.replicas) <= set(replicas))',
    'has("leader")',
)


def test_without_a_new_leader_epoch_when_a_replica_goes_they_do() -> None:
    """A replica that went, and came back empty while its leader did not look, is taken for what it
    was.
    """
    with edited([LEADER_EPOCH_STAYS]), pytest.raises(BrokenPromiseError):
        _some_schedules()


def _some_schedules() -> None:
    for seed in range(40):
        Moving(seed).run()
