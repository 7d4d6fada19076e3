"""Timelines agree with the fold."""

from pathlib import Path
from typing import Any

import pytest
from asking import opened
from kafka_log import KafkaLog, kafka
from log_history import LogHistory
from pyspark.sql import DataFrame, SparkSession

from raftlog import batch
from raftlog.metadata.fold import ImageBuilder, apply
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, parse
from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.engine.passes import ExportLog
from replay.engine.pool import Pool
from replay.export import Export
from replay.kernels import timelines as kernels
from replay.kernels.facts import TOPIC_LIVES
from replay.kernels.passes import facts_of
from replay.kernels.steps import COLUMNS as STEP_COLUMNS
from replay.kernels.steps import PARTITION_TYPES
from replay.spark.views import BROKER_COLUMNS, VIEWS, Views

Rows = list[dict[str, Any]]


class Eventful(LogHistory):
    """Also with changes that only operators and accidents make."""

    def _step(self, dice: float) -> None:
        if dice < 0.25 or not self.topics:
            super()._step(self.rng.random())
            return
        rng = self.rng
        name = rng.choice(list(self.topics))
        index = rng.randrange(self.draft.topics[self.topics[name]].partition_count)
        old = self.draft.partitions[self.topics[name], index]
        if dice < 0.35:
            # Every other time it leaps, as after a recovery of the log.
            leap = {"leader_epoch": old.leader_epoch + 100} if old.partition_epoch % 2 else {}
            self.change(old, leader=old.leader, **leap)
        elif dice < 0.45:
            self.change(
                old,
                leader=-1,
                isr=[],
                eligible_leader_replicas=list(old.isr),
                last_known_elr=[old.leader],
            )
            self.change(old, leader=old.leader, isr=[old.leader], leader_recovery_state=1)
            self.change(old, eligible_leader_replicas=[], last_known_elr=[])
            self.change(old, leader_recovery_state=0, removing_replicas=[old.leader])
        elif dice < 0.65:
            replicas = sorted({old.leader, *rng.sample(range(1, self.brokers + 1), 2)})
            self.change(
                old,
                replicas=replicas,
                isr=[old.leader],
                adding_replicas=replicas[:1],
                removing_replicas=[],
            )
        elif dice < 0.75:
            self.begin_shutdown(rng.randrange(1, self.brokers + 1))
        elif dice < 0.85:
            self.replace_broker(rng.randrange(1, self.brokers + 1))
        elif dice < 0.88:
            self.revive(name)
        elif dice < 0.91:
            self.elect(rng.randrange(1, 4))
        else:
            self.alter_isr(name, index, [old.leader])

    def change(self, old: Any, **named: Any) -> None:
        values: dict[str, Any] = {
            field: pb.IdList(ids=value) if isinstance(value, list) else value
            for field, value in named.items()
        }
        change = pb.PartitionChangeRecord(topic_id=old.topic_id, partition_id=old.index, **values)
        self.append(change, principal="User:admin")

    def begin_shutdown(self, broker_id: int) -> None:
        epoch = self.draft.brokers[broker_id].epoch
        self.append(
            pb.BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=epoch, in_controlled_shutdown=True
            )
        )

    def replace_broker(self, broker_id: int) -> None:
        self.append(
            pb.UnregisterBrokerRecord(
                broker_id=broker_id, broker_epoch=self.draft.brokers[broker_id].epoch
            ),
            pb.NoOpRecord(),
        )
        self.append(pb.NoOpRecord())
        self.register(broker_id)
        self.set_fenced(broker_id, fenced=False)

    def revive(self, name: str) -> None:
        """Revive the id of a removed topic. No controller would; the fold allows it."""
        topic_id = self.topics[name]
        self.delete_topic(name)
        replicas = self.active()[:2]
        created = pb.PartitionRecord(
            topic_id=topic_id,
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
            leader_epoch=7,
            partition_epoch=70,
        )
        self.append(pb.TopicRecord(name=name, topic_id=topic_id), created)
        self.topics[name] = topic_id


