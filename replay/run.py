"""Run one job in this process: open the export, compute the result, and print it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from raftlog.errors import RaftlogError
from raftlog.metadata.words import FieldChange, id_field, kafka_id, with_kafka_id
from raftlog.segments.errors import ExportError
from raftlog.segments.manifest import MANIFEST_NAME
from raftlog.text import printable, printable_json
from replay.engine.passes import ExportLog
from replay.engine.pool import Pool, prepare_process
from replay.errors import EXIT_FINDINGS, ReplayError, exit_code, explain
from replay.export import (
    Export,
    from_checkpoint,
    open_export,
    require_order,
    require_whole_history,
)
from replay.request import JOBS, LOCAL_JOBS, JobRequest
from replay.rules import choose
from replay.selection import by_id, select
from replay.streaming.ledger import read_done
from replay.text import console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compute(request: JobRequest, spark: SparkSession | None = None) -> Any:
    """Return the result of a job, computed in a Spark session's tasks or in worker processes on
    this machine. Raises RaftlogError.
    """
    if spark is None and JOBS[request.job].needs_spark:
        raise ReplayError(f"{request.job} needs Spark: --engine local runs {', '.join(LOCAL_JOBS)}")
    return compute_on(open_export(request), request, spark)


def open_answerable(request: JobRequest) -> Export:
    """Open the export of a request and check what can be checked without reading records.

    This reports most user errors before Spark starts, which takes seconds. Raises RaftlogError.
    """
    try:
        export = open_export(request)
    except ExportError:
        _require_first_argument(request)
        raise
    if request.job != "verify":
        require_whole_history(export)
    if request.key is not None:
        select(*request.key)
    if request.job == "diff":
        require_order(request, export.last_offset, export.last_timestamp_ms)
    if request.job == "sql" and not (request.query or "").strip():
        raise ReplayError("no query: give a SELECT statement")
    if request.job == "watch":
        read_done(Path(request.output or ""))
    choose(request.rules, export.manifest.origin)
    return export


def _require_first_argument(request: JobRequest) -> None:
    """Raise ReplayError if an argument other than the first is an export."""
    for word in (*(request.key or ()), request.query or ""):
        if word and (Path(word) / MANIFEST_NAME).is_file():
            raise ReplayError(
                f"{request.export} is not an export, but {word} is: put the export first, as in"
                f" raftlog replay {request.job} {word} {request.export}"
            )


def compute_on(export: Export, request: JobRequest, spark: SparkSession | None = None) -> Any:
    """Check the files of an open export and return the result of a job.

    Raises RaftlogError; a Spark error is condensed to one paragraph.
    """
    if spark is None:
        return _compute(export, request, Pool(export.record_count, JOBS[request.job].pace))
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from replay.spark.pool import SparkPool

    try:
        return _compute(export, request, SparkPool(spark, export.record_count))
    except (PySparkException, Py4JError) as error:
        raise explain(str(error), export.segments) from error


def _compute(export: Export, request: JobRequest, pool: Pool) -> Any:
    job, needs = importlib.import_module(f"replay.jobs.{request.job}"), JOBS[request.job]
    if request.job != "verify":
        require_whole_history(export)
    with pool:
        if needs.in_between:
            request = by_id(ExportLog(export, pool), request)
            export = from_checkpoint(export, request)
        if not needs.checks:
            from replay.engine.audit import check_files

            check_files(export, pool)
        return with_origin(job.run(export, request, pool), export.manifest.origin)


def run_job(request: JobRequest, *, spark: bool) -> int:
    """Run a job, print its result, and return the exit code: 0, 2 (unusable input), or 3 (audit
    findings or damaged files).
    """
    if not spark:
        prepare_process()
    try:
        export = open_answerable(request)
        if export.manifest.doubt:
            print(f"raftlog replay: {export.manifest.doubt}", file=sys.stderr)
        result = _in_session(export, request) if spark else compute_on(export, request)
    except RaftlogError as error:
        print(f"raftlog replay: {printable(str(error), keep=chr(10))}", file=sys.stderr)
        return exit_code(error)
    return show(request, result)


def _in_session(export: Export, request: JobRequest) -> Any:
    from replay.spark.session import build_session, expect_records

    session = build_session(f"raftlog replay {request.job}")
    try:
        expect_records(session, export.record_count)
        return compute_on(export, request, session)
    finally:
        session.stop()


def show(request: JobRequest, result: Any) -> int:
    """Print a result and return the exit code."""
    if request.json:
        print(printable_json(msgspec.json.format(msgspec.json.encode(result), indent=2).decode()))
    else:
        importlib.import_module(f"replay.jobs.{request.job}").render(result, console())
    return 0 if getattr(result, "passed", True) else EXIT_FINDINGS


def with_origin(result: Any, origin: str) -> Any:
    """Return a result with ``origin`` set in every object that has this field: the kind of cluster
    that wrote the log. Topic ids of imported logs are converted to Kafka's notation.
    """
    if not origin or not isinstance(result, msgspec.Struct):
        return result
    kind = getattr(result, "kind", "")
    changed: dict[str, Any] = {}
    for name in result.__struct_fields__:
        value = getattr(result, name)
        if name == "origin":
            changed[name] = origin
        elif name == "topic_id" and value:
            changed[name] = kafka_id(value)
        elif isinstance(value, msgspec.Raw) and id_field(kind):
            document = with_kafka_id(kind, msgspec.json.decode(value))
            changed[name] = msgspec.Raw(msgspec.json.encode(document))
        elif isinstance(value, msgspec.Struct):
            changed[name] = with_origin(value, origin)
        elif isinstance(value, list) and value and isinstance(value[0], FieldChange):
            changed[name] = [_with_kafka_id(kind, each) for each in value]
        elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            changed[name] = [with_origin(each, origin) for each in value]
    return msgspec.structs.replace(result, **changed) if changed else result


def _with_kafka_id(kind: str, change: FieldChange) -> FieldChange:
    if change.field != id_field(kind):
        return change
    before, after = (
        msgspec.Raw(msgspec.json.encode(kafka_id(msgspec.json.decode(one))))
        for one in (change.before, change.after)
    )
    return FieldChange(change.field, before, after)
