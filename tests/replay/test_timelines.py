"""Timelines agree with the fold."""

from pathlib import Path
from typing import Any

import pytest
from asking import opened, written
from figures_reference import messages
from kafka_log import KafkaLog, kafka
from log_history import LogHistory
from pyspark.sql import DataFrame, SparkSession
from tiers import nightly

from raftlog.batch import BatchHeader
from raftlog.metadata.fold import ImageBuilder, apply
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, parse
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
            gone: dict[str, Any] = {
                "eligible_leader_replicas": list(old.isr),
                "last_known_elr": [old.leader],
            }
            self.change(old, leader=-1, isr=[], **gone)
            self.change(old, leader=old.leader, isr=[old.leader], leader_recovery_state=1)
            self.change(old, eligible_leader_replicas=[], last_known_elr=[])
            self.change(old, leader_recovery_state=0, removing_replicas=[old.leader])
        elif dice < 0.65:
            replicas = sorted({old.leader, *rng.sample(range(1, self.brokers + 1), 2)})
            moved = {"adding_replicas": replicas[:1], "removing_replicas": []}
            self.change(old, replicas=replicas, isr=[old.leader], **moved)
        elif dice < 0.75:
            broker_id = rng.randrange(1, self.brokers + 1)
            self.append(self.standing(broker_id, in_controlled_shutdown=True))
        elif dice < 0.85:
            self.replace_broker(rng.randrange(1, self.brokers + 1))
        elif dice < 0.88:
            self.revive(name)
        elif dice < 0.91:
            self.elect(rng.randrange(1, 4))
        else:
            self.alter_isr(name, index, [old.leader])

    def change(self, old: Any, **named: Any) -> None:
        self.append(self.changed(old.topic_id, old.index, **named), principal="User:admin")

    def replace_broker(self, broker_id: int) -> None:
        self.append(self.unregistered(broker_id), pb.NoOpRecord())
        self.append(pb.NoOpRecord())
        self.register(broker_id)
        self.set_fenced(broker_id, fenced=False)

    def revive(self, name: str) -> None:
        """Revive the id of a removed topic. No controller would; the fold allows it."""
        topic_id = self.topics[name]
        self.delete_topic(name)
        replicas = self.active()[:2]
        led: dict[str, Any] = {"replicas": replicas, "isr": replicas, "leader": replicas[0]}
        created = pb.PartitionRecord(topic_id=topic_id, leader_epoch=7, partition_epoch=70, **led)
        self.append(pb.TopicRecord(name=name, topic_id=topic_id), created)
        self.topics[name] = topic_id


COLUMNS = {
    "brokers": BROKER_COLUMNS,
    "topics": tuple(TOPIC_LIVES.names),
    "partitions": tuple(kernels.PARTITIONS.names),
    "controllers": tuple(kernels.CONTROLLERS.names),
    "configs": tuple(kernels.CONFIGS.names),
}


