"""The committed metadata of a running cluster, as a client follows it by reading the log from the
active controller.
"""

from __future__ import annotations

from raftlog.client.backup import committed_state
from raftlog.client.log_reader import BelowLogStartError, LogReader
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image


class CommittedImage:
    """Reads on from where it was: the first look costs the log, or its newest snapshot and what
    follows, the others what is new.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._builder: ImageBuilder | None = None

    async def read(self) -> Image:
        """The image at what is committed now. Raises ApiError, CorruptLogError."""
        if self._builder is not None:
            try:
                return await self._read_on(self._builder)
            except BelowLogStartError:
                # The log was dropped below where this had come to.
                pass
        _, image = await committed_state(self._reader)
        self._builder = ImageBuilder(image)
        return image

    async def _read_on(self, builder: ImageBuilder) -> Image:
        info = await self._reader.info()
        async for chunk in self._reader.chunks(builder.offset + 1, info.high_watermark):
            builder.apply_chunk(chunk)
        return builder.snapshot()
