"""Export cursors: how far exports have come, and what of the log is kept for them."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.client.conditions import UNCONDITIONAL, Expected
from raftlog.client.conditions import expected_offset as condition
from raftlog.client.enums import AcksLike
from raftlog.client.namespace import Namespace
from raftlog.outcome import WriteResult
from raftlog.wire.controller.v1 import controller_pb2


@dataclass(frozen=True, slots=True)
class ExportCursor:
    """How far one export has come. ``lag``: the committed records from there on."""

    name: str
    end_offset: int
    """Exclusive: the export has all below, and nodes keep their logs from here on."""
    lag: int
    passed: bool
    """The controller that answers has dropped records which the export needs next."""
    target: str
    """Where the export is, as its owner said."""
    offset: int
    """Of its record: what ``expected_offset`` is compared with."""
    timestamp_ms: int


ExportCursors = list[ExportCursor]
"""By its own name: a method is called ``list``."""


class AsyncExportCursors(Namespace):
    """``client.export_cursors``."""

    async def list(self, *, timeout_s: float | None = None) -> ExportCursors:
        """All of them by name: asked of the controller."""
        body = controller_pb2.ListExportCursorsRequest()
        response = await self._core.ask_controller(body, timeout_s)
        answer = response.list_export_cursors
        return [
            ExportCursor(
                one.name,
                one.end_offset,
                max(0, answer.high_watermark - one.end_offset),
                one.end_offset < answer.log_start_offset,
                one.target,
                one.offset,
                one.timestamp_ms,
            )
            for one in answer.cursors
        ]

    async def set(
        self,
        name: str,
        end_offset: int,
        *,
        target: str = "",
        expected_offset: Expected = UNCONDITIONAL,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Keep the log from this offset on. ``expected_offset``: only if the cursor was set there;
        ABSENT: if there is none. Else InvalidUpdateVersionError.

        A cursor of another ``target`` is moved only with ``expected_offset``.
        """
        change = controller_pb2.ExportCursorAlteration(
            name=name,
            end_offset=end_offset,
            target=target,
            expected_offset=condition(expected_offset, "expected_offset"),
        )
        return await self._alter(change, validate_only, acks, timeout_s)

    async def delete(
        self,
        name: str,
        *,
        expected_offset: Expected = UNCONDITIONAL,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Keep nothing for this export any more. The export itself is not touched."""
        change = controller_pb2.ExportCursorAlteration(
            name=name, expected_offset=condition(expected_offset, "expected_offset")
        )
        return await self._alter(change, validate_only, acks, timeout_s)

    async def _alter(
        self,
        change: controller_pb2.ExportCursorAlteration,
        validate_only: bool,
        acks: AcksLike | None,
        timeout_s: float | None,
    ) -> WriteResult:
        body = controller_pb2.AlterExportCursorsRequest(
            alterations=[change], validate_only=validate_only
        )
        result, _ = await self._core.write(body, acks, timeout_s)
        return result
