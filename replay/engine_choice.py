"""The choice between Spark and worker processes of this machine.

CPU seconds (user and system, driver and workers) on two busy cores, for histories of
``scripts/generate``:

==========  ==========================  =====  =====
Records     Job                         Local  Spark
==========  ==========================  =====  =====
300,000     state --from-the-beginning    2.4   25.8
300,000     report                        2.1   20.5
1,000,000   state --from-the-beginning    5.5   30.3
1,000,000   report                        4.6   20.5
5,000,000   state --from-the-beginning   23.5   36.7
5,000,000   audit                         7.6   14.5
==========  ==========================  =====  =====

So on one machine Spark is never quicker: a record costs both about the same, and Spark's start is
paid on top. What Spark has beyond that are disks to sort on and further machines. LOCAL_MAX_RECORDS
and LOCAL_MAX_BYTES are where its start is a small part of the whole, and where both begin to count.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from raftlog.cli.built_in import pip_install
from raftlog.errors import RaftlogError
from raftlog.text import counted
from replay.beginning import BEGIN_IN_BETWEEN, begun
from replay.errors import ReplayError
from replay.opened import open_export
from replay.request import AUTO, LOCAL, LOCAL_JOBS, SPARK, JobRequest
from replay.text import size as size_text

LOCAL_MAX_RECORDS = 5_000_000
LOCAL_MAX_BYTES = 1 << 30
"""Size of the Parquet files of those records."""


class Choice(NamedTuple):
    """An engine, and for people why it was chosen; empty if the caller named it."""

    engine: str
    reason: str = ""


def choose_engine(request: JobRequest, conf: list[str]) -> Choice:
    """Return the engine for a job. Raises RaftlogError if it can't be run as asked.

    ``conf``: settings for Spark.
    """
    if request.engine == LOCAL and conf:
        raise ReplayError("--conf is for Spark, and --engine local has none")
    if request.job not in LOCAL_JOBS:
        _require_pyspark(request.job)
        reason = f"{request.job} needs Spark"
        return Choice(SPARK, "" if request.engine == SPARK else reason)
    if request.engine != AUTO:
        return Choice(request.engine)
    if conf:
        return Choice(SPARK, "--conf is for Spark")
    try:
        records, size = _size(request)
    except RaftlogError:
        # The job itself says what is wrong with the export.
        return Choice(LOCAL)
    few = records <= LOCAL_MAX_RECORDS and size <= LOCAL_MAX_BYTES
    if not few and _has_pyspark():
        return Choice(SPARK, f"{_words(records, size)} are many")
    if not few:
        return Choice(LOCAL, f"PySpark is not installed, though {_words(records, size)} are many")
    return Choice(LOCAL, f"{_words(records, size)} are few; --engine spark asks Spark")


def announcement(choice: Choice) -> str:
    """Return the line for people; empty if there is nothing to say."""
    if not choice.reason:
        return ""
    engine = "in Spark" if choice.engine == SPARK else "without Spark"
    return f"{engine}: {choice.reason}"


def _size(request: JobRequest) -> tuple[int, int]:
    """Return the records that the job reads, and the bytes of the files that hold them."""
    export = open_export(request)
    if request.job in BEGIN_IN_BETWEEN:
        export = begun(export, request)
    return export.record_count, sum(one.bytes for one in export.segments)


def _words(records: int, size: int) -> str:
    return f"{counted(records, 'record')} ({size_text(size)})"


def _has_pyspark() -> bool:
    return find_spec("pyspark") is not None


def _require_pyspark(job: str) -> None:
    if not _has_pyspark():
        raise ReplayError(f"{job} needs Spark, which is not installed: {pip_install(['replay'])}")
