"""The index of partitions by broker, against plain sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.metadata import pmap
from raftlog.metadata.image import BLOCK, NO_REPLICAS, PartitionKey, ReplicaIndex, Replicas

_TOPICS = (b"a" * 16, b"b" * 16)
_KEYS = st.tuples(
    st.sampled_from(_TOPICS),
    st.integers(0, 5) | st.integers(BLOCK - 2, BLOCK + 1) | st.integers(5 * BLOCK, 5 * BLOCK + 2),
)
_STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "remove", "look", "finish")), st.integers(1, 3), _KEYS),
    max_size=60,
)


@given(_STEPS)
def test_it_holds_what_sets_would_and_older_versions_do_not_change(
    steps: list[tuple[str, int, PartitionKey]],
) -> None:
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


def test_removing_what_is_not_there_is_an_error() -> None:
    index = ReplicaIndex(pmap.empty())
    index.add(1, (b"a", 3))
    for broker_id, key in ((1, (b"a", 4)), (1, (b"b", 3)), (2, (b"a", 3))):
        with pytest.raises(KeyError):
            index.remove(broker_id, key)


def test_no_replicas_are_false_and_sets_of_equal_keys_are_equal() -> None:
    assert not NO_REPLICAS
    assert (b"a", 1) not in NO_REPLICAS
    nothing: object = "no key"
    assert nothing not in NO_REPLICAS
    assert Replicas.of([]) == NO_REPLICAS
    assert Replicas.of([(b"a", 1), (b"a", 70)]) == Replicas.of([(b"a", 70), (b"a", 1)])
    assert Replicas.of([(b"a", 1)]) & {(b"a", 1), (b"a", 2)} == {(b"a", 1)}
