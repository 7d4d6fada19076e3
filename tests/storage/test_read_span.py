"""A read begins where it was asked to, and every batch that it gives was checked: also the first
one, and one that it begins inside.
"""

from __future__ import annotations

import pytest
from storage_kit import make_batch, make_chunk

from raftlog.errors import CorruptLogError
from raftlog.node.storage.chunks import read_span

MAX = 1 << 20


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_chunks_that_begin_above_the_offset_are_a_gap() -> None:
    """The chunk at 0 is lost: what follows it is sound, contiguous, and not the answer."""
    for inside in (False, True):
        with pytest.raises(
            CorruptLogError, match="a chunk at 2 follows where offset 0 is due"
        ) as caught:
            read_span([(2, make_chunk(2, 1, 1))], 0, 4, MAX, inside=inside)
        assert caught.value.offset == 0


def test_a_gap_behind_the_chunk_before_the_offset_is_found() -> None:
    """The scan gives the chunk at or before the offset; it ends below the offset, and the one that
    should follow is lost.
    """
    with pytest.raises(
        CorruptLogError, match="a chunk at 6 follows where offset 4 is due"
    ) as caught:
        read_span([(0, make_chunk(0, 2)), (6, make_chunk(6, 1, 1))], 4, 8, MAX)
    assert caught.value.offset == 4


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_the_crc_of_every_batch_that_is_given_is_checked(inside: bool, bad: int) -> None:
    batches = [make_batch(0, 4), make_batch(4, 2), make_batch(6, 2)]
    assert read_span([(0, b"".join(batches))], 0, 8, MAX, inside=inside) == b"".join(batches)
    batches[bad] = flipped(batches[bad], len(batches[bad]) - 1)
    with pytest.raises(CorruptLogError, match="CRC32C") as caught:
        read_span([(0, b"".join(batches))], 0, 8, MAX, inside=inside)
    assert caught.value.offset == (0, 4, 6)[bad]


def test_the_crc_of_a_batch_that_a_read_begins_inside_is_checked() -> None:
    """The walk verifies from the offset on, and this batch begins below it."""
    whole = make_batch(0, 4)
    assert read_span([(0, whole)], 2, 4, MAX, inside=True) == whole
    with pytest.raises(CorruptLogError, match="CRC32C") as caught:
        read_span([(0, flipped(whole, len(whole) - 1))], 2, 4, MAX, inside=True)
    assert caught.value.offset == 0
