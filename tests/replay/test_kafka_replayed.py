"""Jobs on imported Kafka logs: the time without a controller by its regular NoOp records, topic ids, epochs, odd logs."""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asking import ask, opened
from command_runs import run_text
from exports import written
from json_schemas import validator
from kafka_log import KEPT, KafkaLog, imported, kafka, uuid
from log_history import LogHistory
from pyspark.sql import SparkSession
from spark_runs import Replay
from tiers import nightly

from raftlog.clock import MAX_MS
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.words import kafka_id, parse_topic_id
from raftlog.segments.buckets import add_buckets
from raftlog.segments.manifest import RAW, RECORDS, read_manifest
from raftlog.segments.raw import read_segment
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.engine import pool, reading
from replay.engine.audit import scan
from replay.engine.pool import Pool
from replay.engine.reading import slices
from replay.jobs.availability import AvailabilityResult
from replay.kafka.copies import find_copies
from replay.kafka.importing import Importer
from replay.kafka.log_format import batches
from replay.kernels.facts import Facts
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions
from replay.outages.service import Absence, Controller, absence
from replay.report.model import ReportResult
from replay.request import LOCAL_JOBS, JobRequest
from replay.rules import choose
from replay.run import compute, run_job
from replay.selection import BY_ID
from replay.streaming import audit
from replay.streaming.ledger import Ledger
from replay.streaming.watch import STARTS_MAX, connected_late, start


def availability(exported: Path) -> AvailabilityResult:
    found: AvailabilityResult = ask("availability", exported)
    return found


def absences(result: AvailabilityResult) -> list[tuple[int, int, int | None]]:
    return [
        (each.silent_ms, each.absent_least_ms, each.absent_most_ms)
        for each in reversed(result.failovers)
    ]


def told(log: KafkaLog, directory: Path) -> AvailabilityResult:
    log.import_into(directory)
    return availability(directory / "exported")


def idle(log: KafkaLog, times: int, every_ms: int = 490) -> None:
    """NoOp records, each interval 10 ms longer than ``every_ms``."""
    for _ in range(times):
        log.waited_ms += every_ms
        log.append(kafka.metadata("NoOpRecord"))


@pytest.mark.parametrize(
    ("last_ms", "due_ms", "age_ms", "by_all", "expected"),
    [
        (1000, 1500, None, None, Absence(500, 1000)),
        # Due before its last record, or only after the new one's first.
        (1000, 900, None, None, Absence(1000, 1000)),
        (1000, 2100, None, None, Absence(0, 1000)),
        # Voters that heard nothing for longer than nobody wrote.
        (1000, None, 400, True, Absence(400, 400)),
        (1000, None, 5000, True, Absence(1000, 1000)),
        (1000, None, 5000, False, Absence(0, 1000)),
    ],
)
def test_absence_is_never_longer_than_the_silence(
    last_ms: int, due_ms: int | None, age_ms: int | None, by_all: bool | None, expected: Absence
) -> None:
    old = Controller(1, 1, 0, 9, 0, last_ms, due_ms, 2000, None, None, None)
    new = Controller(2, 2, 9, None, 2000, 3000, None, None, 1, age_ms, by_all)
    assert absence(old, new) == expected


def test_silence_for_longer_than_the_interval_is_absence(tmp_path: Path) -> None:
    """The next NoOp was due 500 ms after the last one, whatever was written in between."""
    log = KafkaLog()
    idle(log, 4)
    log.waited_ms += 190
    log.append(kafka.config("retention.ms", "1", ""))
    log.waited_ms += 7_990
    log.elect(102)
    result = told(log, tmp_path)
    assert absences(result) == [(8_000, 7_700, 8_000)]
    lost = result.objectives[-1]
    assert (lost.lost_ms, lost.unknown_ms) == (8_000, 0)


def test_longest_pause_of_an_active_controller_is_the_bound(tmp_path: Path) -> None:
    """Its own: the next controller's interval may differ."""
    log = KafkaLog()
    idle(log, 5)
    idle(log, 1, every_ms=1_790)
    idle(log, 1)
    log.waited_ms += 2_490
    log.elect(102)
    idle(log, 3, every_ms=90)
    log.waited_ms += 2_490
    log.elect(103)
    assert absences(told(log, tmp_path)) == [(2_500, 700, 2_500), (2_500, 2_400, 2_500)]


