"""The leaders' view of their ISRs, alone or compared with the committed one, with a reason for each
difference.

The committed image must be read *after* the leaders' answers: it then contains everything that a
leader knows as committed, and a change that only the image has is on its way to the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from raftlog.client import leaders
from raftlog.client.async_client import AsyncClient
from raftlog.client.leaders import LeaderAnswer, PartitionKey
from raftlog.client.log_reader import CommittedImage
from raftlog.client.wire import known, reader
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import Image
from raftlog.ops.serving import unfenced
from raftlog.wire.data.v1 import data_pb2 as pb

LOOK_EVERY_S = 0.5


class Why(StrEnum):
    """Why the leader and the controller differ about a partition."""

    PROPOSED = "proposed and unanswered"
    """The leader has proposed an ISR, and has no response yet."""
    LEADER_BEHIND = "leader's image behind"
    """The leader has not applied a committed change."""
    STALE_LEADER = "stale leader"
    """A broker leads according to itself, but not, or no longer, according to the controller."""
    NO_ANSWER = "no answer"
    """The leader did not answer."""
    NO_LEADER = "no leader"
    """No leader is elected, so none can be queried."""
    CONFLICT = "conflict"
    """The leader and the log have different states under the same epochs, or the leader is ahead of
    the committed log. Must never happen.
    """


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference about one partition. ``text``: a description."""

    why: Why
    text: str
    mark: tuple[object, ...]
    """A value that stays equal while the leader makes no progress, so that a repeated comparison
    shows whether the difference lasts.
    """


@dataclass(frozen=True, slots=True)
class Compared:
    """One partition. ``committed``: None if deleted. ``led``: the leader's view, or None."""

    key: PartitionKey
    topic: str
    leader_id: int
    committed: Partition | None
    led: pb.LedPartition | None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A replica in an ISR."""

    broker_id: int
    broker_epoch: int | None
    """Broker epoch of the in-sync incarnation, or None if the leader does not report it."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A follower as its leader sees it."""

    replica_id: int
    replica_epoch: int | None
    log_end_offset: int | None
    last_caught_up_age_ms: int | None


@dataclass(frozen=True, slots=True)
class LeaderView:
    """A partition as its leader sees it."""

    topic: str
    partition: int
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    proposed_isr: tuple[IsrMember, ...] | None
    """ISR that the leader has proposed without a response yet, or None."""
    high_watermark: int | None
    log_end_offset: int
    followers: tuple[Follower, ...]


@dataclass(frozen=True, slots=True)
class AskedBroker:
    """A broker that was queried."""

    broker_id: int
    broker_epoch: int | None
    failure: str | None
    """Why the broker has not answered, or None."""


@dataclass(frozen=True, slots=True)
class LeaderViews:
    """Partitions as their leaders see them, sorted by topic and index, and the queried brokers."""

    partitions: tuple[LeaderView, ...]
    brokers: tuple[AskedBroker, ...]


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """A partition in the committed metadata."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IsrDifference:
    """A difference between the leader and the controller."""

    why: Why
    text: str
    lasting: bool
    """Whether the difference stayed the same during the whole comparison."""


@dataclass(frozen=True, slots=True)
class ComparedPartition:
    """A partition as its leader and as the controller see it."""

    topic: str
    partition: int
    leader_id: int | None
    leader: LeaderView | None
    committed: CommittedIsr | None
    differences: tuple[IsrDifference, ...]


@dataclass(frozen=True, slots=True)
class IsrComparison:
    """The leaders' ISRs compared with the committed ones."""

    offset: int
    """Offset of the committed metadata."""
    partitions: tuple[ComparedPartition, ...]
    brokers: tuple[AskedBroker, ...]
    lasting: int
    """Number of lasting differences."""


