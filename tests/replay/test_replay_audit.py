"""Each rule of the audit finds its violations in ``offences.py``, and no allowed neighbour."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from asking import ask, written
from audited_log import AuditedLog
from log_history import LogHistory
from offences import OFFENCES, Found, begun, ended, known, mapped
from pyspark.sql import SparkSession
from spark_runs import Replay, in_pieces, rows_of

from controller.rules.partition_change import MAX_REMOVALS
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.engine import pool, reading
from replay.errors import ReplayError
from replay.jobs.audit import AuditResult
from replay.kernels.audit import BY_RECORD, OF_FACTS, OF_PARTITIONS
from replay.kernels.rules import departed
from replay.rules import CONTROLLER_EPOCH_WENT_BACK, CRITICAL, ERROR, RULES, choose
from replay.streaming import audit


def allowed() -> AuditedLog:
    """Allowed neighbours of each rule."""
    log = AuditedLog(metadata_version=1)
    parts = (_early, _lives, _elections, _within_batches, _moves, _many, _hosts, _lao, _clients)
    for part in parts:
        part(log)
    log.epoch += 7
    log.append(pb.RecoveryRecord(kind="unsafe recovery"), control=True)
    log.append(pb.VotersRecord(), control=True)
    log.elect(1)
    return log


def _early(log: AuditedLog) -> None:
    """Below metadata.version 2 a leader may not know the epochs of its followers."""
    log.topic("early", [1, 2])
    log.propose("early", [1, 2], {2: -1})
    log.append(pb.FeatureLevelRecord(name="metadata.version", feature_level=2))


def _lives(log: AuditedLog) -> None:
    """An amended registration keeps its epoch; a new incarnation stays alone in an ISR."""
    log.topic("a", [1, 2, 3])
    broker = log.draft.brokers[2]
    log.append(
        log.registration(
            2, broker_epoch=broker.epoch, incarnation_id=broker.incarnation_id, fenced=False
        )
    )
    log.propose("a", [1, 2])
    log.topic("last", [5])
    log.set_fenced(5, fenced=True)
    log.register(5)
    log.set_fenced(5, fenced=False)
    assert log.partition("last").leader == 5
    log.propose("last", [5])
    # Out of the ISR first: no record leaves one with somebody who is not registered.
    log.append(*log.removals(2), log.unregistered(2))
    # A replica that is not registered any more stays one: where others are added, too.
    log.change("a", **begun([1, 2, 3, 4], adding=[4]))
    _supported(log)
    log.register(2)
    log.set_fenced(2, fenced=False)
    log.append(log.standing(2, in_controlled_shutdown=True), *log.removals(2))
    log.append(log.standing(2, fenced=True, in_controlled_shutdown=True), *log.removals(2))
    log.register(2)
    log.set_fenced(2, fenced=False)


def _supported(log: AuditedLog) -> None:
    """Unregistered brokers and disabled features do not count; lao.version may be unknown."""

    def level(name: str, level: int) -> None:
        log.append(pb.FeatureLevelRecord(name=name, feature_level=level))

    log.append(log.registration(2, features=[known("another", 1, 2), known("lao.version", 0, 0)]))
    level("another", 2)
    level("another", 0)
    level("lao.version", 1)
    log.append(log.unregistered(2))
    level("another", 3)
    level("another", 0)


def _elections(log: AuditedLog) -> None:
    """Unclean leaders that say so; during an unfinished recovery the record need not."""
    log.topic("unclean", [3, 4, 5], isr=[3])
    log.append(
        log.standing(3, fenced=True),
        log.of("unclean", isr=[4], leader=4, leader_recovery_state=1),
    )
    log.append(log.standing(4, fenced=True), log.of("unclean", isr=[5], leader=5))
    log.set_fenced(3, fenced=False)
    log.set_fenced(4, fenced=False)
    log.propose("unclean", [3, 5], leader_recovery_state=0)
    # Unregistered: the election stands before the record that makes it needed.
    log.topic("left", [3, 4], isr=[3])
    led = log.of("left", isr=[4], leader=4, leader_recovery_state=1)
    log.append(
        *[each for each in log.removals(3) if each.topic_id != log.topics["left"]],
        led,
        log.unregistered(3),
    )
    log.register(3)
    log.set_fenced(3, fenced=False)


def _within_batches(log: AuditedLog) -> None:
    """Own changes count at the batch's end: 4 leads before the record that unfences it."""
    log.topic("rising", [3, 4], isr=[3])
    log.set_fenced(4, fenced=True)
    log.set_fenced(3, fenced=True)
    led = log.of("rising", isr=[4], leader=4, leader_recovery_state=1)
    log.append(led, log.standing(4, fenced=False))
    log.set_fenced(3, fenced=False)


