"""Random operations on partitions keep the invariants; cancelling restores replicas."""

from typing import Any

import pytest
from deciding import Cell, reassignment
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import nightly

from controller.rules.partition_change import assignment_of
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Partition
from raftlog.metadata.records import Record, RecordType
from raftlog.wire.controller.v1 import controller_pb2 as rpc

SETTINGS = ControllerSettings(
    leader_imbalance_check_interval_seconds=20,
    unclean_leader_election_interval_ms=30_000,
    max_records_per_request=60,
)
BROKERS = range(1, 6)
RECOVERING = 1
UNCLEAN = "unclean.leader.election.enable"

broker = st.sampled_from(BROKERS)
topic = st.sampled_from(("a", "a", "b"))
index = st.sampled_from([0, 0, 0, 1, 3])
replicas = st.lists(st.integers(1, 6), max_size=4)


def _op(name: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *parts)


good_replicas = st.lists(broker, min_size=1, max_size=4, unique=True)
operations = st.one_of(
    _op("reassign", topic, index, replicas),
    _op("reassign", topic, index, good_replicas),
    _op("reassign", topic, index, good_replicas),
    _op("cancel", topic, index),
    _op("increase", topic, st.integers(-1, 5), st.lists(good_replicas, max_size=2)),
    _op("elect", topic, st.lists(index, max_size=2), st.booleans()),
    _op("elect_all", st.booleans()),
    _op("allow_unclean", st.sampled_from(["a", "b", ""]), st.booleans()),
    _op("propose", topic, index, st.lists(broker, max_size=5, unique=True)),
    _op("propose", topic, index, st.just(list(BROKERS))),
    _op("propose", topic, index, st.just(list(BROKERS))),
    _op("silence", st.lists(broker, max_size=3, unique=True)),
    _op("back", broker),
    _op("back", broker),
    _op("restart", broker),
    _op("stop", broker),
    _op("unregister", broker),
    _op("recreate", topic, good_replicas),
    _op("wait", st.sampled_from([1.0, 25.0])),
)


def _holders(partition: Partition) -> set[int]:
    """Return the replicas that have every acknowledged record."""
    return {*partition.isr, *partition.elr, *partition.last_known_elr}


