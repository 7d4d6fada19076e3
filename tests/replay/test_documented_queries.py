"""Every query of docs/replay_sql.md, and the conversion of topic ids in docs/kafka.md, on an export
whose answers are known.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from log_history import LogHistory
from pyspark.sql import SparkSession

from raftlog import batch
from raftlog.metadata.words import kafka_id
from raftlog.segments.export import export
from replay.spark import views

DOCUMENTS = Path(__file__).parents[2] / "docs"
SQL = (DOCUMENTS / "replay_sql.md").read_text()
Ask = Callable[[str], list[tuple[Any, ...]]]


class Story(NamedTuple):
    """A log, the directory of its export, the times of its events in ms, and the offset, time,
    LAO and lag of each progress record.
    """

    log: LogHistory
    directory: Path
    at_ms: dict[str, int]
    samples: list[tuple[int, int, int, int]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The ISR of orders-0 changes five times, that of orders-1 twice, which stays at one member."""
    log, at_ms = LogHistory(5), dict[str, int]()
    log.create_topic("orders", 2)
    log.alter_isr("orders", 0, [1, 2])
    log.alter_isr("orders", 0, [1, 2, 3])
    for value, principal in (("1", "User:alice"), ("2", "User:bob"), ("3", "User:alice")):
        log.alter_config("orders", "retention.ms", value, principal)
    log.alter_config("orders", "cleanup.policy", "compact", "User:alice")
    log.alter_config("orders", "cleanup.policy", "delete", "User:alice")
    for broker_id in (3, 2):
        log.set_fenced(broker_id, fenced=True)
        at_ms[f"fenced {broker_id}"] = log.timestamp_ms
        log.set_fenced(broker_id, fenced=False)
        at_ms[f"unfenced {broker_id}"] = log.timestamp_ms
    log.alter_isr("orders", 0, [2, 1])
    at_ms["restored"] = log.timestamp_ms
    log.alter_isr("orders", 0, [1, 2])
    samples = []
    for _ in range(2):
        high_watermark = log.end_offset
        log.progress()
        lag = high_watermark - 1 - log.reached
        samples.append((log.end_offset - 1, log.timestamp_ms, log.reached, lag))
    at_ms["end"] = log.timestamp_ms
    directory = tmp_path_factory.mktemp("export")
    export(log, directory)
    return Story(log, directory, at_ms, samples)


@pytest.fixture(scope="module")
def ask(spark: SparkSession, story: Story) -> Ask:
    session = spark.newSession()
    views.register(session, str(story.directory))

    def answer(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in session.sql(query).collect()]

    return answer


@pytest.fixture(scope="module")
def examples() -> list[str]:
    return re.findall(r"^```sql\n(.*?)^```", SQL, re.MULTILINE | re.DOTALL)


def test_every_documented_query_has_its_test(examples: list[str]) -> None:
    assert len(examples) == 5


def test_lag_query_returns_lao_and_lag_of_each_known_sample(
    ask: Ask, examples: list[str], story: Story
) -> None:
    found = [
        (offset, round(time.timestamp() * 1000), lao, lag)
        for offset, time, lao, lag in ask(examples[0])
    ]
    assert found == story.samples


def test_isr_query_counts_changes_of_membership(ask: Ask, examples: list[str]) -> None:
    assert ask(examples[1]) == [("orders", 0, 5), ("orders", 1, 2)]


def test_acks_query_counts_open_intervals_up_to_the_end(
    ask: Ask, examples: list[str], story: Story
) -> None:
    at_ms = story.at_ms
    assert ask(examples[2]) == [
        ("orders", 1, at_ms["end"] - at_ms["fenced 2"]),
        ("orders", 0, at_ms["restored"] - at_ms["fenced 2"]),
    ]


def test_config_query_lists_keys_of_several_principals(ask: Ask, examples: list[str]) -> None:
    assert ask(examples[3]) == [(2, "orders", "retention.ms", 3, 2)]


def test_size_query_adds_up_the_bodies_by_type(ask: Ask, examples: list[str], story: Story) -> None:
    found = ask(examples[4])
    assert [row[2] for row in found] == sorted((row[2] for row in found), reverse=True)
    by_type = {row[0]: row[1:] for row in found}
    bodies = [
        len(body)
        for chunk in story.log.batches
        for header in batch.headers(chunk)
        for _, _, body in batch.bodies(chunk, header)
    ]
    assert sum(count for count, _ in by_type.values()) == len(bodies) == story.log.end_offset
    assert sum(size for _, size in by_type.values()) == sum(bodies)
    counts = {name: by_type[name][0] for name in ("CONFIG", "TOPIC", "PARTITION", "PROGRESS")}
    assert counts == {"CONFIG": 5, "TOPIC": 1, "PARTITION": 2, "PROGRESS": 2}


def test_fenced_query_of_shell_and_notebook_returns_reason_and_duration(
    ask: Ask, story: Story
) -> None:
    shell = re.findall(r'raftlog replay sql exported "([^"]+)"', SQL)
    notebook = re.findall(r'spark\.sql\("([^"]+)"\)', SQL)
    (query,) = {" ".join(each.split()) for each in (*shell, *notebook)}
    at_ms = story.at_ms
    found = [row for row in ask(query) if row[1] != "registered"]
    assert sorted(found) == [
        (
            broker_id,
            "session timed out",
            at_ms[f"unfenced {broker_id}"] - at_ms[f"fenced {broker_id}"],
        )
        for broker_id in (2, 3)
    ]


def test_topic_ids_are_converted_as_kafka_prints_them(ask: Ask) -> None:
    page = (DOCUMENTS / "kafka.md").read_text()
    spark_sql, duck_sql = re.findall(r"`(translate\([^`]*\))`", page)
    ids = ("fbf0ff6050c00e11223344556677fbff", "0" * 32)
    for topic_id in ids:
        query = "SELECT {} FROM (SELECT '{}' AS topic_id)"
        assert ask(query.format(spark_sql, topic_id)) == [(kafka_id(topic_id),)]
        assert duckdb.sql(query.format(duck_sql, topic_id)).fetchall() == [(kafka_id(topic_id),)]
