"""Random schedules of three brokers, and of the controller's real rules: the promises hold, and each
deliberate breakage of a rule is caught.
"""

from typing import NamedTuple

import pytest
from partition_driver import DrivenWorld, run
from partition_model import BROKERS, TOPIC_ID, BrokenPromiseError, Node
from recovered_model import RecoveredWorld
from recovered_model import run as run_recovered

from broker.partition import events as ev
from controller.decisions.partitions.leader_elections import elect, wants_preferred
from controller.decisions.partitions.reassignment import _change, _reassign
from controller.rules.fencing import begin_shutdown
from controller.rules.partition_change import Assignment, Brokers, Election, assignment_of
from raftlog.errors import ApiError
from raftlog.metadata.records import record
from raftlog.wire.records.v1 import records_pb2
from simulation.mutants.edits import Edit, edited


class Breakage(NamedTuple):
    name: str
    edits: tuple[Edit, ...]
    retains: bool = False
    """True if topics have a retention limit."""


def breakage(name: str, *edits: tuple[str, str, str], retains: bool = False) -> Breakage:
    """Return a breakage of one or several edits: target, old and new text."""
    return Breakage(name, tuple(Edit(*one) for one in edits), retains)


# fmt: off
BREAKAGES = (
    breakage("a refused proposal is never reverted",
        ("broker.partition.isr:LeaderIsr._ineligible", "            self.state.revert()\n", "            proposal.waiting = True\n")),
    breakage("a follower acknowledges what is not flushed",
        ("broker.partition.follower:Follower.named", "replica.log.flushed_end", "replica.log.end"),
        ("broker.partition.follower:LeaderLink._take", "if not replica.durable:", "if False:")),
    breakage("the leader counts itself at its log end",
        ("broker.partition.isr:LeaderIsr.end_offset_of", "self.replica.log.flushed_end", "self.replica.log.end")),
    breakage("acknowledged before the high watermark",
        ("broker.partition.client_requests:Produces._append", "for_commit=acks == ALL", "for_commit=False")),
    breakage("logs are not compared",
        ("raftlog.quorum.log_state:LogEnds.divergence",
         "return None if epoch == last_epoch and offset <= end else (epoch, end)", "return None")),
    breakage("a follower does not truncate",
        ("broker.partition.follower:Follower._truncate", "self.host.truncate(replica, max(target, log.start))", "pass")),
    breakage("roles are taken from an image of a former life",
        ("broker.partition.manager:Roles.reconsider",
         "current = registration is not None and registration.epoch == host.broker_epoch", "current = registration is not None")),
    breakage("a broker that takes itself for fenced takes records",
        ("broker.partition.client_requests:Produces._check", "if not self.host.serves:", "if False:")),
    breakage("a replica that leaves the ISR is not waited for until that is committed",
        ("broker.partition.isr:IsrState._merge",
         "maximal = dict.fromkeys(self.committed)", "maximal = dict.fromkeys(self.committed if self.proposal is None else ())")),
    breakage("what is not committed is dropped",
        ("broker.partition.leader:start_to_keep", "whole = run.end_offset < high_watermark", "whole = run is not runs.runs[-1]"),
        retains=True),
    breakage("more is dropped than the topic is too large by",
        ("broker.partition.leader:start_to_keep", "too_much = 0 <= kept.size <= size - run.size", "too_much = 0 <= kept.size <= size"),
        retains=True),
    breakage("the newest batch is dropped",
        ("broker.partition.leader:start_to_keep",
         "            if too_old and start < runs.last_base < high_watermark:\n                return runs.last_base\n",
         "            if too_old and run.end_offset == high_watermark:\n                return run.end_offset\n"), retains=True),
    breakage("a follower below the log start is sent what there is",
        ("broker.partition.sessions:Session._name", "if named.fetch_offset < log.start or (", "if ("), retains=True),
    breakage("a follower begins anew whatever it has",
        ("broker.partition.follower:Follower.begin_at",
         "if not (log_start_offset > log.end or (is_empty and 0 <= log_start_offset < log.end)):", "if log_start_offset < 0:"),
        ("broker.partition.sessions:Session._name",
         "        if diverging is not None:\n",
         "        if diverging is not None:\n            self.is_out_of_range(key, log.start)\n            return\n"), retains=True),
    breakage("a log that was cut keeps what it knew of the rest",
        ("broker.partition.host:Host.truncate", "            replica.runs.truncate(end_offset)\n", "            pass\n"), retains=True),
)
# fmt: on


FEW = 40


