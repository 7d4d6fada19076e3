"""The raw segments of an export, read as the manifest has them. Needs no Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raftlog.segments import files
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.manifest import Segment
from raftlog.segments.place import Place, open_place
from raftlog.segments.raw import read_header, read_stream


def foreign(
    segment: Segment, found: tuple[str, int], owner: tuple[str, int]
) -> ExportMismatchError:
    """The error of a file that is another log's."""
    return ExportMismatchError(
        f"{segment.describe()} belongs to cluster {found[0]} generation {found[1]}, "
        f"and the export to cluster {owner[0]} generation {owner[1]}"
    )


def corrupt(segment: Segment, why: str) -> CorruptExportError:
    """The error of a file that is not what was written."""
    return CorruptExportError(
        f"{segment.describe()} is corrupt: {why}",
        file=segment.file,
        base_offset=segment.base_offset,
        last_offset=segment.last_offset,
    )


@contextmanager
def reading(place: Place, segment: Segment) -> Iterator[None]:
    """While a file is read: what the operating system says becomes an error that names it.

    A file that the manifest names and that is not there is a fault of the export.
    """
    try:
        with files.named_errors("read", f"{place}/{segment.file}"):
            yield
    except ExportError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise corrupt(segment, "it is missing") from error
        raise


def says_content(error: Exception) -> bool:
    """Whether what was raised while Arrow read a file is about what the file holds, and not about
    reading.

    Of some content Arrow raises plain OSErrors, too [a footer that parses and makes no sense]: they
    have no number, as those of an operating system have.
    """
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


def read_segment(
    target: Path | str | Place, segment: Segment, *, owner: tuple[str, int] | None = None
) -> Iterator[bytes]:
    """Each batch of a raw segment, as :func:`raftlog.segments.raw.read_stream` gives them.

    A sound file may still be the wrong one: it must have the offsets that the manifest gives it,
    and be of the cluster and the generation of ``owner``. Raises CorruptExportError,
    ExportMismatchError, ExportError.
    """
    place = open_place(target)
    with reading(place, segment), place.open(segment.file) as file:
        size = place.size(segment.file)
        header = read_header(file, segment.file)
        if owner is not None and (header.cluster_id, header.generation) != owner:
            raise foreign(segment, (header.cluster_id, header.generation), owner)
        if header.base_offset != segment.base_offset:
            raise corrupt(segment, f"it begins at offset {header.base_offset}")
        file.seek(0)
        yield from read_stream(file, size, segment.file, end_offset=segment.last_offset + 1)
