"""Any sequence of requests, reports, silences, commits and failovers keeps what must hold of every
image.
"""

from typing import Any

from deciding import Cell, registration
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.settings import ControllerSettings
from raftlog.metadata.image import Image
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

SETTINGS = ControllerSettings(broker_metadata_lag_max_ms=12_000, max_records_per_request=40)
brokers = st.integers(1, 4)
any_broker = st.sampled_from([-1, 1, 2, 3, 4, 5])
epoch_drift = st.sampled_from([0, 0, 0, 0, -1, 1, 1000])
names = st.sampled_from(["a", "b", "c", "d", "a/b", ""])
small = st.integers(-2, 4)
isrs = st.lists(st.tuples(brokers, st.sampled_from([0, 0, 0, -1, 7])), max_size=4)


def _op(name: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *parts)


operations = st.one_of(
    _op("register", any_broker, st.integers(1, 2), st.booleans()),
    _op("join", brokers),
    _op("join", brokers),
    _op(
        "beat", any_broker, epoch_drift, st.integers(-3, 3), st.sampled_from(["", "fence", "stop"])
    ),
    _op("all_beat"),
    _op("all_beat"),
    _op("fetch", brokers, st.integers(-2, 2)),
    _op("wait", st.sampled_from([0.5, 3.0, 9.5])),
    _op("wait", st.sampled_from([0.5, 3.0])),
    _op("create", names, small, small),
    _op("create", st.sampled_from(["a", "b", "c"]), st.integers(1, 3), st.just(-1)),
    _op("assign", names, st.lists(st.lists(brokers, max_size=3), max_size=3)),
    _op("delete", names),
    _op("config", st.sampled_from([2, 4, 16, 3]), names, st.booleans()),
    _op(
        "alter",
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 2),
        isrs,
        st.tuples(epoch_drift, epoch_drift),
        st.booleans(),
    ),
    _op(
        "alter",
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 2),
        isrs,
        st.just((0, 0)),
        st.just(True),
    ),
    _op("unregister", any_broker),
    _op("hold", st.booleans()),
    _op("failover", st.booleans()),
)


