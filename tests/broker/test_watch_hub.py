import random

import pytest
from watch_world import LAO, TIP, Reader, World, token

from broker.watch import hub as hub_module
from broker.watch.responses import listing, position_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.changes import Position
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.selectors import parse_selectors
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.records.v1 import records_pb2 as rec


@pytest.fixture
def world() -> World:
    return World()


def test_watch_reports_its_start_and_then_the_changes(world: World) -> None:
    reader = world.watch("a", "configs/topic/orders")
    world.work()
    assert [one.offset for one in reader.tokens] == [world.log.last]
    assert reader.changes == []
    first, other, second = (
        world.config("orders", "1"),
        world.config("x", "1"),
        world.config("orders", "2"),
    )
    world.apply()
    world.work()
    assert reader.changes == [], "not at LAO yet"
    world.lao(second)
    world.work()
    one, two = reader.changes
    assert (one.kind, one.key, one.path) == (
        "config", "topic:orders:retention.ms", "configs/topic/orders/retention.ms"
    )  # fmt: skip
    assert (one.HasField("before"), one.after, one.offset) == (False, '"1"', first)
    assert (two.before, two.after, two.offset, two.epoch) == ('"1"', '"2"', second, 1)
    assert two.timestamp_ms == 1000 + second
    assert other not in {change.offset for change in reader.changes}
    assert reader.tokens[-1].offset == second


def test_tip_watcher_receives_a_change_once_applied(world: World) -> None:
    at_tip, at_lao = world.watch("t", mode=TIP), world.watch("l", mode=LAO)
    world.work()
    offset = world.config("orders", "1")
    world.apply()
    world.work()
    assert [one.offset for one in at_tip.changes] == [offset]
    assert at_lao.changes == []


def test_change_is_processed_only_for_watchers_that_selected_it(world: World) -> None:
    for number in range(500):
        world.watch(f"w{number}", f"configs/topic/t{number}", progress_ms=1 << 30)
    world.work()
    before = {name: len(reader.responses) for name, reader in world.readers.items()}
    world.config("t7", "1")
    world.receive()
    pieces = world.work()
    told = [name for name, reader in world.readers.items() if len(reader.responses) > before[name]]
    assert told == ["w7"]
    assert pieces <= 3, "nothing was done for the others"


def test_watchers_of_the_same_selection_receive_the_same_bytes(world: World) -> None:
    for number in range(200):
        world.watch(f"w{number}", "topics")
    world.work()
    world.topic("orders")
    world.receive()
    datas: dict[str, bytes] = {}
    while (told := world.hub.work(0.0)) is not None:
        assert len(told) <= hub_module.STEP_SENDS, "one piece is bounded"
        datas.update((one.handle, one.data) for one in told)
    assert len(datas) == 200
    assert len({id(data) for data in datas.values()}) == 1


def test_token_inside_a_record_resumes_with_its_remaining_changes(world: World) -> None:
    world.topic("orders", 5)
    removed = world.remove("orders")
    world.receive()
    whole = world.watch("a", "partitions", "topics", since=token(removed - 1))
    world.work()
    parts = [one.part for one in whole.changes]
    assert parts == [1, 2, 3, 4, 5, 0]
    assert [one.path for one in whole.changes][-2:] == ["partitions/orders/4", "topics/orders"]
    assert [(one.before != "", one.HasField("after")) for one in whole.changes] == [
        (True, False)
    ] * 6
    rest = world.watch("b", "partitions", "topics", since=token(removed, 3))
    world.work()
    assert rest.changes == whole.changes[3:]


def test_watcher_with_a_newer_token_waits_for_it(world: World) -> None:
    """Its last broker knew a higher LAO."""
    at = [world.config("orders", str(number)) for number in range(4)]
    world.receive(at[0])
    reader = world.watch("a", "configs", since=token(at[2]))
    world.work()
    assert [one.offset for one in reader.tokens] == [at[2]], "the watch is alive"
    world.lao(at[1])
    world.work()
    world.lao(at[2])
    world.work()
    assert reader.changes == []
    world.lao(at[3])
    world.work()
    assert [one.offset for one in reader.changes] == [at[3]]


def test_watch_of_compacted_changes_is_refused_with_a_new_start() -> None:
    world = World(history_max_bytes=200_000)
    early = world.config("orders", "0")
    for number in range(2000):
        world.config("orders", str(number))
        world.apply()
    world.lao(world.log.last)
    start = world.hub.history.start
    assert early < start < world.log.last
    assert world.hub.history.bytes < 600_000
    reader = world.watch("a", "configs", since=token(early))
    kept = world.watch("b", "configs", since=token(start))
    world.work()
    assert reader.ended.error.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (reader.ended.oldest.offset, reader.changes) == (start, [])
    assert (world.hub.compacted, world.hub.too_slow) == (1, 0), "it came late, it was not slow"
    assert [one.offset for one in kept.changes] == list(range(start + 1, world.log.end))


