"""A controller without its shell: decisions are folded, and committed unless held back."""

import random
from collections.abc import Iterable, Mapping
from typing import Any

from controller.decider import Decider
from controller.decision import (
    Decision,
    Defer,
    Duplicate,
    Refusal,
    Reply,
    TransferLeadership,
    Write,
)
from controller.decisions.quorum.membership import Look
from controller.settings import ControllerSettings
from controller.state.epoch_log import EpochLog
from controller.state.state import ControllerState
from raftlog.errors import ErrorCode
from raftlog.metadata import versions
from raftlog.metadata.entities import HASH_MASK, Broker, Partition
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import unknown
from raftlog.metadata.records import Record, RecordType, record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

CLUSTER_ID = "test-cluster"
BODIES = {
    field.message_type.name: field.name
    for field in rpc.ControllerRequest.DESCRIPTOR.oneofs_by_name["body"].fields
}
FEATURES = (("lao.version", 0, 1), (versions.METADATA_VERSION, 1, versions.LATEST_METADATA_VERSION))


def envelope(message: Any) -> rpc.ControllerRequest:
    return rpc.ControllerRequest(**{BODIES[type(message).__name__]: message})


def at(host: str, port: int = 9092) -> list[pb.Listener]:
    return [pb.Listener(name="PLAIN", host=host, port=port)]


def registration(broker_id: int, incarnation: str = "", **fields: Any) -> rpc.RegisterBrokerRequest:
    content: dict[str, Any] = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": incarnation or f"incarnation-{broker_id}",
        "listeners": at(f"host-{broker_id}", 9000 + broker_id % 1000),
        "features": [
            pb.FeatureRange(name=n, min_supported_version=a, max_supported_version=b)
            for n, a, b in FEATURES
        ],
        "registration_version": 1,
        "previous_broker_epoch": -1,
    }
    return rpc.RegisterBrokerRequest(**{**content, **fields})


def reassignment(
    *moves: tuple[int, Iterable[int] | None], name: str = "t", **fields: Any
) -> rpc.AlterPartitionReassignmentsRequest:
    """Return a request for these replicas of each partition; None cancels."""
    partitions = [
        rpc.ReassignablePartition(
            partition_index=index, replicas=None if ids is None else pb.IdList(ids=ids)
        )
        for index, ids in moves
    ]
    topics = [rpc.ReassignableTopic(name=name, partitions=partitions)]
    return rpc.AlterPartitionReassignmentsRequest(topics=topics, **fields)


def replica_log(partition: Partition, last_epoch: int = -1, end: int = 0) -> rpc.ReplicaLogReport:
    """Return a report of the end of a replica of a leaderless partition."""
    return rpc.ReplicaLogReport(
        topic_id=partition.topic_id,
        partition_index=partition.index,
        leader_epoch=partition.leader_epoch,
        last_epoch=last_epoch,
        log_end_offset=end,
    )


class Decided:
    def __init__(self, outcome: Decision) -> None:
        self.outcome = outcome
        self.records: list[Record] = outcome.records if isinstance(outcome, Write) else []
        self.body: Any = (
            outcome.body if isinstance(outcome, Write | Reply | TransferLeadership) else None
        )
        self.error = outcome.error if isinstance(outcome, Refusal) else None
        self.code = self.error.code if self.error is not None else None
        self.duplicate = outcome.result if isinstance(outcome, Duplicate) else None
        self.decide_again_at = outcome.at if isinstance(outcome, Defer) else None
        self.transfer_to = outcome.target_id if isinstance(outcome, TransferLeadership) else None
        self.effects = outcome.effects if isinstance(outcome, Write | Reply | Defer) else ()
        self.answer_when_appended = isinstance(outcome, Write) and outcome.answer_when_appended

    @property
    def types(self) -> list[str]:
        return [RecordType(one.type).name for one in self.records]

    def __repr__(self) -> str:
        return repr(self.outcome)


