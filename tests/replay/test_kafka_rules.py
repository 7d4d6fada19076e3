"""Audit rules for what only Kafka's logs have: a log that breaks each, and allowed neighbours. The
other rules see the same columns as in a log of raftlog: test_replay_audit.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask
from kafka_log import KafkaLog, kafka, uuid
from pyspark.sql import SparkSession
from spark_runs import in_pieces, rows_of
from tiers import nightly

from replay.engine import reading
from replay.jobs.audit import AuditResult
from replay.rules import choose
from replay.streaming import audit

Found = list[tuple[str, int]]
"""(rule, offset) of the expected findings."""
Broken = tuple[Path, Found, list[int]]
"""An export, the expected findings, and the boundaries of its parts."""
Breaks = Callable[[KafkaLog], Found]
OFFENCES: list[Breaks] = []


def offence(breaks: Breaks) -> Breaks:
    """Register a part of the broken log; its brokers are unfenced before and after it."""
    OFFENCES.append(breaks)
    return breaks


@offence
def eligible(log: KafkaLog) -> Found:
    """Also where the replicas were named before; and not after a record that clears them."""
    log.topic("elr", [1, 2, 3], isr=[1])
    both = log.change("elr", eligible_leader_replicas=[1, 2])
    still = log.change("elr", leader=1)
    never = log.change("elr", eligible_leader_replicas=[2, 3])
    came = log.change("elr", isr=[1, 2])
    log.clear_elr("elr")
    log.change("elr", isr=[1, 2, 3])
    log.change("elr", isr=[1], eligible_leader_replicas=[3])
    log.clear_elr()
    log.change("elr", isr=[1, 3])
    log.change("elr", isr=[1], eligible_leader_replicas=[3])
    log.clear_elr("elr")
    # Nobody may lead then, if nobody is left.
    empty = log.change("elr", isr=[], leader=-1)
    return [
        *(("ELIGIBLE_IN_ISR", at) for at in (both, still, came)),
        *(("ELIGIBLE_NEVER_IN_SYNC", at) for at in (both, never)),
        ("ISR_EMPTY", empty),
    ]


@offence
def empty(log: KafkaLog) -> Found:
    """Allowed while a replica is eligible, and while a last known leader is, which leads uncleanly
    after an unclean shutdown.
    """
    gone: dict[str, Any] = {"isr": [], "leader": -1}
    back: dict[str, Any] = {"isr": [2], "leader": 2, "eligible_leader_replicas": []}
    log.topic("clean", [1, 2])
    log.change("clean", **gone, eligible_leader_replicas=[2])
    log.change("clean", **back)
    log.topic("unclean", [2, 1])
    log.change("unclean", **gone, eligible_leader_replicas=[2], last_known_elr=[2])
    log.change("unclean", eligible_leader_replicas=[])
    log.change("unclean", **back, last_known_elr=[], leader_recovery_state=1)
    log.topic("neither", [1, 2])
    log.change("neither", **gone, eligible_leader_replicas=[1])
    stranger = log.change("neither", **back)
    none = log.change("neither", **gone)
    return [("UNDECLARED_UNCLEAN_ELECTION", stranger), ("ISR_EMPTY", none)]


@offence
def configs(log: KafkaLog) -> Found:
    """The configs of a deleted topic are deleted without records."""
    log.topic("configured", [1])
    log.append(kafka.config("retention.ms", "1", "configured"))
    log.delete("configured")
    behind = log.append(kafka.config("retention.ms", "2", "configured"))
    return [("CONFIG_OF_UNKNOWN_TOPIC", behind)]


def producer_ids(log: KafkaLog, following: int) -> int:
    record = kafka.metadata(
        "ProducerIdsRecord", broker_id=1, broker_epoch=log.epochs[1], next_producer_id=following
    )
    return log.append(record)


@offence
def blocks(log: KafkaLog) -> Found:
    for following in (1000, 2000, 5000):
        producer_ids(log, following)
    part, again, back = (producer_ids(log, each) for each in (5999, 5999, 1000))
    producer_ids(log, 2000)
    return [("PRODUCER_IDS_OVERLAP", at) for at in (part, again, back)]


@offence
def migration(log: KafkaLog) -> Found:
    states = [
        log.append(kafka.metadata("ZkMigrationStateRecord", zk_migration_state=state))
        for state in (1, 1, 2, 1, 3)
    ]
    return [("ZK_MIGRATION_WENT_BACK", states[3])]


@offence
def transactions(log: KafkaLog) -> Found:
    """Records of an aborted transaction have no effect; the next controller may abort it."""
    begin, end, abort = (
        kafka.metadata(f"{one}TransactionRecord") for one in ("Begin", "End", "Abort")
    )
    log.append(begin)
    producer_ids(log, 1)
    log.elect(103)
    log.append(abort)
    log.append(begin, kafka.metadata("NoOpRecord"), end)
    without = [log.append(end), log.append(abort)]
    log.append(begin)
    within = log.append(begin, end)
    log.append(begin, kafka.metadata("NoOpRecord"))
    log.elect(102)
    late = log.append(kafka.metadata("NoOpRecord"), end) + 1
    return [("TRANSACTION_OUT_OF_PLACE", at) for at in (*without, within, late)]


def level_of(log: KafkaLog, name: str, level: int) -> int:
    return log.append(kafka.metadata("FeatureLevelRecord", name=name, feature_level=level))


@offence
def features(log: KafkaLog) -> Found:
    """Level 0 is off; and an unregistered broker supports nothing."""

    def supports(low: int, high: int) -> list[dict[str, str | int]]:
        one = {"min_supported_version": low, "max_supported_version": high}
        return [{"name": "group.version", **one}, {"name": "other.version", **one}]

    log.register(5, features=supports(1, 2))
    level_of(log, "group.version", 2)
    beyond = level_of(log, "group.version", 3)
    level_of(log, "group.version", 0)
    level_of(log, "group.version", 1)
    amended = log.register(5, features=supports(2, 3))
    log.append(log.standing(5, fenced=1), log.standing(5, fenced=-1))
    log.register(5, features=supports(1, 1))
    log.append(kafka.metadata("UnregisterBrokerRecord", broker_id=5, broker_epoch=log.epochs[5]))
    level_of(log, "group.version", 2)
    level_of(log, "group.version", 0)
    log.register(5)
    return [("FEATURE_LEVEL_NOT_SUPPORTED", at) for at in (beyond, amended)]


@offence
def features_of_controllers(log: KafkaLog) -> Found:
    """A registration replaces the previous one; metadata.version has our import's name."""

    def controller(name: str, high: int) -> int:
        known = {"name": name, "min_supported_version": 1, "max_supported_version": high}
        said = {"controller_id": 3000, "incarnation_id": uuid(7), "end_points": []}
        record = kafka.metadata(
            "RegisterControllerRecord", **said, zk_migration_ready=False, features=[known]
        )
        return log.append(record)

    controller("metadata.version", 20)
    level_of(log, "metadata.version", 20)
    beyond = level_of(log, "metadata.version", 21)
    behind = controller("metadata.version", 20)
    controller("metadata.version", 22)
    level_of(log, "metadata.version", 22)
    controller("other.version", 20)
    level_of(log, "metadata.version", 23)
    controller("metadata.version", 23)
    log.append(kafka.metadata("UnregisterControllerRecord", controller_id=3000))
    level_of(log, "metadata.version", 24)
    return [("FEATURE_LEVEL_NOT_SUPPORTED", at) for at in (beyond, behind)]


