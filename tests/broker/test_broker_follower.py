from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from broker_log import LogMaker
from fake_link import FakeLink
from scenarios import scenario

from broker.metadata.follower import FollowerEvents, MetadataFollower
from broker.metadata.view import View
from broker.settings import FollowerSettings
from raftlog import batch
from raftlog.errors import ErrorCode, FatalError
from raftlog.transport.api import Conversation, LinkClosedError
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2
from raftlog.wire.records.v1 import records_pb2 as rec
from simulation.twins.loop import run

ME = 7
CLUSTER = "c-1"


class HandLink(FakeLink):
    def __init__(self, transport: HandTransport, address: str) -> None:
        super().__init__()
        self.transport, self.peer, self.open = transport, address, True

    def send(self, message: Any) -> None:
        if not self.open:
            raise LinkClosedError("closed")
        super().send(message)

    def close(self, reason: str = "") -> None:
        if self.open:
            self.open = False
            asyncio.get_running_loop().call_soon(self.transport.handler.closed, self, reason)


class HandDialer:
    def __init__(self) -> None:
        self.link: HandLink | None = None

    def close(self) -> None:
        if self.link is not None:
            self.link.close()


class HandTransport:
    def __init__(self) -> None:
        self.up = {"a:1", "b:1", "c:1"}
        self.dialled: list[str] = []
        self.handler: Any = None
        self.link: HandLink | None = None

    def dial(self, address: str, conversation: Conversation, handler: Any) -> HandDialer:
        assert conversation is Conversation.OBSERVER
        self.handler = handler
        self.dialled.append(address)
        dialer = HandDialer()
        if address in self.up:
            asyncio.get_running_loop().call_soon(self._open, dialer, address)
        return dialer

    def _open(self, dialer: HandDialer, address: str) -> None:
        self.link = dialer.link = HandLink(self, address)
        self.handler.opened(self.link)


class Stage:
    def __init__(self, *, max_bytes: int = 1 << 30, generation: int = 0) -> None:
        self.transport, self.log = HandTransport(), LogMaker()
        self.view = View(ME, max_bytes=max_bytes, generation=generation)
        self.epoch = -1
        self.moved: list[int] = []
        self.known: list[int] = []
        self.ends = False
        """The broker ends when it sees which generation the log is of."""
        self.generations: list[int] = []
        self.diverged: list[int] = []
        self.failures: list[FatalError] = []
        self.silent: list[str] = []
        self.follower = MetadataFollower(
            self.transport,  # type: ignore[arg-type]
            ["a:1", "b:1", "c:1"],
            self.view,
            FollowerEvents(
                lambda: self.moved.append(self.view.applied),
                self._known,
                lambda: self.generations.append(self.view.generation),
                lambda: self.diverged.append(self.view.generation),
                self.failures.append,
                self.silent.append,
            ),
            cluster_id=CLUSTER,
            broker_id=ME,
            broker_epoch=lambda: self.epoch,
            settings=FollowerSettings(),
            rng=random.Random(1),
        )

    def _known(self) -> None:
        self.known.append(self.view.generation)
        if self.ends:
            self.follower.close()

    @property
    def link(self) -> HandLink:
        assert self.transport.link is not None
        return self.transport.link

    async def begin(self) -> Stage:
        self.follower.start()
        await settle()
        return self

    def reply(self, *, link: HandLink | None = None, **fields: Any) -> None:
        """Answer with the committed records, unless the test sets another answer."""
        committed: dict[str, Any] = {
            "controller_epoch": 1,
            "generation": self.view.generation or 1,
            "cluster_id": CLUSTER,
            "leader_id": 1,
            "high_watermark": self.log.end,
            "lowest_acknowledged_offset": -1,
            "records": self.log.since(self.view.applied + 1),
        }
        target = link or self.link
        self.follower.received(target, [pb.MetadataFetchResponse(**committed | fields)])

    def refuse(self, code: ErrorCode, **fields: Any) -> None:
        error = common_pb2.Error(error_code=code, error_message="no")
        self.reply(error=error, records=b"", high_watermark=-1, **fields)


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def staged(test: Callable[[Stage], Awaitable[None]], **kwargs: Any) -> None:
    async def main() -> None:
        stage = await Stage(**kwargs).begin()
        await test(stage)
        stage.follower.close()

    run(main())


