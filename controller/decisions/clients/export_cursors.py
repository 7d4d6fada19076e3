"""Export cursors: the progress of each export of the log, set by the exports, listed and removed by
hand.

A node keeps its log from the lowest cursor on (``retention``), so a cursor below the log start
would promise deleted records, and one beyond the log's end would promise nothing. A cursor names
its export: if two exports shared a cursor, each would lose the records that the other had passed.
"""

from __future__ import annotations

import re

from controller.decision import (
    Reply,
    Write,
    check_item,
    check_record_count,
    own_error,
    refuse,
    write_or_reply,
)
from controller.decisions.quorum.membership import Look
from controller.state.state import ControllerState
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import ExportCursor
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, record
from raftlog.node.security.authorization import NONE_REFUSED, Refused
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

NAME_MAX_CHARS = 249
TARGET_MAX_CHARS = 1024
MAX_CURSORS = 100
"""Maximum number of cursors; each holds the log back on every node, and adds a line to every node's
metrics.
"""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def cursors_of(image: Image) -> list[ExportCursor]:
    """Return the export cursors, sorted by name."""
    return [image.export_cursors[name] for name in sorted(image.export_cursors)]


def list_export_cursors(state: ControllerState, look: Look | None, now: float) -> Reply:
    """Return all cursors, sorted by name."""
    image = state.log.committed
    cursors = [
        rpc.ExportCursor(
            name=one.name,
            end_offset=one.end_offset,
            target=one.target,
            offset=one.offset,
            timestamp_ms=one.timestamp_ms,
        )
        for one in cursors_of(image)
    ]
    start = _log_start(look, now)
    return Reply(
        rpc.ListExportCursorsResponse(
            cursors=cursors, log_start_offset=start, high_watermark=image.offset + 1
        ),
    )


def alter_export_cursors(
    state: ControllerState,
    request: rpc.AlterExportCursorsRequest,
    look: Look | None,
    now: float,
    refused: Refused = NONE_REFUSED,
) -> Write | Reply:
    """Set and remove cursors.

    Raises POLICY_VIOLATION. The error of a single alteration is in its result.
    """
    check_record_count(len(request.alterations), state.settings.max_records_per_request)
    altering = _Altering(state, _log_start(look, now))
    results: list[rpc.ExportCursorAlterationResult] = []
    records: list[Record] = []
    for index, one in enumerate(request.alterations):
        result = rpc.ExportCursorAlterationResult(name=one.name, offset=-1)
        results.append(result)
        with own_error(result):
            check_item(refused, index)
            change = altering.alter(one, f"alterations[{index}]")
            if change is not None and not request.validate_only:
                result.offset = (
                    state.log.end_offset + len(records) if one.HasField("end_offset") else -1
                )
                records.append(change)
            else:
                result.offset = _offset_of(state.log.pending.export_cursors.get(one.name))
    return write_or_reply(records, rpc.AlterExportCursorsResponse(results=results))


class _Altering:
    """Decides the alterations of one request, in order."""

    def __init__(self, state: ControllerState, log_start_offset: int) -> None:
        self._view = state.log.pending
        self._log_start_offset, self._log_end_offset = log_start_offset, state.log.end_offset
        self._count = len(self._view.export_cursors)
        self._seen: set[str] = set()

    def alter(self, one: rpc.ExportCursorAlteration, field: str) -> Record | None:
        """Return the record of one alteration, or None if it changes nothing.

        Raises ApiError.
        """
        name = one.name
        if not _NAME.fullmatch(name) or len(name) > NAME_MAX_CHARS:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"{name[:80]!r} is not a cursor name: use 1 to {NAME_MAX_CHARS} letters, digits,"
                " dots, dashes and underscores",
                f"{field}.name",
            )
        if name in self._seen:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"cursor {name} is given twice; alter it once per request",
                f"{field}.name",
            )
        self._seen.add(name)
        old = self._view.export_cursors.get(name)
        _check_expected(name, old, one, field)
        if one.HasField("end_offset"):
            return self._set(old, one, field)
        if old is None:
            raise refuse(
                ErrorCode.RESOURCE_NOT_FOUND, f"there is no cursor {name}", f"{field}.name"
            )
        self._count -= 1
        return record(pb.ExportCursorRecord(name=name))

    def _set(
        self, old: ExportCursor | None, one: rpc.ExportCursorAlteration, field: str
    ) -> Record | None:
        if len(one.target) > TARGET_MAX_CHARS or not one.target.isprintable():
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"target must be at most {TARGET_MAX_CHARS} characters, all printable",
                f"{field}.target",
            )
        if not self._log_start_offset <= one.end_offset <= self._log_end_offset:
            raise refuse(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"end_offset is {one.end_offset}; it must be in the log of the active controller,"
                f" from {self._log_start_offset} to {self._log_end_offset}",
                f"{field}.end_offset",
            )
        if old is None:
            if self._count >= MAX_CURSORS:
                raise refuse(
                    ErrorCode.POLICY_VIOLATION,
                    f"there are {self._count} export cursors already: remove those that are"
                    " no longer needed",
                    f"{field}.name",
                )
            self._count += 1
        elif (
            one.target
            and old.target
            and one.target != old.target
            and not one.HasField("expected_offset")
        ):
            raise refuse(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"cursor {one.name} belongs to the export {old.target}: use another name, or"
                f" remove the cursor, or set expected_offset to {old.offset} to take it over",
                f"{field}.target",
            )
        target = one.target or (old.target if old is not None else "")
        if old is not None and (old.end_offset, old.target) == (one.end_offset, target):
            return None
        return record(
            pb.ExportCursorRecord(name=one.name, end_offset=one.end_offset, target=target)
        )


def _check_expected(
    name: str, old: ExportCursor | None, one: rpc.ExportCursorAlteration, field: str
) -> None:
    if one.HasField("expected_offset") and _offset_of(old) != one.expected_offset:
        found = "does not exist" if old is None else f"was set at offset {old.offset}"
        raise refuse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"cursor {name} {found}, but expected_offset is {one.expected_offset}: read it again"
            " before changing it",
            f"{field}.expected_offset",
        )


def _offset_of(cursor: ExportCursor | None) -> int:
    return -1 if cursor is None else cursor.offset


def _log_start(look: Look | None, now: float) -> int:
    return 0 if look is None else look(now).log_start_offset