@offence
def directories(log: KafkaLog) -> Found:
    """Allowed: registered earlier or in the same batch, or not a directory."""
    first, second, third = map(uuid, (5001, 5002, 5003))
    log.register(5, log_dirs=[first])
    log.topic("placed", [5], directories=[first])
    early = log.change("placed", directories=[second])
    log.append(log.standing(5, log_dirs=[second]))
    for known in (first, second, uuid(0), uuid(1), uuid(2)):
        log.change("placed", directories=[known])
    both = log.topic("both", [4, 5], directories=[third, second])
    registered = log.registration(5, log_dirs=[third])
    log.epochs[5] = log.append(
        log.changed("placed", leader=-1, directories=[third]),
        log.changed("both", isr=[4]),
        registered,
    )
    log.append(log.standing(5, fenced=-1))
    log.change("placed", directories=[first])
    log.delete("placed")
    log.delete("both")
    return [("DIRECTORY_NOT_REGISTERED", at) for at in (early, both)]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    log = KafkaLog()
    expected: Found = []
    bounds = [0]
    for breaks in OFFENCES:
        expected += breaks(log)
        bounds.append(log.end_offset)
    directory = tmp_path_factory.mktemp("kafka")
    imported = log.import_into(directory)
    assert (imported.stopped, imported.end_offset) == ("", log.end_offset)
    return directory / "exported", expected, bounds