def _moves(log: AuditedLog) -> None:
    """A proposal that completes a reassignment makes a replica leader that has just joined."""
    log.topic("moving", [1, 2])
    log.change("moving", **begun([3, 2, 1], adding=[3], removing=[1]))
    done: dict[str, Any] = ended([3, 2])
    log.propose("moving", [2, 3], proposed=[1, 2, 3], proposer_id=1, leader=3, **done)
    log.delete_topic("moving")
    log.topic("moving", [1, 2])
    # Cancelled: in another order, with one out of the ISR who was out of it before.
    log.topic("cancelled", [1, 2, 3], isr=[1, 2])
    log.change("cancelled", **begun([4, 1, 2, 3], adding=[4], removing=[2, 3]))
    log.change("cancelled", **ended([1, 3, 2]))
    # A second one, where 4 is in the ISR by then and 5 is not wanted any more: what it adds is
    # there, and it ends at once.
    log.change("cancelled", **begun([4, 5, 1, 3, 2], adding=[4, 5], removing=[1, 2, 3]))
    log.propose("cancelled", [1, 2, 4])
    log.change("cancelled", **begun([5, 4, 2, 1, 3], adding=[4, 5], removing=[1, 3]))
    log.change("cancelled", **ended([4, 1, 2]))
    # Fewer, at once, and all that stay are in sync; others in the same places.
    log.change("cancelled", **ended([2, 1]), isr=[2, 1])
    log.change("cancelled", **ended([1, 2]))


def _many(log: AuditedLog) -> None:
    """A broker with many partitions leaves its ISRs in batches, and stays fenced until the last
    one.
    """
    log.topic("many", [1, 4])
    log.append(log.standing(4, fenced=True), *[pb.NoOpRecord()] * MAX_REMOVALS)
    log.append(*log.removals(4))
    log.set_fenced(4, fenced=False)


def _clients(log: AuditedLog) -> None:
    """A client may close itself, by its last numbered write."""
    client = log.append(pb.OpenClientRecord(name="leaving"))
    log.append(pb.CloseClientRecord(client_id=client, reason="closed"), client_id=client)


def _hosts(log: AuditedLog) -> None:
    """The cause counts, not the words; and who takes a cause back maps nothing."""
    for broker_id in (1, 2, None, 3):
        log.append(mapped("shared.example", broker_id, reason="set by hand"))
    for cause in (pb.BY_HAND, pb.HOSTNAME_CAUSE_UNSPECIFIED):
        log.append(mapped("meant.example", 1, cause))


def _lao(log: AuditedLog) -> None:
    level = log.end_offset - 1
    log.say(level)
    log.set_fenced(5, fenced=True)
    # A fenced broker does not count, whatever it has applied; who has not changed is not named.
    log.say(level, applied={1: log.end_offset - 1})
    ahead = log.end_offset - 1
    log.say(ahead, applied=dict.fromkeys((1, 2, 3, 4), ahead))
    log.set_fenced(5, fenced=False)
    log.elect(2)
    # Another controller may know less, and be told less, at first.
    log.say(-1, applied={1: ahead - 1}, high_watermark=ahead - 1)
    log.say(log.end_offset - 1)
    # What a broker had applied counts for its registration alone.
    log.set_fenced(5, fenced=True)
    log.register(5)
    log.say(log.reached, applied={5: 3})
    log.set_fenced(5, fenced=False)
    log.say(log.end_offset - 1)


class Broken(NamedTuple):
    """An export with all offences, its end, the expected findings, the actual ones, and the cuts."""

    directory: Path
    end_offset: int
    expected: Found
    result: AuditResult
    cuts: list[int]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    log, expected = AuditedLog(), list[tuple[str, int, int | None]]()
    for breaks in OFFENCES:
        expected += breaks(log)
        for name in list(log.topics):
            log.delete_topic(name)
    directory = written(log, tmp_path_factory.mktemp("broken"))
    result = ask("audit", directory, limit=1000)
    return Broken(directory, log.end_offset, expected, result, log.cuts)


@pytest.mark.parametrize(
    "rule", [rule.id for rule in choose(()) if rule is not CONTROLLER_EPOCH_WENT_BACK]
)
def test_rule_finds_its_violations_alone(broken: Broken, rule: str) -> None:
    there = sorted((offset, broker or -1) for id_, offset, broker in broken.expected if id_ == rule)
    found = [finding for finding in broken.result.findings if finding.rule == rule]
    assert sorted((each.offset, each.broker_id or -1) for each in found) == there
    assert there
    (counted,) = [each for each in broken.result.rules if each.id == rule]
    assert counted.findings == len(there) <= counted.checked
    for each in found:
        assert (each.offsets[0], each.documentation) == (each.offset, counted.documentation)
        assert each.found
        assert each.expected