def test_controller_replaced_at_once_was_not_certainly_absent(tmp_path: Path) -> None:
    log = KafkaLog()
    idle(log, 5)
    log.waited_ms += 290
    log.elect(102)
    assert absences(told(log, tmp_path)) == [(300, 0, 300)]


@pytest.mark.parametrize("times", [0, 2])
def test_absence_is_not_concluded_from_few_records(tmp_path: Path, times: int) -> None:
    """NoOps may be disabled, or the controller was active only briefly."""
    log = KafkaLog()
    idle(log, times)
    log.waited_ms += 9_990
    log.elect(102)
    result = told(log, tmp_path)
    assert absences(result) == [(10_000, 0, None)]
    lost = result.objectives[-1]
    assert (lost.lost_ms, lost.unknown_ms) == (0, 10_000)


def test_raftlog_controllers_promise_no_such_records(tmp_path: Path) -> None:
    log = LogHistory()
    for _ in range(5):
        log.append(pb.NoOpRecord())
    log.timestamp_ms += 60_000
    log.elect(2)
    ((_, least, most),) = absences(availability(written(log, tmp_path)))
    assert (least, most) == (0, None)


@pytest.mark.parametrize("slice_rows", [reading.SLICE_ROWS, 7, nightly(1)])
def test_killed_real_controller_is_absent_for_the_expected_time(
    real: Path, monkeypatch: pytest.MonkeyPatch, slice_rows: int
) -> None:
    """It wrote a NoOp every 476 to 524 ms."""
    monkeypatch.setattr(reading, "SLICE_ROWS", slice_rows)
    assert absences(availability(real / "exported")) == [(2_162, 1_638, 2_162), (157, 52, 157)]


def test_restarted_kafka_controller_is_absent_in_between(tmp_path: Path) -> None:
    """The only one, after 38 s; it had written a NoOp at least every 1,064 ms."""
    kafka.unpack(KEPT / "kafka-4.3.1.tar.gz", tmp_path / "kafka")
    imported(tmp_path / "kafka", tmp_path / "exported")
    assert absences(availability(tmp_path / "exported")) == [(39_497, 38_433, 39_497)]


