"""Replies that wait leave in order, once, and never before what they say is true."""

from types import SimpleNamespace
from typing import Any

import pytest

from controller.service.replies import ACKNOWLEDGED, COMMITTED, VISIBLE, Parked, Parking
from raftlog.wire.controller.v1 import controller_pb2 as pb


def parking() -> tuple[Parking, list[Parked]]:
    sent: list[Parked] = []
    return Parking(sent.append), sent


def parked(
    offset: int, *, acks: int = COMMITTED, round_: int = 0, deadline: float = 10.0
) -> Parked:
    return Parked(
        SimpleNamespace(peer="a:1"), pb.ControllerResponse(), offset, round_, acks, deadline
    )


def test_a_write_leaves_when_the_high_watermark_passes_it() -> None:
    parks, sent = parking()
    first, second = parked(4), parked(5)
    parks.park(first)
    parks.park(second)
    parks.committed(4)
    assert sent == []
    parks.committed(5)
    assert sent == [first]
    parks.committed(9)
    assert sent == [first, second]
    assert len(parks) == 0


@pytest.mark.parametrize("again", [False, True])
def test_what_brokers_were_told_matters_to_a_visible_reply_that_lao_covers(again: bool) -> None:
    parks, sent = parking()
    parks.committed(5)
    parks.visibility(3, 2)
    park = parks.park_duplicate if again else parks.park
    park(parked(4, acks=ACKNOWLEDGED))
    park(parked(4, acks=VISIBLE))
    waits = []
    parks.committed(6)
    for lao, min_known_lao in ((3, 2), (4, 2), (4, 4)):
        parks.visibility(lao, min_known_lao)
        waits.append(parks.waits_for_known_lao(lao))
    assert waits == [False, True, False], "acknowledged, and not visible yet"
    assert len(sent) == 2


def test_a_read_needs_its_round_and_the_commit_of_what_it_saw() -> None:
    parks, sent = parking()
    read = parked(7, round_=3)
    parks.park(read)
    parks.read_index_confirmed(2)
    parks.committed(8)
    assert sent == []
    parks.read_index_confirmed(3)
    assert sent == [read]


def test_a_read_whose_round_is_confirmed_waits_for_the_commit_of_what_it_saw() -> None:
    parks, sent = parking()
    read, later = parked(7, round_=3), parked(8, round_=3)
    parks.committed(7)
    parks.park(read)
    parks.park(later)
    parks.read_index_confirmed(3)
    parks.release_reads()
    assert sent == []
    parks.committed(8)
    assert sent == [read]
    assert list(parks.drain()) == [(later, False)]
    parks.committed(9)
    assert sent == [read]


def test_a_read_confirmed_before_it_was_parked_leaves_when_asked_to() -> None:
    parks, sent = parking()
    parks.committed(8)
    parks.read_index_confirmed(3)
    read = parked(7, round_=3)
    parks.park(read)
    assert sent == []
    parks.release_reads()
    assert sent == [read]


def test_acknowledged_waits_for_lao_and_visible_for_everybody_to_be_told() -> None:
    parks, sent = parking()
    acknowledged, visible = parked(5, acks=ACKNOWLEDGED), parked(6, acks=VISIBLE)
    parks.park(acknowledged)
    parks.park(visible)
    parks.visibility(9, 9)
    assert sent == []
    parks.committed(7)
    parks.visibility(4, 3)
    assert sent == [], "LAO moved, and does not cover the write"
    parks.visibility(5, 4)
    assert sent == [acknowledged]
    assert acknowledged.response.write.reached == ACKNOWLEDGED
    parks.visibility(6, 5)
    assert sent == [acknowledged]
    parks.visibility(6, 6)
    assert sent == [acknowledged, visible]
    assert visible.response.write.reached == VISIBLE


def test_what_expires_is_handed_out_once_and_never_sent() -> None:
    parks, sent = parking()
    write, committed_one = parked(9, deadline=1.0), parked(3, acks=VISIBLE, deadline=1.0)
    parks.park(committed_one)
    parks.committed(4)
    parks.park(write)
    assert list(parks.expired(0.5)) == []
    assert list(parks.expired(1.0)) == [(committed_one, True), (write, False)]
    assert list(parks.expired(2.0)) == []
    parks.committed(99)
    parks.visibility(99, 99)
    assert sent == []
    assert len(parks) == 0


def test_lost_leadership_hands_out_all_that_wait() -> None:
    parks, sent = parking()
    one, two, three = parked(3, acks=ACKNOWLEDGED), parked(9), parked(9, round_=1)
    parks.park(one)
    parks.committed(4)
    parks.park(two)
    parks.park(three)
    assert list(parks.drain()) == [(two, False), (three, False), (one, True)]
    assert sent == []
    assert len(parks) == 0


def duplicate(offset: int, *, acks: int = COMMITTED, deadline: float = 10.0) -> Parked:
    return parked(offset, acks=acks, deadline=deadline)


