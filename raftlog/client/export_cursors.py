"""Export cursors: how far exports have come, and what of the log is kept for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raftlog.client.conditions import UNCONDITIONAL, Expected
from raftlog.client.conditions import expected_offset as condition
from raftlog.client.enums import AcksLike
from raftlog.client.namespace import Namespace
from raftlog.client.values import Listing, OffsetResult
from raftlog.client.wire import known, refusal
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


class CursorListing(Listing[ExportCursor]):
    """The export cursors."""

    log_start_offset: int
    """Where the log of the controller that answers begins."""


class AsyncExportCursors(Namespace):
    """``client.export_cursors``."""

    async def list(self, *, timeout_s: float | None = None) -> CursorListing:
        """All of them by name: asked of the controller."""
        body = controller_pb2.ListExportCursorsRequest()
        response = await self._core.ask_controller(body, timeout_s)
        answer = response.list_export_cursors
        return CursorListing(
            (
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
            ),
            answer.high_watermark - 1,
            log_start_offset=answer.log_start_offset,
        )

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
    ) -> WriteResult[OffsetResult]:
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
        return await self._alter([change], validate_only, acks, timeout_s)

    async def delete(
        self,
        name: str,
        *,
        expected_offset: Expected = UNCONDITIONAL,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[OffsetResult]:
        """Keep nothing for this export any more. The export itself is not touched."""
        expected = {name: expected_offset}
        return await self.delete_all(
            expected, validate_only=validate_only, acks=acks, timeout_s=timeout_s
        )

    async def delete_all(
        self,
        expected: Mapping[str, Expected],
        *,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[OffsetResult]:
        """Delete several cursors at once, each on its condition: all, or none."""
        changes = [
            controller_pb2.ExportCursorAlteration(
                name=name, expected_offset=condition(one, "expected")
            )
            for name, one in expected.items()
        ]
        return await self._alter(changes, validate_only, acks, timeout_s)

    async def _alter(
        self,
        changes: Sequence[controller_pb2.ExportCursorAlteration],
        validate_only: bool,
        acks: AcksLike | None,
        timeout_s: float | None,
    ) -> WriteResult[OffsetResult]:
        body = controller_pb2.AlterExportCursorsRequest(
            alterations=changes, validate_only=validate_only
        )
        return await self._core.write(
            body,
            acks,
            timeout_s,
            lambda answer: (
                OffsetResult(one.name, refusal(one), known(one.offset))
                for one in answer.alter_export_cursors.results
            ),
        )