@scenario(staged)
async def test_next_fetch_reports_applied_offset_and_known_lao_at_once(stage: Stage) -> None:
    first = stage.link.sent[0]
    assert (first.fetch_offset, first.applied_offset, first.broker_epoch) == (0, -1, -1)
    assert (first.generation, first.cluster_id, first.replica_id) == (0, CLUSTER, ME)
    assert first.told_lowest_acknowledged_offset == -1
    assert first.max_wait_ms > 0
    assert first.max_bytes == 128 << 10, "what one turn may fold without a heartbeat"
    stage.log.leader()
    stage.log.config("1")
    stage.epoch = 33
    stage.reply(controller_epoch=4, lowest_acknowledged_offset=0, generation=2)
    second = stage.link.sent[1]
    assert (second.fetch_offset, second.applied_offset, second.broker_epoch) == (2, 1, 33)
    assert (second.controller_epoch, second.told_lowest_acknowledged_offset) == (4, 0)
    assert (second.high_watermark, second.generation) == (2, 2)
    assert stage.moved == [1]
    stage.reply(controller_epoch=4, lowest_acknowledged_offset=1, generation=2)
    assert stage.link.sent[2].told_lowest_acknowledged_offset == 1, "LAO alone moves on too"
    assert len(stage.link.sent) == 3, "one fetch outstanding"
    stage.log.config("2")
    stage.log.config("3")
    stage.reply(controller_epoch=4, generation=2, records=stage.log.since(2, 3))
    last = stage.link.sent[3]
    assert (last.applied_offset, last.fetch_offset, last.high_watermark) == (2, 3, 4), (
        "of committed records, only a part has come"
    )


@scenario(staged)
async def test_lao_for_an_outstanding_fetch_leaves_it_outstanding(stage: Stage) -> None:
    assert stage.link.sent[0].takes_lao_alone
    stage.log.leader()
    stage.log.config("1")
    stage.reply()
    assert len(stage.link.sent) == 2
    stage.reply(lowest_acknowledged_offset=1, fetch_stands=True)
    assert (stage.view.known_lao, len(stage.moved)) == (1, 2)
    assert len(stage.link.sent) == 2, "no other fetch: one is outstanding"
    stage.follower.resume()
    assert len(stage.link.sent) == 2
    stage.log.config("2")
    stage.reply(lowest_acknowledged_offset=1)
    assert stage.view.applied == 2, "the answer to that fetch"
    assert stage.link.sent[2].told_lowest_acknowledged_offset == 1


@scenario(staged)
async def test_unsolicited_response_is_ignored(stage: Stage) -> None:
    stage.log.leader()
    old = stage.link
    old.close("cut")
    await asyncio.sleep(0.1)
    assert stage.link is not old
    stage.reply(link=old)
    assert stage.view.applied == -1
    stage.refuse(ErrorCode.NOT_CONTROLLER)
    stage.reply()
    assert stage.view.applied == -1, "nothing is outstanding in the pause"


@scenario(staged)
async def test_follower_resumes_at_its_applied_offset_after_a_lost_link(stage: Stage) -> None:
    stage.log.leader()
    stage.reply()
    stage.link.close("cut")
    await asyncio.sleep(0.1)
    assert (stage.transport.dialled, stage.link.sent[0].fetch_offset) == (["a:1", "b:1"], 1)


@scenario(staged)
async def test_response_of_a_deposed_controller_is_ignored(stage: Stage) -> None:
    """[A deposed controller's LAO would rise above what the new one has announced.]"""
    stage.log.leader()
    stage.reply(controller_epoch=5, lowest_acknowledged_offset=0)
    stage.log.config("x")
    stage.reply(controller_epoch=4, lowest_acknowledged_offset=1)
    assert (stage.view.applied, stage.view.known_lao, stage.view.controller_epoch) == (0, 0, 5)
    await asyncio.sleep(0.1)
    assert stage.transport.dialled[-1] == "b:1"