def test_a_retry_of_a_committed_write_is_answered_at_once_whatever_waits_before_it() -> None:
    parks, sent = parking()
    parks.committed(5)
    write, retry, early = parked(9), duplicate(4), duplicate(5)
    parks.park(write)
    parks.park_duplicate(retry)
    parks.park_duplicate(early)
    assert sent == [retry]
    parks.committed(6)
    assert sent == [retry, early]
    assert len(parks) == 1


def test_a_retry_waits_for_the_visibility_that_it_asks_for() -> None:
    parks, sent = parking()
    parks.committed(10)
    parks.visibility(6, 3)
    acknowledged, told = duplicate(6, acks=ACKNOWLEDGED), duplicate(3, acks=VISIBLE)
    later, latest = duplicate(7, acks=ACKNOWLEDGED), duplicate(6, acks=VISIBLE)
    for each in (latest, later, told, acknowledged):
        parks.park_duplicate(each)
    assert sent == [told, acknowledged]
    assert [each.response.write.reached for each in sent] == [VISIBLE, ACKNOWLEDGED]
    parks.visibility(7, 6)
    assert sent[2:] == [later, latest]


def test_a_retry_that_waits_in_vain_is_given_up_once() -> None:
    parks, sent = parking()
    parks.committed(5)
    lost, known = duplicate(7, deadline=1), duplicate(2, acks=VISIBLE, deadline=1)
    kept = duplicate(8)
    for each in (lost, known, kept):
        parks.park_duplicate(each)
    assert list(parks.expired(2)) == [(lost, False), (known, True)]
    assert list(parks.expired(2)) == []
    assert list(parks.drain()) == [(kept, False)]
    assert sent == []
    assert len(parks) == 0


def test_what_is_parked_goes_with_its_link_and_gives_its_share_back() -> None:
    parking = Parking(lambda parked: None)
    here, gone = SimpleNamespace(peer="a:1"), SimpleNamespace(peer="a:2")

    def write(link: Any, offset: int, acks: Any) -> Parked:
        return Parked(link, pb.ControllerResponse(), offset, 0, acks, 9.0)

    links = {id(here): here, id(gone): gone}
    for offset, link in enumerate((gone, here, gone, here)):
        parking.park(write(link, offset, VISIBLE))
    parking.park(Parked(gone, pb.ControllerResponse(), 0, 5, COMMITTED, 9.0))
    parking.committed(3)
    assert parking._shares.total == 5
    parking.abandon([links[id(gone)]])
    assert parking._shares.held("a:2") == 0
    assert parking._shares.held("a:1") == 2
    assert [parked.link for parked, _ in parking.drain()] == [here, here]
    assert parking._shares.total == 0


def test_a_connection_may_park_no_more_than_it_leaves_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.service.replies.CONTROLLER_MAX_PARKED_REPLIES", 10)
    parking = Parking(lambda parked: None)
    greedy, other = SimpleNamespace(peer="a:1"), SimpleNamespace(peer="a:2")
    count = 0
    while parking.has_room(greedy):
        parking.park(Parked(greedy, pb.ControllerResponse(), count, 0, VISIBLE, 9.0))
        count += 1
    assert count == 5
    assert parking.has_room(other)
    parking.committed(count)
    parking.visibility(count, count)
    assert parking.has_room(greedy)


def test_lost_replies_are_handed_out_one_by_one_and_expired_ones_too() -> None:
    parks, sent = parking()
    for offset in range(10):
        parks.park(parked(offset, deadline=1.0))
    some = parks.expired(1.0)
    assert [next(some)[0].offset for _ in range(3)] == [0, 1, 2]
    parks.committed(5)
    assert [one.offset for one in sent] == [3, 4]
    left = parks.drain()
    assert [next(left)[0].offset for _ in range(2)] == [5, 6]
    assert [one.offset for one, _ in left] == [7, 8, 9]
    assert parks._shares.total == 0


def test_very_many_retries_are_not_looked_at_again_with_each_commit() -> None:
    """[each retry of a write that waits for a slow broker was looked at with each commit and each
    other retry]
    """
    parks, sent = parking()
    parks.committed(1)
    looked = 0

    class Counted(Parked):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looked
            looked += name == "offset"
            return super().__getattribute__(name)

    for number in range(500):
        parks.park_duplicate(
            Counted(
                SimpleNamespace(peer="a:1"),
                pb.ControllerResponse(),
                10 + number,
                0,
                ACKNOWLEDGED,
                9.0,
            )
        )
    for high_watermark in range(2, 500):
        parks.committed(high_watermark)
    assert sent == []
    assert looked < 2_000


def test_what_was_given_up_does_not_pile_up() -> None:
    parks, _ = parking()
    parks.park(parked(1, acks=VISIBLE, deadline=900.0))
    parks.committed(2)
    for turn in range(20):
        for _ in range(1_000):
            parks.park(parked(1, acks=VISIBLE, deadline=turn + 0.1))
            parks.committed(2)
        assert len(list(parks.expired(turn + 0.5))) == 1_000
    assert len(parks) < 3_000
    assert len(parks._deadlines) < 3_000
