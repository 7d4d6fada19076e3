import logging
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from json_schemas import validator
from log_history import LogHistory
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from rich.console import Console
from spark_runs import Replay

from raftlog.segments.errors import CorruptExportError
from raftlog.segments.export import export
from raftlog.segments.manifest import RECORDS, read_manifest
from replay.errors import ReplayError
from replay.jobs import sql
from replay.request import VIEW_NAMES
from replay.spark import views

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
    directory = tmp_path_factory.mktemp("export")
    export(log, directory)
    return directory


@pytest.fixture(scope="module")
def prefix(spark: SparkSession, exported: Path) -> str:
    """Name prefix of all views of the export: creating them takes seconds."""
    views.register(spark, str(exported), prefix="v_")
    return "v_"


@pytest.fixture(scope="module")
def ask(spark: SparkSession, prefix: str) -> Callable[[str], list[tuple[Any, ...]]]:
    def answer(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(query).collect()]

    return answer


def test_each_view_can_be_queried(
    ask: Callable[[str], list[tuple[Any, ...]]], log: LogHistory
) -> None:
    assert ask("SELECT count(*), max(offset) FROM v_records") == [
        (log.end_offset, log.end_offset - 1)
    ]
    values = (
        "SELECT config_value, principal, ends - begins FROM v_configs WHERE config_name ="
        " 'retention.ms' ORDER BY begins"
    )
    # The last one ends where the topic's configs are deleted: after two fencing records with their
    # ISR changes, election, progress.
    first, second = ask(values)
    assert first == ("1000", "User:alice", 1)
    assert second[:2] == ("2000", "User:bob")
    assert ask("SELECT before, after FROM v_changes WHERE kind = 'config' ORDER BY offset") == [
        (None, '"1000"'),
        ('"1000"', '"2000"'),
        ('"2000"', None),
    ]
    fenced = "SELECT broker_id, reason FROM v_brokers WHERE fenced AND NOT registration"
    assert ask(fenced) == [(3, "session timed out")]
    lives = (
        "SELECT t.topic_name, t.ends IS NULL, count(DISTINCT p.partition_id) FROM v_topics t JOIN"
        " v_partitions p USING (topic_id) "
    )
    assert ask(lives + "GROUP BY ALL ORDER BY 2") == [("orders", False, 1), ("orders", True, 2)]
    assert ask("SELECT epoch, leader_id, ends IS NULL FROM v_controllers ORDER BY epoch") == [
        (1, 1, False),
        (2, 2, True),
    ]


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
    export(log, tmp_path)
    (segment,) = read_manifest(tmp_path).of_kind(RECORDS)
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
