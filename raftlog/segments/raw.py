r"""Raw segments: the log's exact bytes in one file, for audits and for reading without Parquet.

Layout, big-endian::

    magic "RAFTLOG\0", u16 format version 1, u16 length of the cluster id, i64 generation,
    i64 base offset
    cluster id, UTF-8;  u32 crc32c of all above
    batches, as the log has them (raftlog.batch: each is framed by its length and carries its
    own CRC32C)
    u32 zero, where the next batch's length would be;  u32 batches;  i64 end offset (exclusive)
    32 bytes SHA-256 of all above

So a truncated file, even one truncated between two batches, can be detected without other files.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from raftlog import batch
from raftlog.errors import CorruptLogError
from raftlog.segments import files
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.files import Place, open_place
from raftlog.segments.manifest import Segment

MAGIC = b"RAFTLOG\0"
FORMAT_VERSION = 1
_HEADER = struct.Struct(">8sHHqq")
_LENGTH = struct.Struct(">I")
_FOOTER = struct.Struct(">IIq32s")


@dataclass(frozen=True, slots=True)
class RawHeader:
    """The first offset and the owner of a raw segment."""

    cluster_id: str
    generation: int
    base_offset: int


class RawWriter:
    """A writer of one raw segment. The caller syncs and renames the file."""

    def __init__(self, path: Path, header: RawHeader) -> None:
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self._batches = 0
        self._end_offset = header.base_offset
        name = header.cluster_id.encode()
        head = (
            _HEADER.pack(MAGIC, FORMAT_VERSION, len(name), header.generation, header.base_offset)
            + name
        )
        self._write(head + _LENGTH.pack(google_crc32c.value(head)))

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)

    def append(self, data: bytes, *, batches: int, end_offset: int) -> None:
        """Add whole batches."""
        self._write(data)
        self._batches += batches
        self._end_offset = end_offset

    def finish(self) -> str:
        """Write the footer and close the file. Return the SHA-256 of the whole file."""
        footer = _FOOTER.pack(0, self._batches, self._end_offset, bytes(32))[:-32]
        self._write(footer)
        self._write(self._digest.digest())
        self._file.close()
        return self._digest.hexdigest()

    def abandon(self) -> None:
        """Close without a footer."""
        self._file.close()


def read_header(file: BinaryIO, name: str) -> RawHeader:
    """Read a raw segment's header from its beginning. Raises CorruptExportError."""
    fixed = file.read(_HEADER.size)
    if len(fixed) < _HEADER.size or not fixed.startswith(MAGIC):
        raise CorruptExportError(
            f"{name} is corrupt: it does not begin with the header of a raw segment", file=name
        )
    _, version, length, generation, base_offset = _HEADER.unpack(fixed)
    rest = file.read(length + _LENGTH.size)
    if len(rest) != length + _LENGTH.size or _LENGTH.unpack(rest[length:])[
        0
    ] != google_crc32c.value(fixed + rest[:length]):
        raise CorruptExportError(
            f"{name} is corrupt: the CRC32C of its header does not match", file=name
        )
    if version != FORMAT_VERSION:
        raise CorruptExportError(
            f"{name} has format version {version}, but this build reads only {FORMAT_VERSION}",
            file=name,
        )
    try:
        cluster_id = rest[:length].decode()
    except UnicodeDecodeError as error:
        raise CorruptExportError(
            f"{name} is corrupt: its cluster id is not UTF-8", file=name
        ) from error
    return RawHeader(cluster_id, generation, base_offset)


Headed = tuple[bytes, batch.BatchHeader]
"""A run of batches, and the header of one of them."""
_READ_BYTES = 1 << 20


def read_batches(path: Path, name: str = "") -> Iterator[bytes]:
    """Yield the exact bytes of each batch of a local file. Raises like ``read_stream``."""
    with path.open("rb") as file:
        for found in read_stream(file, path.stat().st_size, name or str(path)):
            yield batch_bytes(*found)


def batch_bytes(chunk: bytes, header: batch.BatchHeader) -> bytes:
    """Return the bytes of one batch of a chunk."""
    return chunk[header.position : header.position + header.size]


