"""The throttle of replicas that are being added."""

from __future__ import annotations

import math
from typing import Any

import pytest
from replica_kit import ME, Stand, chunk, first_image, of_kind, partition, recovered
from test_follower import LEADER, Follower

from broker.partition import events as ev
from broker.partition.throttle import Throttle

MOVING: dict[str, Any] = {"replicas": (1, 2, 3), "adding_replicas": (3,), "isr": (1, 2)}
BATCH = "x" * 1_000
RATE = {
    "leader.replication.throttled.rate": "10000",
    "follower.replication.throttled.rate": "10000",
}


def test_throttle_lets_its_rate_pass_whatever_the_size_of_a_batch() -> None:
    throttle, now, passed = Throttle(), 0.0, 0
    assert throttle.ready_at(now) == now
    throttle.set_rate(1_000, now)
    while now < 100:
        if throttle.ready_at(now) <= now:
            throttle.spend(5_000, now)
            passed += 5_000
        else:
            now = throttle.ready_at(now)
    assert 98_000 <= passed <= 110_000
    throttle.set_rate(math.inf, now)
    assert throttle.ready_at(now) == now


def test_idle_throttle_saves_up_one_second() -> None:
    throttle = Throttle()
    throttle.set_rate(1_000, 0.0)
    throttle.spend(3_000, 0.0)
    assert throttle.left(3_600.0) == 1_000


def leader(**fields: Any) -> Stand:
    stand = Stand(recovered(0), image=first_image(partition(**MOVING | fields)))
    for _ in range(50):
        stand.produce(BATCH, acks=1)
    return stand


def reads(stand: Stand, effects: list[ev.Effect], size_bytes: int = 10_000) -> list[ev.Read]:
    """Return the reads, each of ``size_bytes``."""
    found = [read for one in of_kind(effects, ev.AnswerReplicaFetch) for read in one.reads]
    for read in (one for one in found if one.charged >= 0):
        stand.core.was_read(read, size_bytes)
    return found


@pytest.mark.parametrize("name", ["", str(ME)])
def test_leader_throttles_what_it_sends_to_a_new_replica(name: str) -> None:
    stand = leader()
    stand.config(4, name, **RATE)
    (first,) = reads(stand, stand.fetch(3, 0))
    assert first.max_bytes == 10_000
    assert reads(stand, stand.fetch(3, 10)) == [], "the second is used up"
    (held,) = reads(stand, stand.after(1.0))
    assert held.offset == 10


def test_leader_does_not_throttle_the_isr() -> None:
    stand = leader()
    stand.config(4, "", **dict.fromkeys(RATE, "1"))
    reads(stand, stand.fetch(3, 0))
    for offset in (0, 10, 20):
        (read,) = reads(stand, stand.fetch(2, offset))
        assert read.max_bytes > 100_000


def test_replica_that_only_catches_up_is_not_throttled() -> None:
    stand = leader(adding_replicas=())
    stand.config(4, "", **dict.fromkeys(RATE, "1"))
    for offset in (0, 10, 20):
        (read,) = reads(stand, stand.fetch(3, offset))
        assert read.max_bytes > 100_000


def test_removed_throttle_lets_a_held_replica_continue_within_a_second() -> None:
    stand = leader()
    stand.config(4, "", **dict.fromkeys(RATE, "1"))
    assert reads(stand, stand.fetch(3, 0)), "a batch passes, and is owed"
    assert reads(stand, stand.fetch(3, 1)) == []
    assert reads(stand, stand.after(5.0)) == []
    stand.config(4, "")
    stand.fetch_of(3, [], wait_ms=5_000)
    assert reads(stand, stand.after(1.1))


def test_throttled_replica_waits_without_empty_answers() -> None:
    stand = leader()
    stand.config(4, "", **dict.fromkeys(RATE, "1"))
    reads(stand, stand.fetch(3, 0))
    effects = stand.fetch(3, 1, wait_ms=500) + stand.after(0.4)
    assert of_kind(effects, ev.AnswerReplicaFetch) == []
    (answer,) = of_kind(stand.after(0.2), ev.AnswerReplicaFetch)
    assert answer.reads == ()


def follower(**fields: Any) -> Follower:
    mine: dict[str, Any] = {
        "replicas": (2, 3, 1),
        "adding_replicas": (1,),
        "isr": (2, 3),
        "leader": LEADER,
    }
    stand = Follower(image=first_image(partition(**mine | fields)))
    stand.config(4, "", **RATE)
    return stand


@pytest.mark.parametrize("fields", [{}, {"isr": (2, 3, 1)}, {"adding_replicas": ()}])
def test_follower_throttles_what_it_fetches_for_a_new_replica(fields: dict[str, Any]) -> None:
    stand = follower(**fields)
    stand.answer({"records": chunk(0, 5, "x" * 30_000)})
    names = [one for request in stand.fetches[1:] for one in request.partitions]
    assert len(names) == (0 if fields == {} else 1)
    stand.after(1.0)
    assert [one for request in stand.fetches[1:] for one in request.partitions] == names
    stand.after(2.0)
    (name,) = (one for request in stand.fetches[1:] for one in request.partitions)
    assert name.fetch_offset == 1
