"""The simulated network's faults: delays, cuts, crashes, pauses."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from scenarios import scenario
from transport_worlds import Recorder, echo, request, until

from raftlog.errors import ConfigError
from raftlog.transport.api import Conversation, LinkClosedError, Probe, TransportLimits
from raftlog.wire.controller.v1 import controller_pb2
from simulation.twins.loop import VirtualLoop, host_context, run
from simulation.twins.network import NetworkParams, SimNetwork
from simulation.twins.network_transport import SimDialer, SimTransport

LIMITS = TransportLimits()
KEEPALIVE_S = (LIMITS.keepalive_time_ms + LIMITS.keepalive_timeout_ms) / 1000


@dataclass
class Pair:
    network: SimNetwork
    server: Recorder
    client: Recorder
    dialer: SimDialer
    server_transport: SimTransport
    client_transport: SimTransport


def simulate(
    scenario: Callable[[Pair], Awaitable[None]], seed: int = 3, params: NetworkParams | None = None
) -> None:
    """Run with a server on "s", at s:1, and a client on "c" connected to it."""

    async def main() -> None:
        network = SimNetwork(random.Random(seed), params)
        server_transport, client_transport = network.transport_for("s"), network.transport_for("c")
        server, client = Recorder(echo), Recorder()
        await server_transport.listen("s:1", {Conversation.CONTROLLER: server.accept})
        dialer = client_transport.dial("s:1", Conversation.CONTROLLER, client)
        await asyncio.sleep(0.1)
        await scenario(Pair(network, server, client, dialer, server_transport, client_transport))
        assert network.handler_failures == []

    run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


@scenario(simulate, params=NetworkParams(delay_min_ms=1, delay_extra_mean_ms=0.5))
async def test_delays_are_within_their_bounds_and_keep_the_order(pair: Pair) -> None:
    arrivals: list[float] = []
    pair.server.on_received = lambda *_: arrivals.append(now())
    began = now()
    for i in range(300):
        pair.client.links[0].send(request(i))
        await asyncio.sleep(0.0001)
    await asyncio.sleep(1)
    assert pair.server.ids == list(range(300))
    assert arrivals == sorted(arrivals)
    delays = [arrival - began - i * 0.0001 for i, arrival in enumerate(arrivals)]
    assert min(delays) >= 0.001
    assert 0.0015 < sum(delays) / 300 < 0.02


@scenario(simulate)
async def test_short_cut_holds_traffic_and_loses_none(pair: Pair) -> None:
    pair.client.links[0].send(request(1))
    await asyncio.sleep(0)
    pair.network.partition("s", "c")
    for i in range(2, 10):
        pair.client.links[0].send(request(i))
        await asyncio.sleep(0.05)
    assert pair.server.ids == []
    pair.network.heal("s", "c")
    pair.client.links[0].send(request(10))
    await asyncio.sleep(0.1)
    assert pair.server.ids == pair.client.ids == list(range(1, 11))
    await asyncio.sleep(2 * KEEPALIVE_S)
    assert pair.client.events.count("closed") == 0


@scenario(simulate)
async def test_network_keeps_the_order_after_a_cut(pair: Pair) -> None:
    sent = 0
    for _ in range(50):
        pair.network.partition("s", "c")
        for pause_s in (0.0005, 0.0004, 0.0002, 0.0001):
            sent += 1
            pair.client.links[0].send(request(sent))
            await asyncio.sleep(pause_s)
        # Some are held by now, and some are on their way and arrive before the held ones are
        # sent again.
        pair.network.heal("s", "c")
        await asyncio.sleep(0.0001)
    await asyncio.sleep(1)
    assert pair.server.ids == pair.client.ids == list(range(1, sent + 1))


@pytest.mark.parametrize("cut", ["partition", "towards server", "towards client"])
@scenario(simulate)
async def test_long_cut_breaks_the_link_at_both_ends_by_keepalive(pair: Pair, *, cut: str) -> None:
    if cut == "partition":
        pair.network.partition("s", "c")
    else:
        pair.network.block(*(("c", "s") if cut == "towards server" else ("s", "c")))
    pair.client.links[0].send(request(1))
    await asyncio.sleep(LIMITS.keepalive_timeout_ms / 1000 - 0.01)
    assert pair.client.reasons == pair.server.reasons == []
    await asyncio.sleep(KEEPALIVE_S)
    # The end that hears nothing notices by itself; the other may be told, if the way to it is
    # open.
    assert len(pair.client.reasons) == len(pair.server.reasons) == 1
    assert any("keepalive" in reason for reason in pair.client.reasons + pair.server.reasons)
    assert pair.server.ids == ([1] if cut == "towards client" else [])
    assert pair.dialer.link is None

    pair.network.unblock_all()
    await asyncio.sleep(LIMITS.connect_timeout_ms / 1000 + 1)
    assert len(pair.client.links) == 2
    # What the broken link had held is lost, not delivered late.
    assert pair.server.ids == ([1] if cut == "towards client" else [])


@scenario(simulate)
async def test_crash_closes_the_peers_links_at_once_and_refuses_connects(pair: Pair) -> None:
    pair.network.crash("s")
    assert pair.client.reasons == []
    await asyncio.sleep(0.02)
    assert pair.client.reasons == ["the peer ended the stream"]
    assert pair.server.events.count("closed") == 0  # Nobody is left to be told.
    assert await pair.client_transport.probe("s:1", 1) is Probe.REFUSED
    with pytest.raises(LinkClosedError):
        pair.server.links[0].send(controller_pb2.ControllerResponse())
    with pytest.raises(LinkClosedError):
        pair.server_transport.dial("c:1", Conversation.CONTROLLER, Recorder())

    restarted = Recorder(echo)
    await pair.network.transport_for("s").listen("s:1", {Conversation.CONTROLLER: restarted.accept})
    began = now()
    await until(lambda: restarted.links)
    assert now() - began < 0.2
    assert len(pair.server.links) == 1


@scenario(simulate)
async def test_crash_of_the_client_ends_its_dialers(pair: Pair) -> None:
    pair.network.crash("c")
    await asyncio.sleep(10)
    assert (pair.client.events, pair.server.reasons) == (["opened"], ["the peer ended the stream"])
    assert len(pair.server.links) == 1


@scenario(simulate)
async def test_crash_of_a_server_before_it_accepts_fails_the_connect_at_once(pair: Pair) -> None:
    late = Recorder()
    pair.client_transport.dial("s:1", Conversation.CONTROLLER, late)
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # The connect is on its way.
    pair.network.pause("s")
    await asyncio.sleep(0.1)
    assert late.events == []
    pair.network.crash("s")
    restarted = Recorder(echo)
    await pair.network.transport_for("s").listen("s:1", {Conversation.CONTROLLER: restarted.accept})
    await asyncio.sleep(0.2)
    assert late.events == ["opened"]


@scenario(simulate)
async def test_crashed_process_runs_nothing(pair: Pair) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(now())

    task = asyncio.get_running_loop().create_task(tick(), context=host_context("s"))
    await asyncio.sleep(0.1)
    # Its link has ended, and it would be told next.
    pair.server.links[0].close("too late")
    pair.network.crash("s")
    crashed_at = now()
    await asyncio.sleep(1)
    assert ticks
    assert max(ticks) <= crashed_at
    assert pair.server.reasons == []
    assert not task.done()


def test_message_of_a_broken_link_never_arrives() -> None:
    broken = 0

    async def scenario(pair: Pair) -> None:
        nonlocal broken
        pair.network.partition("s", "c")
        pair.client.links[0].send(request(1))
        await until(lambda: pair.client.reasons or pair.server.reasons)
        first_was_client = bool(pair.client.reasons)
        pair.network.heal("s", "c")
        await asyncio.sleep(1)
        # One end gave up, and told the other as soon as it could.
        assert len(pair.client.reasons) == len(pair.server.reasons) == 1
        if first_was_client:
            broken += 1
            assert pair.server.ids == []

    for seed in range(12):
        simulate(scenario, seed=seed)
    assert broken


@scenario(simulate)
async def test_invisible_crash_looks_like_silence(pair: Pair) -> None:
    pair.network.isolate("s")
    pair.network.crash("s")
    assert await pair.client_transport.probe("s:1", 1) is Probe.SILENT
    await asyncio.sleep(0.5)
    assert pair.client.reasons == []
    await asyncio.sleep(KEEPALIVE_S)
    assert pair.client.reasons == ["UNAVAILABLE: keepalive timeout"]


@scenario(simulate)
async def test_paused_host_receives_nothing_until_it_resumes(pair: Pair) -> None:
    pair.network.pause("s")
    pair.client.links[0].send(request(1))
    await asyncio.sleep(1)
    assert pair.server.ids == []
    assert await pair.client_transport.probe("s:1", 1) is Probe.ACCEPTED  # By its kernel.
    pair.network.resume("s")
    await asyncio.sleep(0.1)
    assert pair.client.ids == [1]

    pair.network.pause("s")
    await asyncio.sleep(KEEPALIVE_S + 5)
    assert (pair.client.events, pair.server.reasons) == (["opened", "received", "closed"], [])
    pair.network.resume("s")
    await asyncio.sleep(LIMITS.connect_timeout_ms / 1000 + 1)
    assert pair.server.reasons == ["the peer ended the stream"]
    assert len(pair.client.links) == len(pair.server.links) == 2


@scenario(simulate, params=NetworkParams(limits=TransportLimits(max_queued_messages=100)))
async def test_full_queue_behind_a_cut_closes_the_link(pair: Pair) -> None:
    pair.network.partition("s", "c")
    for i in range(100):
        pair.client.links[0].send(request(i))
        await asyncio.sleep(0.001)
    with pytest.raises(LinkClosedError, match="does not keep up"):
        pair.client.links[0].send(request(100))


@scenario(simulate)
async def test_unknown_hosts_are_silent_and_listening_elsewhere_is_refused(pair: Pair) -> None:
    began = now()
    assert await pair.client_transport.probe("nobody:1", 1.5) is Probe.SILENT
    assert now() == began + 1.5
    with pytest.raises(ConfigError, match="this host is c"):
        await pair.client_transport.listen("s:2", {})


@scenario(simulate)
async def test_backoff_doubles_up_to_its_bound_and_restarts_after_a_good_link(pair: Pair) -> None:
    attempts: list[float] = []
    connect = pair.network.connect

    def counted(dialer: Any) -> Any:
        attempts.append(now())
        return connect(dialer)

    pair.network.connect = counted  # type: ignore[method-assign]
    await asyncio.sleep(5)
    pair.network.crash("s")
    await asyncio.sleep(5)
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    ceilings = [0.04, 0.08, 0.16, 0.32, *[0.5] * 20]
    # A refused connect takes a moment itself.
    assert all(c / 2 <= pause <= c + 0.01 for pause, c in zip(pauses, ceilings, strict=False))
    assert len(attempts) >= 12

    attempts.clear()
    await pair.network.transport_for("s").listen(
        "s:1", {Conversation.CONTROLLER: Recorder().accept}
    )
    await asyncio.sleep(2)
    crashed_at = now()
    pair.network.crash("s")
    attempts.clear()
    await asyncio.sleep(1)
    assert 0.01 <= attempts[0] - crashed_at <= 0.03


@scenario(simulate)
async def test_server_that_hangs_up_at_once_is_redialed_with_backoff(pair: Pair) -> None:
    hangs_up = Recorder()

    def accept(link: object) -> Recorder:
        hangs_up.accept(link)  # type: ignore[arg-type]
        link.close("go away")  # type: ignore[attr-defined]
        return hangs_up

    await pair.server_transport.listen("s:2", {Conversation.CONTROLLER: accept})
    pair.client_transport.dial("s:2", Conversation.CONTROLLER, Recorder())
    await asyncio.sleep(10)
    assert 20 <= len(hangs_up.links) <= 50


@scenario(simulate)
async def test_paused_host_with_slow_code_does_nothing_more_when_killed(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.set_cost("s", lambda: 1.0)
    pair.server.on_received = None
    link = pair.client.links[0]
    link.send(request(1))
    await until(lambda: pair.server.ids == [1])
    # It is busy with the first one for a second; the others wait behind it.
    for number in (2, 3):
        link.send(request(number))
    await asyncio.sleep(0.5)
    pair.network.pause("s")
    await asyncio.sleep(2.0)
    pair.network.crash("s")
    assert pair.server.ids == [1]
    await asyncio.sleep(5.0)
    assert pair.server.ids == [1]
