"""The request for a job: the same from the command line, spark-submit and Python."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from raftlog.clock import MAX_MS
from replay.errors import ReplayError


class Job(NamedTuple):
    """Properties of a job that engines need to know.

    ``in_between``: it may start from a checkpoint and skip the records before it. ``checks``: it
    checks the files while reading them. ``pace``: its speed as a multiple of a fold's; kernels
    alone are faster.
    """

    name: str
    needs_spark: bool = False
    in_between: bool = False
    checks: bool = False
    pace: int = 1


JOBS = {
    each.name: each
    for each in (
        Job("audit", checks=True, pace=4),
        Job("summary", checks=True),
        Job("state", in_between=True),
        Job("diff", in_between=True),
        Job("history", in_between=True),
        Job("verify", checks=True),
        Job("lao", pace=4),
        Job("availability", pace=4),
        Job("report", checks=True),
        Job("sql", needs_spark=True),
        Job("watch", needs_spark=True, checks=True),
    )
}
LOCAL_JOBS = tuple(each.name for each in JOBS.values() if not each.needs_spark)
"""The jobs that do not need Spark."""
DEFAULT_OUTPUT = "report.html"
"""The default file for a report."""
VIEW_NAMES = ("records", "changes", "brokers", "partitions", "topics", "configs", "controllers")
"""Views of the sql job, defined in replay/spark/views.py, which cannot be imported without Spark.
"""
AUTO, SPARK, LOCAL = "auto", "spark", "local"
ENGINES = (AUTO, SPARK, LOCAL)
"""Engines: spark-submit, or worker processes on this machine; for ``auto``, replay/cli.py decides.
"""
REQUEST = "--request"
"""Option that precedes a request on the command line of ``replay/submit.py``."""


class JobRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A request to run a job once. Offsets and times are inclusive.

    ``engine``: one of ENGINES. ``at_offset``, ``at_time_ms``: the state of the log to use, or None
    for its end. ``limit``: most rows shown per list. ``key``: (kind, key) of the requested
    entities, with "" for all of a kind. ``from_offset``, ``from_time_ms``: the point at which a
    diff starts, or None for the empty log; ``from_offset`` is also the first offset of a history.
    ``from_the_beginning``: ignore the export's checkpoints. ``since_ms``: earliest time that
    figures or changes cover.

    ``rules``: ids of the audit rules, or () for all. ``super_users``,
    ``allow_everyone_if_no_acl_found``: the nodes' configuration, for the audit of rights.
    ``stall_ms``: shortest wait that counts as LAO being held back. ``query``: SQL. ``output``: the
    report's file, or a watch's directory. ``every_s``: interval of a watch in seconds, or None to
    run it once.
    """

    job: str
    export: str
    engine: str = AUTO
    at_offset: int | None = None
    at_time_ms: int | None = None
    limit: int = 100
    key: tuple[str, str] | None = None
    from_offset: int | None = None
    from_time_ms: int | None = None
    from_the_beginning: bool = False
    output: str | None = None
    query: str | None = None
    rules: tuple[str, ...] = ()
    super_users: tuple[str, ...] = ()
    allow_everyone_if_no_acl_found: bool = False
    every_s: int | None = None
    json: bool = False
    since_ms: int | None = None
    stall_ms: int = 2000

    def to_word(self) -> str:
        """Return the request as one command-line word: ASCII JSON, which no locale alters."""
        return json.dumps(msgspec.to_builtins(self))

    @classmethod
    def of_word(cls, word: str) -> JobRequest:
        """Parse the result of ``to_word``. Raises msgspec.ValidationError."""
        return msgspec.convert(json.loads(word), cls)


def parse_time_ms(text: str) -> int:
    """Parse a time in ISO 8601 (UTC unless it has a zone) or in milliseconds since 1970, and return
    it in the latter. Raises ReplayError.
    """
    try:
        if text.lstrip("-").isdecimal():
            return min(max(int(text), -1), MAX_MS)
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ReplayError(
            f"{text!r} is not a time: give milliseconds since 1970, or 2026-01-31T12:00:00Z"
        ) from error
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    # timestamp() returns a float, which is exact to the millisecond only after rounding.
    return round(at.timestamp() * 1000)
