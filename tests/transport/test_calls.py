"""RpcClient with a scripted link, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_link import FakeLink
from scenarios import scenario

from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation, LinkClosedError
from raftlog.transport.rpc_client import DEADLINE_GRAIN_S, RpcClient
from raftlog.wire.controller.v1 import controller_pb2
from simulation.twins.loop import run


class ScriptedTransport:
    """A transport that dials nothing: the test opens and closes links by hand."""

    last_failure = ""

    def dial(self, address: str, conversation: Conversation, handler: Any) -> Any:
        self.closed = False
        return self

    def close(self) -> None:
        self.closed = True


def request() -> controller_pb2.ControllerRequest:
    return controller_pb2.ControllerRequest()


def response(correlation_id: int) -> controller_pb2.ControllerResponse:
    return controller_pb2.ControllerResponse(correlation_id=correlation_id)


def scripted(
    test: Callable[[RpcClient, ScriptedTransport], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        transport = ScriptedTransport()
        await test(RpcClient(transport, "far:1", Conversation.CONTROLLER, **options), transport)  # type: ignore[arg-type]

    run(main())


def failure(future: asyncio.Future[Any]) -> tuple[ErrorCode, bool]:
    error = future.exception()
    assert isinstance(error, ApiError)
    return error.code, error.outcome_unknown


@scenario(scripted)
async def test_responses_are_matched_by_id(caller: RpcClient, transport: ScriptedTransport) -> None:
    link = FakeLink()
    caller.opened(link)
    calls = [caller.call(request(), 1) for _ in range(3)]
    assert [message.correlation_id for message in link.sent] == [1, 2, 3]
    caller.received(link, [response(3), response(1)])
    caller.received(link, [response(3), response(99), response(2)])
    assert [call.result().correlation_id for call in calls] == [1, 2, 3]


@scenario(scripted)
async def test_calls_wait_for_the_link_and_are_sent_in_order(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    assert not bool(caller.connected)
    calls = [caller.call(request(), 1) for _ in range(3)]
    calls[1].cancel()
    link = FakeLink()
    caller.opened(link)
    assert caller.connected
    # Nobody wants the second any more, and it had not been sent.
    assert [message.correlation_id for message in link.sent] == [1, 3]


@scenario(scripted)
async def test_all_calls_have_deadlines(caller: RpcClient, transport: ScriptedTransport) -> None:
    loop = asyncio.get_running_loop()
    waiting = caller.call(request(), 0.5)
    with pytest.raises(ApiError, match="was not sent"):
        await waiting
    assert failure(waiting) == (ErrorCode.REQUEST_TIMED_OUT, False)
    assert loop.time() == 0.5

    caller.opened(FakeLink())
    later, sooner = caller.call(request(), 3.0), caller.call(request(), 1.0)
    await asyncio.wait([sooner])
    assert loop.time() == 1.5
    assert failure(sooner) == (ErrorCode.REQUEST_TIMED_OUT, True)
    assert not later.done()
    await asyncio.wait([later])
    assert loop.time() == 3.5


@scenario(scripted)
async def test_each_of_many_calls_ends_by_its_deadline_within_the_grain(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    loop = asyncio.get_running_loop()
    caller.opened(FakeLink())
    ends: dict[float, float] = {}

    def note(deadline: float) -> Callable[[asyncio.Future[Any]], None]:
        def done(future: asyncio.Future[Any]) -> None:
            assert failure(future) == (ErrorCode.REQUEST_TIMED_OUT, True)
            ends[deadline] = loop.time()

        return done

    for i in range(1000):
        # Neither ascending nor descending, some closer together than the grain.
        timeout_s = 0.001 + (i * 7919 % 1000) * 0.0007
        caller.call(request(), timeout_s).add_done_callback(note(timeout_s))
    await asyncio.sleep(2)
    assert len(ends) == 1000
    assert all(
        deadline <= end <= deadline + DEADLINE_GRAIN_S + 1e-9 for deadline, end in ends.items()
    )


@scenario(scripted)
async def test_answered_calls_leave_at_most_one_timer(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    loop: Any = asyncio.get_running_loop()
    link = FakeLink()
    caller.opened(link)
    for i in range(1, 1001):
        caller.call(request(), 30)
        caller.received(link, [response(i)])
    assert len(loop._timers) == 1


@scenario(scripted)
async def test_lost_link_fails_sent_calls_and_keeps_unsent_ones(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    first, second = FakeLink(), FakeLink()
    caller.opened(first)
    sent = caller.call(request(), 5)
    caller.closed(first, "gone")
    assert failure(sent) == (ErrorCode.NETWORK_EXCEPTION, True)
    waiting = caller.call(request(), 5)
    caller.opened(second)
    assert [message.correlation_id for message in second.sent] == [2]
    caller.received(second, [response(2)])
    assert waiting.result().correlation_id == 2


@scenario(scripted)
async def test_late_reply_or_late_close_of_an_earlier_link_changes_nothing(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    first, second = FakeLink(), FakeLink()
    caller.opened(first)
    caller.closed(first, "gone")
    caller.opened(second)
    call = caller.call(request(), 5)
    caller.received(first, [response(1)])
    caller.closed(first, "gone again")
    assert not call.done()
    assert caller.connected


@scenario(scripted)
async def test_call_on_a_closing_link_waits_for_the_next_link(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    first, second = FakeLink(), FakeLink()
    caller.opened(first)
    first.error = LinkClosedError("just now")
    call = caller.call(request(), 5)
    caller.closed(first, "just now")
    assert not call.done()
    caller.opened(second)
    assert len(second.sent) == 1


@scenario(scripted)
async def test_large_message_fails_alone(caller: RpcClient, transport: ScriptedTransport) -> None:
    link = FakeLink()
    caller.opened(link)
    link.error = ApiError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
    call = caller.call(request(), 5)
    assert failure(call) == (ErrorCode.MESSAGE_TOO_LARGE, False)
    assert caller.connected


@pytest.mark.parametrize("connected", [True, False])
@scenario(scripted, max_calls=10)
async def test_number_of_calls_is_bounded(
    caller: RpcClient, transport: ScriptedTransport, *, connected: bool
) -> None:
    link = FakeLink()
    if connected:
        caller.opened(link)
    calls = [caller.call(request(), 5) for _ in range(11)]
    assert [call.done() for call in calls] == [False] * 10 + [True]
    assert failure(calls[10]) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, False)


@scenario(scripted)
async def test_close_ends_every_call(caller: RpcClient, transport: ScriptedTransport) -> None:
    waiting = caller.call(request(), 5)
    caller.close()
    caller.close()
    assert transport.closed
    assert failure(waiting) == (ErrorCode.NETWORK_EXCEPTION, False)
    assert failure(caller.call(request(), 5)) == (ErrorCode.NETWORK_EXCEPTION, False)


@scenario(scripted)
async def test_close_reports_calls_in_flight_as_unknown(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    caller.opened(FakeLink())
    sent, cancelled = caller.call(request(), 5), caller.call(request(), 5)
    cancelled.cancel()
    caller.close()
    assert failure(sent) == (ErrorCode.NETWORK_EXCEPTION, True)


@scenario(scripted)
async def test_link_is_silent_when_a_call_times_out_without_other_messages(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    link = FakeLink()
    caller.opened(link)
    caller.call(request(), 1)
    answered = caller.call(request(), 5)
    await asyncio.sleep(0.5)
    caller.received(link, [response(2)])
    await asyncio.sleep(1)
    assert answered.done()
    assert not bool(caller.silent), "it said something after that call was sent"
    caller.call(request(), 1)
    await asyncio.sleep(1.1)
    assert bool(caller.silent)
    caller.opened(FakeLink())
    assert not caller.silent, "another link"


@scenario(scripted)
async def test_retired_caller_ends_with_its_last_call_even_if_that_times_out(
    caller: RpcClient, transport: ScriptedTransport
) -> None:
    caller.opened(FakeLink())
    caller.call(request(), 1)
    caller.retire()
    assert not bool(transport.closed)
    await asyncio.sleep(1.1)
    assert transport.closed
    assert caller.ended
