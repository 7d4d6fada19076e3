"""Spans of calls, which neither block nor fill a node."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from command_runs import run_text
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from raftlog import tracing
from raftlog.config_writes.writes import ConfigWrite
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.data.v1 import data_pb2

KNOWN = "00-" + "a1" * 16 + "-" + "b2" * 8 + "-01"


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def kept(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    yield exporter
    tracing.disable()


@pytest.fixture
def active(kept: InMemorySpanExporter) -> Any:
    """Tracing, whose spans are kept."""
    assert tracing.active is not None
    return tracing.active


async def called(active: Any, request: Any, ended: Any, *asked: Any) -> Any:
    """Make a call that ends with a response or an error; return the request as it is sent."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sent = active.calling(request, future, *asked)
    (future.set_exception if isinstance(ended, Exception) else future.set_result)(ended)
    await asyncio.sleep(0)
    return sent


def listing(traceparent: str = "") -> pb.ControllerRequest:
    return pb.ControllerRequest(
        traceparent=traceparent, describe_brokers=pb.DescribeBrokersRequest()
    )


def reading(traceparent: str = "") -> broker_pb2.BrokerRequest:
    return broker_pb2.BrokerRequest(traceparent=traceparent, metadata=broker_pb2.MetadataRequest())


def producing(traceparent: str = "") -> broker_pb2.BrokerRequest:
    return broker_pb2.BrokerRequest(traceparent=traceparent, produce=data_pb2.ProduceRequest())


def test_opentelemetry_is_imported_only_when_configured() -> None:
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


def test_unknown_exporter_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no exporter 'nobody'"):
        tracing.enable_from_environment("a", "b", {"OTEL_TRACES_EXPORTER": "nobody"})
    assert tracing.active is None


async def test_call_is_a_span_named_by_its_request(active: Any, kept: InMemorySpanExporter) -> None:
    sent = await called(active, listing(KNOWN), pb.ControllerResponse())
    (span,) = kept.get_finished_spans()
    assert sent.traceparent == tracing.traceparent_of(span)
    assert sent.traceparent.startswith(KNOWN[:35])
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b2" * 8
    assert span.status.is_ok


def error_of(span: Any) -> str:
    return str(span.attributes["error.type"])


async def test_error_of_a_call_is_set_on_its_span(active: Any, kept: InMemorySpanExporter) -> None:
    refused, partly = pb.ControllerResponse(), data_pb2.ProduceResponse()
    refused.error.error_code = ErrorCode.NOT_CONTROLLER
    partly.partitions.add(base_offset=7)
    partly.partitions.add(error_code=ErrorCode.NOT_ENOUGH_REPLICAS)
    await called(active, listing(), ApiError(ErrorCode.REQUEST_TIMED_OUT, "late"))
    await called(active, listing(), refused)
    await called(active, producing(), broker_pb2.BrokerResponse(produce=partly))
    assert list(map(error_of, kept.get_finished_spans())) == [
        "REQUEST_TIMED_OUT",
        "NOT_CONTROLLER",
        "NOT_ENOUGH_REPLICAS",
    ]


async def test_traced_compact_write_is_sent_with_its_span(active: Any) -> None:
    write = ConfigWrite([(16, "a", "k", "v")], timeout_ms=7)
    sent = await called(active, write, pb.ControllerResponse())
    assert isinstance(sent, pb.ControllerRequest)
    assert sent.timeout_ms == 7
    assert sent.traceparent


def test_heartbeats_are_not_traced(active: Any, kept: InMemorySpanExporter) -> None:
    heartbeat = pb.ControllerRequest(broker_heartbeat=pb.BrokerHeartbeatRequest(broker_id=1))
    for request in (heartbeat, object()):
        assert active.calling(request, None) is request
    assert active.serving("controller", heartbeat, 0.0) is None
    assert not heartbeat.traceparent
    assert kept.get_finished_spans() == ()


async def test_read_at_a_broker_is_a_child_span_of_its_call(
    active: Any, kept: InMemorySpanExporter
) -> None:
    parent = tracing.parent_of(await called(active, reading(), broker_pb2.BrokerResponse()))
    active.answered("metadata", parent, 0.25, 0)
    active.answered("metadata", parent, 0.0, int(ErrorCode.BROKER_FENCED))
    call, good, bad = kept.get_finished_spans()
    assert [span.name for span in (good, bad, call)] == ["broker metadata"] * 2 + ["call metadata"]
    assert good.parent is not None
    assert good.parent.span_id == call.context.span_id
    assert good.end_time - good.start_time >= 250_000_000  # type: ignore[operator]
    assert error_of(bad) == "BROKER_FENCED"


