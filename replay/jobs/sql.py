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
"""Statements that read without being a query to Spark."""
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(\w*)", re.DOTALL)
"""Behind comments."""


class SqlResult(msgspec.Struct, frozen=True):
    """The first rows of the answer, ``columns`` in order; ``more``: there are others."""

    columns: list[str]
    rows: list[list[Any]]
    more: bool


def run(export: Export, request: JobRequest, pool: Pool) -> SqlResult:
    """Ask the query that the request names.

    Raises ReplayError if it names none, or a statement of another kind.
    """
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
    """Require a statement that reads and changes nothing.

    Raises ReplayError; ParseException if it is no SQL.

    Spark runs a statement with the rights of its caller: INSERT and the like would write files, in
    the working directory if no other is named.
    """
    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        parser.parseQuery(text)
    except ParseException:
        # If it is no SQL at all, this says where.
        parser.parsePlan(text)
        word = _FIRST_WORD.match(text)
        first = word[1].upper() if word else ""
        if first not in _ASKING:
            raise ReplayError(
                f"this {first} is not a query: an export is asked, not changed. Give one SELECT, or"
                " DESCRIBE and a view's name"
            ) from None


def _named(query: str) -> list[str]:
    """Return the views that a query may be about; all, where it asks which there are."""
    word = _FIRST_WORD.match(query)
    if word is not None and word[1].upper() == "SHOW":
        return list(VIEWS)
    return [name for name in VIEWS if name in query.lower()]


def plain(value: Any) -> Any:
    """Return a value of Spark for JSON: structs as objects, bytes in hex, times in ISO 8601."""
    if isinstance(value, Row):
        # The row itself has its columns' names beside it, and two of them may be the same.
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
    """Print the result for people."""
    table = Table(*(Column(name, overflow="fold") for name in result.columns))
    for row in result.rows:
        table.add_row(*("-" if value is None else _text(value) for value in row))
    console.print(table)
    rows = counted(len(result.rows), "row")
    console.print(f"{rows}, and there are more: raise --limit" if result.more else rows)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
