"""The images that a broker can show, and the chunks between them. Pure.

All chunks above the oldest image are kept, so that the image at any later offset can be made;
images between it and the newest are only a convenience, and thinned out when memory runs short.

Chunks of plain config values are folded at the next read, or when ``WAITING_BYTES`` of them wait:
many at once cost a fraction of each alone, and a broker without readers need not fold them again
and again. Nor is the image at LAO made before it is read: when many writes arrive at once, the
broker's images are at other offsets than LAO will be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from raftlog import batch
from raftlog.config_writes.messages import Change
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record

WAITING_BYTES = 64 << 10
"""Bytes of chunks that may wait to be folded: a read then waits a fraction of a millisecond."""
_IMAGE_FACTOR = 8
_IMAGE_BYTES = 4096
"""Bytes that an image costs beyond its neighbour: a persistent map copies the path to each changed
key.

An estimate, on the high side.
"""


class Batch(NamedTuple):
    """A decoded batch of a chunk: ``configs`` if it sets config values and does nothing else."""

    header: batch.BatchHeader
    configs: Sequence[Change] | None
    records: list[Record]


class _Chunk(NamedTuple):
    last_offset: int
    data: bytes


class _Between(NamedTuple):
    """An image that was made, between the oldest and the newest."""

    image: Image
    bytes: int


_image_offset = attrgetter("image.offset")
_last_offset = attrgetter("last_offset")
_batch_end = attrgetter("header.last_offset")


class KeptImages:
    """The oldest image, the tip, and the images between. ``max_bytes`` bounds chunks and
    (estimated) images kept above the oldest one.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.begin(Image())

    def begin(self, image: Image) -> None:
        """Begin anew at this image, and drop all earlier ones."""
        self.applied = image.offset
        """Offset of the newest image, whether that was made yet or not."""
        self.folded = image
        """The newest image that was made. Only config values may differ in the tip."""
        self._oldest = image
        self._until = image.offset
        """Upper bound of the oldest image to be shown, which is the image at this offset or the
        newest below it: ``_oldest``, or one made of it and the chunks behind it.
        """
        self.builder = ImageBuilder(image)
        """Builder for the batches of the next chunk, before ``add``."""
        self._waiting: list[Batch] = []
        """Batches behind ``folded`` that are not folded yet."""
        self._waiting_bytes = 0
        self._folded_bytes = 0
        """Size in bytes of the chunks between ``folded`` and the image before it."""
        self._chunks: list[_Chunk] = []
        """Chunks from the first that is not in ``_oldest`` to the one that ends at ``applied``."""
        self._between: list[_Between] = []
        self.bytes = 0
        """Size in bytes of the chunks and images above the oldest image; images are estimated."""

    # --- what there is ---------------------------------------------------------------------------

    @property
    def tip(self) -> Image:
        """The image at ``applied``; waiting chunks are folded for it."""
        if self._waiting:
            self._fold(len(self._waiting))
        return self.folded

    @property
    def oldest_from(self) -> int:
        """An offset at or below the oldest image; reading it makes no image."""
        return self._oldest.offset

    @property
    def oldest(self) -> Image:
        """The oldest image to be shown, made now if it is missing."""
        if self._oldest.offset < self._until:
            self._settle()
        return self._oldest

    @property
    def full(self) -> bool:
        """Whether the bound is exceeded."""
        return self.bytes > self._max_bytes

    def at_least(self, offset: int) -> Image | None:
        """The oldest kept image at ``offset`` or later; None if nothing that new was applied."""
        if offset > self.applied:
            return None
        if offset <= self._until and offset <= self.oldest.offset:
            return self._oldest
        index = bisect_left(self._between, offset, key=_image_offset)
        if index < len(self._between):
            return self._between[index].image
        if offset > self.folded.offset:
            self._fold(1 + bisect_left(self._waiting, offset, key=_batch_end))
        return self.folded

    # --- input -----------------------------------------------------------------------------------

    def add_later(self, chunk: bytes, batches: Sequence[Batch]) -> None:
        """Add a chunk behind the tip that has config values only."""
        self._waiting += batches
        self._waiting_bytes += len(chunk)
        self._append(chunk, batches[-1].header.last_offset)
        if self._waiting_bytes > WAITING_BYTES:
            self._fold(len(self._waiting))

    def add(self, chunk: bytes, *, only_configs: bool) -> None:
        """Add a chunk whose batches ``builder`` has folded behind the ``tip``."""
        builder = self.builder
        image = builder.snapshot_of_configs() if only_configs else builder.snapshot()
        self._append(chunk, image.offset)
        self._replace(image, len(chunk))

    def raise_oldest(self, offset: int) -> None:
        """Make the image at or just below ``offset`` the oldest; drop what that replaces."""
        if offset <= self._until:
            return
        self._until = min(offset, self.applied)
        if self._until >= self.folded.offset:
            if self._oldest is not self.folded or self.folded.offset == self.applied:
                self._give_up_below(self.folded)
        else:
            passed = bisect_right(self._between, offset, key=_image_offset)
            if passed:
                self._give_up_below(self._between[passed - 1].image)
        if self.bytes > self._max_bytes:
            self.make_room()

    def make_room(self) -> None:
        """Drop the chunks that an image can replace, then images: the bound is exceeded."""
        self._settle()
        self._thin_out()

    # --- storage ---------------------------------------------------------------------------------

    def _append(self, chunk: bytes, last_offset: int) -> None:
        self._chunks.append(_Chunk(last_offset, chunk))
        self.bytes += len(chunk)
        self.applied = last_offset

    def _fold(self, count: int) -> None:
        """Fold the first ``count`` waiting batches."""
        builder, waiting, size = self.builder, self._waiting, 0
        if not count:
            return
        for header, configs, _ in waiting[:count]:
            size += header.size
            builder.apply_configs(
                configs or (),
                base_offset=header.base_offset,
                epoch=header.epoch,
                timestamp_ms=header.timestamp_ms,
            )
        del waiting[:count]
        self._waiting_bytes -= size
        self._replace(builder.snapshot_of_configs(), size)

    def _replace(self, image: Image, size: int) -> None:
        """Replace the newest image that was made; ``size``: bytes of the chunks between the two."""
        before, before_size = self.folded, self._folded_bytes
        self.folded, self._folded_bytes = image, size
        if self._until >= image.offset:
            self._give_up_below(image)
        elif before.offset > self._oldest.offset:
            kept = _Between(before, _IMAGE_BYTES + _IMAGE_FACTOR * before_size)
            self._between.append(kept)
            self.bytes += kept.bytes
            self._thin_out()

    def _thin_out(self) -> None:
        """Drop every second image in between until the bound is kept; never the oldest nor tip."""
        while self.full and self._between:
            self.bytes -= sum(kept.bytes for kept in self._between[::2])
            del self._between[::2]

    def _give_up_below(self, image: Image) -> None:
        """Make ``image`` the oldest, if it is at or below ``_until``."""
        self._oldest = image
        if image.offset == self.applied:
            # All kept chunks are below: the usual case of a broker that keeps up.
            self._chunks, self._between, self.bytes = [], [], 0
            return
        passed = bisect_right(self._between, image.offset, key=_image_offset)
        self.bytes -= sum(kept.bytes for kept in self._between[:passed])
        del self._between[:passed]
        done = bisect_right(self._chunks, image.offset, key=_last_offset)
        self.bytes -= sum(len(chunk.data) for chunk in self._chunks[:done])
        del self._chunks[:done]

    def _settle(self) -> None:
        """Make the oldest image that is to be shown."""
        if self._until > self.folded.offset:
            self._fold(bisect_right(self._waiting, self._until, key=_batch_end))
        elif self._oldest.offset < self._until:
            self._give_up_below(self._image_at(self._oldest, self._until))
        # Perhaps no batch ends there: the search is not repeated.
        self._until = self._oldest.offset

    def _image_at(self, base: Image, offset: int) -> Image:
        """Return the image at ``offset``, or the newest below it, made from the oldest one."""
        builder = ImageBuilder(base)
        for chunk in self._chunks:
            builder.apply_chunk(chunk.data, until=offset + 1)
            if chunk.last_offset >= offset:
                break
        return base if builder.offset == base.offset else builder.snapshot()