@pytest.mark.parametrize("block", range(4))
def test_partition_promises_hold_in_random_schedules(block: int) -> None:
    worlds = [run(seed) for seed in range(block * 15, block * 15 + 15)]
    assert sum(world.acked for world in worlds) > 30
    assert sum(world.led for world in worlds) > 20


def test_they_hold_with_epochs_that_may_be_left_out() -> None:
    for seed in range(100, 110):
        run(seed, level=1)


@pytest.mark.parametrize(
    "breakage", BREAKAGES, ids=lambda breakage: breakage.name.replace(" ", "-")
)
def test_a_breakage_is_caught(breakage: Breakage) -> None:
    with edited(breakage.edits), pytest.raises(BrokenPromiseError):
        _first_few(retains=breakage.retains)


def _first_few(*, retains: bool) -> None:
    for seed in range(FEW):
        run(seed, retains=retains)


def test_they_hold_where_topics_do_not_keep_everything() -> None:
    worlds = [run(seed, retains=True) for seed in range(200, 300)]
    assert sum(world.acked for world in worlds) > 500
    assert sum(world.drops for world in worlds) > 50
    assert sum(world.resets for world in worlds) > 5


# --- Random schedules in which the metadata is taken back ----------------------------------------


KEY = (TOPIC_ID, 0)
FLOOR = "controller.state.batched_changes:EpochFloor"
RECOVERY_BREAKAGES = {
    "leader epochs are raised by one": (
        Edit(
            f"{FLOOR}._raise_some",
            "self.first)",
            "view.partitions[key].leader_epoch + 1)",
        ),
    ),
    "leader epochs are not raised": (
        Edit(f"{FLOOR}._is_below", "partition.leader_epoch < self.first", "False"),
        Edit(f"{FLOOR}.due", "partition.leader_epoch < self.first", "False"),
    ),
    "an image from before the registration was decided gives roles": (
        Edit(
            "broker.partition.manager:Roles.reconsider",
            "current and host.image.offset >= host.shown_from",
            "current",
        ),
    ),
}


@pytest.mark.parametrize("block", range(3))
def test_partitions_serve_again_and_keep_what_they_may(block: int) -> None:
    worlds = [run_recovered(seed) for seed in range(block * 15, block * 15 + 15)]
    assert sum(world.recoveries for world in worlds) > 8
    assert sum(world.kept for world in worlds) > 10, (
        "acknowledged before a recovery, and not excused by it"
    )
    assert sum(world.forgotten for world in worlds) > 10
    assert sum(world.truncated for world in worlds) > 0


def test_logs_of_one_leader_epoch_never_diverge() -> None:
    world = RecoveredWorld(1)
    world.begin()
    world.turns()
    before = len(world.controller.log) - 1
    one, two, three = (world.nodes[id_] for id_ in BROKERS)
    # 3 leads epoch 1 alone, and has records in it; then everything since is forgotten, 3 too.
    for id_ in (1, 2):
        world.fence(id_)
    world.cut |= {1, 2}
    world.behind |= {1, 2}
    world.turns(3)
    for _ in range(3):
        world.produce(KEY, three)
    world.turns(3)
    assert three.disk.end(KEY, durable=True) > one.disk.end(KEY, durable=True)
    world.kill(three, replace_disk=False)
    world.take_back(before)
    world.cut.clear()
    world.behind.clear()
    # The others go on without it, with records at the same offsets.
    world.turns()
    leader = next(node for node in (one, two) if world.leader_of(node, KEY) is not None)
    for _ in range(5):
        world.produce(KEY, leader)
    world.turns()
    assert leader.disk.end(KEY, durable=True) > three.disk.end(KEY, durable=True)
    world.restart(three)
    world.turns()
    world.heal()
    assert world.truncated > 0, "what was of the other history is cut off"


@pytest.mark.parametrize("name", RECOVERY_BREAKAGES)
def test_breakage_of_a_recovery_is_caught(name: str) -> None:
    with edited(RECOVERY_BREAKAGES[name]), pytest.raises(BrokenPromiseError):
        _first_few_recovered()


def _first_few_recovered() -> None:
    for seed in range(40):
        run_recovered(seed)


# --- Partitions that move: by the controller's real rules ----------------------------------------


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


def test_partition_promises_break_when_removal_keeps_the_leader_epoch() -> None:
    """A replica that went, and came back empty while its leader did not look, is taken for what it
    was.
    """
    with edited([LEADER_EPOCH_STAYS]), pytest.raises(BrokenPromiseError):
        _some_schedules()


def _some_schedules() -> None:
    for seed in range(40):
        Moving(seed).run()