class Folded:
    """Timelines by the fold: one record after the other, with the image after each."""

    def __init__(self, log: LogHistory) -> None:
        self.rows: dict[str, Rows] = {name: [] for name in COLUMNS}
        self._open: dict[Any, dict[str, Any]] = {}
        self._draft = ImageBuilder(Image())
        for offset, type_, record, header in messages(log.batches):
            message = parse(record)
            apply(self._draft, record.type, message, offset, header.epoch)
            self._look(type_, message, offset, header)
            self._open["controller"]["last_ms"] = header.timestamp_ms

    def _look(self, type_: RecordType, message: Any, offset: int, header: BatchHeader) -> None:
        at = {"begins": offset, "begins_ms": header.timestamp_ms, "ends": None, "ends_ms": None}
        by = {"epoch": header.epoch, "principal": header.principal}
        last = {"batch_last_offset": header.last_offset}
        if "BROKER" in type_.name:
            first = {"batch_base_offset": header.base_offset}
            facts = self._broker(type_, message.broker_id)
            self._next("brokers", message.broker_id, facts, at, by, first, last)
        elif type_ in (RecordType.TOPIC, RecordType.REMOVE_TOPIC):
            topic_id = message.topic_id.hex()
            for key in [key for key in self._open if isinstance(key, tuple) and key[0] == topic_id]:
                self._next("", key, None, at)
            if type_ == RecordType.TOPIC:
                named = {"topic_id": topic_id, "topic_name": message.name}
                self._next("topics", (topic_id, None), named, at)
        elif "PARTITION" in type_.name:
            key = (message.topic_id.hex(), message.partition_id)
            facts = self._partition(type_, message)
            self._next("partitions", key, facts, at, by, last, {"type": int(type_)})
        elif type_ == RecordType.CONFIG:
            key = (message.resource_type, message.resource_name, message.name)
            self._next("configs", key, self._config(*key), at, by)
        elif type_ == RecordType.LEADER_CHANGE:
            heard = ("last_heard_epoch", "last_heard_age_ms", "last_heard_by_all")
            known = message.HasField("last_heard_age_ms")
            facts = {name: getattr(message, name) if known else None for name in heard}
            leads = {"epoch": header.epoch, "leader_id": message.leader_id}
            self._next("controllers", "controller", facts, at, leads)

    def _next(
        self, name: str, key: Any, facts: dict[str, Any] | None, *more: dict[str, Any]
    ) -> None:
        """End the row of a key, and begin the next one if there are facts."""
        if key in self._open:
            at = more[0]
            self._open.pop(key).update(ends=at["begins"], ends_ms=at["begins_ms"])
        if facts is not None:
            self._open[key] = {
                name: value for part in (facts, *more) for name, value in part.items()
            }
            self.rows[name].append(self._open[key])

    def _broker(self, type_: RecordType, broker_id: int) -> dict[str, Any] | None:
        broker = self._draft.brokers.get(broker_id)
        if broker is None:
            return None
        names = ("fenced", "in_controlled_shutdown", "rack", "reason", "incarnation_id")
        facts = {name: getattr(broker, name) for name in names}
        facts |= {"broker_id": broker.id, "broker_epoch": broker.epoch}
        facts["cause"] = broker.cause.name if broker.cause else None
        return facts | {"registration": type_ == RecordType.REGISTER_BROKER}

    def _config(self, type_: int, of: str, name: str) -> dict[str, Any] | None:
        values = self._draft.configs.get((type_, of)) or {}
        if name not in values:
            return None
        key = {"resource_type": type_, "resource_name": of}
        return key | {"config_name": name, "config_value": values[name]}

    def _partition(self, type_: RecordType, message: Any) -> dict[str, Any]:
        partition = self._draft.partitions[message.topic_id, message.partition_id]
        lists = ("replicas", "isr", "adding_replicas", "removing_replicas", "last_known_elr")
        numbers = ("leader", "leader_epoch", "partition_epoch", "leader_recovery_state")
        facts: dict[str, Any] = {name: list(getattr(partition, name)) for name in lists}
        facts |= {name: getattr(partition, name) for name in numbers}
        facts |= {
            "topic_id": message.topic_id.hex(),
            "topic_name": self._draft.topics[message.topic_id].name,
            "partition_id": message.partition_id,
            "eligible_leader_replicas": list(partition.elr),
        }
        changed = type_ == RecordType.PARTITION_CHANGE
        for name in ("proposer_id", "proposer_epoch"):
            facts[name] = getattr(message, name) if changed else None
        members = message.isr_with_epochs if changed else ()
        named = [(member.broker_id, member.broker_epoch) for member in members]
        return facts | {"isr_with_epochs": named or None}


@pytest.fixture(scope="module")
def log() -> LogHistory:
    return Eventful(61, brokers=4).run(900)


@pytest.fixture(scope="module")
def eventful(log: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return opened(written(log, tmp_path_factory.mktemp("eventful")))


@pytest.fixture(scope="module")
def folded(log: LogHistory) -> dict[str, Rows]:
    return Folded(log).rows


def in_order(plain: Rows) -> Rows:
    """A batch may name one partition twice, never one offset."""
    for row in plain:
        if row.get("isr_with_epochs") is not None:
            members = row["isr_with_epochs"]
            row["isr_with_epochs"] = [
                tuple(each.values() if isinstance(each, dict) else each) for each in members
            ]
    return sorted(plain, key=lambda row: row["begins"])


def found(timeline: DataFrame) -> Rows:
    return in_order([row.asDict() for row in timeline.collect()])


@pytest.mark.parametrize("name", COLUMNS)
def test_timeline_equals_the_fold(
    spark: SparkSession, eventful: Export, folded: dict[str, Rows], name: str
) -> None:
    expected = folded[name]
    timeline = VIEWS[name](Views(spark, eventful))
    assert tuple(timeline.columns) == COLUMNS[name]
    assert {row["ends"] is None for row in expected} == {True, False}
    assert found(timeline) == in_order(expected)


@pytest.mark.parametrize("size", [nightly(1), 7, 100])
def test_timeline_does_not_depend_on_slices(
    eventful: Export, folded: dict[str, Rows], size: int
) -> None:
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
        assert in_order(told) == in_order(folded[name])


def test_timeline_follows_implicit_removals_of_kafka(spark: SparkSession, tmp_path: Path) -> None:
    """A topic's configs are removed with it; and one record clears the eligible leader replicas of
    many partitions, which raises their epochs.
    """
    theirs = KafkaLog()
    theirs.topic("gone", [1, 2, 3], isr=[1])
    theirs.change("gone", eligible_leader_replicas=[2])
    theirs.clear_elr()
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