def test_slow_reader_delays_nobody_and_catches_up(world: World) -> None:
    slow, quick = world.watch("s", "configs"), world.watch("q", "configs")
    world.work()
    slow.room = False
    for number in range(50):
        world.config("orders", str(number))
        world.show()
    assert (len(quick.changes), len(slow.changes)) == (50, 0)
    slow.room = True
    world.moved()
    world.work()
    assert slow.changes == quick.changes
    assert world.hub.live == 2


def test_reader_that_is_too_slow_ends_with_its_last_token() -> None:
    world = World(history_max_bytes=100_000)
    slow = world.watch("s", "configs")
    world.work()
    begun = slow.tokens[-1].offset
    slow.room = False
    for number in range(2000):
        world.config("orders", str(number))
        world.show()
    assert slow.ended.error.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert "not read fast enough" in slow.ended.error.error_message
    assert slow.ended.token.offset == begun
    assert len(world.hub) == 0
    assert (world.hub.compacted, world.hub.too_slow) == (1, 1)
    assert world.hub.history.bytes < 400_000


def test_initial_list_is_of_one_image_and_changes_follow_it(world: World) -> None:
    for name in ("b", "a", "c"):
        world.topic(name)
        at = world.config(name, name)
    world.receive()
    reader = world.watch("w", "configs/topic/a", "topics/", initial=True)
    everything = world.watch("e", initial=True)
    world.work()
    assert sorted(one.path for one in reader.changes) == [
        "configs/topic/a/retention.ms",
        "topics/a",
        "topics/b",
        "topics/c",
    ]
    assert all(one.initial and not one.HasField("before") for one in reader.changes)
    assert {one.offset for one in reader.changes} == {at}
    assert reader.tokens[0].offset == at
    kinds = {one.kind for one in everything.changes}
    assert kinds == {"config", "topic", "partition", "broker", "leader"}
    world.config("a", "new")
    world.show()
    assert (reader.changes[-1].after, reader.changes[-1].initial) == ('"new"', False)


def test_initial_list_has_the_selected_keys_once_and_in_order() -> None:
    builder = ImageBuilder(Image())
    keys = ("a", "a/1", "a/2", "ab", "b/1", "c")
    records = [record(rec.KeyValueRecord(key=key, value=b"x")) for key in reversed(keys)]
    builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=1)
    image = builder.snapshot()
    for selectors, expected in (
        (["kv/a"], ["a", "a/1", "a/2"]),
        (["kv/a/"], ["a/1", "a/2"]),
        (["kv/a*", "kv/a/", "kv/a/1", "kv/c"], ["a", "a/1", "a/2", "ab", "c"]),
        (["kv/b", "kv/d"], ["b/1"]),
        (["kv"], list(keys)),
    ):
        listed = [one.key for one in listing(image, parse_selectors(selectors)) if one is not None]
        assert listed == expected, selectors


def test_long_list_is_sent_in_parts_and_has_a_token_only_when_complete(world: World) -> None:
    world.topic("big", 2000)
    world.receive()
    reader = world.watch("w", "partitions/big", initial=True)
    world.work()
    assert len(reader.responses) > 4
    assert [one.HasField("token") for one in reader.responses[:-1]] == [False] * (
        len(reader.responses) - 1
    )
    assert len({one.path for one in reader.changes}) == len(reader.changes) == 2000
    assert len(reader.tokens) == 1


def test_watch_omits_changes_once_the_permission_is_revoked(world: World) -> None:
    reader = world.watch("w", "configs", asker="alice")
    other = world.watch("o", "configs", asker="bob")
    world.work()
    world.hidden.add(("config", "topic:secret:retention.ms"))
    at = [world.config("secret", "1"), world.config("open", "1")]
    world.show()
    assert [one.offset for one in reader.changes] == [at[1]]
    world.hidden.clear()
    at.append(world.config("secret", "2"))
    world.show()
    assert [one.offset for one in other.changes] == at[1:]


@pytest.mark.parametrize("initial", [True, False], ids=["list", "catching up"])
def test_watch_lists_and_replays_only_permitted_entities(world: World, initial: bool) -> None:
    world.hidden.add(("config", "topic:secret:retention.ms"))
    begin = world.log.last
    world.config("secret", "1")
    seen = world.config("open", "1")
    world.receive()
    since = None if initial else token(begin)
    alice = world.watch("alice", "configs", asker="alice", initial=initial, since=since)
    anybody = world.watch("anybody", "configs", initial=initial, since=since)
    world.work()
    secret, shown = "configs/topic/secret/retention.ms", "configs/topic/open/retention.ms"
    assert [one.path for one in alice.changes] == [shown]
    assert {one.path for one in anybody.changes} == {secret, shown}
    assert alice.tokens[-1].offset == seen