class Folded:
    """Timelines by the fold: one record after the other, with the image after each."""

    def __init__(self, log: LogHistory) -> None:
        self.brokers: Rows = []
        self.topics: Rows = []
        self.partitions: Rows = []
        self.controllers: Rows = []
        self.configs: Rows = []
        self._open: dict[Any, dict[str, Any]] = {}
        self._draft = ImageBuilder(Image())
        for data in log.batches:
            for header in batch.headers(data):
                for index, record in enumerate(batch.records(data, header)):
                    offset, message = header.base_offset + index, parse(record)
                    apply(self._draft, record.type, message, offset, header.epoch)
                    self._look(RecordType(record.type), message, offset, header)

    def _look(
        self, type_: RecordType, message: Any, offset: int, header: batch.BatchHeader
    ) -> None:
        begin = {"begins": offset, "begins_ms": header.timestamp_ms, "ends": None, "ends_ms": None}
        if "BROKER" in type_.name:
            self._end(message.broker_id, offset, header)
            of_batch = {
                "batch_base_offset": header.base_offset,
                "batch_last_offset": header.last_offset,
            }
            facts = {"epoch": header.epoch, "principal": header.principal}
            self._begin_broker(type_, message, begin | facts | of_batch)
        elif type_ in (RecordType.TOPIC, RecordType.REMOVE_TOPIC):
            topic_id = message.topic_id.hex()
            for key in [key for key in self._open if isinstance(key, tuple) and key[0] == topic_id]:
                self._end(key, offset, header)
            if type_ == RecordType.TOPIC:
                self._begin(
                    (topic_id, None),
                    self.topics,
                    begin | {"topic_id": topic_id, "topic_name": message.name},
                )
        elif "PARTITION" in type_.name:
            self._end((message.topic_id.hex(), message.partition_id), offset, header)
            facts = {"epoch": header.epoch, "principal": header.principal, "type": int(type_)}
            self._begin_partition(
                type_, message, begin | facts | {"batch_last_offset": header.last_offset}
            )
        elif type_ == RecordType.CONFIG:
            self._end((message.resource_type, message.resource_name, message.name), offset, header)
            self._begin_config(
                message, begin | {"epoch": header.epoch, "principal": header.principal}
            )
        elif type_ == RecordType.LEADER_CHANGE:
            self._end("controller", offset, header)
            heard = message.HasField("last_heard_age_ms")
            facts = {
                "epoch": header.epoch,
                "leader_id": message.leader_id,
                "last_heard_epoch": message.last_heard_epoch if heard else None,
                "last_heard_age_ms": message.last_heard_age_ms if heard else None,
                "last_heard_by_all": message.last_heard_by_all if heard else None,
            }
            self._begin("controller", self.controllers, begin | facts)
        self._open["controller"]["last_ms"] = header.timestamp_ms

    def _begin(self, key: Any, rows: Rows, row: dict[str, Any]) -> None:
        rows.append(row)
        self._open[key] = row

    def _end(self, key: Any, offset: int, header: batch.BatchHeader) -> None:
        if key in self._open:
            self._open.pop(key).update(ends=offset, ends_ms=header.timestamp_ms)

    def _begin_broker(self, type_: RecordType, message: Any, row: dict[str, Any]) -> None:
        broker = self._draft.brokers.get(message.broker_id)
        if broker is None:
            return
        facts = {
            name: getattr(broker, name)
            for name in ("fenced", "in_controlled_shutdown", "rack", "reason")
        }
        facts["cause"] = broker.cause.name if broker.cause else None
        facts |= {
            "broker_id": broker.id,
            "broker_epoch": broker.epoch,
            "incarnation_id": broker.incarnation_id,
        }
        self._begin(
            broker.id,
            self.brokers,
            row | facts | {"registration": type_ == RecordType.REGISTER_BROKER},
        )

    def _begin_config(self, message: Any, row: dict[str, Any]) -> None:
        values = self._draft.configs.get((message.resource_type, message.resource_name)) or {}
        if message.name not in values:
            return
        key = {"resource_type": message.resource_type, "resource_name": message.resource_name}
        facts = {"config_name": message.name, "config_value": values[message.name]}
        self._begin((*key.values(), message.name), self.configs, row | key | facts)

    def _begin_partition(self, type_: RecordType, message: Any, row: dict[str, Any]) -> None:
        partition = self._draft.partitions[message.topic_id, message.partition_id]
        facts: dict[str, Any] = {
            "topic_id": message.topic_id.hex(),
            "topic_name": self._draft.topics[message.topic_id].name,
            "partition_id": message.partition_id,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "adding_replicas": list(partition.adding_replicas),
            "removing_replicas": list(partition.removing_replicas),
            "eligible_leader_replicas": list(partition.elr),
            "last_known_elr": list(partition.last_known_elr),
            "proposer_id": None,
            "proposer_epoch": None,
            "isr_with_epochs": None,
        }
        for name in ("leader", "leader_epoch", "partition_epoch", "leader_recovery_state"):
            facts[name] = getattr(partition, name)
        if type_ == RecordType.PARTITION_CHANGE:
            facts |= {"proposer_id": message.proposer_id, "proposer_epoch": message.proposer_epoch}
            named = [(member.broker_id, member.broker_epoch) for member in message.isr_with_epochs]
            facts["isr_with_epochs"] = named or None
        self._begin((facts["topic_id"], facts["partition_id"]), self.partitions, row | facts)


