"""Which brokers may be healed: one whose id another member has got is refused as long as that one
runs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raftlog.node.storage.api import NO_NODE_ID
from simulation import liveness


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


def test_a_broker_whose_id_another_member_has_got_cannot_be_healed() -> None:
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


def test_brokers_without_an_id_yet_do_not_share_it() -> None:
    b1, b4 = host("b1", NO_NODE_ID), host("b4", NO_NODE_ID)
    assert not lost_its_id(b1, b4, controllers=[controller(9, b4=201)])
