"""Exports that run now and then and set cursors: no node may drop a record that an export has yet
to read; checked by checks/export_cursors.py.

Nothing is really exported: an exporter knows how far it has read, and that is what its cursor says.
"""

from __future__ import annotations

import asyncio
from typing import Any

from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.world import World

HOST = "exporter"
NAMES = ("nightly", "weekly")
TIMEOUT_S = 2.0
REMOVED, ANEW = 0.05, 0.05
"""Probabilities that a turn removes the cursor, and that it begins the export anew at the log
start.
"""


class Exporters:
    """One host with the exporters of ``NAMES``; with a rate of 0 it does nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[asyncio.Task[Any]] = []

    def hosts(self) -> list[str]:
        """Return its host's name."""
        return [HOST] if self._world.config.exports_per_s else []

    def begin(self) -> None:
        """Let it begin."""
        if self._world.config.exports_per_s:
            self._tasks.append(self._world.spawn(self._live(), HOST, HOST))

    def stop(self) -> None:
        """No more exports; their cursors stay."""
        for task in self._tasks:
            task.cancel()

    async def _live(self) -> None:
        world = self._world
        rng = world.rng(HOST)
        transport = world.network.transport_for(HOST)
        client = ControllerClient(transport, world.fleet.endpoints, rng=world.rng(f"{HOST} router"))
        while True:
            await asyncio.sleep(rng.expovariate(world.config.exports_per_s))
            name, draw, share = rng.choice(NAMES), rng.random(), rng.random()
            try:
                listed = (
                    await client.call(pb.ListExportCursorsRequest(), timeout_s=TIMEOUT_S)
                ).list_export_cursors
                change = _change(name, listed, draw, share)
                if change is not None:
                    response = await client.call(
                        pb.AlterExportCursorsRequest(alterations=[change]),
                        timeout_s=TIMEOUT_S,
                        raise_refused=False,
                    )
                    (result,) = response.alter_export_cursors.results
                    self._count("failed" if result.HasField("error") else "ok")
            except ApiError as error:
                if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise CheckFailedError(f"{HOST} was answered {error}") from error
                self._count("failed")

    def _count(self, outcome: str) -> None:
        counts = self._world.outcome.operations
        counts[f"export_cursor {outcome}"] = counts.get(f"export_cursor {outcome}", 0) + 1


def _change(name: str, listed: Any, draw: float, share: float) -> pb.ExportCursorAlteration | None:
    """Remove it; begin anew; or read on for a share of what there is."""
    old = next((one for one in listed.cursors if one.name == name), None)
    begin, end = listed.log_start_offset, listed.high_watermark
    if old is None or draw < ANEW or old.end_offset < begin:
        return pb.ExportCursorAlteration(name=name, end_offset=begin)
    if draw < ANEW + REMOVED:
        return pb.ExportCursorAlteration(name=name)
    read = round(share * max(0, end - old.end_offset))
    return pb.ExportCursorAlteration(name=name, end_offset=old.end_offset + read) if read else None