def read_stream(
    file: BinaryIO,
    size: int,
    name: str,
    *,
    begin_offset: int = 0,
    end_offset: int | None = None,
    checked: bool = False,
) -> Iterator[Headed]:
    """Yield each batch, verified (CRC32C, contiguity, the file's own hash at the end, and
    ``end_offset`` if given).

    ``file`` is at its beginning and has ``size`` bytes. ``checked``: whether its bytes were
    verified before: then only offsets are checked, and batches below ``begin_offset`` are skipped
    in large pieces. Memory: a MiB, or one batch. Raises CorruptExportError with the first offset
    that cannot be trusted.
    """
    digest = hashlib.sha256()
    header = read_header(file, name)
    position = file.tell()
    file.seek(0)
    digest.update(file.read(position))
    offset, batches, buffer, length = header.base_offset, 0, b"", -1
    while position + _FOOTER.size <= size:
        # Read a large batch at once: each read copies the buffered bytes.
        more = file.read(max(_READ_BYTES, _LENGTH.size + length - len(buffer)))
        last, end, length = _frames(buffer := buffer + more)
        chunk = buffer[:end]
        try:
            if checked and end and batch.header_at(chunk, last).end_offset <= begin_offset:
                offset, chunk = batch.header_at(chunk, last).end_offset, b""
            for found in batch.headers(chunk, expect_offset=offset, verify=not checked):
                if found.base_offset >= begin_offset:
                    yield chunk, found
                offset, batches = found.end_offset, batches + 1
        except CorruptLogError as error:
            raise _corrupt(name, offset, str(error)) from error
        if not checked:
            digest.update(chunk)
        position, buffer = position + end, buffer[end:]
        if not length:
            break
        if length > 0 and position + _LENGTH.size + length + _FOOTER.size > size:
            raise _corrupt(name, offset, f"it ends inside a batch of {length} bytes")
        if not more:
            break
    if length or len(footer := buffer + file.read(_FOOTER.size)) < _FOOTER.size:
        raise _corrupt(name, offset, "it ends without a footer")
    digest.update(footer[:-32])
    if not checked and footer != _FOOTER.pack(0, batches, offset, digest.digest()):
        raise _corrupt(name, offset, "its footer does not match its contents")
    if end_offset is not None and offset != end_offset:
        raise _corrupt(
            name, offset, f"expected the last offset {end_offset - 1}, found {offset - 1}"
        )


def _frames(buffer: bytes) -> tuple[int, int, int]:
    """Return where the last whole batch begins and ends, and the length of the next one: 0 for a
    footer, -1 if not known yet.
    """
    before = position = 0
    end = len(buffer)
    while position + _LENGTH.size <= end:
        (length,) = _LENGTH.unpack_from(buffer, position)
        behind = position + _LENGTH.size + length
        if not length or behind > end:
            return before, position, length
        before, position = position, behind
    return before, position, -1


def _corrupt(name: str, offset: int, why: str) -> CorruptExportError:
    return CorruptExportError(
        f"{name} is corrupt from offset {offset} on: {why}", file=name, base_offset=offset
    )


def foreign(
    segment: Segment, found: tuple[str, int], owner: tuple[str, int]
) -> ExportMismatchError:
    """Return the error for a file that belongs to another log."""
    return ExportMismatchError(
        f"{segment.describe()} belongs to cluster {found[0]} generation {found[1]}, but the export"
        f" belongs to cluster {owner[0]} generation {owner[1]}"
    )


def corrupt(segment: Segment, why: str) -> CorruptExportError:
    """Return the error for a file that differs from what was written."""
    return CorruptExportError(
        f"{segment.describe()} is corrupt: {why}",
        file=segment.file,
        base_offset=segment.base_offset,
        last_offset=segment.last_offset,
    )


@contextmanager
def reading(place: Place, segment: Segment) -> Iterator[None]:
    """Convert an OSError while a file is read to an error that names the file.

    A file that the manifest lists and that does not exist is a fault of the export.
    """
    try:
        with files.named_errors("read", f"{place}/{segment.file}"):
            yield
    except ExportError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise corrupt(segment, "it is missing") from error
        raise


def says_content(error: Exception) -> bool:
    """Return whether an Arrow error is about a file's contents, and not about reading it.

    For some contents Arrow also raises plain OSErrors (e.g. for a footer that can be parsed but
    makes no sense). Unlike the operating system's, these have no errno.
    """
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


def read_headed(
    target: Path | str | Place,
    segment: Segment,
    *,
    owner: tuple[str, int] | None = None,
    begin_offset: int = 0,
    checked: bool = False,
) -> Iterator[Headed]:
    """Yield each batch of a raw segment from an offset onwards, like
    :func:`raftlog.segments.raw.read_stream`.

    An intact file may still be the wrong one: it must have the offsets in the manifest, and belong
    to the cluster and the generation of ``owner``. Raises CorruptExportError, ExportMismatchError,
    ExportError.
    """
    place = open_place(target)
    with reading(place, segment), place.open(segment.file) as file:
        size = place.size(segment.file)
        header = read_header(file, segment.file)
        if owner is not None and (header.cluster_id, header.generation) != owner:
            raise foreign(segment, (header.cluster_id, header.generation), owner)
        if header.base_offset != segment.base_offset:
            raise corrupt(
                segment,
                f"expected the first offset {segment.base_offset}, found {header.base_offset}",
            )
        file.seek(0)
        yield from read_stream(
            file,
            size,
            segment.file,
            begin_offset=begin_offset,
            end_offset=segment.last_offset + 1,
            checked=checked,
        )


def read_segment(target: Path | str | Place, segment: Segment) -> Iterator[bytes]:
    """Yield the exact bytes of each batch of a raw segment. Raises like ``read_headed``."""
    for found in read_headed(target, segment):
        yield batch_bytes(*found)
