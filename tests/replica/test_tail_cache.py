"""The end of the log in memory."""

import pytest

from raftlog import batch
from raftlog.node.replica.local_log import TailCache


def chunk(base: int, *counts: int) -> tuple[bytes, int]:
    parts = []
    for count in counts:
        records = [batch.RecordData(20, 0, b"x" * 10)] * count
        parts.append(batch.encode(records, base_offset=base, epoch=1, timestamp_ms=1))
        base += count
    return b"".join(parts), base


def filled(max_bytes: int = 1 << 20) -> tuple[TailCache, dict[int, bytes]]:
    cache, end = TailCache(5, max_bytes), 5
    chunks: dict[int, bytes] = {}
    for counts in ((1,), (2, 3), (1, 1, 1), (4,)):
        data, behind = chunk(end, *counts)
        cache.append(data, end, behind)
        chunks[end] = data
        end = behind
    return cache, chunks


def read(cache: TailCache, offset: int, until: int, max_bytes: int) -> bytes:
    """Read from a cache that must have the offset."""
    data = cache.read(offset, until, max_bytes)
    assert data is not None
    return data


def test_tail_cache_serves_from_a_chunk_to_the_end() -> None:
    cache, chunks = filled()
    assert cache.read(5, cache.end_offset, 1 << 20) == b"".join(chunks.values())
    assert cache.read(6, cache.end_offset, 1 << 20) == b"".join(list(chunks.values())[1:])


def test_tail_cache_serves_from_inside_and_up_to_inside_a_chunk() -> None:
    cache, _ = filled()
    data = read(cache, 8, 12, 1 << 20)
    assert [h.base_offset for h in batch.headers(data, expect_offset=8)] == [8]
    data = read(cache, 11, 13, 1 << 20)
    assert batch.scan(data, expect_offset=11).end_offset == 13


def test_tail_cache_serves_at_least_one_batch_and_no_more_than_fits() -> None:
    cache, chunks = filled()
    first = read(cache, 6, cache.end_offset, 1)
    assert batch.scan(first, expect_offset=6).end_offset == 8
    assert cache.read(5, cache.end_offset, len(chunks[5]) + 1) == chunks[5]


def test_newest_chunk_is_split_like_any_other() -> None:
    cache, _ = filled()
    data, behind = chunk(cache.end_offset, 1, 2)
    begin = cache.end_offset
    cache.append(data, begin, behind)
    assert cache.read(begin, behind, len(data)) == data
    for cut in (
        read(cache, begin, begin + 1, len(data)),
        read(cache, begin, behind, len(data) - 1),
    ):
        assert batch.scan(cut, expect_offset=begin).end_offset == begin + 1


def test_tail_cache_serves_nothing_outside_its_range() -> None:
    cache, _ = filled()
    assert cache.read(4, cache.end_offset, 1 << 20) is None
    assert cache.read(cache.end_offset, cache.end_offset + 1, 1 << 20) is None
    with pytest.raises(ValueError, match="boundary"):
        cache.read(7, cache.end_offset, 1 << 20)


def test_old_chunks_are_evicted_and_the_rest_stays_correct() -> None:
    cache = TailCache(0, 5_000)
    end = 0
    for _ in range(3_000):
        data, behind = chunk(end, 1)
        cache.append(data, end, behind)
        end = behind
    assert cache.read(0, end, 1 << 20) is None
    assert 0 < end - cache.start_offset < 100
    kept = read(cache, cache.start_offset, end, 1 << 20)
    assert batch.scan(kept, expect_offset=cache.start_offset).end_offset == end


def test_truncated_log_is_dropped_from_the_cache() -> None:
    cache, _ = filled()
    cache.reset(8)
    assert cache.read(5, 8, 1 << 20) is None
    data, behind = chunk(8, 2)
    cache.append(data, 8, behind)
    assert cache.read(8, 10, 1 << 20) == data
