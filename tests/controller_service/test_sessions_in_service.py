"""Broker sessions: a backlog or a pause of the controller fences no broker."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from quorum_world import Node, World, after_each, alter
from scenarios import scenario, simulated

from controller.disk.space import FINE, Verdict
from controller.service.intake import GATHER_S
from controller.service.upkeep import PROBE_AGAIN_S, REFUSALS, BrokerProbes
from controller.settings import ControllerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Probe
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.records.v1 import records_pb2
from simulation.twins.loop import run


class FakeBroker:
    """Registers and heartbeats by hand, reporting everything as applied."""

    def __init__(self, world: World) -> None:
        self.world = world
        transport = world.network.transport_for("broker")
        self.client = ControllerClient(transport, world.bootstrap, rng=random.Random(3))
        self.epoch = -1

    async def register(self) -> None:
        ranges = [
            records_pb2.FeatureRange(name=name, min_supported_version=0, max_supported_version=9)
            for name in ("metadata.version", "lao.version")
        ]
        listener = records_pb2.Listener(name="PLAINTEXT", host="broker", port=9092)
        request = pb.RegisterBrokerRequest(
            broker_id=7,
            cluster_id="c",
            incarnation_id="one",
            listeners=[listener],
            features=ranges,
            registration_version=1,
        )
        self.epoch = (await self.client.call(request)).register_broker.broker_epoch

    def heartbeat(self, node: Node, timeout_s: float = 5.0, **fields: Any) -> asyncio.Future:
        service = node.service
        content: dict[str, Any] = {
            "broker_id": 7,
            "broker_epoch": self.epoch,
            "current_metadata_offset": service.node.committed_end - 1,
            "controller_epoch": service.node.controller_epoch,
            "target_state": pb.ACTIVE,
            "told_lowest_acknowledged_offset": service.node.lowest_acknowledged_offset,
        }
        request = pb.BrokerHeartbeatRequest(**{**content, **fields})
        return self.client.send(pb.ControllerRequest(broker_heartbeat=request), timeout_s)

    def fenced(self, node: Node) -> bool:
        return node.service.image.brokers[7].fenced


async def unfenced_broker() -> tuple[World, Node, FakeBroker]:
    world = World()
    node = await world.active()
    broker = FakeBroker(world)
    await broker.register()
    while broker.fenced(node):
        await broker.heartbeat(node)
        await asyncio.sleep(0.05)
    return world, node, broker


SESSION_S = ControllerSettings().broker_session_timeout_ms / 1000


@simulated
async def test_controller_that_was_paused_extends_all_sessions_by_the_pause() -> None:
    world, node, broker = await unfenced_broker()
    await asyncio.sleep(SESSION_S - 1)
    # As after a pause of four seconds: the timer comes that much too late.
    node.service._housekeeping.next_tick_at -= 4
    await asyncio.sleep(3)
    assert not broker.fenced(node)
    await world.until(lambda: broker.fenced(node), within_s=3)


@simulated
async def test_heartbeat_counts_from_its_arrival() -> None:
    world, node, broker = await unfenced_broker()
    await asyncio.sleep(SESSION_S - 0.3)
    # Nothing can be committed for a while, so nothing is decided: the heartbeat waits in the queue
    # until its time is up.
    world.cut_off(node)
    stuck = asyncio.ensure_future(world.client.call(alter("k")))
    await asyncio.sleep(0.1)
    late = broker.heartbeat(node, timeout_s=0.2)
    await asyncio.sleep(0.4)
    assert (await late).error.error_code == ErrorCode.REQUEST_TIMED_OUT
    world.network.unblock_all()
    await stuck
    assert node.service.node.decider is not None, "still the same leadership"
    await asyncio.sleep(2)
    assert not broker.fenced(node)


@simulated
async def test_backlog_longer_than_all_timeouts_fences_and_silences_no_broker() -> None:
    """Slow disks, and far more writes than they sustain: the last write waits longer than a broker
    would before it fences itself.
    """
    world, node, broker = await unfenced_broker()
    loop = asyncio.get_running_loop()
    for other in world.nodes.values():
        other.disk.latency_factor = 200.0
    begun = loop.time()
    writes = [
        asyncio.ensure_future(world.client.call(alter("k", "x" * 30_000), timeout_s=60.0))
        for _ in range(BACKLOG)
    ]
    waits: list[float] = []
    while not all(write.done() for write in writes):
        sent = loop.time()
        assert (await broker.heartbeat(node, timeout_s=60.0)).HasField("broker_heartbeat")
        waits.append(loop.time() - sent)
        assert not broker.fenced(node)
        await asyncio.sleep(1.0)
    assert loop.time() - begun > 12.0, "no backlog worth the name"
    assert max(waits) < 3.0, "answered long before what came earlier"
    assert node.service.node.decider is not None
    assert not broker.fenced(node)


@simulated
async def test_full_queue_accepts_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    _, node, broker = await unfenced_broker()
    monkeypatch.setattr("controller.service.intake.MAX_WAITING", 0)
    for _ in range(12):
        refused = (await broker.heartbeat(node)).error
        assert refused.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        await asyncio.sleep(1.0)
    assert not broker.fenced(node), "it was heard all the same"


@simulated
async def test_heartbeats_that_change_nothing_share_a_turn_and_a_read_index_round() -> None:
    _, node, broker = await unfenced_broker()
    rounds: list[int] = []
    after_each(node.service.replica, "request_read_index", lambda: rounds.append(1))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    answers = []
    for _ in range(10):
        answers.append(broker.heartbeat(node))
        await asyncio.sleep(GATHER_S / 20)
    assert not any(answer.HasField("error") for answer in await asyncio.gather(*answers))
    assert len(rounds) == 1
    assert loop.time() - begun < GATHER_S + 0.02
    # One that stops is not kept waiting, and the others with it are not either.
    begun = loop.time()
    patient, leaving = broker.heartbeat(node), broker.heartbeat(node, target_state=pb.STOPPING)
    assert (await leaving).broker_heartbeat.current_state != pb.ACTIVE
    await patient
    assert loop.time() - begun < GATHER_S


BACKLOG = 500


@simulated
async def test_heartbeats_are_answered_when_the_disk_is_full() -> None:
    _, node, broker = await unfenced_broker()
    # What its answer says it goes by, and what its arrival says the controller: it must not be
    # fenced by one of them alone.
    node.service.node.space.verdict = Verdict("no disk has its reserve")
    assert not (await broker.heartbeat(node)).HasField("error")
    leaving = pb.ControllerResponse()
    while not leaving.broker_heartbeat.should_shut_down:
        leaving = await broker.heartbeat(node, target_state=pb.STOPPING)
        assert not leaving.HasField("error")
    assert broker.fenced(node)


@simulated
async def test_no_broker_is_unfenced_without_space() -> None:
    _, node, broker = await unfenced_broker()
    while not broker.fenced(node):
        # Not at once: this controller does not know yet whether the broker has a lease.
        await broker.heartbeat(node, target_state=pb.INACTIVE)
        await asyncio.sleep(0.5)
    node.service.node.space.verdict = Verdict("no disk has its reserve")
    end = node.service.replica.log_end_offset
    for _ in range(5):
        answer = await broker.heartbeat(node)
        assert not answer.HasField("error")
        assert answer.broker_heartbeat.is_fenced
        await asyncio.sleep(0.2)
    assert (broker.fenced(node), node.service.replica.log_end_offset) == (True, end)
    node.service.node.space.verdict = FINE
    await broker.heartbeat(node)
    assert not broker.fenced(node)


# --- Leases for strict reads at a whole controller -----------------------------------------------


UNREGISTER = pb.UnregisterBrokerRequest(broker_id=7)


@simulated
async def test_isolated_controller_grants_no_lease() -> None:
    """[A deposed controller that answers heartbeats extends leases that the new one does not know.]"""
    world, node, broker = await unfenced_broker()
    reply = (await broker.heartbeat(node, want_read_lease=True)).broker_heartbeat
    assert reply.read_lease_ms == 0.75 * SESSION_S * 1000
    world.cut_off(node)
    answered = broker.heartbeat(node, timeout_s=30.0, want_read_lease=True)
    while node.service.node.decider is not None:
        assert not answered.done()
        await asyncio.sleep(0.01)
    # Given by the one that the others have elected.
    assert (await answered).controller_epoch == 2


@simulated
async def test_unregistration_that_waits_for_a_lease_times_out_without_effect() -> None:
    world, node, broker = await unfenced_broker()
    await broker.heartbeat(node, want_read_lease=True)
    with pytest.raises(ApiError) as error:
        await world.client.call(UNREGISTER, timeout_s=1.0)
    assert (error.value.code, error.value.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, False)
    await asyncio.sleep(2.0)
    assert 7 in node.service.image.brokers


@simulated
async def test_unregistration_that_waits_for_a_lease_moves_to_the_next_controller() -> None:
    world, node, broker = await unfenced_broker()
    await broker.heartbeat(node, want_read_lease=True)
    begun = asyncio.get_running_loop().time()
    unregistered = asyncio.ensure_future(world.client.call(UNREGISTER, timeout_s=60.0))
    await asyncio.sleep(1.0)
    assert not unregistered.done()
    node.service.replica.resign("test")
    await unregistered
    # The next one knows of no lease, and waits all the same: for a session timeout from its claim
    # on.
    assert asyncio.get_running_loop().time() - begun >= SESSION_S


# --- A broker whose connection broke is looked for at its listener; what counts as evidence, an---


LINK, OTHER = object(), object()
ACCEPTED, REFUSED, SILENT = Probe.ACCEPTED, Probe.REFUSED, Probe.SILENT


class Scene:
    """An active controller with broker 7 of epoch 3, and scripted probes."""

    def __init__(self) -> None:
        self.finds = ACCEPTED
        self.probed: list[str] = []
        self.gone: list[tuple[int, int]] = []
        self.alive = True
        self.broker = SimpleNamespace(id=7, epoch=3, fenced=False, endpoint="b:9092")
        active: Any = SimpleNamespace(
            found_gone=lambda broker_id, epoch, _now: self.gone.append((broker_id, epoch)),
            state=SimpleNamespace(
                log=SimpleNamespace(pending=SimpleNamespace(brokers={7: self.broker})),
                sessions=SimpleNamespace(is_alive=lambda _id, _now: self.alive),
            ),
        )
        self.probes = BrokerProbes(self, lambda: active, lambda: None)  # type: ignore[arg-type]

    async def probe(self, address: str, _timeout_s: float) -> Probe:
        self.probed.append(address)
        await asyncio.sleep(0.001)
        if isinstance(self.finds, Exception):
            raise self.finds
        return self.finds

    async def heard(self, link: object = LINK) -> None:
        self.probes.heard(link, 7, 3)
        await asyncio.sleep(0.01)

    async def closed(self, finds: Any, link: object = LINK) -> None:
        self.finds = finds
        self.probes.closed(link)
        await asyncio.sleep(0.5)


def scene(test: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        made = Scene()
        await test(made)
        made.probes.reset()

    run(main())


@scenario(scene)
async def test_broken_connection_and_a_refusing_listener_are_evidence(at: Scene) -> None:
    await at.heard()
    await at.heard()
    assert at.probed == ["b:9092"], "once for each registration"
    begun = asyncio.get_running_loop().time()
    at.finds = REFUSED
    at.probes.closed(LINK)
    while not at.gone:
        await asyncio.sleep(0.001)
    assert at.gone == [(7, 3)]
    assert asyncio.get_running_loop().time() - begun < REFUSALS * PROBE_AGAIN_S + 0.1
    await asyncio.sleep(2)
    assert len(at.probed) == 1 + REFUSALS


@pytest.mark.parametrize("finds", [ACCEPTED, SILENT, ValueError("no address")])
@scenario(scene)
async def test_broken_connection_alone_is_not_evidence(at: Scene, *, finds: Any) -> None:
    await at.heard()
    await at.closed(finds)
    assert at.gone == []
    # It dies later.
    at.finds = REFUSED
    await asyncio.sleep(0.5)
    assert at.gone == [(7, 3)]


@pytest.mark.parametrize("finds", [REFUSED, SILENT])
@scenario(scene)
async def test_listener_that_never_accepted_is_not_evidence(at: Scene, *, finds: Probe) -> None:
    """[The advertised listener is for clients: it refuses this node at all times.]"""
    at.finds = finds
    await at.heard()
    await at.closed(REFUSED)
    assert at.gone == []
    assert len(at.probed) == 1


@scenario(scene)
async def test_only_consecutive_refusals_count(at: Scene) -> None:
    await at.heard()
    at.finds = REFUSED
    at.probes.closed(LINK)
    for turn in range(20):
        await asyncio.sleep(PROBE_AGAIN_S + 0.001)
        at.finds = ACCEPTED if turn % 2 == 0 else REFUSED
    assert at.gone == []


@scenario(scene)
async def test_broker_heard_on_another_link_is_not_probed(at: Scene) -> None:
    await at.heard()
    await at.heard(OTHER)
    await at.closed(REFUSED, LINK)
    assert at.gone == []
    at.probes.closed(OTHER)
    await asyncio.sleep(PROBE_AGAIN_S / 2)
    at.finds = REFUSED
    await at.heard(LINK)
    await asyncio.sleep(1)
    assert at.gone == [], "it came back meanwhile"


@pytest.mark.parametrize("end", ["fenced", "another registration", "session over", "deposed"])
@scenario(scene)
async def test_probing_ends_when_there_is_nothing_to_find(at: Scene, *, end: str) -> None:
    await at.heard()
    await at.closed(ACCEPTED)
    if end == "fenced":
        at.broker.fenced = True
    elif end == "another registration":
        at.broker.epoch = 9
    elif end == "session over":
        at.alive = False
    else:
        at.probes.reset()
    at.finds = REFUSED
    await asyncio.sleep(0.5)
    count = len(at.probed)
    await asyncio.sleep(2)
    assert (at.gone, len(at.probed)) == ([], count)