class Cell:
    """The active controller of one epoch, with the parts of the shell that fold and commit."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        image: Image | None = None,
        epoch: int = 1,
        now: float = 100.0,
        settings: ControllerSettings | None = None,
        bootstrap: bool = True,
        quorum: Look | None = None,
        shared_node_ids: bool = True,
        generation: int = 0,
        recoveries: int = 0,
    ) -> None:
        """``shared_node_ids``: brokers may have controllers' ids, as both start at 1 here."""
        self.now = now
        self.epoch = epoch
        self.settings = settings or ControllerSettings()
        self.hold_commits = False
        base = image or Image()
        self.log = EpochLog(epoch, base.offset + 1, base, unknown(base.offset + 1))
        self.pending, self.lao = self.log.pending, self.log.lao
        self.fold([record(pb.LeaderChangeRecord(leader_id=1, voters=[1], granting_voters=[1]))])
        state = ControllerState(
            self.log,
            self.settings,
            CLUSTER_ID,
            random.Random(epoch),
            now,
            generation,
            (),
            recoveries,
        )
        self.decider = Decider(state, self.log.report, 1, quorum)
        if shared_node_ids:
            self.decider.state.controller_ids = lambda now: frozenset()
        self.commit()
        if bootstrap:
            self.due()
        for broker_id in range(1, brokers + 1):
            self.join(broker_id)

    # --- the shell's part ------------------------------------------------------------------------

    def fold(self, records: list[Record]) -> None:
        self.log.add(records, None, 0)

    def propose(self, outcome: Decided | Decision) -> Decided:
        decision = outcome if isinstance(outcome, Decided) else Decided(outcome)
        if decision.records:
            self.fold(decision.records)
        self.decider.proposed(decision.outcome, self.now)
        if not self.hold_commits:
            self.commit()
        return decision

    def commit(self) -> None:
        self.log.end_chunk()
        self.log.commit(self.log.end_offset)

    def decide(self, message: Any) -> Decided:
        return self.decide_request(envelope(message))

    def decide_request(self, request: rpc.ControllerRequest) -> Decided:
        """Decide a request with its envelope. Asserts that deciding changes nothing:
        only heartbeats report what the broker has applied.
        """
        before = None if request.HasField("broker_heartbeat") else self.soft_state()
        decided = Decided(self.decider.decide(request, self.now))
        assert before in (None, self.soft_state()), "deciding changes something"
        return decided

    def send(self, message: Any) -> Any:
        """Decide, fold and commit a request that is expected to succeed; return its body."""
        decision = self.propose(self.decide(message))
        if decision.decide_again_at is not None:
            self.now = decision.decide_again_at
            decision = self.propose(self.decide(message))
        assert decision.error is None, decision.error
        return decision.body

    def decide_twice(self, message: Any) -> Decided:
        """Decide a request twice with the same randomness, with equal results."""
        rng = self.decider.state.rng
        randomness = rng.getstate()
        first = self.decide(message)
        rng.setstate(randomness)
        decision = self.decide(message)
        assert [one.data for one in first.records] == [one.data for one in decision.records]
        if decision.error is not None:
            assert decision.records == []
            assert decision.error.code != ErrorCode.UNKNOWN_SERVER_ERROR
        return decision

    def due(self, *, progress: bool = False) -> list[Decided]:
        """Do all that is due; return the decisions, with progress records only on demand."""
        decisions = []
        while (due := self.decider.due.next(self.now)) is not None:
            assert due.records
            decision = Decided(due)
            self.propose(decision)
            if progress or decision.records[0].type != RecordType.PROGRESS:
                decisions.append(decision)
        return decisions

    # --- brokers ---------------------------------------------------------------------------------

    def register(self, broker_id: int, incarnation: str = "", **fields: Any) -> int:
        return self.send(registration(broker_id, incarnation, **fields)).broker_epoch

    def heartbeat(self, broker_id: int, **fields: Any) -> rpc.BrokerHeartbeatRequest:
        """Send a heartbeat of a broker that has applied everything, but for ``fields``."""
        broker = self.pending.brokers.get(broker_id)
        content: dict[str, Any] = {
            "broker_id": broker_id,
            "broker_epoch": -1 if broker is None else broker.epoch,
            "current_metadata_offset": self.decider.state.log.committed.offset,
            "told_lowest_acknowledged_offset": self.lao.lao,
            "controller_epoch": self.epoch,
        }
        return rpc.BrokerHeartbeatRequest(**{**content, **fields})

    def beat(self, broker_id: int, **fields: Any) -> rpc.BrokerHeartbeatResponse:
        return self.send(self.heartbeat(broker_id, **fields))

    def beats(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.beat(broker_id)

    def join(self, broker_id: int, **fields: Any) -> int:
        """Register and unfence a broker."""
        epoch = self.register(broker_id, **fields)
        assert not self.beat(broker_id).is_fenced
        return epoch

    def back(self, broker_id: int, *, clean: bool = True, **fields: Any) -> int:
        """Register and unfence the next process of a broker, after a clean shutdown or a crash."""
        previous = self.broker(broker_id).epoch if clean else -1
        incarnation = f"after-{self.pending.offset}"
        return self.join(
            broker_id, incarnation=incarnation, previous_broker_epoch=previous, **fields
        )

    def all_beat(self, *but: int) -> None:
        """Send a heartbeat of each unfenced broker, except these."""
        for broker_id, broker in sorted(self.pending.snapshot().brokers.items()):
            if broker_id not in but and not broker.fenced:
                self.beat(broker_id)

    def wait(self, seconds: float, step: float = 3.0) -> list[Decided]:
        """Let time pass while all unfenced brokers heartbeat; return the decisions that were due."""
        end, decisions = self.now + seconds, list[Decided]()
        while self.now < end:
            self.now = min(end, self.now + step)
            self.all_beat()
            decisions += self.due()
        return decisions

    def expire(self, *broker_ids: int) -> None:
        """Let the sessions of these brokers expire, while the others stay alive."""
        for _ in range(4):
            self.now += self.settings.broker_session_timeout_ms / 1000 / 3
            self.all_beat(*broker_ids)

    def silence(self, *broker_ids: int) -> list[Decided]:
        """Let the sessions of these brokers expire, and fence them; return the decisions."""
        self.expire(*broker_ids)
        return self.due()

    # --- looking ---------------------------------------------------------------------------------

    def broker(self, broker_id: int) -> Broker:
        found = self.pending.brokers.get(broker_id)
        assert found is not None
        return found

    def report(
        self, broker_id: int, partition: Partition, last_epoch: int = -1, end: int = 0
    ) -> list[Decided]:
        """Report the end of a broker's replica of a leaderless partition; return what was due."""
        self.beat(broker_id, replica_logs=[replica_log(partition, last_epoch, end)])
        return self.due()

    def create(self, name: str = "t", **fields: Any) -> bytes:
        content: dict[str, Any] = {"name": name, "num_partitions": 1, "replication_factor": 3}
        topic = rpc.CreatableTopic(**{**content, **fields})
        result = self.send(rpc.CreateTopicsRequest(topics=[topic])).topics[0]
        assert not result.HasField("error"), result.error
        return result.topic_id

    def create_on(self, *replica_sets: Iterable[int], name: str = "t") -> bytes:
        assignments = [
            rpc.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(replica_sets)
        ]
        return self.create(name, num_partitions=-1, replication_factor=-1, assignments=assignments)

    def partition(self, topic_id: bytes, index: int = 0) -> Partition:
        return self.pending.partitions[topic_id, index]

    def isr_proposal(
        self, topic_id: bytes, isr: Iterable[int], index: int = 0
    ) -> rpc.AlterPartitionRequest:
        """Return the proposal of an ISR by the leader."""
        partition = self.partition(topic_id, index)
        data = rpc.AlterPartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[
                pb.BrokerState(broker_id=one, broker_epoch=self.broker(one).epoch) for one in isr
            ],
        )
        return rpc.AlterPartitionRequest(
            broker_id=partition.leader,
            broker_epoch=self.broker(partition.leader).epoch,
            topics=[rpc.AlterPartitionTopic(topic_id=topic_id, partitions=[data])],
        )

    def propose_isr(
        self, topic_id: bytes, isr: Iterable[int], index: int = 0
    ) -> rpc.AlterPartitionResult:
        proposal = self.isr_proposal(topic_id, isr, index)
        return self.send(proposal).topics[0].partitions[0]

    def reassign(self, moves: Mapping[int, Iterable[int] | None], name: str = "t") -> None:
        for result in self.send(reassignment(*moves.items(), name=name)).topics[0].partitions:
            assert not result.HasField("error"), result

    def soft_state(self) -> tuple[Any, ...]:
        """Return all state that a decision must not change before it is proposed."""
        state, sessions = self.decider.state, self.decider.state.sessions
        brokers = sorted(state.log.committed.brokers)
        return (
            set(state.wants_unfence),
            dict(state.shutdown_offsets),
            [state.read_leases.ends_at(broker_id) for broker_id in brokers],
            [state.read_leases.is_withheld(broker_id, self.now) for broker_id in brokers],
            [(broker_id, sessions.last_contact(broker_id)) for broker_id in brokers],
            [
                (self.lao.applied_of(broker_id), self.lao.known_lao_of(broker_id))
                for broker_id in brokers
            ],
            self.lao.lao,
            self.pending.offset,
            self.pending.state_hash & HASH_MASK,
        )

    def refused(self, message: Any, code: ErrorCode, field: str, *says: str) -> None:
        """Assert that the request is refused whole with this code, field and text, without effect."""
        before = self.soft_state()
        decision = self.decide(message)
        assert decision.error is not None, f"accepted: {decision}"
        assert (decision.error.code, decision.error.field) == (code, field), decision.error
        for text in says:
            assert text in decision.error.message, decision.error.message
        assert not decision.records
        assert decision.body is None
        assert not decision.effects
        assert self.soft_state() == before

    def refused_part(self, message: Any, code: ErrorCode, field: str) -> None:
        """Assert that the only part of the request is refused in its result, and nothing changes."""
        decision = self.decide(message)
        assert decision.error is None
        assert not decision.records
        results = getattr(decision.body, "results", None) or decision.body.topics
        results = getattr(results[0], "partitions", results)
        errors = [result.error for result in results if result.HasField("error")]
        assert [(error.error_code, error.field) for error in errors] == [(code, field)], errors

    def configure(self, name: str, key: str, value: str, kind: int = 0) -> None:
        """Set a config of a resource of this type; 0: of a topic, or of all brokers if ""."""
        kind = kind or (2 if name else 4)
        resource = rpc.AlterConfigsResource(resource_type=kind, resource_name=name)
        resource.configs.add(name=key, value=value)
        assert not self.send(rpc.IncrementalAlterConfigsRequest(resources=[resource])).results

    def allow_unclean(self, topic: str, *, value: str = "true") -> None:
        """Set unclean.leader.election.enable of a topic; "": of all brokers."""
        self.configure(topic, "unclean.leader.election.enable", value)

    def check_invariants(self) -> None:
        """Check the invariants of every image."""
        image = self.pending.snapshot()
        for (topic_id, index), partition in image.partitions.items():
            assert topic_id in image.topics
            assert index < image.topics[topic_id].partition_count
            assert partition.isr or partition.leader == -1, "a leader is in the ISR"
            assert partition.leader == -1 or not partition.last_known_elr
            assert set(partition.elr).isdisjoint(partition.isr)
            assert {*partition.elr, *partition.last_known_elr} <= set(partition.replicas)
            assert len(set(partition.isr)) == len(partition.isr)
            assert set(partition.isr) <= set(partition.replicas)
            assert partition.leader == -1 or partition.leader in partition.isr
            if partition.leader != -1:
                assert image.brokers[partition.leader].active, "a leader is active"
            for member in partition.isr:
                assert image.brokers[member].active, "a member of an ISR is active"
            if not partition.isr:
                for member in partition.elr:
                    standing = image.brokers.get(member)
                    assert standing is not None, "an eligible leader replica is registered"
                    assert not standing.active, "a live eligible leader replica leads"
        for resource_type, name in image.configs:
            assert resource_type != 2 or name in image.topic_ids, "no configs without their topic"