class World:
    """A cell, its successors, and what was seen of them so far."""

    def __init__(self) -> None:
        self.cell = Cell(brokers=3, settings=SETTINGS)
        self.lao = -1
        self.applied: dict[tuple[int, int], int] = {}
        self.broker_epochs: dict[int, int] = {}
        self.partition_epochs: dict[tuple[bytes, int], tuple[int, int]] = {}

    def run(self, name: str, *args: Any) -> None:
        getattr(self, name)(*args)
        if not self.cell.hold_commits:
            self.cell.commit()
        self.cell.due()
        self.check()

    def send(self, message: Any) -> None:
        decision = self.cell.decide_twice(message)
        assert (decision.body is None) == (
            decision.error is not None or decision.decide_again_at is not None
        )
        self.cell.propose(decision)

    def check(self) -> None:
        self.cell.check_invariants()
        image = self.cell.pending.snapshot()
        for key, partition in image.partitions.items():
            epochs = (partition.partition_epoch, partition.leader_epoch)
            last = self.partition_epochs.get(key, (0, 0))
            assert epochs[0] >= last[0]
            assert epochs[1] >= last[1]
            self.partition_epochs[key] = epochs
        for broker_id, broker in image.brokers.items():
            assert broker.epoch >= self.broker_epochs.get(broker_id, 0)
            self.broker_epochs[broker_id] = broker.epoch
        known = self.cell.lao.lao
        if known >= 0:
            assert known >= self.lao
            self.lao = known
        committed = self.cell.decider.state.log.committed
        assert known <= committed.offset
        for broker_id, broker in committed.brokers.items():
            if known >= 0 and not broker.fenced and broker.registration_version:
                assert self.cell.lao.applied_of(broker_id) >= known or self.replaced(
                    broker_id, broker.epoch
                )

    def replaced(self, broker_id: int, epoch: int) -> bool:
        pending = self.cell.pending.brokers.get(broker_id)
        return pending is None or pending.epoch != epoch

    def register(self, broker_id: int, incarnation: int, proof: bool) -> None:
        process = (
            pb.ProcessProof(boot_id="b", directory_id="d", lock_device=1, lock_inode=broker_id & 7)
            if proof
            else None
        )
        self.send(
            registration(**{"broker_id": broker_id}, incarnation=f"i{incarnation}", process=process)
        )

    def join(self, broker_id: int) -> None:
        if broker_id not in self.cell.pending.brokers:
            self.send(registration(broker_id))
        for _ in range(2):
            self.beat(broker_id, 0, 0, "")

    def beat(self, broker_id: int, drift: int, ahead: int, wish: str) -> None:
        cell = self.cell
        beat = cell.heartbeat(broker_id, want_fence=wish == "fence", want_shut_down=wish == "stop")
        beat.broker_epoch += drift
        beat.current_metadata_offset = self.has_applied(beat, ahead)
        self.send(beat)

    def has_applied(self, beat: rpc.BrokerHeartbeatRequest, ahead: int) -> int:
        """A broker may lag behind the commits, or know of more than this controller; it never goes
        back.
        """
        key = (beat.broker_id, beat.broker_epoch)
        self.applied[key] = max(self.applied.get(key, -1), beat.current_metadata_offset + ahead)
        return self.applied[key]

    def all_beat(self) -> None:
        for broker_id in sorted(self.cell.pending.snapshot().brokers):
            self.beat(broker_id, 0, 0, "")

    def fetch(self, broker_id: int, ahead: int) -> None:
        cell = self.cell
        beat = cell.heartbeat(broker_id)
        applied = self.has_applied(beat, ahead)
        cell.decider.report(
            broker_id, beat.broker_epoch, cell.epoch, applied, cell.lao.lao, cell.now
        )

    def wait(self, seconds: float) -> None:
        self.cell.now += seconds

    def create(self, name: str, partitions: int, factor: int) -> None:
        topic = rpc.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
        self.send(rpc.CreateTopicsRequest(topics=[topic]))

    def assign(self, name: str, replica_sets: list[list[int]]) -> None:
        topic = rpc.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        for index, replicas in enumerate(replica_sets):
            topic.assignments.add(partition_index=index, broker_ids=replicas)
        self.send(rpc.CreateTopicsRequest(topics=[topic]))

    def delete(self, name: str) -> None:
        self.send(rpc.DeleteTopicsRequest(names=[name]))

    def config(self, resource_type: int, name: str, deleting: bool) -> None:
        resource = rpc.AlterConfigsResource(resource_type=resource_type, resource_name=name)
        key, value = {2: ("retention.ms", "1"), 16: ("match", "x")}.get(
            resource_type, ("num.io.threads", "1")
        )
        resource.configs.add(
            name=key, value=value, config_operation=rpc.DELETE if deleting else rpc.SET
        )
        self.send(rpc.IncrementalAlterConfigsRequest(resources=[resource]))

    def alter(
        self,
        name: str,
        index: int,
        isr: list[tuple[int, int]],
        drift: tuple[int, int],
        by_leader: bool,
    ) -> None:
        cell = self.cell
        topic_id = cell.pending.topic_ids.get(name, b"")
        partition = cell.pending.partitions.get((topic_id, index))
        if partition is None:
            return
        proposer = cell.pending.brokers.get(partition.leader if by_leader else 1)
        members = [
            *([(partition.leader, 0)] if by_leader else []),
            *(m for m in isr if m[0] != partition.leader),
        ]
        request = rpc.AlterPartitionRequest(
            broker_id=proposer.id if proposer else 1, broker_epoch=proposer.epoch if proposer else 1
        )
        data = request.topics.add(topic_id=topic_id).partitions.add(
            partition_index=index,
            leader_epoch=partition.leader_epoch + drift[0],
            partition_epoch=partition.partition_epoch + drift[1],
        )
        for broker_id, epoch in members:
            broker = cell.pending.brokers.get(broker_id)
            data.new_isr_with_epochs.add(
                broker_id=broker_id, broker_epoch=epoch or (broker.epoch if broker else 3)
            )
        self.send(request)

    def unregister(self, broker_id: int) -> None:
        self.send(rpc.UnregisterBrokerRequest(broker_id=broker_id))

    def hold(self, on: bool) -> None:
        self.cell.hold_commits = on

    def failover(self, inherits: bool) -> None:
        """The next controller has the whole log of this one, or only what was committed."""
        old = self.cell
        image: Image = old.pending.snapshot() if inherits else old.decider.state.log.committed
        if not inherits:
            self.partition_epochs.clear()
            self.broker_epochs.clear()
        self.cell = Cell(
            brokers=0, image=image, epoch=old.epoch + 1, now=old.now, settings=SETTINGS
        )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(operations, max_size=40))
def test_any_history_keeps_the_invariants(history: list[tuple[Any, ...]]) -> None:
    world = World()
    for name, *args in history:
        world.run(name, *args)
