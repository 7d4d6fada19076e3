"""The views of an export in Spark, and the job sql."""

import logging
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import msgspec
import pytest
from asking import opened, written
from json_schemas import validator
from log_history import LogHistory
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from spark_runs import Replay

from raftlog import batch
from raftlog.metadata.entities import SHUT_DOWN, Cause, has_left
from raftlog.metadata.words import kafka_id
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.manifest import RECORDS, read_manifest
from replay.engine.passes import ExportLog
from replay.engine.pool import Pool
from replay.errors import ReplayError
from replay.jobs import sql
from replay.kernels.passes import facts_of
from replay.outages.service import departures, fencings, service
from replay.request import VIEW_NAMES
from replay.spark import views
from replay.spark.views import VIEWS, Views

Ask = Callable[[str], list[tuple[Any, ...]]]


def asking(session: SparkSession) -> Ask:
    return lambda query: [tuple(row) for row in session.sql(query).collect()]


DOCUMENT = Path(__file__).parents[2] / "docs" / "replay_sql.md"


@pytest.fixture(scope="module")
def log() -> LogHistory:
    """Broker 3 is fenced once; orders exists twice, the first time with two values of a config key."""
    log = LogHistory(81)
    log.create_topic("orders", 1)
    log.alter_config("orders", "retention.ms", "1000", "User:alice")
    log.alter_config("orders", "retention.ms", "2000", "User:bob")
    log.set_fenced(3, fenced=True)
    log.set_fenced(3, fenced=False)
    log.elect(2)
    log.progress()
    log.delete_topic("orders")
    log.create_topic("orders", 2)
    return log


@pytest.fixture(scope="module")
def exported(log: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(log, tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def prefix(spark: SparkSession, exported: Path) -> str:
    """Name prefix of all views of the export: creating them takes seconds."""
    views.register(spark, str(exported), prefix="v_")
    return "v_"


@pytest.fixture(scope="module")
def ask(spark: SparkSession, prefix: str) -> Ask:
    return asking(spark)


def test_each_view_can_be_queried(ask: Ask, log: LogHistory) -> None:
    records = ask("SELECT count(*), max(offset) FROM v_records")
    assert records == [(log.end_offset, log.end_offset - 1)]
    values = (
        "SELECT config_value, principal, ends - begins FROM v_configs WHERE config_name ="
        " 'retention.ms' ORDER BY begins"
    )
    # The last one ends where the topic's configs are deleted: after two fencing records with their
    # ISR changes, election, progress.
    first, second = ask(values)
    assert (first, second[:2]) == (("1000", "User:alice", 1), ("2000", "User:bob"))
    changes = ask("SELECT before, after FROM v_changes WHERE kind = 'config' ORDER BY offset")
    assert changes == [(None, '"1000"'), ('"1000"', '"2000"'), ('"2000"', None)]
    fenced = ask("SELECT broker_id, reason FROM v_brokers WHERE fenced AND NOT registration")
    assert fenced == [(3, "session timed out")]
    lives = (
        "SELECT t.topic_name, t.ends IS NULL, count(DISTINCT p.partition_id) FROM v_topics t JOIN"
        " v_partitions p USING (topic_id) GROUP BY ALL ORDER BY 2"
    )
    assert ask(lives) == [("orders", False, 1), ("orders", True, 2)]
    controllers = ask("SELECT epoch, leader_id, ends IS NULL FROM v_controllers ORDER BY epoch")
    assert controllers == [(1, 1, False), (2, 2, True)]


def test_document_names_the_actual_columns(spark: SparkSession, prefix: str) -> None:
    sections = dict(
        re.findall(r"^### `(\w+)`\n(.*?)(?=^#|\Z)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    )
    assert tuple(views.VIEWS) == VIEW_NAMES
    assert set(sections) == set(VIEW_NAMES)
    for name in set(VIEW_NAMES) - {"records"}:
        documented = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", sections[name], re.MULTILINE)
        found = {word: kind for words, kind in documented for word in re.findall(r"`(\w+)`", words)}
        assert found == {
            field.name: field.dataType.simpleString()
            for field in spark.table(f"{prefix}{name}").schema.fields
        }, name


def test_views_are_limited_to_the_requested_offset(spark: SparkSession, exported: Path) -> None:
    reached = views.register(spark, str(exported), prefix="early_", at_offset=1, verify=False)
    assert reached.manifest.cluster_id
    assert spark.table("early_records").count() == 2


def test_damaged_file_is_reported_before_a_view_exists(
    spark: SparkSession, log: LogHistory, tmp_path: Path
) -> None:
    (segment,) = read_manifest(written(log, tmp_path)).of_kind(RECORDS)
    path = tmp_path / segment.file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptExportError, match=f"{segment.file}.* is corrupt"):
        views.register(spark, str(tmp_path), prefix="bad_")
    with pytest.raises(AnalysisException):
        spark.table("bad_records")


@pytest.mark.nightly
def test_sql_job_prints_limited_rows(replay: Replay, exported: Path) -> None:
    query = (
        "SELECT offset, type_name, isr_with_epochs, timestamp, body FROM records WHERE partition_id"
        " = 0 ORDER BY offset"
    )
    result = replay("sql", exported, query=query, limit=1)
    validator("replay sql")(msgspec.json.decode(msgspec.json.encode(result)))
    assert (result.columns[:2], result.more) == (["offset", "type_name"], True)
    ((offset, type_name, members, timestamp, body),) = result.rows
    assert (type_name, members) == ("PARTITION", None)
    assert timestamp.startswith("2023-11-14T")
    assert bytes.fromhex(body)
    text = StringIO()
    sql.render(result, Console(file=text, width=200))
    assert str(offset) in text.getvalue()
    assert "1 row shown, there are more: raise --limit" in text.getvalue()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (None, "no query: give a SELECT statement"),
        ("SELECT nothing FROM records", r"UNRESOLVED_COLUMN.*`nothing`"),
        ("SELEKT 1", r"PARSE_SYNTAX_ERROR.*'SELEKT'"),
    ],
)
def test_invalid_query_is_refused(
    replay: Replay, exported: Path, query: str | None, message: str
) -> None:
    with pytest.raises(ReplayError, match=message) as raised:
        replay("sql", exported, query=query)
    assert "\n" not in str(raised.value)
    # It would print the plan and stack traces, 10 KB of them.
    assert not logging.getLogger("SQLQueryContextLogger").isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("DROP VIEW brokers", "DROP"),
        ("insert into x values (1);", "INSERT"),
        ("CREATE TABLE t AS SELECT 1", "CREATE"),
        ("SET spark.sql.ansi.enabled=false", "SET"),
        ("FROM brokers INSERT OVERWRITE DIRECTORY '/nowhere' SELECT *", "FROM"),
        ("EXECUTE IMMEDIATE 'DROP VIEW brokers'", "EXECUTE"),
        ("-- a SELECT\n/* or\nnot */ CACHE TABLE brokers", "CACHE"),
    ],
)
def test_export_is_queried_and_not_changed(spark: SparkSession, text: str, first: str) -> None:
    with pytest.raises(ReplayError, match=f"^{first} is not a query, and an export is read-only"):
        sql.require_query(spark, text)


