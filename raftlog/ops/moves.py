"""Plans that move replicas between brokers, to drain brokers or to balance replicas.

A plan is computed from a single image, using the target of each partition that is already moving.
An interrupted plan can therefore be continued: it is computed again, and then contains the
remaining moves. Nothing is moved to a broker that is cordoned, fenced, low on space, or being
drained.

A throttle is a config of all brokers, so that it also applies to moves that continue without this
command. When the plan has been carried out, the command restores the previous throttle, if any; if
it ends earlier, it prints how to do that. If another command removes the throttle, it is set again
before more moves begin.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftlog.client.leaders import ask_leaders
from raftlog.client.log_reader import CommittedImage
from raftlog.errors import ApiError, InvalidUpdateVersionError
from raftlog.metadata.config_keys import THROTTLES, broker_value, is_cordoned
from raftlog.metadata.entities import NO_LEADER, Partition
from raftlog.metadata.image import Image
from raftlog.text import counted, size, span

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient

AT_ONCE = 10
"""Default number of partitions that move at the same time."""
LOOK_S = 0.5
"""Interval in seconds at which the moves are checked."""
ASK_S = 5.0
"""Interval in seconds at which the leaders are queried for the remaining bytes, and the timeout of
an answer.
"""
ASKED_MAX = 1000
"""Largest number of moves for which the leaders are queried; if there are more, the remaining bytes
are not shown.
"""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition whose replicas change."""

    topic: str
    partition: int
    before: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StuckPartition:
    """A partition with a replica that no broker can take."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The remaining moves, sorted by topic and partition. ``under_way``: number of partitions that
    are already moving.
    """

    moves: tuple[Move, ...]
    stuck: tuple[StuckPartition, ...]
    under_way: int


def target_of(partition: Partition) -> tuple[int, ...]:
    """Return the replicas of a partition after its move, if any."""
    return tuple(one for one in partition.replicas if one not in partition.removing_replicas)


class _Room:
    """The brokers that can take replicas, with their racks and loads."""

    def __init__(
        self, image: Image, low_on_space: Collection[int], drained: Collection[int] = ()
    ) -> None:
        self._image = image
        self.load = Counter[int]()
        for partition in image.partitions.values():
            self.load.update(target_of(partition))
        self.sources = [
            broker_id
            for broker_id, broker in sorted(image.brokers.items())
            if broker.active and broker_id not in drained and not is_cordoned(image, broker_id)
        ]
        self.usable = [one for one in self.sources if one not in low_on_space]

    def rack(self, broker_id: int) -> str:
        """Return the rack of a broker, or "" if none."""
        broker = self._image.brokers.get(broker_id)
        return "" if broker is None else broker.rack

    def crowding(self, replicas: Iterable[int]) -> int:
        """Return how many replicas share a rack with an earlier one; brokers without a rack share
        none.
        """
        racks = [rack for rack in map(self.rack, replicas) if rack]
        return len(racks) - len(set(racks))

    def best(self, others: Collection[int], instead_of: int) -> int | None:
        """Return the broker that should hold a replica in addition to ``others``, or None."""
        free = [one for one in self.usable if one not in others and one != instead_of]
        return min(
            free, key=lambda one: (self.crowding((*others, one)), self.load[one], one), default=None
        )

    def move(self, source: int, target: int) -> None:
        """Count a replica as moved to another broker."""
        self.load[source] -= 1
        self.load[target] += 1


def drain_plan(
    image: Image, broker_ids: Collection[int], low_on_space: Collection[int] = ()
) -> MovePlan:
    """Return the moves after which these brokers have no replica, and none is moving to them.

    A move in progress to a broker that can no longer take the replica gets a new target instead of
    waiting for that broker forever.
    """
    room = _Room(image, low_on_space, broker_ids)
    moves, stuck, under_way = [], [], 0
    for topic, partition in _partitions(image):
        target = target_of(partition)
        gone = [
            one
            for one in target
            if one in broker_ids or (one in partition.adding_replicas and one not in room.usable)
        ]
        if not gone:
            under_way += bool(partition.adding_replicas or partition.removing_replicas)
            continue
        replicas = list(target)
        for one in gone:
            found = room.best([each for each in replicas if each not in gone], one)
            if found is None:
                can = f"only {counted(len(room.usable), 'broker')}" if room.usable else "no broker"
                why = f"{counted(len(target), 'replica')}, but {can} can take one"
                if low := sorted({*room.sources} - {*room.usable}):
                    why += f"; low on space: {', '.join(map(str, low))}"
                stuck.append(StuckPartition(topic, partition.index, partition.replicas, why))
                break
            replicas[replicas.index(one)] = found
            room.move(one, found)
        else:
            moves.append(Move(topic, partition.index, partition.replicas, tuple(replicas)))
    return MovePlan(tuple(moves), tuple(stuck), under_way)