def test_caught_up_watcher_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It left those at the head with the first response, and is back before the second."""
    monkeypatch.setattr(hub_module, "RESPONSE_BYTES", 1)
    world = World()
    reader = world.watch("w", "configs")
    world.work()
    at = [world.config("orders", str(number)) for number in range(3)]
    world.receive()
    world.hub._advance(0.0)
    reader.room = False
    world.hub._deliver(0.0)
    reader.room = True
    world.moved()
    while not world.hub.live:
        for told in world.hub._catch_up(0.0) or ():
            reader.hear(told)
    world.work()
    assert [one.offset for one in reader.changes] == at


def test_oldest_place_is_reported_with_its_own_epoch() -> None:
    world = World(history_max_bytes=50_000)
    early = world.config("orders", "0")
    epochs = {}
    for epoch in range(2, 6):
        world.log.epoch = epoch
        world.log.leader()
        for number in range(300):
            epochs[world.config("orders", str(number))] = epoch
            world.apply()
    world.lao(world.log.last)
    reader = world.watch("a", "configs", since=token(early))
    world.work()
    oldest = reader.ended.oldest
    assert oldest.epoch == epochs[oldest.offset] > 2
    kept = world.watch("b", "configs", since=oldest)
    world.work()
    assert kept.end is None


def test_idle_watch_receives_its_progress(world: World) -> None:
    reader = world.watch("w", "topics", progress_ms=1000)
    world.work()
    offset = world.config("orders", "1")
    world.receive()
    world.now = 0.9
    world.work()
    assert reader.tokens[-1].offset < offset
    world.now = 1.7
    world.work()
    assert (reader.tokens[-1].offset, reader.changes) == (offset, [])
    count = len(reader.tokens)
    world.work()
    assert len(reader.tokens) == count, "once an interval"


def test_token_is_renewed_before_it_is_compacted() -> None:
    """[A watch of an entity that never changes is resumed after an hour, from where it began.]"""
    world = World(history_max_bytes=100_000)
    reader = world.watch("w", "topics", progress_ms=1 << 30)
    world.work()
    for number in range(1500):
        world.config("orders", str(number))
        world.now += 0.1
        world.show()
        assert reader.end is None
        assert reader.tokens[-1].offset >= world.hub.history.start
    assert world.hub.history.start > reader.tokens[0].offset
    assert len(reader.tokens) < 150, "at most once a second"


def test_snapshot_ends_watches_that_need_the_changes_it_omits(world: World) -> None:
    reader = world.watch("w", "configs")
    world.work()
    for number in range(5):
        world.config("orders", str(number))
    image = world.log.image(world.log.last)
    world.view.install(image)
    world.lao(image.offset)
    world.work()
    assert reader.ended.oldest.offset == image.offset
    fresh = world.watch("f", "configs", since=token(image.offset))
    offset = world.config("orders", "x")
    world.show()
    assert [one.offset for one in fresh.changes] == [offset]


def test_all_watchers_are_notified_when_the_broker_stops(world: World) -> None:
    readers = [world.watch(name) for name in "abc"]
    world.work()
    error = ApiError(ErrorCode.BROKER_FENCED, "it is over")
    for told in world.hub.end_all(error):
        world.readers[told.handle].hear(told)
    for reader in readers:
        assert reader.ended.error.error_code == ErrorCode.BROKER_FENCED
        assert reader.ended.token.offset == world.log.last
    assert (len(world.hub), world.work()) == (0, 0)


def test_watch_of_an_abandoned_generation_ends_without_a_token(world: World) -> None:
    reader = world.watch("a")
    world.work()
    assert reader.tokens[-1].offset == world.log.last
    error = ApiError(ErrorCode.INCONSISTENT_GENERATION, "it is another log")
    (told,) = world.hub.end_all(error, resumable=False)
    end = pb.WatchResponse.FromString(told.data)
    assert end.error.error_code == ErrorCode.INCONSISTENT_GENERATION
    assert not end.HasField("token")
    assert not end.HasField("oldest")


SELECTORS = (
    (), ("configs",), ("configs/topic/t1",), ("configs/topic/t*", "topics/t2"), ("partitions/t1",),
    ("topics",), ("brokers",), ("configs/topic/t1/retention.ms", "configs/topic/t1"),
)  # fmt: skip


class RandomRun:
    def __init__(self, rng: random.Random, history_max_bytes: int) -> None:
        self.rng, self.world = rng, World(history_max_bytes=history_max_bytes)
        self.topics: list[str] = []
        self.lao = self.world.log.last
        self.actions = (
            (0.35, self.write), (0.2, self.apply), (0.15, self.move_lao), (0.1, self.watch),
            (0.1, self.toggle), (0.1, lambda: None),
        )  # fmt: skip

    def step(self) -> None:
        rng, world = self.rng, self.world
        world.now += rng.random()
        weights, actions = zip(*self.actions, strict=True)
        rng.choices(actions, weights)[0]()
        for _ in range(rng.choice((0, 1, 5, 1000))):
            for one in world.hub.work(world.now) or ():
                world.readers[one.handle].hear(one)
        for reader in world.readers.values():
            limit = world.view.applied if reader.mode == TIP else self.lao
            assert all(one.offset <= limit for one in reader.changes[-1:])

    def write(self) -> None:
        rng, world = self.rng, self.world
        for _ in range(rng.randint(1, 4)):
            choice = rng.random()
            if choice < 0.6:
                world.config(f"t{rng.randint(1, 4)}", str(world.log.end))
            elif choice < 0.8 or not self.topics:
                self.topics.append(f"t{world.log.end}")
                world.topic(self.topics[-1], rng.randint(1, 4))
            else:
                world.remove(self.topics.pop(rng.randrange(len(self.topics))))

    def apply(self) -> None:
        world = self.world
        if ends := [last for last, _ in world.log.batches if last > world.view.applied]:
            world.apply(self.rng.choice(ends) + 1)

    def move_lao(self) -> None:
        batches = self.world.log.batches
        if ends := [last for last, _ in batches if self.lao < last <= self.world.view.applied]:
            self.lao = self.rng.choice(ends)
            self.world.lao(self.lao)

    def watch(self) -> None:
        rng, world = self.rng, self.world
        since = None
        if rng.random() < 0.6:
            since = token(rng.randint(world.hub.history.start, world.log.last))
        world.watch(
            f"w{len(world.readers)}", *rng.choice(SELECTORS), mode=rng.choice((LAO, TIP)),
            since=since, progress_ms=rng.choice((500, 5000)),
        )  # fmt: skip

    def toggle(self) -> None:
        if self.world.readers:
            reader = self.world.readers[self.rng.choice(sorted(self.world.readers))]
            reader.room = not reader.room

    def finish(self) -> None:
        world = self.world
        for reader in world.readers.values():
            reader.room = True
        world.show()


def judge(world: World, reader: Reader) -> None:
    """Assert that a watcher received all it selected, to the end or its last token."""
    begun = reader.begun or (reader.tokens[0] if reader.tokens else None)
    if begun is None:
        return
    until = Position(world.log.last)
    if reader.end is not None:
        assert reader.end.error.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert reader.end.oldest.offset > -1
        if not reader.tokens:
            return
        until = position_of(reader.end.token)
        assert until >= position_of(reader.tokens[-1])
    got = [(one.offset, one.path) for one in reader.changes]
    assert got == world.expected(reader, position_of(begun), until), reader.name
    tokens = [position_of(one) for one in reader.tokens]
    assert tokens == sorted(tokens)


@pytest.mark.parametrize("seed", range(12))
def test_watchers_receive_each_change_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each watcher receives every selected change after its start once, in order, none above the
    limit of its read mode, with ascending tokens.
    """
    rng = random.Random(seed)
    monkeypatch.setattr(hub_module, "STEP_CHANGES", rng.choice((1, 3, 256)))
    monkeypatch.setattr(hub_module, "STEP_SENDS", rng.choice((1, 2, 64)))
    monkeypatch.setattr(hub_module, "RESPONSE_BYTES", rng.choice((1, 500, 1 << 18)))
    short = rng.random() < 0.5
    run = RandomRun(rng, 20_000 if short else 1 << 30)
    for _ in range(250):
        run.step()
    run.finish()
    for reader in run.world.readers.values():
        judge(run.world, reader)
    if not short:
        assert all(reader.end is None for reader in run.world.readers.values())
        assert run.world.hub.live == len(run.world.readers)


def test_watch_resumes_from_every_token(world: World) -> None:
    """Also from tokens inside a record, and at a broker that splits responses differently."""
    for number in range(3):
        world.topic(f"t{number}", 4)
        world.config(f"t{number}", "1")
    world.remove("t1")
    world.receive()
    first = world.watch("first", since=token(-1))
    world.work()
    for index, change in enumerate(first.changes):
        name = f"again{index}"
        again = world.watch(name, since=pb.WatchToken(offset=change.offset, part=change.part))
        world.work()
        assert again.changes == first.changes[index + 1 :]
        world.hub.forget(name)
