"""Tests that the intact parts of a damaged log are found, and that the mended log equals the
original.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
from storage_kit import flush, format_with_vote, make_chunk, open_rocks, whole

from raftlog.errors import CorruptLogError
from raftlog.node.recovery.mending import DESCRIBE, Answered, Got, fetch_missing
from raftlog.node.recovery.salvage import Salvage, replace_log, salvage
from raftlog.node.storage.directory import DAMAGED_DIRECTORY, LOG_DIRECTORY
from raftlog.node.storage.wal import pieces

END = 60
EPOCHS = (1, 1, 2, 4)
"""Epoch of each quarter of the log."""


async def make_log(directory: Path, *, tables: int = 0, truncated: bool = False) -> bytes:
    """Make a killed node's log: the first ``tables`` offsets in tables, the rest in the WAL.

    ``truncated``: offsets 30 to 34 were once those of an epoch that lost.
    """
    format_with_vote(directory)
    live = directory.with_name(directory.name + "-live")
    shutil.move(directory, live)
    store = open_rocks(live)
    store.recover()
    for base in range(0, END, 2):
        if base == tables and base:
            store.close()
            store = open_rocks(live)
            store.recover()
        if truncated and base == 30:
            lost = make_chunk(30, 2, 2, epoch=1, body=b"lost")
            store.append(lost, 30, 34)
            await flush(store)
            store.truncate(30)
        chunk = make_chunk(base, 1, 1, epoch=EPOCHS[base * 4 // END], body=b"x" * 100)
        store.append(chunk, base, base + 2)
        await flush(store)
    content = whole(store, END)
    shutil.copytree(live, directory)
    store.close()
    return content


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def wal_of(directory: Path) -> Path:
    return max((directory / LOG_DIRECTORY).glob("*.log"))


def writes_of(directory: Path) -> list[int]:
    """Return the positions at which the writes of the WAL begin."""
    return [at for at, _, behind in pieces(wal_of(directory).read_bytes()) if behind > 0]


async def refused(directory: Path) -> bool:
    try:
        store = open_rocks(directory)
    except CorruptLogError:
        return True
    try:
        store.recover()
    except CorruptLogError:
        return True
    finally:
        store.close()
    return False


async def mend(directory: Path, others: dict[str, Salvage]) -> list[tuple[int, int]]:
    """Mend it with what the others have; return what is missing still."""
    found = salvage(directory)
    assert found.why_not == ""
    log, got = found.damaged_log(), Got()

    async def ask(source: str, section: int, offset: int, end: int) -> Answered:
        if section == DESCRIBE:
            return Answered(others[source].sections(offset))
        return Answered(records=others[source].read(section, offset, end, 300))

    assert await fetch_missing(log, got, others, ask) == {}
    if left := log.missing([(base, end) for base, (end, _) in got.items()]):
        return left
    replace_log(directory, found, log.start_offset, found.assemble(log, got), "now")
    return []


async def content_of(directory: Path) -> bytes:
    store = open_rocks(directory)
    try:
        store.recover()
        return whole(store, END)
    finally:
        store.close()


@pytest.mark.parametrize("tables", [0, 20, 40])
async def test_logs_damaged_at_different_offsets_mend_each_other(
    tmp_path: Path, tables: int
) -> None:
    rng = Random(tables)
    content = b""
    for name in "abc":
        content = await make_log(tmp_path / name, tables=tables)
        starts = writes_of(tmp_path / name)
        flip(wal_of(tmp_path / name), starts[rng.randrange(1, len(starts) - 1)] + 40)
        assert await refused(tmp_path / name)
    for name in "abc":
        others = {one: salvage(tmp_path / one) for one in "abc" if one != name}
        assert await mend(tmp_path / name, others) == []
        assert await content_of(tmp_path / name) == content
        assert (tmp_path / name / DAMAGED_DIRECTORY / "now" / LOG_DIRECTORY).exists()


async def test_damaged_table_hides_its_chunks_alone(tmp_path: Path) -> None:
    content = await make_log(tmp_path / "a", tables=40)
    tables = (tmp_path / "a" / LOG_DIRECTORY).glob("*.sst")
    table = max(tables, key=lambda path: path.stat().st_size)
    flip(table, 100)
    assert await refused(tmp_path / "a")
    await make_log(tmp_path / "b")
    assert await mend(tmp_path / "a", {"b": salvage(tmp_path / "b")}) == []
    assert await content_of(tmp_path / "a") == content


async def test_batch_that_was_truncated_is_not_put_back(tmp_path: Path) -> None:
    content = await make_log(tmp_path / "a", truncated=True)
    await make_log(tmp_path / "b")
    starts = writes_of(tmp_path / "a")
    # The truncation, and the chunk after it, which only the other one has.
    flip(wal_of(tmp_path / "a"), starts[17] + 20)
    flip(wal_of(tmp_path / "a"), starts[18] + 40)
    log = salvage(tmp_path / "a").damaged_log()
    assert log.missing() == [(0, 32)]
    assert await mend(tmp_path / "a", {"b": salvage(tmp_path / "b")}) == []
    assert await content_of(tmp_path / "a") == content


async def test_log_whose_end_is_damaged_is_not_mended(tmp_path: Path) -> None:
    await make_log(tmp_path / "a")
    flip(wal_of(tmp_path / "a"), writes_of(tmp_path / "a")[-1] + 40)
    assert salvage(tmp_path / "a").why_not == (
        "nothing whole says how the log ended after offset 58: what this node has acknowledged"
        " there cannot be known"
    )
