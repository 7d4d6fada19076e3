"""Keys, locks, leases and partitions of an image, as the console lists them."""

from __future__ import annotations

from typing import Any

from raftlog.metadata import pmap
from raftlog.metadata.entities import KeyValue, Lease, Partition, Topic
from raftlog.metadata.image import Image
from raftlog.ops.console_page import MAX_READ, MAX_SHOWN, stored

TOPIC_ID = b"1" * 16


def _mapped(found: dict[Any, Any]) -> Any:
    draft = pmap.empty().mutate()
    for key, value in found.items():
        draft[key] = value
    return draft.finish()


def _keys(*keys: KeyValue) -> Image:
    return Image(key_values=_mapped({one.key: one for one in keys}))


def test_keys_are_bounded_and_in_order_and_their_values_cut() -> None:
    found = stored(_keys(*(KeyValue(f"k{at:05}", b"v" * 9999, 1, 2, 0) for at in range(1000))))
    assert (found["keys"]["total"], found["keys"]["partial"]) == (1000, False)
    shown = found["keys"]["shown"]
    assert [one["key"] for one in shown] == [f"k{at:05}" for at in range(MAX_SHOWN)]
    assert (len(shown[0]["value"]), shown[0]["bytes"], shown[0]["lease_id"]) == (121, 9999, None)


def test_of_very_many_keys_only_the_first_are_read() -> None:
    found = stored(_keys(*(KeyValue(f"k{at}", b"", 1, 2, 0) for at in range(MAX_READ + 1))))
    assert (found["keys"]["total"], found["keys"]["partial"]) == (MAX_READ + 1, True)
    assert found["locks"]["partial"]


def test_lock_shows_its_holder_and_how_many_wait() -> None:
    """The lowest create_offset holds, whatever the ids of the leases are."""
    found = stored(
        _keys(
            KeyValue(f"locks/job/{7:020d}", b"late", 30, 30, 7),
            KeyValue(f"locks/job/{9:020d}", b"first", 20, 40, 9),
            KeyValue(f"elections/chief/{8:020d}", b"host-1", 25, 25, 8),
            KeyValue("locks/mine", b"no place", 1, 1, 0),
            KeyValue("other/job/00000000000000000001", b"", 1, 1, 0),
        )
    )["locks"]["shown"]
    assert [(one["kind"], one["name"], one["holder"], one["waiting"]) for one in found] == [
        ("election", "chief", "host-1", 0),
        ("lock", "job", "first", 1),
    ]
    assert found[1]["lease_id"] == 9


def test_leases_are_listed() -> None:
    (shown,) = stored(Image(leases=_mapped({7: Lease(7, "lock job", 10_000, "User:a")})))["leases"][
        "shown"
    ]
    assert shown == {"id": 7, "name": "lock job", "ttl_ms": 10_000, "principal": "User:a"}


def test_partitions_without_leader_come_first_then_those_out_of_sync() -> None:
    def partition(index: int, leader: int, isr: tuple[int, ...]) -> Partition:
        return Partition(TOPIC_ID, index, (4, 5, 6), isr, (), (), leader, 0, 1, 1)

    partitions = [
        partition(0, 4, (4, 5, 6)),
        partition(1, 5, (5,)),
        partition(2, -1, (6,)),
    ]
    image = Image(
        topics=_mapped({TOPIC_ID: Topic(TOPIC_ID, "orders", 3)}),
        partitions=_mapped({(TOPIC_ID, one.index): one for one in partitions}),
    )
    found = stored(image)["partitions"]["shown"]
    assert [(one["topic"], one["index"], one["state"], one["leader"]) for one in found] == [
        ("orders", 2, "offline", None),
        ("orders", 1, "under-replicated", 5),
        ("orders", 0, "in sync", 4),
    ]
    assert (found[1]["replicas"], found[1]["isr"]) == ([4, 5, 6], [5])
