"""The end of the log in memory: what was appended lately is served to replicas and observers
without touching the disk.
"""

from __future__ import annotations

from bisect import bisect_right

from raftlog import batch


class TailCache:
    """The newest chunks of a log, bounded in bytes. Offsets: start inclusive, end exclusive."""

    def __init__(self, end_offset: int, max_bytes: int) -> None:
        self._bases: list[int] = []
        self._chunks: list[bytes] = []
        # Chunks before this index were dropped; the lists are compacted now and then, not at each
        # drop.
        self._first = 0
        self._max_bytes = max_bytes
        self._bytes = 0
        self.start_offset = end_offset
        self.end_offset = end_offset

    @property
    def bytes_kept(self) -> int:
        """Of all chunks; one chunk alone may be above the bound."""
        return self._bytes

    def append(self, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Add a chunk at the end; the oldest ones make room."""
        self._bases.append(base_offset)
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        self.end_offset = end_offset
        while self._bytes > self._max_bytes and self._first < len(self._chunks) - 1:
            self._bytes -= len(self._chunks[self._first])
            self._chunks[self._first] = b""
            self._first += 1
            self.start_offset = self._bases[self._first]
        if self._first > 1024 and self._first * 2 > len(self._chunks):
            del self._bases[: self._first], self._chunks[: self._first]
            self._first = 0

    def newest(self, count: int) -> list[bytes]:
        """The newest chunks, at most so many, ascending: for who only looks."""
        return self._chunks[max(self._first, len(self._chunks) - count) :]

    def reset(self, end_offset: int) -> None:
        """Forget everything: the log was truncated to ``end_offset``."""
        self._bases, self._chunks, self._first, self._bytes = [], [], 0, 0
        self.start_offset = self.end_offset = end_offset

    def forget_below(self, offset: int) -> None:
        """The log begins at ``offset`` now: chunks that end at or below it are dropped."""
        while self._first < len(self._chunks):
            index = self._first + 1
            end = self._bases[index] if index < len(self._bases) else self.end_offset
            if end > offset:
                break
            self._bytes -= len(self._chunks[self._first])
            self._chunks[self._first] = b""
            self._first = index
        self.start_offset = max(self.start_offset, offset)

    def read(self, offset: int, until: int, max_bytes: int) -> bytes | None:
        """Whole batches from ``offset`` to ``until``, at least one, as many as fit; None if
        ``offset`` is not cached.

        Both offsets must be batch boundaries, ``offset`` below ``until``. Raises ValueError if
        ``offset`` is none.
        """
        if offset < self.start_offset or offset >= self.end_offset:
            return None
        newest = self._chunks[-1]
        if self._bases[-1] == offset and until >= self.end_offset and len(newest) <= max_bytes:
            # What every follower that keeps up asks for.
            return newest
        index = bisect_right(self._bases, offset, lo=self._first) - 1
        if self._bases[index] != offset:
            return cut(self._chunks[index], offset, until, max_bytes)
        parts: list[bytes] = []
        size = 0
        while index < len(self._chunks):
            chunk = self._chunks[index]
            index += 1
            end = self._bases[index] if index < len(self._bases) else self.end_offset
            if end > until or size + len(chunk) > max_bytes:
                if not parts:
                    return cut(chunk, offset, until, max_bytes)
                break
            parts.append(chunk)
            size += len(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def cut(chunk: bytes, offset: int, until: int, max_bytes: int) -> bytes:
    """The whole batches of a chunk from ``offset`` to ``until``: at least one, as many as fit
    ``max_bytes``.

    Raises ValueError if no batch begins at ``offset``.
    """
    start = end = -1
    for header in batch.headers(chunk, verify=False):
        if header.base_offset < offset:
            continue
        if start < 0:
            if header.base_offset != offset:
                break
            start = header.position
        elif header.position + header.size - start > max_bytes:
            break
        if header.end_offset > until:
            break
        end = header.position + header.size
    if start < 0:
        raise ValueError(f"offset {offset} is no batch boundary")
    return chunk[start:end] if end >= 0 else b""