@pytest.mark.parametrize("damage", ["flip", "gap", "cut", "uncommitted"])
@scenario(staged)
async def test_corrupt_chunk_is_dropped_and_fetched_again(stage: Stage, *, damage: str) -> None:
    for n in range(4):
        stage.log.config(str(n))
    good = stage.log.since(0)
    if damage == "flip":
        stage.reply(records=good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "gap":
        stage.reply(records=stage.log.since(1))
    elif damage == "cut":
        stage.reply(records=good[:-3])
    else:
        stage.reply(high_watermark=2)
    assert (stage.view.applied, stage.moved, stage.failures) == (-1, [], [])
    await asyncio.sleep(0.1)
    assert stage.link.sent[-1].fetch_offset == 0
    stage.reply()
    assert stage.view.applied == 3


@scenario(staged)
async def test_follower_follows_hints_to_the_leader(stage: Stage) -> None:
    stage.refuse(ErrorCode.NOT_CONTROLLER, leader_id=3, leader_endpoint="c:1")
    await settle()
    assert stage.transport.dialled == ["a:1", "c:1"]
    stage.log.leader()
    stage.reply()
    assert stage.view.applied == 0


@scenario(staged)
async def test_follower_tries_controllers_in_turn_with_pauses_when_none_leads(stage: Stage) -> None:
    asked = 0
    begun = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < begun + 5:
        if stage.link.open and stage.link.sent:
            asked += 1
            stage.link.sent.clear()
            stage.refuse(ErrorCode.NOT_CONTROLLER, leader_id=-1)
        await asyncio.sleep(0.01)
    assert 8 <= asked <= 40
    assert set(stage.transport.dialled) == {"a:1", "b:1", "c:1"}


@scenario(staged)
async def test_follower_skips_an_unreachable_controller(stage: Stage) -> None:
    stage.transport.up = {"c:1"}
    stage.link.close("dead")
    await asyncio.sleep(1.5)
    assert stage.link.peer == "c:1"
    assert stage.link.open


@scenario(staged)
async def test_follower_leaves_a_silent_controller(stage: Stage) -> None:
    first = stage.link
    await asyncio.sleep(1.9)
    assert stage.link is first, "a parked fetch is no silence"
    await asyncio.sleep(0.7)
    assert not first.open
    assert stage.silent == ["a:1"]
    assert stage.link.peer == "b:1"


@scenario(staged)
async def test_follower_restarts_when_the_log_descends_from_the_applied_one(stage: Stage) -> None:
    stage.log.leader()
    stage.reply(generation=9)
    assert (stage.known, stage.generations) == ([9], []), "the first one is not a change"
    stage.refuse(ErrorCode.INCONSISTENT_GENERATION, generation=2, previous_generations=[5, 9])
    assert (stage.view.applied, stage.view.generation, stage.generations) == (-1, 2, [2])
    assert (stage.link.sent[-1].fetch_offset, stage.link.sent[-1].generation) == (0, 2)
    stage.reply(generation=2)
    assert stage.view.applied == 0
    stage.reply(generation=3, previous_generations=[2], records=b"junk")
    assert (stage.view.applied, stage.generations) == (-1, [2, 3])


@scenario(staged)
async def test_follower_applies_nothing_before_a_generation_is_committed(stage: Stage) -> None:
    stage.log.leader()
    stage.reply(generation=0)
    assert (stage.known, stage.view.applied, len(stage.link.sent)) == ([], -1, 2)


@scenario(staged)
async def test_follower_restarts_when_the_log_lacks_applied_records(stage: Stage) -> None:
    assert not stage.link.sent[0].HasField("last_applied"), "nothing is applied"
    stage.log.leader()
    stage.log.config("1")
    stage.reply()
    stage.link.close()
    await asyncio.sleep(0.5)
    named = stage.link.sent[0].last_applied
    header = list(batch.headers(stage.log.since(1)))[-1]
    assert (named.base_offset, named.epoch) == (1, header.epoch)
    assert named.crc == batch.crc_at(stage.log.since(1), 0)
    end = quorum_pb2.EpochEndOffset(epoch=1, end_offset=1)
    stage.reply(diverging_epoch=end, records=b"")
    assert (stage.view.applied, stage.diverged, stage.generations) == (-1, [1], [])
    assert "another log from offset 1 on" in stage.follower.contradiction
    assert stage.link.sent[-1].fetch_offset == 0
    stage.reply()
    assert stage.view.applied == 1


@scenario(staged)
async def test_follower_names_its_applied_offset_in_each_controller_epoch(stage: Stage) -> None:
    stage.log.leader()
    stage.reply(controller_epoch=4)
    stage.reply(controller_epoch=4)
    stage.reply(controller_epoch=5)
    named = [one.HasField("last_applied") for one in stage.link.sent]
    assert named == [False, True, False, True]


@scenario(staged)
async def test_broker_stopped_on_seeing_the_generation_applies_nothing(stage: Stage) -> None:
    """[Registered in a log that was since recovered: it ends in the call that tells it.]"""
    stage.log.leader()
    stage.ends = True
    stage.reply(generation=1)
    assert (stage.known, stage.moved, stage.view.applied) == ([1], [], -1)


@pytest.mark.parametrize("known", [True, False])
def test_follower_leaves_a_controller_whose_log_does_not_descend_from_its_own(known: bool) -> None:
    """``known``: its own is that which it follows, else that of its directory."""

    async def test(stage: Stage) -> None:
        stage.log.leader()
        if known:
            stage.reply(generation=2)
        stage.refuse(ErrorCode.INCONSISTENT_GENERATION, generation=1, previous_generations=[7])
        assert (stage.view.applied, stage.view.generation) == (0 if known else -1, 2)
        await asyncio.sleep(0.1)
        assert stage.link.peer == "b:1"
        assert (stage.generations, stage.failures) == ([], [])

    staged(test, generation=0 if known else 2)


@pytest.mark.parametrize("refuses", [True, False])
@scenario(staged)
async def test_follower_skips_controller_of_another_cluster(stage: Stage, *, refuses: bool) -> None:
    stage.log.leader()
    stage.reply()
    if refuses:
        stage.refuse(ErrorCode.INCONSISTENT_CLUSTER_ID)
    else:
        stage.reply(cluster_id="other")
    await asyncio.sleep(0.1)
    assert stage.link.peer == "b:1"
    stage.reply()
    assert (stage.view.applied, stage.failures) == (0, [])


@scenario(staged)
async def test_follower_fails_when_all_controllers_are_of_other_clusters(stage: Stage) -> None:
    for _ in range(3):
        assert stage.failures == []
        stage.reply(cluster_id=f"other than {stage.link.peer}")
        await asyncio.sleep(1.0)
    (failure,) = stage.failures
    for address in ("a:1", "b:1", "c:1"):
        assert f"{address}: it belongs to cluster 'other than {address}'" in str(failure)


@scenario(staged)
async def test_records_that_do_not_fit_the_image_are_fatal(stage: Stage) -> None:
    stage.log.append(rec.UnregisterBrokerRecord(broker_id=9))
    stage.reply()
    assert len(stage.failures) == 1
    assert not stage.link.open, "it follows no more"


@scenario(staged, max_bytes=2000)
async def test_full_view_pauses_the_fetches_until_it_has_room(stage: Stage) -> None:
    stage.log.leader()
    stage.log.unfence(ME, stage.log.register(ME))
    stage.log.config("y" * 3000)
    stage.reply(lowest_acknowledged_offset=0)
    assert stage.view.backpressure
    assert len(stage.link.sent) == 1, "no fetch while there is no room"
    stage.follower.resume()
    assert len(stage.link.sent) == 1
    await asyncio.sleep(20)
    assert stage.link.open, "nothing is outstanding, so nobody is silent"
    stage.view.hear(1, stage.log.last)
    stage.follower.resume()
    stage.follower.resume()
    assert len(stage.link.sent) == 2
    assert stage.link.sent[1].told_lowest_acknowledged_offset == stage.log.last


@scenario(staged)
async def test_closed_follower_neither_applies_nor_dials(stage: Stage) -> None:
    link = stage.link
    stage.follower.close()
    stage.log.leader()
    stage.reply(link=link)
    await asyncio.sleep(5)
    assert (stage.view.applied, stage.transport.dialled) == (-1, ["a:1"])
