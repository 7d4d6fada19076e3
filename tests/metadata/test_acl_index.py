"""The index of access control entries: equal to looking at every entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.metadata.acls import AccessControlEntry, AclIndex, PatternType

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
def test_a_resource_finds_the_entries_that_are_about_it(
    made: list, removed: list[bool], name: str
) -> None:
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
def test_when_all_are_gone_nothing_is_left(made: list) -> None:
    entries = [AccessControlEntry(bytes([n]) * 16, *one) for n, one in enumerate(made)]
    index = AclIndex()
    for entry in entries:
        index = index.with_entry(entry)
    for entry in reversed(entries):
        index = index.without(entry)
    assert (len(index._literal), index._whole, index._prefixed) == (0, {}, {})