@pytest.fixture(scope="module")
def result(broken: Broken) -> AuditResult:
    found = ask("audit", broken[0], limit=1000)
    assert isinstance(found, AuditResult)
    return found


def test_rules_find_their_violations_and_nothing_else(broken: Broken, result: AuditResult) -> None:
    assert sorted((each.rule, each.offset) for each in result.findings) == sorted(broken[1])


@pytest.mark.parametrize("slice_rows", [7, nightly(1)])
def test_findings_do_not_depend_on_slices(
    broken: Broken,
    result: AuditResult,
    monkeypatch: pytest.MonkeyPatch,
    slice_rows: int,
) -> None:
    monkeypatch.setattr(reading, "SLICE_ROWS", slice_rows)
    assert ask("audit", broken[0], limit=1000) == result


def test_watch_remembers_directories_of_gone_brokers(spark: SparkSession, tmp_path: Path) -> None:
    """It may return with other ones, while a partition still names the old one."""
    log, first, second, stranger = KafkaLog(), uuid(5001), uuid(5002), uuid(5003)
    log.register(5, log_dirs=[first])
    log.append(kafka.metadata("UnregisterBrokerRecord", broker_id=5, broker_epoch=log.epochs[5]))
    gone = log.end_offset
    log.append(kafka.metadata("NoOpRecord"))
    still_gone = log.end_offset
    log.register(5, log_dirs=[second])
    log.topic("placed", [5], directories=[first])
    offence = log.change("placed", directories=[stranger])
    log.import_into(tmp_path)
    bounds = [0, gone, still_gone, log.end_offset]
    rule = "DIRECTORY_NOT_REGISTERED"
    rows, judge = rows_of(spark, tmp_path / "exported"), audit.judge(choose((rule,), "kafka"))
    alerts = in_pieces(rows, bounds, tmp_path / "job", judge)
    assert [(row.rule, row.offset) for row in alerts] == [(rule, offence)]


@pytest.mark.nightly
def test_findings_of_a_watch_do_not_depend_on_its_polls(
    spark: SparkSession, broken: Broken, tmp_path: Path
) -> None:
    export, expected, bounds = broken
    judge = audit.judge(choose((), "kafka"))
    alerts = in_pieces(rows_of(spark, export), bounds, tmp_path / "job", judge)
    assert sorted((row.rule, row.offset) for row in alerts) == sorted(expected)


def test_kafka_rules_judge_no_other_log() -> None:
    ours, theirs = ({rule.id for rule in choose((), origin)} for origin in ("", "kafka"))
    assert theirs - ours == {
        "DIRECTORY_NOT_REGISTERED", "PRODUCER_IDS_OVERLAP", "TRANSACTION_OUT_OF_PLACE",
        "ZK_MIGRATION_WENT_BACK",
    }  # fmt: skip