COLUMNS = {
    "brokers": BROKER_COLUMNS,
    "topics": tuple(TOPIC_LIVES.names),
    "partitions": tuple(kernels.PARTITIONS.names),
    "controllers": tuple(kernels.CONTROLLERS.names),
    "configs": tuple(kernels.CONFIGS.names),
}


@pytest.fixture(scope="module")
def log() -> LogHistory:
    return Eventful(61, brokers=4).run(900)


@pytest.fixture(scope="module")
def eventful(log: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Export:
    directory = tmp_path_factory.mktemp("eventful")
    export(log, directory)
    return opened(directory)


def found(timeline: DataFrame) -> Rows:
    plain = [row.asDict() for row in timeline.collect()]
    for row in plain:
        if row.get("isr_with_epochs") is not None:
            row["isr_with_epochs"] = [tuple(member) for member in row["isr_with_epochs"]]
    return in_order(plain)


def in_order(plain: Rows) -> Rows:
    # A batch may name one partition twice, never one offset.
    return sorted(plain, key=lambda row: row["begins"])


@pytest.mark.parametrize("name", COLUMNS)
def test_timeline_equals_the_fold(
    spark: SparkSession, eventful: Export, log: LogHistory, name: str
) -> None:
    expected = getattr(Folded(log), name)
    timeline = VIEWS[name](Views(spark, eventful))
    assert tuple(timeline.columns) == COLUMNS[name]
    assert {row["ends"] is None for row in expected} == {True, False}
    assert found(timeline) == in_order(expected)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_timeline_does_not_depend_on_slices(eventful: Export, log: LogHistory, size: int) -> None:
    """State is carried from slice to slice: an interval begins in one and ends in another."""
    whole = ExportLog(eventful, Pool(0))
    facts = facts_of(whole)
    for name, kernel, columns, types in (
        ("partitions", kernels.partitions, STEP_COLUMNS, PARTITION_TYPES),
        ("configs", kernels.configs, kernels.CONFIG_COLUMNS, (RecordType.CONFIG,)),
    ):
        of_type = whole.table(columns, types)
        slices = (of_type.slice(at, size) for at in range(0, of_type.num_rows, size))
        told = [row for part in kernel(facts, slices) for row in part.to_pylist()]
        for row in told:
            if row.get("isr_with_epochs") is not None:
                row["isr_with_epochs"] = [tuple(each.values()) for each in row["isr_with_epochs"]]
        assert in_order(told) == in_order(getattr(Folded(log), name))


def test_timeline_follows_implicit_removals_of_kafka(spark: SparkSession, tmp_path: Path) -> None:
    """A topic's configs are removed with it; and one record clears the eligible leader replicas of
    many partitions, which raises their epochs.
    """
    theirs = KafkaLog()
    theirs.topic("gone", [1, 2, 3], isr=[1])
    theirs.change("gone", eligible_leader_replicas=[2])
    theirs.append(kafka.metadata("ClearElrRecord", topic_name=""))
    cleared = theirs.change("gone", isr=[1, 2])
    set_ = theirs.append(kafka.config("retention.ms", "1", "gone"))
    again = theirs.append(kafka.config("retention.ms", "2", "gone"))
    removed = theirs.delete("gone")
    theirs.topic("gone", [1])
    other = theirs.append(kafka.config("retention.ms", "3", "gone"))
    theirs.import_into(tmp_path)
    views = Views(spark, opened(tmp_path / "exported"))
    told = [
        (row["config_value"], row["begins"], row["ends"]) for row in found(VIEWS["configs"](views))
    ]
    assert told == [("1", set_, again), ("2", again, removed), ("3", other, None)]
    changed = [row for row in found(VIEWS["partitions"](views)) if row["begins"] == cleared]
    assert [(row["partition_epoch"], row["ends"]) for row in changed] == [(3, removed)]
