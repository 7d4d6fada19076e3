"""A disk that takes no more while an export is written: one clear error, and the next one goes on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from log_history import CLUSTER_ID, LogHistory

from raftlog.segments.errors import ExportError
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses what goes beyond, as on a full disk, when a file is closed, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def go_on(target: Path, history: LogHistory, batches: list[bytes], size: int) -> None:
    with ExportWriter(target, CLUSTER_ID, 0) as writer, files_of_at_most(size):
        writer.append_chunk(b"".join(batches))
        writer.commit(history.end_offset)


@pytest.mark.parametrize("size", [100, 6_000, 30_000])
def test_the_export_is_as_it_was_and_goes_on(tmp_path: Path, size: int) -> None:
    history = LogHistory(31).run(1500)
    half = len(history.batches) // 2
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as writer:
        writer.append_chunk(b"".join(history.batches[:20]))
        writer.commit(writer.next_offset)
        published = writer.manifest
    with pytest.raises(ExportError, match=r"cannot write to .*: File too large"):
        go_on(tmp_path, history, history.batches[20:half], size)
    assert verify_export(tmp_path) == published
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as writer:
        writer.append_chunk(b"".join(history.batches[20:]))
        writer.commit(history.end_offset)
    assert verify_export(tmp_path).end_offset == history.end_offset