async def ask_for_isrs(client: AsyncClient, topics: Sequence[str]) -> LeaderViews:
    """Query every broker that clients know for the partitions of these topics, or of all topics.
    Raises UnknownTopicOrPartitionError.
    """
    described = await client.topics.describe_all(*topics, read="latest") if topics else ()
    _require_topics(getattr(described, "missing", ()))
    answers = await leaders.ask_leaders(
        client.core.transport,
        await unfenced(client),
        timeout_s=client.options.timeout_s,
        keys=[(bytes.fromhex(one.id), each.index) for one in described for each in one.partitions],
        cluster_id=client.options.cluster_id,
    )
    views = (_view(one, answer.broker_id) for answer in answers.values() for one in answer.led)
    return LeaderViews(
        tuple(sorted(views, key=lambda one: (one.topic, one.partition, one.leader_id))),
        tuple(map(_asked, answers.values())),
    )


async def compare_until_settled(
    client: AsyncClient, topics: Sequence[str], settle_s: float
) -> IsrComparison:
    """Compare until each of the first differences has disappeared, or the time is over. Raises
    UnknownTopicOrPartitionError.
    """
    loop = asyncio.get_running_loop()
    core, timeout_s = client.core, client.options.timeout_s
    committed = CommittedImage(core.log_reader(timeout_s))
    image = await committed.read()
    end = loop.time() + settle_s
    lasting: set[Any] | None = None
    while True:
        endpoints = {id_: broker.endpoint for id_, broker in image.brokers.items()}
        keys = _keys(image, topics)
        answers = await leaders.ask_leaders(
            core.transport, endpoints, timeout_s=timeout_s, keys=keys or ()
        )
        # Read after the leaders, so that it contains everything they know as committed.
        image = await committed.read()
        rows = compare(image, answers, keys)
        lasting = marks(rows) if lasting is None else lasting & marks(rows)
        if not lasting or loop.time() >= end:
            break
        await asyncio.sleep(min(LOOK_EVERY_S, max(0.0, end - loop.time())))
    compared = tuple(_compared(row, lasting) for row in rows)
    asked = tuple(map(_asked, answers.values()))
    return IsrComparison(image.offset, compared, asked, len(lasting))


def _keys(image: Image, topics: Sequence[str]) -> list[PartitionKey] | None:
    """Return the partitions of these topics, or None for all partitions."""
    if not topics:
        return None
    _require_topics([name for name in topics if name not in image.topic_ids])
    ids = [image.topic_ids[name] for name in dict.fromkeys(topics)]
    return [(id_, index) for id_ in ids for index in range(image.topics[id_].partition_count)]


def _require_topics(missing: Sequence[str]) -> None:
    if missing:
        message = f"there is no topic {', '.join(missing)}"
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


_member, _follower, _asked = reader(IsrMember), reader(Follower), reader(AskedBroker)
_committed = reader(CommittedIsr)


def _view(one: pb.LedPartition, broker_id: int) -> LeaderView:
    return _view_of(broker_id)(one)


@cache
def _view_of(broker_id: int) -> Callable[[pb.LedPartition], LeaderView]:
    return reader(
        LeaderView,
        topic=lambda one: one.topic_name or one.topic_id.hex(),
        partition="partition_index",
        leader_id=lambda _: broker_id,
        isr=lambda one: tuple(map(_member, one.isr)),
        proposed_isr=lambda one: tuple(map(_member, one.proposed_isr)) or None,
        followers=lambda one: tuple(map(_follower, one.followers)),
    )


def _compared(row: Compared, lasting: set[Any]) -> ComparedPartition:
    one = row.committed
    return ComparedPartition(
        row.topic,
        row.key[1],
        known(row.leader_id),
        None if row.led is None else _view(row.led, row.leader_id),
        None if one is None else _committed(one),
        tuple(
            IsrDifference(each.why, each.text, (row.key, each.mark) in lasting)
            for each in row.differences
        ),
    )