def balance_plan(image: Image, low_on_space: Collection[int] = ()) -> MovePlan:
    """Return moves after which racks and counts are balanced, with at most one replica moved per
    partition.

    Replicas that share a rack while another rack has room move first; then replicas move from the
    broker with the most to the one with the fewest, until they differ by one. Partitions that are
    already moving are left alone.
    """
    room = _Room(image, low_on_space)
    moved: dict[tuple[str, int], Move] = {}
    resting = {
        (topic, one.index): one.replicas
        for topic, one in _partitions(image)
        if not one.adding_replicas and not one.removing_replicas
    }
    for name, replicas in resting.items():
        if room.crowding(replicas):
            _spread(room, name, replicas, moved)
    held: dict[int, dict[tuple[str, int], None]] = {}
    for name, replicas in resting.items():
        if name not in moved:
            for one in replicas:
                held.setdefault(one, {})[name] = None
    while (found := _level(room, resting, held, moved)) is not None:
        for one in resting[found]:
            del held[one][found]
    under_way = len(image.partitions) - len(resting)
    return MovePlan(tuple(moved[name] for name in sorted(moved)), (), under_way)


def _spread(
    room: _Room,
    name: tuple[str, int],
    replicas: tuple[int, ...],
    moved: dict[tuple[str, int], Move],
) -> None:
    """Move the last replica that shares a rack to another rack, if one has room."""
    for position in range(len(replicas) - 1, -1, -1):
        rest = (*replicas[:position], *replicas[position + 1 :])
        if room.crowding(rest) == room.crowding(replicas):
            continue
        found = room.best(rest, replicas[position])
        if found is None or room.crowding((*rest, found)) >= room.crowding(replicas):
            return
        _move(room, name, replicas, position, found, moved)
        return


def _level(
    room: _Room,
    resting: dict[tuple[str, int], tuple[int, ...]],
    held: dict[int, dict[tuple[str, int], None]],
    moved: dict[tuple[str, int], Move],
) -> tuple[str, int] | None:
    """Move one replica from a broker with many to one with few; return None if none can be moved.

    ``held``: broker id -> its partitions that have not been moved yet.
    """
    loaded = sorted(room.sources, key=lambda one: (-room.load[one], one))
    for source in loaded:
        for target in reversed(loaded):
            if room.load[source] - room.load[target] < 2:
                break
            if target not in room.usable:
                continue
            for name in held.get(source, ()):
                replicas = resting[name]
                if target in replicas:
                    continue
                position = replicas.index(source)
                after = (*replicas[:position], target, *replicas[position + 1 :])
                if room.crowding(after) <= room.crowding(replicas):
                    _move(room, name, replicas, position, target, moved)
                    return name
    return None


def _move(
    room: _Room,
    name: tuple[str, int],
    replicas: tuple[int, ...],
    position: int,
    target: int,
    moved: dict[tuple[str, int], Move],
) -> None:
    after = (*replicas[:position], target, *replicas[position + 1 :])
    room.move(replicas[position], target)
    moved[name] = Move(*name, replicas, after)


def _partitions(image: Image) -> Iterator[tuple[str, Partition]]:
    """Yield all partitions with their topics' names, in order."""
    for name in sorted(image.topic_ids):
        topic_id = image.topic_ids[name]
        for index in range(image.topics[topic_id].partition_count):
            yield name, image.partitions[topic_id, index]


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """The outcome of a plan that was carried out."""

    moved: int
    """Number of moves that were started."""
    stuck: tuple[StuckPartition, ...]
    refused: tuple[str, ...]
    """Errors of the moves that the controller refused."""
    waiting: tuple[str, ...]
    """Moves that made no progress for too long, with the brokers they wait for."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing in the plan is left to do."""
        return not (self.stuck or self.refused or self.waiting)


