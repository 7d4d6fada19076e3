"""The liveness phase."""

from types import SimpleNamespace
from typing import Any

import pytest

from broker.metadata.read_gate import ReadLease
from broker.partition.client_requests import Fetches
from simulation import liveness
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig
from simulation.workload import Client

KEY = (b"t" * 16, 0)
CONFIG = SwarmConfig(brokers=2, safety_s=3.0, liveness_s=20.0, reads_per_s=0.0, timeout_s=1.0)
DATA = SwarmConfig(brokers=3, safety_s=4.0, liveness_s=20.0, reads_per_s=0.0, data_per_s=5.0)


def test_broker_that_never_gets_a_lease_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadLease, "held", lambda *_: False)
    assert "serves strict: " in str(run_swarm(1, CONFIG).failure)


def test_lagging_reads_of_one_mode_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Client.read_config

    async def behind(self: Client, key: str, mode: Any = None) -> Any:
        operation = await read(self, key, mode)
        if mode == 0:
            operation.offset = 0
        return operation

    monkeypatch.setattr(Client, "read_config", behind)
    assert "serves repeatable: its image is 0" in str(run_swarm(1, CONFIG).failure)


def test_partitions_that_return_no_records_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_swarm(1, DATA)
    assert whole.failure is None
    assert whole.operations["partitions read"] >= whole.operations["partitions recovered"] > 0
    monkeypatch.setattr(Fetches, "received", lambda *_: None)
    assert "did not happen: records read" in str(run_swarm(1, DATA).failure)


def host(name: str, broker_id: int) -> Any:
    return SimpleNamespace(name=name, broker_id=broker_id)


def controller(offset: int, **registered: int) -> Any:
    brokers = {
        broker_id: SimpleNamespace(endpoint=f"{name}:9092")
        for name, broker_id in registered.items()
    }
    return SimpleNamespace(
        service=SimpleNamespace(image=SimpleNamespace(offset=offset, brokers=brokers))
    )


def lost_its_id(one: Any, *others: Any, controllers: list[Any]) -> bool:
    return liveness.lost_its_id(one, [one, *others], controllers)


def test_broker_whose_id_another_member_has_cannot_be_healed() -> None:
    stale, down = controller(5, b1=201, b4=204), SimpleNamespace(service=None)
    newest = controller(9, b4=201)
    b1, b4 = host("b1", 201), host("b4", 201)
    assert lost_its_id(b1, b4, controllers=[stale, newest, down])
    assert not lost_its_id(b4, b1, controllers=[stale, newest, down])
    assert not lost_its_id(b1, b4, controllers=[stale]), (
        "the registration is its own as far as anybody knows"
    )
    assert not lost_its_id(b1, b4, controllers=[down]), "nobody knows"
    assert not lost_its_id(b1, host("b4", 204), controllers=[newest]), (
        "a newcomer had the id, and is gone"
    )
