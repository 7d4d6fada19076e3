"""The changes that a broker keeps, so that a watch that began at another broker can continue here.
Pure.

Chunks are added in order, as they are applied, and kept unchanged. Their changes are computed when
a watcher first needs them, so a broker without watchers spends nothing. The computation needs the
image before the chunk: some chunks keep theirs, and the chunks after them are folded into it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from broker.watch.responses import change_field
from raftlog.metadata.changes import Change, ChangeRecorder, Position, ordered_changes
from raftlog.metadata.image import Image
from raftlog.metadata.selectors import path_of

IMAGE_EVERY_CHUNKS = 64
IMAGE_EVERY_BYTES = 256 << 10
"""Interval between kept images, in chunks and in bytes."""
_IMAGE_BYTES, _IMAGE_FACTOR = 4096, 8
"""Estimated size in bytes that an image adds to the next one that is kept; a high estimate."""
_CHUNK_BYTES = 300
_CHANGE_BYTES, _CHANGE_FACTOR = 900, 2
"""Estimated memory of a change, in addition to its bytes in the log."""


class Kept:
    """One change, with the parts that every watcher needs."""

    __slots__ = ("_field", "change", "path")

    def __init__(self, change: Change) -> None:
        self.change = change
        value = change.after if change.after is not None else change.before
        self.path = path_of(change.kind, change.key, value)
        self._field = b""

    @property
    def field(self) -> bytes:
        """The change as a field of a response; encoded once."""
        if not self._field:
            self._field = change_field(self.change, self.path)
        return self._field


class _Entry:
    """A chunk, or its changes."""

    __slots__ = ("before", "bytes", "changes", "chunk", "epoch", "keeps_image", "last_offset")

    def __init__(self, last_offset: int, epoch: int, chunk: bytes) -> None:
        self.last_offset, self.epoch = last_offset, epoch
        self.chunk = chunk
        self.before: Image | None = None
        self.keeps_image = False
        """Whether the following chunks need this chunk's image."""
        self.changes: list[Kept] | None = None
        self.bytes = len(chunk) + _CHUNK_BYTES


class History:
    """All changes after ``start``, using about ``max_bytes`` of memory at most."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._image_every_bytes = min(IMAGE_EVERY_BYTES, max_bytes // 16)
        self.start = -1
        """Offset after which all changes are here."""
        self.start_epoch = 0
        self.bytes = 0
        self._entries: list[_Entry] = []
        self._chunks_since_image = self._bytes_since_image = 0

    @property
    def middle(self) -> int:
        """An offset in the middle of what is kept: a watcher that has received nothing after it
        should receive some changes before they are dropped.
        """
        entries = self._entries
        return entries[len(entries) // 2].last_offset if entries else self.start

    def newest(self, count: int) -> list[bytes]:
        """Return the newest chunks, at most ``count``, ascending."""
        return [one.chunk for one in self._entries[-count:]]

    def clear(self, image: Image) -> None:
        """Start over after ``image``."""
        self.start, self.start_epoch, self.bytes = image.offset, image.epoch, 0
        self._entries = []
        self._chunks_since_image = self._bytes_since_image = 0

    def needs_image(self, chunk_bytes: int) -> bool:
        """Return whether to keep the image before the next chunk, of ``chunk_bytes``."""
        return (
            not self._entries
            or self._chunks_since_image >= IMAGE_EVERY_CHUNKS
            or self._bytes_since_image + chunk_bytes > self._image_every_bytes
        )

    def add(
        self, before: Image | None, chunk: bytes, last_offset: int, epoch: int, *, wanted: bool
    ) -> None:
        """Add a chunk that ends at ``last_offset`` (inclusive).

        ``before``: the image before the chunk; may be None only if ``needs_image`` has returned
        False and ``wanted`` is False. ``wanted``: whether the changes are needed soon.
        """
        entry = _Entry(last_offset, epoch, chunk)
        # As ``needs_image`` has returned; most chunks keep none.
        keeps = before is not None and self.needs_image(len(chunk))
        self._chunks_since_image += 1
        self._bytes_since_image += len(chunk)
        if keeps:
            entry.before, entry.keeps_image = before, True
            entry.bytes += _IMAGE_BYTES + _IMAGE_FACTOR * self._bytes_since_image
            self._chunks_since_image = self._bytes_since_image = 0
        elif wanted:
            entry.before = before
        self._entries.append(entry)
        self.bytes += entry.bytes

    def trim(self, floor: int) -> None:
        """Drop the oldest chunks until the bound is met, but nothing above ``floor``.

        The rest begins with an image.
        """
        entries = self._entries
        count = dropped = end = freed = 0
        while self.bytes - freed > self.max_bytes and count < len(entries):
            if entries[count].last_offset > floor:
                break
            freed += entries[count].bytes
            count += 1
            follows = entries[count] if count < len(entries) else None
            if follows is None or follows.keeps_image:
                dropped, end = count, freed
        if dropped:
            self.start = entries[dropped - 1].last_offset
            self.start_epoch = entries[dropped - 1].epoch
            self.bytes -= end
            del entries[:dropped]

    def after(self, position: Position, until: int) -> Iterator[Kept]:
        """Yield the changes after ``position`` (not below ``start``) up to ``until`` (inclusive),
        in order.
        """
        # A part of the record at the position's offset may follow the position.
        index = bisect_right(self._entries, position.offset - 1, key=_last_offset)
        while index < len(self._entries):
            changes = self._changes(index)
            if changes and changes[-1].change.position > position:
                for kept in changes:
                    if kept.change.position.offset > until:
                        return
                    if kept.change.position > position:
                        yield kept
            if self._entries[index].last_offset >= until:
                return
            index += 1

    def _changes(self, index: int) -> list[Kept]:
        """Return a chunk's changes, computed with those of the chunks folded for it."""
        found = self._entries[index].changes
        if found is not None:
            return found
        first = index
        while (before := self._entries[first].before) is None:
            first -= 1
        draft = ChangeRecorder(before)
        for entry in self._entries[first : index + 1]:
            changes = [Kept(change) for change in ordered_changes(draft, entry.chunk)]
            if entry.changes is None:
                self._keep_changes(entry, changes)
        known = self._entries[index].changes
        assert known is not None
        return known

    def _keep_changes(self, entry: _Entry, changes: list[Kept]) -> None:
        entry.changes = changes
        if not entry.keeps_image:
            entry.before = None
        cost = _CHANGE_BYTES * len(changes) + _CHANGE_FACTOR * len(entry.chunk)
        entry.bytes += cost
        self.bytes += cost


def _last_offset(entry: _Entry) -> int:
    return entry.last_offset