class BytesLeft:
    """The bytes that a plan still has to copy, as the leaders report from time to time."""

    def __init__(self) -> None:
        self._asked_at = -math.inf
        self._now: int | None = None
        self._first: tuple[int, float] | None = None
        self.least: int | None = None
        """The smallest value so far, or None; a larger one is not progress."""

    def is_due(self, now: float) -> bool:
        """Return whether it is time to query the leaders again."""
        return now >= self._asked_at + ASK_S

    def saw(self, size_bytes: int | None, now: float) -> None:
        """Record the leaders' total, or None if not all have answered."""
        self._asked_at, self._now = now, size_bytes
        if size_bytes is not None:
            self._first = self._first or (size_bytes, now)
            self.least = min(size_bytes, size_bytes if self.least is None else self.least)

    def in_words(self) -> str:
        """Return a text with the bytes and an estimate of the time, or "" if the bytes are unknown
        or zero.
        """
        if not self._now or self._first is None:
            return ""
        first, since = self._first
        text = f"; {size(self._now)} to copy"
        if self._now < first:
            left_s = self._now * (self._asked_at - since) / (first - self._now)
            text += f", about {span(round(left_s * 1000))} (estimate)"
        return text


@dataclass(frozen=True, slots=True)
class Rates:
    """The throttle of all brokers, as bytes per second by config; a config that is not set is
    absent.
    """

    of: Mapping[str, int]

    @classmethod
    def both(cls, rate: int) -> Rates:
        """Return the throttle with this rate for leaders and for followers."""
        return cls(dict.fromkeys(THROTTLES, rate))

    @classmethod
    def set_in(cls, image: Image) -> Rates:
        """Return the throttle that is set for all brokers."""
        found = {key: broker_value(image, -1, key) for key in THROTTLES}
        return cls({key: int(value) for key, value in found.items() if value is not None})

    @property
    def unset(self) -> list[str]:
        """The configs that are not set."""
        return [key for key in THROTTLES if key not in self.of]

    def command(self) -> str:
        """Return the command that sets this throttle."""
        options = [f"--set {key}={rate}" for key, rate in self.of.items()]
        options += [f"--delete {key}" for key in self.unset]
        return f"raftlog configs alter broker '' {' '.join(options)}"

    def way_back(self) -> str:
        """Return a text on how to restore this throttle."""
        return f"{'Restore the previous one' if self.of else 'Remove it'}: {self.command()}"

    async def replace(self, client: AsyncClient, present: Rates) -> None:
        """Set this throttle if ``present`` is still set. Raises ApiError."""
        expected = {key: present.of.get(key) for key in THROTTLES}
        try:
            await client.configs.alter(
                "broker", "", set=self.of, delete=self.unset, expected=expected
            )
        except InvalidUpdateVersionError:
            return


UNTHROTTLED = Rates({})


async def set_throttle(client: AsyncClient, rate: int) -> None:
    """Limit each broker's rate of sending to, and of fetching for, replicas that are being added to
    ``rate`` bytes per second. Raises ApiError.
    """
    await client.configs.alter("broker", "", set=Rates.both(rate).of)