@pytest.mark.parametrize("traceparent", ["", "x", "x" * 1_000_000, KNOWN[:-1] + "0"])
def test_broker_starts_no_trace_of_its_own(
    active: Any, kept: InMemorySpanExporter, traceparent: str
) -> None:
    for request in (reading(traceparent), producing(traceparent)):
        assert tracing.parent_of(request) == ""
        active.answered("metadata", tracing.parent_of(request), 0.0, 0)
    assert kept.get_finished_spans() == ()


async def test_produce_for_one_span_is_its_child_and_for_several_links_each(
    active: Any, kept: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracer = provider.get_tracer("app")
    callers = []
    for name in ("a", "b"):
        with tracer.start_as_current_span(name):
            callers.append(active.caller())
    assert active.caller() is None, "outside of any span"
    with tracer.start_as_current_span("of a turn of the loop that is nobody's"):
        for asked in (callers[:1] * 3, [*callers, None, *callers], [None]):
            await called(active, producing(), broker_pb2.BrokerResponse(), asked)
    one, both, nobody = [s for s in kept.get_finished_spans() if s.name == "call produce"]
    assert one.parent == callers[0]
    assert both.parent is None
    assert [link.context for link in both.links] == callers
    assert (nobody.parent, list(nobody.links)) == (None, [])


@pytest.mark.parametrize("request_", [reading(), producing()], ids=["read", "records"])
def test_unary_method_continues_the_trace_in_metadata(request_: broker_pb2.BrokerRequest) -> None:
    tracing.take_header(request_, [("traceparent", KNOWN), ("other", "x")])
    assert tracing.parent_of(request_) == KNOWN


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
def test_malformed_traceparent_starts_a_new_trace(
    active: Any, kept: InMemorySpanExporter, hostile: str
) -> None:
    served = active.serving("controller", listing(hostile), 0.5)
    assert served is not None
    served.reached("decide")
    served.end(int(ErrorCode.NOT_CONTROLLER))
    part, span = kept.get_finished_spans()
    assert span.parent is None
    assert part.parent is not None
    assert part.start_time == span.start_time
    assert span.end_time - span.start_time >= 500_000_000  # type: ignore[operator]


def test_unsampled_trace_stays_unsampled(active: Any, kept: InMemorySpanExporter) -> None:
    served = active.serving("controller", listing(KNOWN[:-1] + "0"), 0.0)
    assert served is not None
    served.end()
    assert kept.get_finished_spans() == ()


HANGING = """
import sys, time
from raftlog import tracing
from raftlog.wire.controller.v1 import controller_pb2 as pb
stop = tracing.enable_from_environment("a", "b")
request = pb.ControllerRequest(describe_brokers=pb.DescribeBrokersRequest())
slowest = 0.0
for number in range(2_000):
    begun = time.process_time()
    tracing.active.serving("controller", request, 0.0).end()
    slowest = max(slowest, time.process_time() - begun)
begun = time.monotonic()
stop()
print(slowest, time.monotonic() - begun)
"""


class Collector:
    """Accepts connections, and answers none before it is released."""

    def __init__(self) -> None:
        self.goes_on, self.spans = threading.Event(), 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told = ExportTraceServiceRequest.FromString(body)
                outer.goes_on.wait(60)
                outer.spans += sum(
                    len(scope.spans) for one in told.resource_spans for scope in one.scope_spans
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.mark.parametrize("kind", ["hangs", "refuses"])
def test_hanging_or_refusing_collector_neither_blocks_nor_fills_a_node(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        port = silent.getsockname()[1]
        if kind == "refuses":
            silent.close()
        environment = {
            **os.environ,
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
        }
        begun = time.monotonic()
        done = run_text([sys.executable, "-c", HANGING], env=environment, timeout=60, check=True)
    slowest_s, stop_s = map(float, done.stdout.split())
    assert slowest_s < 1.0, "CPU of one span: nothing waits for the collector"
    assert stop_s < tracing.STOP_MS / 1000 + 5, "each of its attempts has ten seconds"
    assert time.monotonic() - begun < 50, "the process ends, too"


def test_spans_are_dropped_when_the_collector_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    address = collector.server.server_address[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{address}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32")
    stop = tracing.enable_from_environment("a", "b", {"OTEL_TRACES_EXPORTER": "otlp"})
    try:
        assert tracing.active is not None
        for _ in range(1_000):
            served = tracing.active.serving("controller", listing(), 0.0)
            assert served is not None
            served.end()
    finally:
        collector.goes_on.set()
        stop()
        collector.server.shutdown()
        collector.server.server_close()
    assert 0 < collector.spans <= 64 + 2 * 32, "a queue of 64, and what was under way"
