"""Kafka's record that clears the eligible leader replicas of all topics, in every engine."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka_log import KafkaLog, kafka
from spark_runs import Replay

from raftlog.segments.buckets import add_buckets
from raftlog.segments.manifest import RECORDS
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter
from replay.engine import pool
from replay.kafka.copies import find_copies
from replay.kafka.importing import Importer
from replay.request import JobRequest
from replay.run import compute

TOPICS = [f"topic-{number}" for number in range(11)]
CLEAR = kafka.metadata("ClearElrRecord", topic_name="")


class Cleared:
    """Eleven topics; the even ones have eligible replicas, which are cleared twice."""

    def __init__(self, directory: Path) -> None:
        log = KafkaLog()
        for name in TOPICS:
            log.topic(name, [1, 2, 3], isr=[1])
        self._eligible(log)
        self.first = log.append(CLEAR)
        for name in TOPICS[:3]:
            log.delete(name)
            log.topic(name, [1, 2, 3], isr=[1])
        self._eligible(log)
        self.second = log.append(CLEAR)
        log.change("topic-1", isr=[1, 2])
        self.end = log.end_offset
        node = kafka.write_node(directory / "node", b"".join(log.batches))
        self.exported = directory / "exported"
        with Importer(find_copies([node]), str(self.exported), checkpoint_records=13) as importer:
            assert importer.run().sound

    def _eligible(self, log: KafkaLog) -> None:
        for name in TOPICS[::2]:
            log.change(name, eligible_leader_replicas=[2])


@pytest.fixture(scope="module")
def cleared(tmp_path_factory: pytest.TempPathFactory) -> Cleared:
    return Cleared(tmp_path_factory.mktemp("cleared"))


def questions(cleared: Cleared) -> list[dict[str, Any]]:
    every: list[dict[str, Any]] = [
        {"job": "state"},
        {"job": "state", "key": ("topic", "topic-2")},
        {"job": "history", "key": ("topic", "topic-2")},
        {"job": "history", "key": ("partition", ""), "from_offset": cleared.second},
        {"job": "diff", "from_offset": cleared.second - 1, "at_offset": cleared.second},
        {"job": "diff", "key": ("topic", "topic-4"), "from_offset": cleared.first - 1},
        {"job": "diff", "key": ("config", "topic:topic-4"), "from_offset": cleared.first - 1},
    ]
    return [{"limit": 1000} | one for one in every]


def ask(cleared: Cleared, question: dict[str, Any]) -> Any:
    return compute(JobRequest(export=str(cleared.exported), **question))


def test_clear_of_every_topic_changes_each_with_eligible_replicas(cleared: Cleared) -> None:
    found = ask(cleared, questions(cleared)[4])
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
    said = [ask(cleared, {**one, "from_the_beginning": True}) for one in questions(cleared)]
    assert said[0].entities["partition"] == len(TOPICS)
    monkeypatch.setattr(pool, "ALONE_RECORDS", 0)
    monkeypatch.setattr(pool, "workers", lambda: workers)
    for question, expected in zip(questions(cleared), said, strict=True):
        found = ask(cleared, question)
        assert msgspec.structs.replace(found, checkpoint=None) == expected


def test_each_bucket_contains_a_clear_of_every_topic(tmp_path: Path) -> None:
    cleared = Cleared(tmp_path)
    before = [ask(cleared, one) for one in questions(cleared)]
    with ExportWriter(str(cleared.exported), "c", 0, max_segment_records=cleared.end) as writer:
        assert add_buckets(writer) == len(writer.manifest.of_kind(RECORDS))
    verify_export(cleared.exported)
    assert [ask(cleared, one) for one in questions(cleared)] == before


@pytest.mark.nightly
def test_spark_folds_a_clear_of_every_topic_alike(cleared: Cleared, replay: Replay) -> None:
    for question in questions(cleared):
        job, asked = question["job"], {k: v for k, v in question.items() if k != "job"}
        assert replay(job, cleared.exported, **asked) == ask(cleared, question)
    assert replay("verify", cleared.exported).passed