class Mover:
    """Carries out a plan, moving a bounded number of partitions at a time across the cluster.

    Computes the plan again from the newest image before each step, so it may be interrupted at any
    time, and takes concurrent changes into account.
    """

    def __init__(
        self,
        client: AsyncClient,
        plan: Callable[[Image, Collection[int]], MovePlan],
        *,
        at_once: int,
        stalled_s: float,
        report: Callable[[str], None],
        throttle: int | None = None,
    ) -> None:
        """``plan``: called with the image and the brokers that are low on space. ``stalled_s``:
        seconds without progress after which it gives up. ``report``: called with a text about the
        progress when that has changed. ``throttle``: bytes per second that a broker sends to new
        replicas, and fetches for them.
        """
        self._client, self._plan, self._throttle = client, plan, throttle
        self._bytes = BytesLeft()
        self._at_once, self._stalled_s, self._report = at_once, stalled_s, report
        self._committed = CommittedImage(client.core.log_reader(client.options.timeout_s))
        self._refused: dict[tuple[str, int], str] = {}
        self._moved = 0

    async def present(self) -> tuple[Image, MovePlan]:
        """Return the image, and the plan's remaining moves. Raises ApiError, NetworkError."""
        image = await self._committed.read()
        seen = await self._client.brokers.visibility()
        return image, self._plan(image, {one.id for one in seen.brokers if one.low_on_space})

    async def run(self) -> MoveOutcome:
        """Move replicas until nothing is left, or nothing has moved for too long. Raises ApiError,
        NetworkError.
        """
        image = await self._committed.read()
        before = Rates.set_in(image)
        if self._throttle is None:
            if before.of:
                rate = size(min(before.of.values()))
                self._report(
                    f"a throttle of {rate} per second is already set; to remove it: "
                    f"{UNTHROTTLED.command()}"
                )
            return await self._move()
        own = Rates.both(self._throttle)
        if before == own or any(_waiting(image)):
            # It is that of moves that are under way, or of this command before an interruption.
            before = UNTHROTTLED
        await set_throttle(self._client, self._throttle)
        self._report(f"each broker sends at most {size(self._throttle)} per second to new replicas")
        replaced = False
        try:
            outcome = await self._move()
            if not outcome.waiting:
                await before.replace(self._client, own)
                replaced = True
        finally:
            if not replaced:
                self._report(f"the throttle stays. {before.way_back()}")
        return outcome

    async def _move(self) -> MoveOutcome:
        loop = asyncio.get_running_loop()
        seen: object = None
        changed_at, said = loop.time(), ""
        while True:
            image, plan = await self.present()
            left = [one for one in plan.moves if (one.topic, one.partition) not in self._refused]
            waiting = dict(_waiting(image))
            await self._ask_leaders(image, left, waiting, loop.time())
            state = (len(left), sorted(waiting.items()), self._bytes.least)
            if state != seen:
                seen, changed_at = state, loop.time()
            if not left and not waiting:
                return self._outcome(plan, {})
            if loop.time() - changed_at >= self._stalled_s:
                return self._outcome(plan, waiting)
            text = f"{self._moved} started, {len(waiting)} in progress, {len(left)} to start"
            text += self._bytes.in_words()
            if text != said:
                said = text
                self._report(text)
            retargeted = [one for one in left if (one.topic, one.partition) in waiting]
            fresh = [one for one in left if (one.topic, one.partition) not in waiting]
            room = max(0, self._at_once - len(waiting))
            if begin := [*retargeted, *fresh[:room]]:
                if self._throttle is not None and Rates.set_in(image) == UNTHROTTLED:
                    await Rates.both(self._throttle).replace(self._client, UNTHROTTLED)
                await self._begin(begin)
            else:
                await asyncio.sleep(LOOK_S)

    async def _ask_leaders(
        self,
        image: Image,
        left: Sequence[Move],
        waiting: Mapping[tuple[str, int], tuple[int, ...]],
        now: float,
    ) -> None:
        """Query the leaders from time to time for the remaining bytes, which are unknown if one
        does not answer.
        """
        if not self._bytes.is_due(now):
            return
        coming = {(one.topic, one.partition): len({*one.replicas} - {*one.before}) for one in left}
        names = {*coming, *waiting}
        keys = {(image.topic_ids[topic], index): (topic, index) for topic, index in names}
        endpoints: dict[int, str] = {}
        for key in keys:
            leader = image.brokers.get(image.partitions[key].leader)
            if leader is not None and leader.active:
                endpoints[leader.id] = leader.endpoint
        size_bytes, answered = 0, 0
        if 0 < len(keys) <= ASKED_MAX and endpoints:
            answers = await ask_leaders(
                self._client.core.transport, endpoints, timeout_s=ASK_S, keys=list(keys)
            )
            for led in (one for answer in answers.values() for one in answer.led):
                name = keys[led.topic_id, led.partition_index]
                answered += 1
                size_bytes += led.log_size_bytes * coming.get(name, 0)
                new = waiting.get(name, ())
                size_bytes += sum(
                    one.bytes_behind for one in led.followers if one.replica_id in new
                )
        self._bytes.saw(size_bytes if answered == len(keys) else None, now)

    async def _begin(self, moves: list[Move]) -> None:
        wanted: dict[str, dict[int, tuple[int, ...]]] = {}
        for one in moves:
            wanted.setdefault(one.topic, {})[one.partition] = one.replicas
        try:
            result = await self._client.partitions.reassign_all(
                wanted, keep_replication_factor=True
            )
        except ApiError as error:
            if error.write is None:
                raise
            result = error.write
        for item in result.items:
            if item.error is None:
                self._moved += 1
            else:
                # The plan would name it again at every step.
                self._refused[item.topic, item.partition] = str(item.error)

    def _outcome(
        self, plan: MovePlan, waiting: Mapping[tuple[str, int], tuple[int, ...]]
    ) -> MoveOutcome:
        return MoveOutcome(
            self._moved,
            plan.stuck,
            tuple(self._refused.values()),
            tuple(
                f"{topic}:{index} waits for {', '.join(map(str, on)) or 'its leader'}"
                for (topic, index), on in sorted(waiting.items())
            ),
        )


def _waiting(image: Image) -> Iterator[tuple[tuple[str, int], tuple[int, ...]]]:
    """Yield the partitions that are moving, each with the new replicas that are not in sync yet;
    without replicas if it has no leader.
    """
    for topic, one in _partitions(image):
        if one.adding_replicas or one.removing_replicas:
            new = [i for i in one.adding_replicas if i not in one.isr and one.leader != NO_LEADER]
            yield (topic, one.index), tuple(new)
