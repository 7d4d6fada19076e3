"""Off, traces cost an attribute; on, a request names the span that waits for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from raftlog import tracing
from raftlog.config_writes.messages import ConfigWrite
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

KNOWN = "00-" + "a1" * 16 + "-" + "b2" * 8 + "-01"


@pytest.fixture
def kept() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    yield exporter
    tracing.disable()


def listing(traceparent: str = "") -> pb.ControllerRequest:
    return pb.ControllerRequest(
        traceparent=traceparent, describe_brokers=pb.DescribeBrokersRequest()
    )


def test_nothing_of_opentelemetry_is_imported_unless_it_is_asked_for() -> None:
    code = (
        "import sys, raftlog.tracing as t, controller.service.service, broker.service.service\n"
        "t.enable_from_environment('a', 'b', {})()\n"
        "t.enable_from_environment('a', 'b', {'OTEL_TRACES_EXPORTER': 'none'})()\n"
        "off = {'OTEL_TRACES_EXPORTER': 'otlp', 'OTEL_SDK_DISABLED': 'true'}\n"
        "t.enable_from_environment('a', 'b', off)()\n"
        "assert t.active is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_exporter_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no exporter 'nobody'"):
        tracing.enable_from_environment("a", "b", {"OTEL_TRACES_EXPORTER": "nobody"})
    assert tracing.active is None


async def test_a_call_is_a_span_that_its_request_names(kept: InMemorySpanExporter) -> None:
    future: asyncio.Future[pb.ControllerResponse] = asyncio.get_running_loop().create_future()
    assert tracing.active is not None
    sent = tracing.active.calling(listing(KNOWN), future)
    future.set_result(pb.ControllerResponse())
    await asyncio.sleep(0)
    (span,) = kept.get_finished_spans()
    assert sent.traceparent == tracing.traceparent_of(span)
    assert sent.traceparent.startswith(KNOWN[:35])
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b2" * 8
    assert span.status.is_ok


async def test_the_error_of_a_call_is_that_of_its_span(kept: InMemorySpanExporter) -> None:
    assert tracing.active is not None
    for ended in (ApiError(ErrorCode.REQUEST_TIMED_OUT, "late"), None):
        future: asyncio.Future[pb.ControllerResponse] = asyncio.get_running_loop().create_future()
        tracing.active.calling(listing(), future)
        if ended is not None:
            future.set_exception(ended)
        else:
            response = pb.ControllerResponse()
            response.error.error_code = ErrorCode.NOT_CONTROLLER
            future.set_result(response)
        await asyncio.sleep(0)
    names = [span.attributes["error.type"] for span in kept.get_finished_spans()]  # type: ignore[index]
    assert names == ["REQUEST_TIMED_OUT", "NOT_CONTROLLER"]


async def test_the_cheapest_write_becomes_a_message_that_can_name_a_span(
    kept: InMemorySpanExporter,
) -> None:
    future: asyncio.Future[pb.ControllerResponse] = asyncio.get_running_loop().create_future()
    assert tracing.active is not None
    sent = tracing.active.calling(ConfigWrite([(16, "a", "k", "v")], timeout_ms=7), future)
    assert isinstance(sent, pb.ControllerRequest)
    assert sent.timeout_ms == 7
    assert sent.traceparent


def test_heartbeats_and_reads_of_brokers_are_not_traced(kept: InMemorySpanExporter) -> None:
    assert tracing.active is not None
    heartbeat = pb.ControllerRequest(broker_heartbeat=pb.BrokerHeartbeatRequest(broker_id=1))
    read = broker_pb2.BrokerRequest(metadata=broker_pb2.MetadataRequest())
    for request in (heartbeat, read, object()):
        assert tracing.active.calling(request, None) is request
    assert tracing.active.serving("controller", heartbeat, 0.0) is None
    assert not heartbeat.traceparent


@pytest.mark.parametrize(
    "hostile",
    [
        "x" * 1_000_000,
        KNOWN + "\n",
        KNOWN + "-more",
        KNOWN.upper(),
        KNOWN.replace("00-", "ff-", 1),
        "00-" + "0" * 32 + "-" + "b2" * 8 + "-01",
        "00-" + "a1" * 16 + "-" + "0" * 16 + "-01",
        "00-" + "٣" * 32 + "-" + "b2" * 8 + "-01",
    ],
)
def test_what_is_no_traceparent_begins_a_trace_of_its_own(
    kept: InMemorySpanExporter, hostile: str
) -> None:
    assert tracing.active is not None
    served = tracing.active.serving("controller", listing(hostile), 0.5)
    assert served is not None
    served.reached("decide")
    served.end(int(ErrorCode.NOT_CONTROLLER))
    part, span = kept.get_finished_spans()
    assert span.parent is None
    assert part.parent is not None
    assert part.start_time == span.start_time
    assert span.end_time - span.start_time >= 500_000_000  # type: ignore[operator]


def test_an_unsampled_trace_stays_unsampled(kept: InMemorySpanExporter) -> None:
    assert tracing.active is not None
    served = tracing.active.serving("controller", listing(KNOWN[:-1] + "0"), 0.0)
    assert served is not None
    served.end()
    assert kept.get_finished_spans() == ()
