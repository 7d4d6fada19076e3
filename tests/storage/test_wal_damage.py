"""A damaged WAL is named in the log's own terms: the file, the byte, and up to which offset the log
is whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from storage_kit import (
    flush,
    format_with_vote,
    make_chunk,
    open_rocks,
    without_zeros_ahead,
    written_bytes,
)

from raftlog.errors import CorruptLogError

CHUNKS = 30
LARGE = b"x" * 50_000
"""More than one block of the WAL: such a chunk lies there in pieces."""


async def crashed(
    directory: Path, *, truncate_to: int = 0, body: bytes = b"body"
) -> tuple[Path, list[int]]:
    """A copy of a directory from under a running store, all of it in the WAL; and the WAL's size
    after each step.

    One chunk of two records a step; then, if asked for, a truncation, and one chunk more.
    """
    format_with_vote(directory / "running")
    store = open_rocks(directory / "running")
    store.recover()
    (wal,) = (directory / "running" / "log").glob("*.log")
    sizes: list[int] = []
    bases = list(range(0, 2 * CHUNKS, 2))
    for base in bases:
        store.append(make_chunk(base, 1, 1, body=body), base, base + 2)
        await flush(store)
        sizes.append(written_bytes(wal))
    if truncate_to:
        store.truncate(truncate_to)
        await flush(store)
        sizes.append(written_bytes(wal))
        store.append(make_chunk(truncate_to, 1, body=body), truncate_to, truncate_to + 1)
        await flush(store)
    shutil.copytree(directory / "running", directory / "crashed")
    store.close()
    return without_zeros_ahead(directory / "crashed" / "log"), sizes


def refused(wal: Path, position: int) -> CorruptLogError:
    """What opening says once a byte has changed."""
    content = bytearray(wal.read_bytes())
    content[position] ^= 0x10
    wal.write_bytes(content)
    with pytest.raises(CorruptLogError) as caught:
        open_rocks(wal.parents[1])
    content[position] ^= 0x10
    wal.write_bytes(content)
    return caught.value


@pytest.mark.parametrize("body", [b"body", LARGE], ids=["small", "in pieces"])
async def test_the_log_before_the_damage_is_named(tmp_path: Path, body: bytes) -> None:
    wal, sizes = await crashed(tmp_path, body=body)
    for step in (1, CHUNKS // 2, CHUNKS - 1):
        # Behind the header of the record, in what it holds.
        error = refused(wal, sizes[step - 1] + 40)
        assert error.offset == 2 * step
        assert f"whole up to offset {2 * step}" in str(error)
        assert f"the record at byte {sizes[step - 1]} of {wal.name} " in str(error) or body is LARGE
        assert wal.name in str(error)


async def test_damage_in_the_first_record_has_no_log_before_it(tmp_path: Path) -> None:
    wal, _ = await crashed(tmp_path)
    error = refused(wal, 20)
    assert error.offset == -1
    assert f"the record at byte 0 of {wal.name} does not match its checksum" in str(error)


async def test_what_was_truncated_does_not_count(tmp_path: Path) -> None:
    """The truncation cuts a chunk in two: the rest of it is written again, in the same batch."""
    wal, sizes = await crashed(tmp_path, truncate_to=2 * CHUNKS - 11)
    error = refused(wal, sizes[-1] + 40)
    assert error.offset == 2 * CHUNKS - 11
