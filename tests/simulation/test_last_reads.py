"""After the healing reads are demanded too: of every mode at each broker, and of every partition.

Each demand is seen to fail.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from broker.metadata.read_gate import ReadLease
from broker.partition.client_requests import Fetches
from simulation.cli import silence
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig
from simulation.workload import Client

CONFIG = SwarmConfig(brokers=2, safety_s=3.0, liveness_s=20.0, reads_per_s=0.0, timeout_s=1.0)
DATA = SwarmConfig(brokers=3, safety_s=4.0, liveness_s=20.0, reads_per_s=0.0, data_per_s=5.0)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()


def test_each_healed_broker_serves_each_mode() -> None:
    outcome = run_swarm(1, CONFIG)
    assert outcome.failure is None
    served = {
        name: outcome.operations.get(f"last read {name}", 0)
        for name in ("repeatable", "latest", "at least", "strict")
    }
    assert served["strict"] >= 1
    assert set(served.values()) == {served["strict"]}


def test_a_broker_that_never_gets_a_lease_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadLease, "held", lambda *_: False)
    assert "serves a read, strict: " in str(run_swarm(1, CONFIG).failure)


def test_reads_of_one_mode_that_stay_behind_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Client.read_config

    async def behind(self: Client, key: str, mode: Any = None) -> Any:
        operation = await read(self, key, mode)
        if mode == 0:
            operation.offset = 0
        return operation

    monkeypatch.setattr(Client, "read_config", behind)
    assert "serves a read, repeatable: its image is 0" in str(run_swarm(1, CONFIG).failure)


def test_partitions_that_take_records_and_give_none_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = run_swarm(1, DATA)
    assert whole.failure is None
    assert whole.operations["partitions read"] >= whole.operations["partitions recovered"] > 0
    monkeypatch.setattr(Fetches, "received", lambda *_: None)
    assert "did not happen: records are given" in str(run_swarm(1, DATA).failure)
