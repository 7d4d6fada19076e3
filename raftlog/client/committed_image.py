"""The committed metadata of a running cluster, folded by a client from the log that it reads from the active controller."""

from __future__ import annotations

from raftlog.client.log_reader import BelowLogStartError, LogReader
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import SnapshotLoader


class CommittedImage:
    """Reads on from where it was: the first look costs the log, or its newest snapshot, the others what is new."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._builder: ImageBuilder | None = None

    async def read(self) -> Image:
        """The image at what is committed now. Raises ApiError, CorruptLogError."""
        info = await self._reader.info()
        if self._builder is None:
            base = Image()
            if info.snapshot_id is not None:
                loader = SnapshotLoader()
                await self._reader.snapshot(info.snapshot_id, loader.feed)
                base = loader.finish()
            self._builder = ImageBuilder(base)
        try:
            async for chunk in self._reader.chunks(self._builder.offset + 1, info.high_watermark):
                self._builder.apply_chunk(chunk)
        except BelowLogStartError:
            # The log has been dropped below where this stopped: begin with the snapshot that holds it.
            self._builder = None
            return await self.read()
        return self._builder.snapshot()