def compare(
    image: Image, answers: Mapping[int, LeaderAnswer], keys: Collection[PartitionKey] | None = None
) -> list[Compared]:
    """Compare the partitions in ``keys``, or all if None; sorted by topic name and index.
    ``answers``: from every registered broker.
    """
    claims: dict[PartitionKey, dict[int, pb.LedPartition]] = {}
    for broker_id in sorted(answers):
        for one in answers[broker_id].led:
            claims.setdefault((one.topic_id, one.partition_index), {})[broker_id] = one
    if keys is None:
        keys = dict.fromkeys([*(key for key, _ in image.partitions.items()), *claims])
    rows = []
    for key in keys:
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
    """Return the differences between the leader's view, which may be missing, and the committed
    one.
    """
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
        # Queried for everything it leads, it gives no reason for a missing partition; by name it
        # does.
        why = answer.refused.get(
            (committed.topic_id, committed.index), "it does not know that it leads, or cannot lead"
        )
        text = f"broker {leader} does not lead in leader epoch {committed.leader_epoch}: {why}"
        return [Difference(Why.LEADER_BEHIND, text, (Why.LEADER_BEHIND, leader))]
    theirs, ours = (
        (led.leader_epoch, led.partition_epoch),
        (committed.leader_epoch, committed.partition_epoch),
    )
    found: list[Difference] = []
    if theirs < ours:
        text = f"broker {leader} is at {_epochs(*theirs)}, but {_epochs(*ours)} is committed"
        found.append(Difference(Why.LEADER_BEHIND, text, (Why.LEADER_BEHIND, leader, *theirs)))
    elif theirs > ours:
        text = f"broker {leader} is at {_epochs(*theirs)}, but only {_epochs(*ours)} is committed"
        found.append(Difference(Why.CONFLICT, text, (Why.CONFLICT, leader, *theirs)))
    elif {one.broker_id for one in led.isr} != set(committed.isr):
        text = f"the same {_epochs(*ours)}, but a different ISR"
        found.append(Difference(Why.CONFLICT, text, (Why.CONFLICT, leader, *theirs)))
    else:
        found.extend(_other_incarnations(image, leader, led))
    if proposed := _proposed(led):
        mark = (Why.PROPOSED, leader, *theirs, tuple(one.broker_id for one in led.proposed_isr))
        found.append(Difference(Why.PROPOSED, f"broker {leader} has proposed {proposed}", mark))
    return found


def _other_incarnations(image: Image, leader: int, led: pb.LedPartition) -> list[Difference]:
    """Return the members whose broker epoch at the leader differs from the registered one."""
    found = []
    for one in led.isr:
        broker = image.brokers.get(one.broker_id)
        if broker is not None and one.broker_epoch >= 0 and broker.epoch != one.broker_epoch:
            text = (
                f"broker {leader} has broker {one.broker_id} in epoch {one.broker_epoch},"
                f" but {broker.epoch} is registered"
            )
            mark = (Why.LEADER_BEHIND, leader, one.broker_id, one.broker_epoch)
            found.append(Difference(Why.LEADER_BEHIND, text, mark))
    return found


def _proposed(led: pb.LedPartition) -> str:
    """Return the proposed change, such as ``+2 -3``, or ""."""
    if not led.proposed_isr:
        return ""
    before, after = ({one.broker_id for one in isr} for isr in (led.isr, led.proposed_isr))
    changes = [f"+{one}" for one in sorted(after - before)] + [
        f"-{one}" for one in sorted(before - after)
    ]
    return " ".join(changes) or "the same members with different epochs"


def _stale(broker_id: int, led: pb.LedPartition) -> Difference:
    text = f"broker {broker_id} believes it is the leader in leader epoch {led.leader_epoch}"
    return Difference(Why.STALE_LEADER, text, (Why.STALE_LEADER, broker_id, led.leader_epoch))


def _epochs(leader_epoch: int, partition_epoch: int) -> str:
    return f"leader epoch {leader_epoch}, partition epoch {partition_epoch}"


def marks(rows: Iterable[Compared]) -> set[tuple[PartitionKey, tuple[object, ...]]]:
    """Return all differences in a form that two comparisons can share."""
    return {(row.key, one.mark) for row in rows for one in row.differences}
