"""What leaders say of their ISRs beside what the controller has committed: where the two differ,
and why. Pure.

The committed image is to be read *after* the leaders were asked: all that a leader knows as
committed is in it then, and what the image alone has is on its way to the leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from raftlog.client.leaders import LeaderAnswer, PartitionKey
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import Image
from raftlog.wire.data.v1 import data_pb2 as pb


class Why(StrEnum):
    """Why the leader and the controller say different things of one partition."""

    PROPOSED = "proposed and unanswered"
    """The leader has proposed an ISR, and has no answer yet."""
    LEADER_BEHIND = "leader's image behind"
    """The leader has not applied what is committed."""
    STALE_LEADER = "stale leader"
    """A broker takes itself for the leader that is not, or not any more."""
    NO_ANSWER = "no answer"
    """The leader could not be asked."""
    NO_LEADER = "no leader"
    """None is elected: nobody could be asked."""
    CONFLICT = "conflict"
    """Under the same epochs they say different things, or the leader is ahead of the committed log:
    that must never be.
    """


@dataclass(frozen=True, slots=True)
class Difference:
    """One of a partition. ``text`` is for people."""

    why: Why
    text: str
    mark: tuple[object, ...]
    """The same as long as the leader has not moved: who asks again sees whether it lasts."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One partition. ``committed`` None: deleted. ``led``: what its leader says; None: nothing."""

    key: PartitionKey
    topic: str
    leader_id: int
    committed: Partition | None
    led: pb.LedPartition | None
    differences: tuple[Difference, ...] = ()


def compare(
    image: Image, answers: Mapping[int, LeaderAnswer], keys: Collection[PartitionKey] | None = None
) -> list[Compared]:
    """All partitions of ``keys`` (None: all there are), by topic name and index; the answers are
    those of every registered broker.
    """
    claims: dict[PartitionKey, dict[int, pb.LedPartition]] = {}
    for broker_id in sorted(answers):
        for one in answers[broker_id].led:
            claims.setdefault((one.topic_id, one.partition_index), {})[broker_id] = one
    known = (
        keys
        if keys is not None
        else dict.fromkeys([*(key for key, _ in image.partitions.items()), *claims])
    )
    rows = []
    for key in known:
        committed, claimed = image.partitions.get(key), claims.get(key, {})
        leader_id = committed.leader if committed is not None else -1
        differences = _of_the_leader(image, answers, committed, claimed.get(leader_id))
        differences += [_stale(other, one) for other, one in claimed.items() if other != leader_id]
        rows.append(
            Compared(
                key,
                _topic(image, key, claimed),
                leader_id,
                committed,
                claimed.get(leader_id),
                tuple(differences),
            )
        )
    return sorted(rows, key=lambda row: (row.topic, row.key))


def _topic(image: Image, key: PartitionKey, claimed: Mapping[int, pb.LedPartition]) -> str:
    topic = image.topics.get(key[0])
    if topic is not None:
        return topic.name
    return next((one.topic_name for one in claimed.values() if one.topic_name), key[0].hex())


def _of_the_leader(
    image: Image,
    answers: Mapping[int, LeaderAnswer],
    committed: Partition | None,
    led: pb.LedPartition | None,
) -> list[Difference]:
    """What its leader says otherwise, or does not say."""
    if committed is None:
        return []
    leader = committed.leader
    if leader < 0:
        text = f"no leader since leader epoch {committed.leader_epoch}"
        return [Difference(Why.NO_LEADER, text, (Why.NO_LEADER, committed.leader_epoch))]
    answer = answers.get(leader)
    if answer is None or answer.failure:
        why = answer.failure if answer is not None else "it is not registered"
        return [Difference(Why.NO_ANSWER, f"broker {leader}: {why}", (Why.NO_ANSWER, leader))]
    if led is None:
        # Asked for all that it leads, it does not say why this is not among it; asked by name it
        # does.
        why = answer.refused.get(
            (committed.topic_id, committed.index), "it does not know yet, or cannot"
        )
        text = f"broker {leader} does not lead in leader epoch {committed.leader_epoch}: {why}"
        return [Difference(Why.LEADER_BEHIND, text, (Why.LEADER_BEHIND, leader))]
    theirs, ours = (
        (led.leader_epoch, led.partition_epoch),
        (committed.leader_epoch, committed.partition_epoch),
    )
    found: list[Difference] = []
    if theirs < ours:
        text = f"broker {leader} is at {_epochs(*theirs)}, committed is {_epochs(*ours)}"
        found.append(Difference(Why.LEADER_BEHIND, text, (Why.LEADER_BEHIND, leader, *theirs)))
    elif theirs > ours:
        text = f"broker {leader} is at {_epochs(*theirs)}, but committed is only {_epochs(*ours)}"
        found.append(Difference(Why.CONFLICT, text, (Why.CONFLICT, leader, *theirs)))
    elif {one.broker_id for one in led.isr} != set(committed.isr):
        text = f"the same {_epochs(*ours)}, but another ISR"
        found.append(Difference(Why.CONFLICT, text, (Why.CONFLICT, leader, *theirs)))
    else:
        found.extend(_other_incarnations(image, leader, led))
    if proposed := _proposed(led):
        mark = (Why.PROPOSED, leader, *theirs, tuple(one.broker_id for one in led.proposed_isr))
        found.append(Difference(Why.PROPOSED, f"broker {leader} has proposed {proposed}", mark))
    return found


def _other_incarnations(image: Image, leader: int, led: pb.LedPartition) -> list[Difference]:
    """Members that the leader knows under a broker epoch that is not the registered one."""
    found = []
    for one in led.isr:
        broker = image.brokers.get(one.broker_id)
        if broker is not None and one.broker_epoch >= 0 and broker.epoch != one.broker_epoch:
            text = (
                f"broker {leader} knows broker {one.broker_id} in epoch {one.broker_epoch},"
                f" registered is {broker.epoch}"
            )
            mark = (Why.LEADER_BEHIND, leader, one.broker_id, one.broker_epoch)
            found.append(Difference(Why.LEADER_BEHIND, text, mark))
    return found


def _proposed(led: pb.LedPartition) -> str:
    """What it would change, as ``+2 -3``; empty if nothing is under way."""
    if not led.proposed_isr:
        return ""
    before, after = ({one.broker_id for one in isr} for isr in (led.isr, led.proposed_isr))
    changes = [f"+{one}" for one in sorted(after - before)] + [
        f"-{one}" for one in sorted(before - after)
    ]
    return " ".join(changes) or "the same members in other epochs"


def _stale(broker_id: int, led: pb.LedPartition) -> Difference:
    text = f"broker {broker_id} takes itself for the leader in leader epoch {led.leader_epoch}"
    return Difference(Why.STALE_LEADER, text, (Why.STALE_LEADER, broker_id, led.leader_epoch))


def _epochs(leader_epoch: int, partition_epoch: int) -> str:
    return f"leader epoch {leader_epoch}, partition epoch {partition_epoch}"


def marks(rows: Iterable[Compared]) -> set[tuple[PartitionKey, tuple[object, ...]]]:
    """All differences, so that two looks can be held against each other."""
    return {(row.key, one.mark) for row in rows for one in row.differences}
