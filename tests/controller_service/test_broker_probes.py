"""A broker whose connection broke is looked for at its listener; what counts as evidence, and what
does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from scenarios import scenario

from controller.service.upkeep import PROBE_AGAIN_S, REFUSALS, BrokerProbes
from raftlog.transport.api import Probe
from simulation.twins.loop import run

LINK, OTHER = object(), object()
ACCEPTED, REFUSED, SILENT = Probe.ACCEPTED, Probe.REFUSED, Probe.SILENT


class Scene:
    """An active controller with broker 7 of epoch 3; what probes find is said by the test."""

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
async def test_broken_connection_and_a_listener_that_refuses_now_are_evidence(at: Scene) -> None:
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
async def test_broken_connection_alone_is_none(at: Scene, *, finds: Any) -> None:
    await at.heard()
    await at.closed(finds)
    assert at.gone == []
    # It dies later.
    at.finds = REFUSED
    await asyncio.sleep(0.5)
    assert at.gone == [(7, 3)]


@pytest.mark.parametrize("finds", [REFUSED, SILENT])
@scenario(scene)
async def test_listener_that_never_accepted_from_here_says_nothing(
    at: Scene, *, finds: Probe
) -> None:
    """[what it advertises is for its clients: it refuses this node at all times]"""
    at.finds = finds
    await at.heard()
    await at.closed(REFUSED)
    assert at.gone == []
    assert len(at.probed) == 1


@scenario(scene)
async def test_refusals_count_in_a_row_only(at: Scene) -> None:
    await at.heard()
    at.finds = REFUSED
    at.probes.closed(LINK)
    for turn in range(20):
        await asyncio.sleep(PROBE_AGAIN_S + 0.001)
        at.finds = ACCEPTED if turn % 2 == 0 else REFUSED
    assert at.gone == []


@scenario(scene)
async def test_broker_that_is_heard_on_another_link_is_not_looked_for(at: Scene) -> None:
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
async def test_search_ends_when_there_is_nothing_to_find_out(at: Scene, *, end: str) -> None:
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
