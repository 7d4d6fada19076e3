"""The sorted keys of a map, compared with a sorted list, in blocks of four keys."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata import sorted_keys
from raftlog.metadata.sorted_keys import SortedKeys

KEYS = st.text("ab/", max_size=4)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_keys, "BLOCK_MAX", 4)
        yield


def changed(version: SortedKeys, present: set[str], keys: list[str]) -> SortedKeys:
    """Return the next version: each key is added, or removed if present."""
    draft = version.mutate()
    for key in keys:
        if key in present:
            draft.remove(key)
        else:
            draft.add(key)
        present ^= {key}
    return draft.finish()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(KEYS, max_size=30), max_size=6), KEYS, KEYS)
def test_each_version_equals_a_sorted_list(steps: list[list[str]], prefix: str, after: str) -> None:
    present: set[str] = set()
    versions = [(SortedKeys(), list[str]())]
    for keys in steps:
        versions.append((changed(versions[-1][0], present, keys), sorted(present)))
    # Older versions are as they were.
    for version, expected in versions:
        assert list(version) == expected
        assert list(version.since(after)) == [key for key in expected if key >= after]
        assert list(version.below(prefix, after)) == [
            key for key in expected if key.startswith(prefix) and key > after
        ]


@settings(max_examples=100, deadline=None)
@given(st.lists(KEYS, max_size=120))
def test_adjacent_blocks_have_more_keys_than_half_a_block(keys: list[str]) -> None:
    blocks = changed(SortedKeys(), set(), keys)._blocks
    sizes = [len(block) for block in blocks]
    assert all(0 < size <= 4 for size in sizes)
    assert all(a + b > 2 for a, b in pairwise(sizes))


def test_keys_added_in_order_fill_their_blocks() -> None:
    version = changed(SortedKeys(), set(), [f"{number:04d}" for number in range(40)])
    assert [len(block) for block in version._blocks] == [4] * 10


def test_removal_of_a_missing_key_is_an_error() -> None:
    version = changed(SortedKeys(), set(), ["a", "c"])
    for key in ("", "b", "d"):
        with pytest.raises(KeyError):
            version.mutate().remove(key)
    with pytest.raises(KeyError):
        SortedKeys().mutate().remove("a")
    assert list(version) == ["a", "c"]