class World:
    """A cell, and the rules for changes of a partition, derived independently from the records."""

    def __init__(self) -> None:
        self.cell = Cell(brokers=5, settings=SETTINGS)
        self.cell.create_on((1, 2, 3), (2, 3, 4), name="a")
        self.cell.create_on((5, 1), name="b")
        self.unclean = False
        """True if an unclean leader is asked for just now."""
        self.cell.propose = self._proposing(self.cell.propose)  # type: ignore[method-assign]

    def _proposing(self, propose: Any) -> Any:
        def look(decision: Any) -> Any:
            before = self.cell.pending.snapshot()
            allowed = {name: self._allows_unclean(name) for name in before.topic_ids}
            result = propose(decision)
            for record in decision.records:
                if record.type == RecordType.PARTITION_CHANGE:
                    self._changed(before, record, allowed)
            return result

        return look

    def _allows_unclean(self, name: str) -> bool:
        configs = self.cell.pending.configs
        own = (configs.get((2, name)) or {}).get(UNCLEAN)
        return ((configs.get((4, "")) or {}).get(UNCLEAN) if own is None else own) == "true"

    def _changed(self, before: Any, record: Record, allowed: dict[str, bool]) -> None:
        message = record.message
        key = (message.topic_id, message.partition_id)
        old = before.partitions[key]
        new = self.cell.pending.partitions[key]
        gone = set(old.replicas) - set(new.replicas)
        assert new.partition_epoch == old.partition_epoch + 1, (
            "one record a partition and decision, one epoch a record"
        )
        assert new.leader_epoch == old.leader_epoch + (message.HasField("leader") or bool(gone))
        assert new.leader == old.leader or message.HasField("leader")
        declared = (
            new.leader_recovery_state == RECOVERING
            and new.isr == (new.leader,)
            and new.leader != old.leader
        )
        eligible = new.isr == (new.leader,) and new.leader in old.elr
        if not message.isr_with_epochs and not set(new.isr) <= set(old.isr) and not eligible:
            assert declared, "whoever enters an ISR was proposed, or leads it uncleanly and says so"
            name = before.topics[old.topic_id].name
            assert self.unclean or allowed[name] or message.HasField("recovery"), (
                "and somebody has allowed that, or every replica was asked"
            )
        assert set(new.elr) <= {*old.isr, *old.elr}
        had, have = _holders(old), _holders(new)
        if not declared and not message.isr_with_epochs and had.intersection(new.replicas):
            registered = self.cell.pending.brokers
            assert had & have or not any(holder in registered for holder in had), (
                "somebody who has everything stays"
            )
        self._moved(old, new)

    def _moved(self, old: Partition, new: Partition) -> None:
        adding, removing = set(new.adding_replicas), set(new.removing_replicas)
        original = set(assignment_of(old).original)
        assert not adding & removing
        assert adding | removing <= set(new.replicas)
        if adding or removing:
            assert set(assignment_of(new).original) == original, "what there was is remembered"
            assert new.replicas[len(new.replicas) - len(removing) :] == new.removing_replicas, (
                "target, then removing"
            )
        else:
            assert set(new.replicas) - original <= set(new.isr), "complete only when in sync"

    def run(self, name: str, *args: Any) -> None:
        getattr(self, name)(*args)
        self.cell.due()
        self.cell.check_invariants()
        for partition in self.cell.pending.snapshot().partitions.values():
            held = self.cell.pending.replicas_of
            assert all(
                (partition.topic_id, partition.index) in held[member]
                for member in partition.replicas
            )

    def send(self, message: Any) -> Any:
        """Decide and fold; return the body or None."""
        decision = self.cell.decide_twice(message)
        self.cell.propose(decision)
        return decision.body

    def partition(self, name: str, number: int) -> Partition | None:
        topic_id = self.cell.pending.topic_ids.get(name)
        return None if topic_id is None else self.cell.pending.partitions.get((topic_id, number))

    # --- operators -------------------------------------------------------------------------------

    def _reassignment(self, name: str, number: int, ids: list[int] | None) -> int:
        request = reassignment((number, ids), name=name)
        return self.send(request).topics[0].partitions[0].error.error_code

    def reassign(self, name: str, number: int, ids: list[int]) -> None:
        before = self.partition(name, number)
        code = self._reassignment(name, number, ids)
        after = self.partition(name, number)
        if before is None or after is None:
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif code:
            assert after == before
        else:
            assert assignment_of(after).target == tuple(ids)

    def cancel(self, name: str, number: int) -> None:
        before = self.partition(name, number)
        code = self._reassignment(name, number, None)
        after = self.partition(name, number)
        if before is None or after is None:
            return
        if not before.adding_replicas and not before.removing_replicas:
            assert code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        elif code:
            assert after == before
            assert not set(before.isr) & set(assignment_of(before).original), (
                "refused only if nobody would be left"
            )
        else:
            assert after.replicas == assignment_of(before).original
            assert not after.adding_replicas
            assert not after.removing_replicas

    def increase(self, name: str, count: int, placed: list[list[int]]) -> None:
        topic_id = self.cell.pending.topic_ids.get(name)
        assignments = [rpc.CreatePartitionsAssignment(broker_ids=ids) for ids in placed]
        wanted = rpc.CreatePartitionsTopic(name=name, count=count, assignments=assignments)
        body = self.send(rpc.CreatePartitionsRequest(topics=[wanted]))
        if topic_id is not None and not body.results[0].HasField("error"):
            assert self.cell.pending.topics[topic_id].partition_count == count

    def elect(self, name: str, numbers: list[int], unclean: bool) -> None:
        self.unclean = unclean
        kind = rpc.UNCLEAN if unclean else rpc.PREFERRED
        topics = [rpc.ElectableTopic(name=name, partition_indexes=numbers)]
        body = self.send(rpc.ElectLeadersRequest(election_type=kind, topics=topics))
        for one in body.topics[0].partitions:
            partition = self.partition(name, one.partition_index)
            assert (
                partition is None
                or partition.leader == one.leader_id
                or one.error.error_code == ErrorCode.INVALID_REQUEST
            )
        self.unclean = False

    def elect_all(self, unclean: bool) -> None:
        self.unclean = unclean
        request = rpc.ElectLeadersRequest(election_type=rpc.UNCLEAN if unclean else rpc.PREFERRED)
        assert self.send(request).remaining == 0
        assert not self.send(request).topics, "once is enough"
        self.unclean = False

    def allow_unclean(self, name: str, on: bool) -> None:
        if not name or name in self.cell.pending.topic_ids:
            self.cell.allow_unclean(name, value="true" if on else "false")

    def recreate(self, name: str, ids: list[int]) -> None:
        self.send(rpc.DeleteTopicsRequest(names=[name]))
        assignments = [rpc.CreatableReplicaAssignment(partition_index=0, broker_ids=ids)]
        created = rpc.CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        self.send(rpc.CreateTopicsRequest(topics=[created]))

    # --- leaders and brokers ---------------------------------------------------------------------

    def propose(self, name: str, number: int, isr: list[int]) -> None:
        partition = self.partition(name, number)
        if partition is None or partition.leader < 0:
            return
        brokers = self.cell.pending.brokers
        members = [
            partition.leader,
            *(one for one in isr if one != partition.leader and one in partition.replicas),
        ]
        members = [one for one in members if one in brokers and brokers[one].active]
        request = self.cell.isr_proposal(partition.topic_id, members, number)
        (result,) = self.send(request).topics[0].partitions
        after = self.partition(name, number)
        assert after is not None
        if result.error_code:
            assert result.error_code == ErrorCode.NEW_LEADER_ELECTED
            assert after.leader != partition.leader
            assert not after.adding_replicas
        else:
            said = (
                result.leader_id,
                result.leader_epoch,
                tuple(result.isr),
                result.partition_epoch,
            )
            assert said == (after.leader, after.leader_epoch, after.isr, after.partition_epoch)
        if (
            set(partition.adding_replicas) <= set(members)
            and len(partition.removing_replicas) <= len(partition.adding_replicas)
            and set(members) - set(partition.removing_replicas)
        ):
            assert not after.adding_replicas, "all that are added are in sync: it is done"

    def silence(self, ids: list[int]) -> None:
        self.cell.silence(*ids)

    def back(self, broker_id: int) -> None:
        if broker_id not in self.cell.pending.brokers:
            self.cell.join(broker_id)
        for _ in range(2):
            self.cell.beat(broker_id)
        for partition in list(self.cell.pending.snapshot().partitions.values()):
            if partition.leader == -1 and broker_id in partition.replicas:
                self.cell.report(broker_id, partition, partition.leader_epoch - 1, broker_id)

    def restart(self, broker_id: int) -> None:
        registered = self.cell.pending.brokers.get(broker_id)
        if registered is None or registered.fenced:
            offset = self.cell.pending.offset
            previous = -1 if registered is None or offset % 2 else registered.epoch
            self.cell.join(broker_id, incarnation=f"i{offset}", previous_broker_epoch=previous)

    def stop(self, broker_id: int) -> None:
        if broker_id in self.cell.pending.brokers:
            self.cell.beat(broker_id, want_shut_down=True)

    def unregister(self, broker_id: int) -> None:
        self.send(rpc.UnregisterBrokerRequest(broker_id=broker_id))

    def wait(self, seconds: float) -> None:
        self.cell.wait(seconds, step=1.0)


@pytest.mark.parametrize("histories", [50, nightly(500)])
def test_any_history_of_partition_operations_keeps_the_rules(histories: int) -> None:
    seen = 0

    @settings(max_examples=histories, deadline=None, derandomize=True)
    @given(st.lists(operations, min_size=25, max_size=60))
    def keeps_the_rules(history: list[tuple[Any, ...]]) -> None:
        nonlocal seen
        world = World()
        for name, *args in history:
            world.run(name, *args)
        seen += 1

    keeps_the_rules()
    assert seen >= histories
