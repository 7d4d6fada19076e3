"""Maps, indexes and sorted keys of an image, compared with plain dicts, sets and lists."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata import flat_map, pmap, sorted_keys
from raftlog.metadata.acls import AccessControlEntry, AclIndex, PatternType
from raftlog.metadata.flat_map import FlatMap, FlatMutation
from raftlog.metadata.image import BLOCK, NO_REPLICAS, PartitionKey, ReplicaIndex, Replicas
from raftlog.metadata.sorted_keys import SortedKeys

_KEYS = st.integers(0, 5)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _KEYS, st.integers(1, 9)),
        st.tuples(st.just("delete"), _KEYS, st.just(0)),
        st.tuples(st.just("finish"), st.booleans(), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("mutate"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("abandon"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def written(values: dict[int, int]) -> FlatMap[int, int]:
    mutation = flat_map.empty().mutate()
    for key, value in values.items():
        mutation[key] = value
    return mutation.finish()


def table(version: FlatMap[Any, Any] | FlatMutation[Any, Any]) -> Any:
    return version._table


@given(_STEPS)
def test_older_versions_do_not_change(steps: list[tuple[str, Any, Any]]) -> None:
    held: list[tuple[FlatMap[int, int], dict[int, int]]] = [(flat_map.empty(), {})]
    others: list[Any] = []
    mutation, naive = held[0][0].mutate(), dict[int, int]()
    for what, first, second in steps:
        if what == "set":
            mutation[first], naive[first] = second, second
        elif what == "delete":
            if first in naive:
                del mutation[first], naive[first]
            else:
                with pytest.raises(KeyError):
                    del mutation[first]
        elif what == "finish":
            done, naive = mutation.finish(), dict(naive)
            mutation = done.mutate()
            if first:
                held.append((done, dict(naive)))
        elif what == "drop":
            if len(held) > 1:
                del held[first % len(held)]
        elif what == "mutate":
            if second:
                others.append(mutation)
            base, naive = held[first % len(held)]
            mutation, naive = base.mutate(), dict(naive)
        else:
            mutation.abandon()
            mutation, naive = held[0][0].mutate(), dict(held[0][1])
        assert len(mutation) == len(naive)
        assert [mutation.get(key) for key in range(6)] == [naive.get(key) for key in range(6)]
        for version, expected in held:
            assert dict(version.items()) == expected
            assert sorted(version) == sorted(expected)
            assert sorted(version.values()) == sorted(expected.values())
            assert len(version) == len(expected)
            assert [version.get(key) for key in range(6)] == [expected.get(key) for key in range(6)]
            assert all((key in version) == (key in expected) for key in range(6))


def test_unreferenced_version_is_freed() -> None:
    oldest = version = written(dict.fromkeys(range(50), 1))
    for number in range(100):
        mutation = version.mutate()
        mutation[number % 10] = number + 2
        version = mutation.finish()
    mutation = version.mutate()
    mutation[0] = 1
    line: list[int] = []
    state: Any = oldest._state
    while state is not None:
        line.append(len(state.undo))
        state = state.newer
    assert line == [10, 1, 0]
    assert [oldest[key] for key in range(10)] == [1] * 10


def test_version_without_live_successors_is_updated_in_place() -> None:
    base = written({1: 1, 2: 2})
    pending = base.mutate()
    pending[1], pending[3] = 7, 7
    proposed = pending.finish()
    pending = proposed.mutate()
    del pending[2]
    pending.abandon()
    del proposed
    again = base.mutate()
    again[4] = 4
    assert table(again) is table(base)
    assert dict(again.finish().items()) == {1: 1, 2: 2, 4: 4}


def test_version_with_a_successor_is_updated_separately() -> None:
    base = written({1: 1})
    one, other = base.mutate(), base.mutate()
    one[1], other[1] = 2, 3
    assert table(other) is not table(base)
    assert (base[1], one.finish()[1], other.finish()[1]) == (1, 2, 3)


def test_iterator_is_valid_while_the_next_version_is_made() -> None:
    base = written(dict.fromkeys(range(10), 1))
    items, mutation = iter(base.items()), base.mutate()
    first = next(items)
    for key in range(5):
        del mutation[key]
    mutation[77] = 1
    assert dict([first, *items]) == dict.fromkeys(range(10), 1)


def test_flat_map_does_not_change_without_a_write() -> None:
    base = written({1: 1})
    assert base.mutate().finish() is base
    with pytest.raises(KeyError):
        base[2]


# --- The index of access control entries ---------------------------------------------------------


NAMES = st.text("ab*", min_size=1, max_size=4)
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([2, 3]), NAMES, st.sampled_from([3, 4]), st.sampled_from("xyz"),
        st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]), st.integers(2, 11), st.sampled_from([2, 3]),
    ), max_size=12,
)  # fmt: skip


def about(entry: AccessControlEntry, resource_type: int, name: str) -> bool:
    if entry.resource_type != resource_type:
        return False
    if entry.pattern_type == PatternType.PREFIXED:
        return name.startswith(entry.resource_name)
    return entry.resource_name in ("*", name)


@given(ENTRIES, st.lists(st.booleans(), min_size=12, max_size=12), st.text("ab", max_size=5))
def test_resource_finds_its_acl_entries(made: list, removed: list[bool], name: str) -> None:
    entries = [AccessControlEntry(bytes([n]) * 16, *one) for n, one in enumerate(made)]
    index, versions = AclIndex(), [AclIndex()]
    for entry in entries:
        index = index.with_entry(entry)
        versions.append(index)
    left = list(entries)
    for entry, gone in zip(entries, removed, strict=False):
        if gone:
            index = index.without(entry)
            left.remove(entry)
    for at, wanted in ((index, left), *((one, entries[:n]) for n, one in enumerate(versions))):
        for resource_type in (2, 3):
            found = [
                one
                for bucket in at.matching(resource_type, name)
                for rules in bucket.values()
                for one in rules.entries
            ]
            expected = [one for one in wanted if about(one, resource_type, name)]
            assert sorted(one.id for one in found) == sorted(one.id for one in expected)


@given(ENTRIES)
def test_acl_index_is_empty_after_all_entries_are_deleted(made: list) -> None:
    entries = [AccessControlEntry(bytes([n]) * 16, *one) for n, one in enumerate(made)]
    index = AclIndex()
    for entry in entries:
        index = index.with_entry(entry)
    for entry in reversed(entries):
        index = index.without(entry)
    assert (len(index._literal), index._whole, index._prefixed) == (0, {}, {})


# --- The index of partitions by broker, against plain sets ---------------------------------------


_TOPICS = (b"a" * 16, b"b" * 16)
_PARTITIONS = st.tuples(
    st.sampled_from(_TOPICS),
    st.integers(0, 5) | st.integers(BLOCK - 2, BLOCK + 1) | st.integers(5 * BLOCK, 5 * BLOCK + 2),
)
_CHANGES = st.lists(
    st.tuples(st.sampled_from(("add", "remove", "look", "finish")), st.integers(1, 3), _PARTITIONS),
    max_size=60,
)


@given(_CHANGES)
def test_replica_index_equals_plain_sets(steps: list[tuple[str, int, PartitionKey]]) -> None:
    index, naive = ReplicaIndex(pmap.empty()), dict[int, set[PartitionKey]]()
    finished: list[tuple[pmap.Map[int, Replicas], dict[int, set[PartitionKey]]]] = []
    for what, broker_id, key in steps:
        if what == "add":
            index.add(broker_id, key)
            naive.setdefault(broker_id, set()).add(key)
        elif what == "remove":
            if key in naive.get(broker_id, ()):
                index.remove(broker_id, key)
                naive[broker_id].remove(key)
        elif what == "look":
            assert (broker_id in index) == (broker_id in naive)
            assert set(index.get(broker_id) or ()) == naive.get(broker_id, set())
        else:
            done = index.finish()
            finished.append((done, {one: set(keys) for one, keys in naive.items()}))
            index = ReplicaIndex(done)
        assert len(index) == len(naive)
    finished.append((index.finish(), naive))
    for done, expected in finished:
        assert set(done) == set(expected)
        for broker_id, keys in expected.items():
            held = done[broker_id]
            assert set(held) == keys
            assert len(held) == len(keys)
            assert all(key in held for key in keys)
            assert (_TOPICS[0], 4 * BLOCK) not in held


def test_removing_a_missing_key_is_an_error() -> None:
    index = ReplicaIndex(pmap.empty())
    index.add(1, (b"a", 3))
    for broker_id, key in ((1, (b"a", 4)), (1, (b"b", 3)), (2, (b"a", 3))):
        with pytest.raises(KeyError):
            index.remove(broker_id, key)


def test_empty_replica_set_is_false_and_equal_sets_compare_equal() -> None:
    assert not NO_REPLICAS
    assert (b"a", 1) not in NO_REPLICAS
    nothing: object = "no key"
    assert nothing not in NO_REPLICAS
    assert Replicas.of([]) == NO_REPLICAS
    assert Replicas.of([(b"a", 1), (b"a", 70)]) == Replicas.of([(b"a", 70), (b"a", 1)])
    assert Replicas.of([(b"a", 1)]) & {(b"a", 1), (b"a", 2)} == {(b"a", 1)}


# --- Sorted keys, in blocks of four --------------------------------------------------------------


NAMED_KEYS = st.text("ab/", max_size=4)


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
@given(st.lists(st.lists(NAMED_KEYS, max_size=30), max_size=6), NAMED_KEYS, NAMED_KEYS)
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
@given(st.lists(NAMED_KEYS, max_size=120))
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
