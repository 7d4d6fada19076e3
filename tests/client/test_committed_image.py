"""The committed image as a client follows it: read on from where it was, and begun anew where the
log is no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from raftlog import batch
from raftlog.client.log_reader import BelowLogStartError, CommittedImage, LogInfo
from raftlog.metadata.records import record
from raftlog.metadata.snapshot_file import SnapshotId
from raftlog.wire.records.v1 import records_pb2 as rec


class Log:
    """A committed log of one config value a batch, as a LogReader shows it."""

    def __init__(self) -> None:
        self.end = 0
        self.start = 0
        self.begun_at: list[int] = []
        """Where each reading began."""

    async def info(self) -> LogInfo:
        return LogInfo("c", (8,), self.end, 0)

    async def chunks(self, offset: int, until: int) -> AsyncIterator[bytes]:
        self.begun_at.append(offset)
        if offset < self.start:
            # Once: as if the log began anew, so that a reader that starts over finds it all.
            self.start = 0
            raise BelowLogStartError(offset, 5, SnapshotId(5, 1))
        for base in range(offset, until):
            message = rec.ConfigRecord(
                resource_type=16, resource_name="r", name="match", value=str(base)
            )
            yield batch.encode([record(message).data], base_offset=base, epoch=1, timestamp_ms=1)


def test_it_reads_on_from_where_it_was_and_begins_anew_where_it_must() -> None:
    log: Any = Log()
    committed = CommittedImage(log)

    async def look() -> tuple[int, str]:
        image = await committed.read()
        return image.offset, image.configs[16, "r"]["match"]

    async def test() -> None:
        log.end = 3
        first = await committed.read()
        assert await look() == (2, "2")
        log.end = 5
        assert await look() == (4, "4")
        assert first.configs[16, "r"]["match"] == "2", (
            "an image that was given away does not change"
        )
        assert log.begun_at == [0, 3, 3]
        log.end, log.start = 9, 6
        assert await look() == (8, "8")
        assert log.begun_at[3:] == [5, 0]

    asyncio.run(test())
