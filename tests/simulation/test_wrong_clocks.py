"""Brokers whose wall clocks are years ahead: what they stamp, and what they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from broker.partition import events as ev
from raftlog import batch
from raftlog.clock import TOLERANCE_MS
from simulation.checks.api import BrokerView, Checker
from simulation.checks.suite import all_checkers
from simulation.outcome import Outcome
from simulation.run import Swarm
from simulation.swarm.config import SwarmConfig
from simulation.twins.loop import START_OF_TIME_MS, run

YEARS_MS = 10 * 365 * 86_400_000
CONFIG = SwarmConfig(voters=3, brokers=3, clients=1, data_per_s=20.0, reads_per_s=0.0)


class Stamps(Checker):
    """Notes by how much timestamps of records are ahead, and what is dropped."""

    def __init__(self) -> None:
        self.ahead_ms: list[int] = []
        self.dropped: list[ev.AdvanceStart] = []

    def data_step(
        self, host: BrokerView, event: ev.Event, effects: Sequence[ev.Effect], now: float
    ) -> None:
        now_ms = START_OF_TIME_MS + round(self.world.now() * 1000)
        for effect in effects:
            if isinstance(effect, ev.AdvanceStart):
                self.dropped.append(effect)
            elif isinstance(effect, ev.Append):
                stamps = [one.timestamp_ms for one in batch.headers(effect.chunk)]
                self.ahead_ms += [stamp - now_ms for stamp in stamps]


def test_brokers_with_wrong_clocks_keep_all_records_and_stamp_them_with_the_quorums_time() -> None:
    """[a broker's clock was ahead once: all that was committed in its partitions was dropped]"""
    stamps = Stamps()

    async def main() -> None:
        world = Swarm(7, CONFIG, [*all_checkers(), stamps], Outcome(7, CONFIG))
        for host in world.fleet.hosts():
            host.start()
        await world.until(world.is_up, 30.0, "the cluster comes up")
        world.workload.begin()
        await asyncio.sleep(3.0)
        for member in world.members:
            member.wall_offset_ms = YEARS_MS
        await asyncio.sleep(5.0)
        for member in world.members:
            assert member.service is not None
            ahead_ms = member.service.time.ahead_ms()
            assert ahead_ms == pytest.approx(YEARS_MS, abs=TOLERANCE_MS)
        world.finish()

    run(main())
    assert len(stamps.ahead_ms) > 50
    assert max(stamps.ahead_ms) <= 2 * TOLERANCE_MS
    assert stamps.dropped == []
