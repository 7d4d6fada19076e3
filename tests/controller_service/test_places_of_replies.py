"""Every request takes a place among the replies that may wait, and each place is given back,
however the request ends.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from simulated import simulated
from test_sessions_in_service import unfenced_broker

from controller.decision import Decision, Defer, Write
from raftlog.errors import ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as pb

WRITE = pb.ControllerRequest(open_client=pb.OpenClientRequest(name="c"))
READ = pb.ControllerRequest(describe_brokers=pb.DescribeBrokersRequest())
REFUSED = pb.ControllerRequest(acks=cast("Any", 9), describe_brokers=pb.DescribeBrokersRequest())
AWAY = pb.ControllerRequest(transfer_leadership=pb.TransferLeadershipRequest(target_id=-1))


def copy(request: pb.ControllerRequest) -> pb.ControllerRequest:
    copied = pb.ControllerRequest()
    copied.CopyFrom(request)
    return copied


@pytest.mark.parametrize("request_", [WRITE, READ, REFUSED], ids=["write", "read", "refused"])
@pytest.mark.parametrize("how", ["as it comes", "when appended", "put off"])
@simulated
async def test_a_place_is_given_back(
    request_: pb.ControllerRequest, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, node, broker = await unfenced_broker()
    decide, put_off, written = node.service.turns._decide, 0, 0

    def decided(active: Any, request: Any, now: float) -> Decision:
        nonlocal put_off, written
        if how == "put off" and not put_off:
            put_off += 1
            return Defer(now + 0.3)
        decision = decide(active, request, now)
        written += isinstance(decision, Write)
        if how == "when appended" and isinstance(decision, Write):
            return decision._replace(answer_when_appended=True)
        return decision

    monkeypatch.setattr(node.service.turns, "_decide", decided)
    shares = node.service.node.leadership.parking._shares
    for _ in range(3):
        await broker.client.send(copy(request_), 5.0)
    assert put_off == (how == "put off")
    assert written == (3 if request_ is WRITE else 0)
    assert shares.total == 0


@simulated
async def test_a_handing_over_gives_its_place_back() -> None:
    _, node, broker = await unfenced_broker()
    shares = node.service.node.leadership.parking._shares
    await broker.client.send(copy(AWAY), 5.0)
    await asyncio.sleep(0.1)
    assert shares.total == 0


@simulated
async def test_without_a_place_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    _, node, broker = await unfenced_broker()
    clients = len(node.service.image.clients)
    monkeypatch.setattr(
        node.service.node.leadership.parking, "take_place", lambda peer, count: False
    )
    answer = await broker.client.send(copy(WRITE), 5.0)
    assert answer.error.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert len(node.service.image.clients) == clients
