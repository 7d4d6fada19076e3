"""Answers on links that cannot take them: whoever made the answer must not be stopped by that."""

from __future__ import annotations

from typing import Any

from broker.service.requests import _send
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import ANONYMOUS
from raftlog.transport.api import LinkClosedError
from raftlog.wire.data.v1 import data_pb2


class Narrow:
    """Takes no records, then as many messages as there is room for."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        if message.HasField("fetch"):
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
        if not self.room:
            raise LinkClosedError("full")
        self.room -= 1
        self.sent.append(message)

    peer = "narrow"
    identity = ANONYMOUS
    listener = ""

    def unknown_kind(self, what: str) -> None:
        raise NotImplementedError

    throttled = unknown_kind


def test_an_answer_too_large_is_an_error_of_its_request() -> None:
    link = Narrow(1)
    _send(link, 7, fetch=data_pb2.FetchResponse())
    (said,) = link.sent
    assert (said.correlation_id, said.error.error_code) == (7, ErrorCode.MESSAGE_TOO_LARGE)


def test_a_link_that_does_not_even_take_that_is_no_fault_of_the_broker() -> None:
    link = Narrow(0)
    _send(link, 7, fetch=data_pb2.FetchResponse())
    assert not link.sent