def test_spark_finds_the_same_violations(replay: Replay, broken: Broken) -> None:
    assert replay("audit", broken.directory, limit=1000) == broken.result


@pytest.mark.parametrize(
    ("slice_rows", "workers"),
    [(29, 1), pytest.param(1, 1, marks=pytest.mark.nightly), (131_072, 2)],
)
def test_findings_depend_on_neither_slices_nor_worker_processes(
    broken: Broken, monkeypatch: pytest.MonkeyPatch, slice_rows: int, workers: int
) -> None:
    monkeypatch.setattr(reading, "SLICE_ROWS", slice_rows)
    monkeypatch.setattr(pool, "ALONE_RECORDS", 0)
    monkeypatch.setattr(pool, "workers", lambda: workers)
    assert ask("audit", broken.directory, limit=1000) == broken.result


@pytest.mark.nightly
def test_pieces_of_a_broken_history_find_each_violation_once(
    spark: SparkSession, broken: Broken, tmp_path: Path
) -> None:
    """Even if a boundary separates the record from those that it is compared with."""
    bounds = [0, *broken.cuts, broken.end_offset]
    alerts = in_pieces(rows_of(spark, broken.directory), bounds, tmp_path / "job", audit.judge())
    found = sorted((row.rule, row.offset, row.broker_id or -1) for row in alerts)
    assert found == sorted((rule, offset, broker or -1) for rule, offset, broker in broken.expected)


def test_decreasing_epoch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No export of ours holds one: the writer refuses it."""
    log = LogHistory(2)
    elected = log.end_offset
    log.elect(2)
    written(log.run(60), tmp_path)

    def forged(*of: Any, **named: Any) -> Iterator[pa.Table]:
        for table in reading.slices(*of, **named):
            epoch = table["epoch"]
            at = table.schema.get_field_index("epoch")
            earlier = pc.if_else(pc.equal(table["offset"], 50), pa.scalar(1, epoch.type), epoch)
            yield table.set_column(at, "epoch", earlier)

    monkeypatch.setattr("replay.engine.audit.slices", forged)
    rule = CONTROLLER_EPOCH_WENT_BACK.id
    result = ask("audit", tmp_path, rules=(rule,))
    assert [(each.rule, each.offsets, each.subject) for each in result.findings] == [
        (rule, [50, elected], "controller epoch 1")
    ]


def test_audit_accepts_allowed_histories(tmp_path: Path) -> None:
    log = allowed()
    result = ask("audit", written(log, tmp_path))
    assert (result.findings, result.passed, result.total) == ([], True, 0)
    assert result.checked == log.end_offset


def test_findings_are_limited_and_counted(tmp_path: Path) -> None:
    log = LogHistory(51)
    log.create_topic("orders", 2)
    for _ in range(5):
        log.alter_isr("orders", 0, [1, 2], {2: 77_777})
    rules = ("stale_broker_epoch", "lao_went_back")
    result = ask("audit", written(log, tmp_path), limit=2, rules=rules)
    assert (len(result.findings), result.total) == (2, 5)
    counts = [(rule.id, rule.findings) for rule in result.rules]
    assert counts == [("STALE_BROKER_EPOCH", 5), ("LAO_WENT_BACK", 0)]


def test_every_rule_belongs_to_one_family_and_is_explained() -> None:
    judged = [*OF_PARTITIONS, *BY_RECORD, *OF_FACTS]
    assert len(judged) == len(set(judged))
    assert {rule.family for rule in RULES} == set(judged)
    assert {rule.severity for rule in RULES} == {CRITICAL, ERROR}
    document = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert re.findall(r"^### (\w+)", document, re.MULTILINE) == [rule.id for rule in RULES]


def test_fencing_batch_size_equals_the_controllers() -> None:
    assert departed.FENCING_BATCH_MAX == MAX_REMOVALS


def test_rules_are_selected_by_id() -> None:
    chosen = [rule.id for rule in choose(["lao-went-back", "ISR_EMPTY"])]
    assert chosen == ["ISR_EMPTY", "LAO_WENT_BACK"]
    told = "unknown rules: NOTHING; the rules are STALE_BROKER_EPOCH"
    with pytest.raises(ReplayError, match=told):
        choose(["nothing"])
