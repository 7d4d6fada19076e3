"""OpenTelemetry traces of writes between real processes."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import running, setting, until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from raftlog import tracing
from raftlog.client.broker_client import BrokerClient
from raftlog.client.requests import controller_request
from raftlog.local.cluster import LocalCluster
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.common.v1 import common_pb2


class Collected:
    """Spans that nodes have sent to a collector."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[tuple[str, Any]] = []
        """(service, span)."""

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]

    def of(self, trace_id: bytes) -> dict[str, tuple[str, Any]]:
        """Return the spans of one trace by name."""
        return {s.name: (service, s) for service, s in list(self.spans) if s.trace_id == trace_id}


@contextmanager
def collector() -> Iterator[Collected]:
    collected = Collected()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") is None:
                collected.take(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        collected.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def traced_cluster(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LocalCluster, Collected]]:
    with collector() as collected:
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with running(LocalCluster(directory, controllers=3, brokers=1)) as made:
            yield made, collected


async def write_through_broker(cluster: LocalCluster) -> None:
    transport = GrpcTransport()
    client = BrokerClient(transport, [cluster.bootstrap_servers], rng=random.Random(0))
    try:
        written = controller_request(setting("a", "b"), acks=common_pb2.ACKS_VISIBLE)
        response = await client.write(written, timeout_s=30)
        assert response.write.token.offset > 0
    finally:
        client.close()
        await transport.close()


def test_write_is_one_trace_to_the_quorum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with traced_cluster(tmp_path / "cluster", monkeypatch) as (cluster, collected):
        tracing.enable(provider)
        try:
            before_ns = time.time_ns()
            asyncio.run(write_through_broker(cluster))
            after_ns = time.time_ns()
        finally:
            tracing.disable()
        (call,) = kept.get_finished_spans()
        body = "incremental_alter_configs"
        assert call.name == f"call {body}"
        trace_id = call.context.trace_id.to_bytes(16, "big")
        names = {f"{part} {body}" for part in ("broker", "call", "controller")}
        names |= {"decide", "commit", "visible"}
        until(lambda: set(collected.of(trace_id)) == names, "all spans are told", 20)
        spans = collected.of(trace_id)
        parent = {name: span.parent_span_id for name, (_, span) in spans.items()}
        own = {name: span.span_id for name, (_, span) in spans.items()}
        assert parent[f"broker {body}"] == call.context.span_id.to_bytes(8, "big")
        assert parent[f"call {body}"] == own[f"broker {body}"]
        assert parent[f"controller {body}"] == own[f"call {body}"]
        parts = [spans[name][1] for name in ("decide", "commit", "visible")]
        assert {part.parent_span_id for part in parts} == {own[f"controller {body}"]}
        served = spans[f"controller {body}"][1]
        assert served.start_time_unix_nano == parts[0].start_time_unix_nano
        for part, after in itertools.pairwise(parts):
            assert part.end_time_unix_nano == after.start_time_unix_nano
        slack_ns = 1_000_000
        for _, span in spans.values():
            assert before_ns - slack_ns <= span.start_time_unix_nano
            assert span.start_time_unix_nano <= span.end_time_unix_nano <= after_ns + slack_ns
        assert spans[f"broker {body}"][0] == "raftlog-broker"
        assert spans["commit"][0] == "raftlog-controller"