def test_report_shows_both_bounds(real: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    found: ReportResult = ask("report", real / "exported", output=str(page))
    assert "1.64 s to 2.16 s" in page.read_text()
    events = [event for incident in found.timeline.incidents for event in incident.events]
    failover = next(event for event in events if "102 → 103" in event.text)
    assert failover.ends_ms is not None
    assert failover.ends_ms - failover.begins_ms == 2_162


# --- Kafka's record that clears the eligible leader replicas of all topics, in every engine

TOPICS = [f"topic-{number}" for number in range(11)]


class Cleared:
    """Eleven topics; the even ones have eligible replicas, which are cleared twice."""

    def __init__(self, directory: Path) -> None:
        log = KafkaLog()
        for name in TOPICS:
            log.topic(name, [1, 2, 3], isr=[1])
        self._eligible(log)
        self.first = log.clear_elr()
        for name in TOPICS[:3]:
            log.delete(name)
            log.topic(name, [1, 2, 3], isr=[1])
        self._eligible(log)
        self.second = log.clear_elr()
        log.change("topic-1", isr=[1, 2])
        self.end = log.end_offset
        self.exported = directory / "exported"
        assert log.import_into(directory, checkpoint_records=13).sound

    def _eligible(self, log: KafkaLog) -> None:
        for name in TOPICS[::2]:
            log.change(name, eligible_leader_replicas=[2])


@pytest.fixture(scope="module")
def cleared(tmp_path_factory: pytest.TempPathFactory) -> Cleared:
    return Cleared(tmp_path_factory.mktemp("cleared"))


def answers(cleared: Cleared, **options: Any) -> list[Any]:
    """Return the answers to all questions."""
    questions: list[tuple[str, dict[str, Any]]] = [
        ("state", {}),
        ("state", {"key": ("topic", "topic-2")}),
        ("history", {"key": ("topic", "topic-2")}),
        ("history", {"key": ("partition", ""), "from_offset": cleared.second}),
        ("diff", {"from_offset": cleared.second - 1, "at_offset": cleared.second}),
        ("diff", {"key": ("topic", "topic-4"), "from_offset": cleared.first - 1}),
        ("diff", {"key": ("config", "topic:topic-4"), "from_offset": cleared.first - 1}),
    ]
    by = options.pop("by", ask)
    return [by(job, cleared.exported, limit=1000, **asked | options) for job, asked in questions]


def test_clear_of_every_topic_changes_each_with_eligible_replicas(cleared: Cleared) -> None:
    found = answers(cleared)[4]
    partitions = [one for one in found.differences if one.kind == "partition"]
    assert [one.key for one in partitions] == sorted(f"{name}-0" for name in TOPICS[::2])
    assert {one.last_offset for one in partitions} == {cleared.second}
    for one in partitions:
        before, after = (json.loads(bytes(value)) for value in (one.before, one.after))
        assert after == before | {"partition_epoch": before["partition_epoch"] + 1}
    details = [one for one in found.differences if one.kind == "partition_detail"]
    assert [one.change for one in details] == ["deleted"] * len(partitions)


@pytest.mark.parametrize("workers", [1, 2])
def test_clear_of_every_topic_is_the_same_in_checkpoints_shares_and_buckets(
    cleared: Cleared, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = answers(cleared, from_the_beginning=True)
    assert said[0].entities["partition"] == len(TOPICS)
    monkeypatch.setattr(pool, "ALONE_RECORDS", 0)
    monkeypatch.setattr(pool, "workers", lambda: workers)
    assert [msgspec.structs.replace(one, checkpoint=None) for one in answers(cleared)] == said


def test_each_bucket_contains_a_clear_of_every_topic(tmp_path: Path) -> None:
    cleared = Cleared(tmp_path)
    before = answers(cleared)
    with ExportWriter(str(cleared.exported), "c", 0, max_segment_records=cleared.end) as writer:
        assert add_buckets(writer) == len(writer.manifest.of_kind(RECORDS))
    verify_export(cleared.exported)
    assert answers(cleared) == before


@pytest.mark.nightly
def test_spark_folds_a_clear_of_every_topic_alike(cleared: Cleared, replay: Replay) -> None:
    assert answers(cleared, by=replay) == answers(cleared)
    assert replay("verify", cleared.exported).passed


# --- Topic ids of an imported log, in Kafka's form

TOPIC = "orders"


@pytest.fixture(scope="module")
def ids(real: Path) -> dict[str, str]:
    """Return the topic ids that Kafka's Admin reported at the end."""
    said = json.loads((real / "kafka" / "truth.json").read_text())["topics"]
    return {one["name"]: one["id"] for one in said}


def as_json(job: str, exported: Path, kind: str = "", key: str = "", **values: Any) -> Any:
    """Return the answer as JSON."""
    request = JobRequest(job=job, export=str(exported), limit=10_000, **values)
    if kind:
        request = msgspec.structs.replace(request, key=(kind, key))
    return json.loads(msgspec.json.encode(compute(request)))


def command(*arguments: str) -> str:
    done = run_text([str(Path(sys.executable).with_name("raftlog")), *arguments], timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_topic_id_is_parsed_in_both_forms_only() -> None:
    digits = "b81694542c544f2e961a3c71ba6a228c"
    text = kafka_id(digits)
    assert text == "uBaUVCxUTy6WGjxxumoijA"
    assert {parse_topic_id(form) for form in (text, digits, digits.upper())} == {digits}
    for other in ("payments-service-event", text + "A", text[:-1], text[:-1] + "B", "orders", ""):
        assert parse_topic_id(other) is None


def test_jobs_print_topic_ids_as_kafka_does(real: Path, ids: dict[str, str]) -> None:
    exported = real / "exported"
    rows = as_json("state", exported, "topic", TOPIC)["rows"]
    assert {one["value"]["topic_id"] for one in rows if one["kind"] == "partition"} == {ids[TOPIC]}
    every = as_json("state", exported)["rows"]
    assert {one["key"]: one["value"]["id"] for one in every if one["kind"] == "topic"} == ids
    changes = as_json("history", exported, "topic", TOPIC)["changes"]
    (created,) = (one for one in changes if one["kind"] == "topic")
    assert (created["before"], created["after"]["id"]) == (None, ids[TOPIC])
    differ = as_json("diff", exported, "topic", TOPIC)["differences"]
    assert {one["after"]["id"] for one in differ if one["kind"] == "topic"} == {ids[TOPIC]}
    told = as_json("availability", exported)["partitions"]
    assert {one["topic_id"] for one in told if one["topic_name"] == TOPIC} <= {ids[TOPIC]}


def test_recreated_topic_has_another_id(tmp_path: Path) -> None:
    log = KafkaLog()
    log.topic("again", [1])
    first = log.topics["again"]
    between = log.end_offset - 1
    log.delete("again")
    log.topic("again", [1, 2])
    second = log.topics["again"]
    log.import_into(tmp_path)
    exported = tmp_path / "exported"
    differ = as_json("diff", exported, "topic", "again", from_offset=between)["differences"]
    (one,) = (each for each in differ if each["kind"] == "topic")
    assert one["fields"] == [{"field": "id", "before": first, "after": second}]
    for id_, replicas in ((first, [1]), (second, [1, 2])):
        changes = as_json("history", exported, "topic", id_)["changes"]
        created = next(one for one in changes if one["kind"] == "partition")
        assert created["after"]["replicas"] == replicas
    assert as_json("state", exported, "topic", first)["rows"] == []


def test_both_forms_are_accepted_as_a_key(real: Path, ids: dict[str, str]) -> None:
    exported, id_ = real / "exported", ids[TOPIC]
    whole = as_json("state", exported, "topic", TOPIC)["rows"]
    assert whole
    assert as_json("state", exported, "topic", id_)["rows"] == whole
    assert as_json("state", exported, "topic", parse_topic_id(id_) or "")["rows"] == whole
    one = as_json("state", exported, "partition", f"{TOPIC}-2")["rows"]
    found = as_json("state", exported, "partition", f"{id_}-2")
    assert (found["rows"], found["asked"]) == (one, ["partition", f"{BY_ID}{id_}-2"])
    assert [each["key"] for each in one] == [f"{TOPIC}-2"]
    assert as_json("state", exported, "topic", uuid(1))["rows"] == []


def test_name_that_looks_like_an_id_is_a_name_and_a_finding_shows_the_id(tmp_path: Path) -> None:
    log = KafkaLog()
    log.topic("other", [1])
    named = log.topics["other"]
    log.topic(named, [1, 1])
    log.import_into(tmp_path)
    rows = as_json("state", tmp_path / "exported", "topic", named)["rows"]
    assert {one["key"] for one in rows if one["kind"] == "topic"} == {named}
    (found,) = as_json("audit", tmp_path / "exported", rules=("duplicate-replica",))["findings"]
    assert (found["rule"], found["topic_id"]) == ("DUPLICATE_REPLICA", log.topics[named])


def test_raftlog_topic_ids_are_hexadecimal(tmp_path: Path) -> None:
    log = LogHistory()
    id_ = log.create_topic("orders")
    written(log, tmp_path)
    rows = as_json("state", tmp_path, "topic", id_.hex())["rows"]
    assert [one["value"].get("id", id_.hex()) for one in rows] == [id_.hex()] * 3


def test_other_commands_print_and_accept_kafka_ids(real: Path, ids: dict[str, str]) -> None:
    source, id_ = ("--export", str(real / "exported")), ids[TOPIC]
    assert f"created: id {id_}" in command("history", "topic", id_, *source)
    dump = command("log", "dump", *source, "--type", "TOPIC", "--json").splitlines()
    said = {one["name"]: one["topic_id"] for one in (json.loads(each)["record"] for each in dump)}
    assert ids.items() <= said.items()
    named, by_id = (
        json.loads(command("log", "image", *source, "--entity", f"topics/{key}"))["entity"]
        for key in (TOPIC, id_)
    )
    assert named == by_id
    assert named["id"] == id_


def test_spark_accepts_and_shows_kafka_ids(replay: Replay, real: Path, ids: dict[str, str]) -> None:
    key = ("partition", f"{ids[TOPIC]}-1")
    found = compute(JobRequest(job="history", export=str(real / "exported"), key=key))
    assert found.changes
    assert replay("history", real / "exported", key=key) == found


# --- The kernels count each partition's epochs of a Kafka log as the fold does. For every change of a partition: test_kernels.py

Epochs = dict[tuple[str, int], tuple[int, ...]]
"""Leader, leader epoch and partition epoch by topic id and partition."""


def epochs(image: Image) -> Epochs:
    return {
        (each.topic_id.hex(), each.index): (each.leader, each.leader_epoch, each.partition_epoch)
        for each in image.partitions.values()
    }


def of_kernels(directory: Path, at_offset: int) -> Epochs:
    found = opened(directory, at_offset=at_offset)
    with Pool(0) as pool:
        facts = Facts(scan(found, pool).rare, at_offset + 1)
    partitions = Partitions(facts)
    for table in slices(found, COLUMNS, types=PARTITION_TYPES):
        partitions.step(table)
    names = ("leader", "leader_epoch", "partition_epoch")
    return {
        (row["topic_id"], row["partition_id"]): tuple(row[name] for name in names)
        for row in partitions.table(there=True).to_pylist()
    }


def followed(directory: Path) -> list[tuple[int, Epochs]]:
    """Return the image's epochs at the end of every tenth batch of an imported log, and at its end."""
    fold, seen = ImageBuilder(Image()), []
    manifest = read_manifest(directory)
    fold.offset = manifest.history_begin - 1
    chunks = [each for one in manifest.of_kind(RAW) for each in read_segment(directory, one)]
    for number, chunk in enumerate(chunks, 1):
        fold.apply_chunk(chunk)
        if number % 10 == 0 or number == len(chunks):
            seen.append((fold.offset, epochs(fold.snapshot())))
    return seen


@pytest.mark.parametrize("release", ["3.3.2", "3.9.1", "4.3.1", "4.4.0"])
def test_epochs_of_a_real_kafka_log_equal_those_of_the_image(release: str, tmp_path: Path) -> None:
    """The image's are Kafka's own: each import is compared with Kafka's snapshots."""
    kafka.unpack(KEPT / f"kafka-{release}.tar.gz", tmp_path / "node")
    assert imported(tmp_path / "node", tmp_path / "exported").sound
    seen = followed(tmp_path / "exported")
    for offset, expected in seen:
        assert of_kernels(tmp_path / "exported", offset) == expected, offset
    assert max(epoch for *_, epoch in seen[-1][1].values()) > 1


@pytest.mark.parametrize("slice_rows", [1, 131_072])
def test_clearing_eligible_replicas_takes_a_partition_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_rows: int
) -> None:
    """Once, if there were any, whatever follows; for one topic or for all."""
    log = KafkaLog()
    log.topic("one", [1, 2, 3], isr=[1])
    log.topic("other", [1, 2, 3], isr=[1])
    for name in ("one", "other"):
        log.change(name, eligible_leader_replicas=[2])
    log.clear_elr("one")
    log.change("one", isr=[1, 2])
    log.clear_elr("one")
    log.change("one", isr=[1], eligible_leader_replicas=[2])
    log.clear_elr("one")
    log.change("one", isr=[1], eligible_leader_replicas=[3])
    log.change("other", isr=[1, 3])
    log.clear_elr("one")
    for name in ("one", "other"):
        log.change(name, eligible_leader_replicas=[4])
    log.clear_elr()
    log.import_into(tmp_path)
    monkeypatch.setattr(reading, "SLICE_ROWS", slice_rows)
    for offset, expected in followed(tmp_path / "exported"):
        assert of_kernels(tmp_path / "exported", offset) == expected, offset
    (one, other) = sorted(epoch for *_, epoch in expected.values())
    assert (one, other) == (4, 9)


# --- Logs without controllers or brokers

NOOP = kafka.metadata("NoOpRecord")


@pytest.mark.parametrize("job", LOCAL_JOBS)
@pytest.mark.parametrize(
    "log",
    [
        kafka.batch(0, [NOOP]),
        kafka.batch(0, [kafka.topic(), kafka.partition()]),
        kafka.batch(0, [kafka.leader_change()], timestamp_ms=MAX_MS),
    ],
    ids=["no-op", "no controller", "end of time"],
)
def test_every_job_answers_for_a_nearly_empty_log(
    tmp_path: Path, log: bytes, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(kafka.write_node(tmp_path / "node", log), tmp_path / "exported")
    asked = JobRequest(
        job=job,
        export=str(tmp_path / "exported"),
        engine="local",
        key=("topic", ""),
        from_offset=0,
        output=str(tmp_path / "report.html"),
    )
    assert run_job(asked, spark=False) in (0, 3)
    assert capsys.readouterr().err == ""
    assert ask("availability", tmp_path / "exported").failovers == []


# --- A watch on the import of a growing Kafka log

LOG = "__cluster_metadata-0/00000000000000000000.log"
PATIENCE_S = 120.0


class LiveLog:
    """A node's directory to which real records are appended batch by batch."""

    def __init__(self, directory: Path) -> None:
        kafka.unpack(KEPT / "kafka-4.4.0.tar.gz", directory / "kept")
        data = (directory / "kept" / "node101" / LOG).read_bytes()
        self._ends = [end for end, _ in batches(data)]
        last = [one for _, one in batches(data)][-1]
        self.end_offset, self._epoch = last.last_offset + 1, last.epoch
        self._data, self._written = data, 0
        self.node = kafka.write_node(directory / "live", b"")

    def _append(self, data: bytes) -> None:
        with (self.node.parent / LOG).open("ab") as log:
            log.write(data)

    def write(self, part: float) -> None:
        """Write up to this part of the real batches."""
        until = self._ends[round(part * len(self._ends)) - 1]
        self._append(self._data[self._written : until])
        self._written = until

    def break_rules(self) -> int:
        """Write records that no controller writes; return their offset."""
        record = kafka.config("retention.ms", "1", "never-was")
        self._append(kafka.batch(self.end_offset, [record], epoch=self._epoch, timestamp_ms=2**41))
        return self.end_offset


@pytest.fixture
def live(tmp_path: Path) -> LiveLog:
    return LiveLog(tmp_path)


def test_watch_judges_appended_records_once(replay: Replay, live: LiveLog, tmp_path: Path) -> None:
    exported, watched = tmp_path / "exported", str(tmp_path / "watched")
    live.write(0.4)
    found = []
    with Importer(find_copies([live.node]), str(exported)) as importer:
        for more in (False, True):
            if more:
                live.write(1.0)
                live.break_rules()
            imported = importer.run()
            result = replay("watch", exported, output=watched)
            validator("replay watch")(msgspec.json.decode(msgspec.json.encode(result)))
            assert result.end_offset == imported.end_offset
            found.append((result.new, result.total))
    assert found == [(0, 0), (1, 1)]
    (row,) = (dict(zip(result.columns, each, strict=True)) for each in result.alerts)
    assert (row["rule"], row["offset"]) == ("CONFIG_OF_UNKNOWN_TOPIC", live.end_offset)


@pytest.mark.nightly
def test_polling_watch_follows_a_growing_import(
    spark: SparkSession, live: LiveLog, tmp_path: Path
) -> None:
    """[An import that follows Kafka in a process of its own: test_kafka_command.py.]"""
    exported, watched = str(tmp_path / "exported"), tmp_path / "watched"
    live.write(0.4)
    with Importer(find_copies([live.node]), exported) as importer:
        importer.run()

        def imported_up_to(part: float) -> int:
            live.write(part)
            return importer.run().end_offset

        judge = audit.judge(choose((), "kafka"))
        begin = partial(start, spark, exported, Ledger(watched), judge, every="1 seconds")
        query = begin()

        def wait_for(end_offset: int) -> int:
            """Return the number of alerts so far."""
            nonlocal query
            deadline, starts = time.monotonic() + PATIENCE_S, 1
            while Ledger(watched).done.end_offset < end_offset:
                if not query.isActive:
                    # As the job does.
                    error = query.exception()
                    assert connected_late(error), error
                    assert starts < STARTS_MAX, error
                    query, starts = begin(), starts + 1
                assert time.monotonic() < deadline
                time.sleep(0.2)
            return Ledger(watched).done.alerts

        try:
            assert wait_for([imported_up_to(part) for part in (0.6, 0.8, 1.0)][-1]) == 0
            live.break_rules()
            assert wait_for(importer.run().end_offset) == 1
        finally:
            query.stop()
