"""How the commands that change partitions tell the fate of each, and what they end with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raftlog.cli.output import known, print_json, print_line
from raftlog.cli.writes import AcksLevel, print_written, raise_errors, require, written
from raftlog.errors import ErrorCode
from raftlog.transport.wire_errors import error_from_wire

NOTHING: Mapping[str, Any] = {}


def finish(
    response: Any,
    topics: Iterable[Any],
    acks: AcksLevel,
    *,
    as_json: bool,
    done: str,
    more: Mapping[str, Any] = NOTHING,
    passed: frozenset[int] = frozenset(),
) -> None:
    """Tell each partition's fate once, where the write is, and fail with the first error that is
    none of ``passed``.
    """
    parts = [(topic.name, one) for topic in topics for one in topic.partitions]
    if as_json:
        rows = [_row(name, one) for name, one in parts]
        print_json({"partitions": rows, **more, "write": written(response)})
    else:
        for name, one in parts:
            if one.error.error_code in {ErrorCode.NONE, *passed}:
                print_line(f"{name}:{one.partition_index}: {_fate(one, done)}")
        print_written(response)
    errors = [
        (error := error_from_wire(one.error)).saying(
            f"{name}:{one.partition_index}: {error.message}"
        )
        for name, one in parts
        if one.error.error_code not in {ErrorCode.NONE, *passed}
    ]
    raise_errors(errors, said=as_json)
    require(response, acks)


def _fate(one: Any, done: str) -> str:
    if one.error.error_code != ErrorCode.NONE:
        return str(one.error.error_message)
    return f"{done} {one.leader_id}" if hasattr(one, "leader_id") else done


def _row(name: str, one: Any) -> dict[str, Any]:
    failed = one.error.error_code != ErrorCode.NONE
    row: dict[str, Any] = {"topic": name, "partition": one.partition_index}
    if hasattr(one, "leader_id"):
        row["leader_id"] = known(one.leader_id)
    row["error"] = ErrorCode(one.error.error_code).name if failed else None
    row["message"] = one.error.error_message or None
    return row
