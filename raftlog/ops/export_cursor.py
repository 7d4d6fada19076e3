"""The cursor for ``raftlog export --cursor``, stored at the active controller over the export's own
connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_incrementing

from raftlog.errors import ConfigError
from raftlog.identity import os_user
from raftlog.ops.logs import LogSource, RunningLog, warn
from raftlog.segments.cursor import Cursor, CursorKeeper
from raftlog.segments.errors import ExportError
from raftlog.segments.files import LocalPlace, Place
from raftlog.segments.manifest import MANIFEST_NAME, read_manifest
from raftlog.transport.statuses import error_from_wire
from raftlog.wire.controller.v1 import controller_pb2

MAX_ATTEMPTS = 5
RETRY_PAUSE_S = 0.2


class ClusterCursors:
    """The export cursors of the cluster whose log is read.

    A request of unknown outcome is retried: listing changes nothing, and setting a cursor is
    idempotent. A first attempt that arrives late sets the cursor back, which keeps more of the log
    than needed but loses nothing.
    """

    def __init__(self, log: RunningLog, sleep: Callable[[float], None] = time.sleep) -> None:
        self._log, self._sleep = log, sleep

    def _ask(self, body: Message, *, principal: str = "") -> Any:
        retrying = Retrying(
            sleep=self._sleep,
            retry=retry_if_exception(lambda error: getattr(error, "outcome_unknown", False)),
            wait=wait_incrementing(RETRY_PAUSE_S, RETRY_PAUSE_S),
            stop=stop_after_attempt(MAX_ATTEMPTS),
            reraise=True,
        )
        return retrying(self._log.call, body, principal=principal)

    def get(self, name: str) -> Cursor | None:
        """See Cursors."""
        listed = self._ask(controller_pb2.ListExportCursorsRequest()).list_export_cursors
        found = [one for one in listed.cursors if one.name == name]
        return (
            Cursor(found[0].end_offset, found[0].target, found[0].timestamp_ms) if found else None
        )

    def put(self, name: str, end_offset: int, target: str) -> None:
        """See Cursors."""
        change = controller_pb2.ExportCursorAlteration(
            name=name, end_offset=end_offset, target=target
        )
        request = controller_pb2.AlterExportCursorsRequest(alterations=[change])
        response = self._ask(request, principal=os_user())
        for one in response.alter_export_cursors.results:
            if one.error.error_code:
                raise error_from_wire(one.error)


def keep_cursor(name: str, source: LogSource, place: Place) -> CursorKeeper:
    """Make the nodes keep the log, from its next offset onwards, for the export at ``place``.
    Raises ConfigError, ExportError, ApiError.
    """
    if not isinstance(source, RunningLog):
        raise ConfigError(
            "--cursor needs a running cluster, and cannot be combined with --directory"
        )
    keeper = CursorKeeper(ClusterCursors(source), name, _target(place), failed=warn)
    keeper.begin(_next_offset(place, source.start_offset))
    source.listener = keeper.hear
    return keeper


def _target(place: Place) -> str:
    """Return the export's location with its host, as a path alone is ambiguous on other hosts."""
    if isinstance(place, LocalPlace):
        return f"{socket.gethostname()}:{Path(place.directory).absolute()}"
    return str(place)


def _next_offset(place: Place, start_offset: int) -> int:
    """Return the offset at which the export continues."""
    try:
        place.size(MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return start_offset
    except OSError as error:
        raise ExportError(f"{place}: {error}") from error
    return read_manifest(place).end_offset