def test_query_statements_are_accepted(spark: SparkSession) -> None:
    for text in (
        "select 1",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "TABLE brokers",
        "FROM brokers |> WHERE fenced",
        "-- its columns\nDESCRIBE brokers",
        "EXPLAIN SELECT 1",
    ):
        sql.require_query(spark, text)
    with pytest.raises(ParseException, match="at or near 'SELEC'"):
        sql.require_query(spark, "SELEC 1")


# --- Every query of docs/replay_sql.md, and the conversion of topic ids in docs/kafka.md, on an export whose answers are known

DOCUMENTS = Path(__file__).parents[2] / "docs"
SQL = (DOCUMENTS / "replay_sql.md").read_text()


class Known(NamedTuple):
    """A log, the directory of its export, the times of its events in ms, and the offset, time,
    LAO and lag of each progress record.
    """

    log: LogHistory
    directory: Path
    at_ms: dict[str, int]
    samples: list[tuple[int, int, int, int]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
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
    return Known(log, written(log, tmp_path_factory.mktemp("export")), at_ms, samples)


@pytest.fixture(scope="module")
def answered(spark: SparkSession, known: Known) -> Ask:
    session = spark.newSession()
    views.register(session, str(known.directory))
    return asking(session)


EXAMPLES = re.findall(r"^```sql\n(.*?)^```", SQL, re.MULTILINE | re.DOTALL)


def test_lag_query_returns_lao_and_lag_of_each_known_sample(answered: Ask, known: Known) -> None:
    found = [
        (offset, round(time.timestamp() * 1000), lao, lag)
        for offset, time, lao, lag in answered(EXAMPLES[0])
    ]
    assert found == known.samples


def test_isr_acks_and_config_queries_return_what_happened(answered: Ask, known: Known) -> None:
    """The ISR's changes of membership; an open interval counts up to the end."""
    at_ms = known.at_ms
    assert answered(EXAMPLES[1]) == [("orders", 0, 5), ("orders", 1, 2)]
    assert answered(EXAMPLES[2]) == [
        ("orders", 1, at_ms["end"] - at_ms["fenced 2"]),
        ("orders", 0, at_ms["restored"] - at_ms["fenced 2"]),
    ]
    assert answered(EXAMPLES[3]) == [(2, "orders", "retention.ms", 3, 2)]


def test_size_query_adds_up_the_bodies_by_type(answered: Ask, known: Known) -> None:
    assert len(EXAMPLES) == 5, "each has its test"
    found = answered(EXAMPLES[4])
    assert [row[2] for row in found] == sorted((row[2] for row in found), reverse=True)
    by_type = {row[0]: row[1:] for row in found}
    bodies = [
        len(body)
        for chunk in known.log.batches
        for header in batch.headers(chunk)
        for _, _, body in batch.bodies(chunk, header)
    ]
    assert sum(count for count, _ in by_type.values()) == len(bodies) == known.log.end_offset
    assert sum(size for _, size in by_type.values()) == sum(bodies)
    counts = {name: by_type[name][0] for name in ("CONFIG", "TOPIC", "PARTITION", "PROGRESS")}
    assert counts == {"CONFIG": 5, "TOPIC": 1, "PARTITION": 2, "PROGRESS": 2}


def test_fenced_query_of_shell_and_notebook_returns_reason_and_duration(
    answered: Ask, known: Known
) -> None:
    shell = re.findall(r'raftlog replay sql exported "([^"]+)"', SQL)
    notebook = re.findall(r'spark\.sql\("([^"]+)"\)', SQL)
    (query,) = {" ".join(each.split()) for each in (*shell, *notebook)}
    at_ms = known.at_ms
    found = [row for row in answered(query) if row[1] != "registered"]
    assert sorted(found) == [
        (one, "session timed out", at_ms[f"unfenced {one}"] - at_ms[f"fenced {one}"])
        for one in (2, 3)
    ]


def test_topic_ids_are_converted_as_kafka_prints_them(answered: Ask) -> None:
    page = (DOCUMENTS / "kafka.md").read_text()
    spark_sql, duck_sql = re.findall(r"`(translate\([^`]*\))`", page)
    ids = ("fbf0ff6050c00e11223344556677fbff", "0" * 32)
    for topic_id in ids:
        ours, theirs = (
            f"SELECT {sql} FROM (SELECT '{topic_id}' AS topic_id)" for sql in (spark_sql, duck_sql)
        )
        assert answered(ours) == duckdb.sql(theirs).fetchall() == [(kafka_id(topic_id),)]


# --- Jobs classify the departures of brokers by cause, not by text

SILENT = (Cause.SESSION_TIMED_OUT, Cause.PROCESS_GONE, Cause.METADATA_LAG)


class Caused(LogHistory):
    """Brokers leave for several causes. ``words``: the reason of each."""

    def __init__(self, words: Callable[[Cause], str]) -> None:
        super().__init__(5, brokers=5)
        self.create_topic("a", 3)
        for broker_id, cause in enumerate((*SILENT, Cause.ASKED_TO_BE_FENCED), 1):
            self.change(broker_id, cause, words, fenced=True)
            self.change(broker_id, Cause.CAUGHT_UP, words, fenced=False)
        for broker_id in (1, 5):
            self.change(broker_id, Cause.CONTROLLED_SHUTDOWN, words, in_controlled_shutdown=True)
        self.append(self.leaving(1, fenced=True))
        self.register(1)

    def change(
        self, broker_id: int, cause: Cause, words: Callable[[Cause], str], **fields: bool
    ) -> None:
        self.timestamp_ms += 3_000
        told = {"cause": cause.value, "reason": words(cause)}
        change = self.standing(broker_id, **told, **fields)
        self.append(change, *(() if fields.get("fenced") is False else self.removals(broker_id)))


def classes(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the replay's classification of the log without its texts."""
    with Pool(0) as one:
        served = service(facts_of(ExportLog(opened(directory), one)).brokers)
    left = departures(served)
    shut_down = {each.name for each in SHUT_DOWN}
    return {
        "fencings": sorted(
            (each.broker_id, each.begins, each.planned) for each in fencings(served)
        ),
        "departures": sorted((each.broker_id, each.offset, each.cause) for each in left),
        "abrupt": sorted((each.offset,) for each in left if each.cause not in shut_down),
    }


@pytest.fixture(scope="module")
def caused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(Caused(lambda cause: cause.name), tmp_path_factory.mktemp("caused"))


def test_rewording_changes_no_classification(caused: Path, tmp_path: Path) -> None:
    reworded = classes(written(Caused(lambda _: "controlled shutdown"), tmp_path))
    assert reworded == classes(caused)
    gone = {cause for _, _, cause in reworded["departures"]}
    assert gone >= {"CONTROLLED_SHUTDOWN", *(cause.name for cause in SILENT)}
    assert len(reworded["abrupt"]) < len(reworded["departures"])


def test_causes_and_departures_are_columns(spark: SparkSession, caused: Path) -> None:
    brokers = VIEWS["brokers"](Views(spark, opened(caused)))
    left = brokers.where(has_left(sf.col("fenced"), sf.col("in_controlled_shutdown")))
    assert {row.cause for row in left.select("cause").collect()} == {Cause.CONTROLLED_SHUTDOWN.name}
    registered = brokers.where("registration").select("cause").distinct().collect()
    assert [row.cause for row in registered] == [Cause.REGISTERED.name]
