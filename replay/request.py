"""The request of a job; the same from the command line, from spark-submit and from Python."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from raftlog.clock import MAX_MS
from replay.errors import ReplayError


class Job(NamedTuple):
    """Needs of a job, whichever engine runs it.

    ``in_between``: no record below the checkpoint that it begins with. ``checks``: it checks the
    files while it reads them. ``pace``: how many times as fast as a fold it goes through the
    records; kernels alone need a fraction of the time.
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
"""The jobs that need no Spark."""
DEFAULT_OUTPUT = "report.html"
"""The file that a report is written to, unless another is named."""
VIEW_NAMES = ("records", "changes", "brokers", "partitions", "topics", "configs", "controllers")
"""Views of the job sql: see replay/spark/views.py, which needs Spark to be imported."""
AUTO, SPARK, LOCAL = "auto", "spark", "local"
ENGINES = (AUTO, SPARK, LOCAL)
"""Engines of a job: spark-submit, or worker processes of this machine; auto:
replay/cli.py decides.
"""
REQUEST = "--request"
"""Option before a request in the command line of ``replay/submit.py``."""


class JobRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One run of a job.

    ``at_offset`` and ``at_time_ms``, both inclusive: only what the log held then; None: all of it.

    ``limit`` bounds the rows shown of each list, ``key`` is the (kind, key) of the entities asked
    for (key "": all of the kind), ``from_offset`` and ``from_time_ms`` where a diff begins
    (inclusive, too; None: at the empty log), and the former the first offset of a history,
    ``output`` the file that a report goes to, ``query`` a question in SQL, ``rules`` are those of
    the audit (none: all), ``super_users`` the principals that it takes for such,
    ``allow_everyone_if_no_acl_found``: everybody may do what no access control entry is about.

    ``from_the_beginning``: fold from there, whatever checkpoints the export has. ``since_ms``:
    figures, or changes, of the time from then on; ``stall_ms``: the wait of a record from which LAO
    counts as held back.

    ``every_s``: interval of a watch (None: once). ``engine``: one of ENGINES.
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
        """Return the request as one word of a command line: JSON in ASCII, which no locale
        changes.
        """
        return json.dumps(msgspec.to_builtins(self))

    @classmethod
    def of_word(cls, word: str) -> JobRequest:
        """Return the request that ``to_word`` has written. Raises msgspec.ValidationError."""
        return msgspec.convert(json.loads(word), cls)


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970 from a number of them, or from ISO 8601 (UTC if it names no zone).

    Raises ReplayError.
    """
    try:
        if text.lstrip("-").isdecimal():
            return min(max(int(text), -1), MAX_MS)
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ReplayError(
            f"{text!r} is neither milliseconds nor a time like 2026-01-31T12:00:00Z"
        ) from error
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    # timestamp() is a float: exact for milliseconds only after rounding.
    return round(at.timestamp() * 1000)
