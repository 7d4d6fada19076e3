"""SQL: one query on the views of an export (:mod:`replay.spark.views`)."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from pyspark.errors import ParseException
from pyspark.sql import Row, SparkSession
from rich.console import Console
from rich.table import Column, Table

from raftlog.text import counted
from replay.engine.pool import Pool
from replay.errors import ReplayError
from replay.export import Export
from replay.request import JobRequest
from replay.spark.pool import spark_of
from replay.spark.views import VIEWS, register_export

_ASKING = ("DESCRIBE", "DESC", "SHOW", "EXPLAIN")
"""First words of statements that only read, although Spark does not consider them queries."""
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(\w*)", re.DOTALL)
"""The first word of a statement, after any comments."""


class SqlResult(msgspec.Struct, frozen=True):
    """The first rows of the answer, with values in the order of ``columns``. ``more``: there are
    further rows.
    """

    columns: list[str]
    rows: list[list[Any]]
    more: bool


def run(export: Export, request: JobRequest, pool: Pool) -> SqlResult:
    """Run the request's query. Raises ReplayError if there is none, or if it is not a query."""
    if not request.query:
        raise ReplayError("no query: give a SELECT statement")
    spark = spark_of(pool)
    query = request.query.rstrip().removesuffix(";")
    require_query(spark, query)
    register_export(spark, export, names=_named(query))
    answer = spark.sql(query)
    rows = answer.limit(request.limit + 1).collect()
    return SqlResult(
        answer.columns, [plain(row) for row in rows[: request.limit]], len(rows) > request.limit
    )


def require_query(spark: SparkSession, text: str) -> None:
    """Raise ReplayError unless the statement only reads, and ParseException if it is not SQL.

    Spark runs statements with its caller's permissions: INSERT, for example, would write files, by
    default into the working directory.
    """
    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        parser.parseQuery(text)
    except ParseException:
        # If this is not SQL, Spark's error names the position.
        parser.parsePlan(text)
        word = _FIRST_WORD.match(text)
        first = word[1].upper() if word else ""
        if first not in _ASKING:
            raise ReplayError(
                f"{first} is not a query, and an export is read-only: give a SELECT, or DESCRIBE"
                " and a view's name"
            ) from None


def _named(query: str) -> list[str]:
    """Return the views that a query may use; all of them for SHOW."""
    word = _FIRST_WORD.match(query)
    if word is not None and word[1].upper() == "SHOW":
        return list(VIEWS)
    return [name for name in VIEWS if name in query.lower()]


def plain(value: Any) -> Any:
    """Return a Spark value for JSON: structs as objects, bytes in hex, times in ISO 8601."""
    if isinstance(value, Row):
        # A list: the column names are stored separately, and may contain duplicates.
        return [_inner(each) for each in value]
    return _inner(value)


def _inner(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: _inner(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): _inner(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_inner(each) for each in value]
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return msgspec.to_builtins(value)


def render(result: SqlResult, console: Console) -> None:
    """Print the result as text."""
    table = Table(*(Column(name, overflow="fold") for name in result.columns))
    for row in result.rows:
        table.add_row(*("-" if value is None else _text(value) for value in row))
    console.print(table)
    rows = counted(len(result.rows), "row")
    console.print(f"{rows} shown, there are more: raise --limit" if result.more else rows)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
