"""Tracing of requests with OpenTelemetry: client, broker, controller and quorum in one trace.

Off unless ``enable`` or ``enable_from_environment`` was called. When off, it costs one check of
``active`` per call, and imports nothing from OpenTelemetry.

A stream carries many requests, so gRPC's metadata cannot name the trace of each: every request has
its own ``traceparent`` (W3C Trace Context). Unary methods take it from the metadata.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from raftlog.config_writes.writes import ConfigWrite
from raftlog.errors import ConfigError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

HEADER = "traceparent"
EXPORTER = "OTEL_TRACES_EXPORTER"
UNTRACED = frozenset({None, "broker_heartbeat"})
"""Bodies without spans, such as heartbeats, for which no caller waits."""
READS = frozenset({"metadata", "describe_configs", "describe_cluster", "list_key_values"})
"""Bodies that a broker answers from its image."""
RECORDS = frozenset({"produce", "fetch", "list_offsets"})
"""Bodies that a broker answers from its partitions."""
_ANSWERED = READS | RECORDS
"""Bodies for which a broker starts no traces itself, as they are numerous; they have spans if the
caller's span is sampled.
"""
STOP_MS = 2000
"""Longest time in ms that a stopping node waits for spans that are not yet exported."""
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")

_SAMPLED = 1

active: Tracing | None = None
"""The process's tracing, or None if tracing is off."""


class Tracing:
    """The source of one process's spans."""

    def __init__(self, provider: Any) -> None:
        """Create an instance with an OpenTelemetry TracerProvider, whose sampler and exporters
        apply.
        """
        from opentelemetry import trace

        self._api = trace
        self._tracer = provider.get_tracer("raftlog")

    def caller(self) -> Any:
        """Return the current span, to pass to ``calling`` later, or None."""
        context = self._api.get_current_span().get_span_context()
        return context if context.is_valid else None

    def calling(self, request: Any, future: Any, callers: Collection[Any] | None = None) -> Any:
        """Start the span of a client's call, and return the request to send, which names the span.

        The span ends with ``future``. ``callers``: results of ``caller`` for the code that waits
        for the call, if that is not the current code. The span of a call for several callers has no
        parent, and links to each caller's span.
        """
        if isinstance(request, ConfigWrite):
            request = request.request()
        told = carrier_of(request)
        if told is None or (body := told.WhichOneof("body")) in UNTRACED:
            return request
        context, links = self._context(told.traceparent), None
        if callers is not None:
            context, links = self._of_callers(callers)
        span = self._tracer.start_span(
            f"call {body}", context, kind=self._api.SpanKind.CLIENT, links=links
        )
        told.traceparent = traceparent_of(span)
        future.add_done_callback(lambda ended: _end_call(span, ended))
        return request

    def serving(
        self, what: str, request: controller_pb2.ControllerRequest, age_s: float
    ) -> Served | None:
        """Start the span of a request that arrived at this node ``age_s`` ago. Return None if it is
        not traced.
        """
        body = request.WhichOneof("body")
        if body in UNTRACED:
            return None
        begun_ns = time.time_ns() - int(age_s * 1e9)
        span = self._tracer.start_span(
            f"{what} {body}",
            self._context(request.traceparent),
            kind=self._api.SpanKind.SERVER,
            start_time=begun_ns,
        )
        return Served(self._tracer, self._api.set_span_in_context(span), span, begun_ns)

    def answered(self, body: str, parent: str, age_s: float, code: int) -> None:
        """Record that a broker answers a request that arrived ``age_s`` ago, with error ``code``,
        or 0 for success.

        ``parent``: the result of ``parent_of`` for the request.
        """
        if not parent:
            return
        span = self._tracer.start_span(
            f"broker {body}",
            self._context(parent),
            kind=self._api.SpanKind.SERVER,
            start_time=time.time_ns() - int(age_s * 1e9),
        )
        if code:
            _fail(span, code, "")
        span.end()

    def _of_callers(self, callers: Collection[Any]) -> tuple[Any, Any]:
        """Return the context of a call for these callers, and the links of its span."""
        trace = self._api
        each = {(one.trace_id, one.span_id): one for one in callers if one is not None}
        if len(each) == 1:
            (one,) = each.values()
            return trace.set_span_in_context(trace.NonRecordingSpan(one)), None
        # Not the current span: it may belong to one of the callers, or have ended.
        nobody = trace.set_span_in_context(trace.INVALID_SPAN)
        return nobody, [trace.Link(one) for one in each.values()]

    def _context(self, traceparent: str) -> Any:
        """Return the context named by a request; without a traceparent, the context of a new trace,
        or the caller's.
        """
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is None:
            return None
        trace = self._api
        context = trace.SpanContext(
            int(found[1], 16),
            int(found[2], 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(int(found[3], 16) & _SAMPLED),
        )
        return trace.set_span_in_context(trace.NonRecordingSpan(context))


def carrier_of(request: Any) -> controller_pb2.ControllerRequest | broker_pb2.BrokerRequest | None:
    """Return the message that carries a request's traceparent: the request itself, the write that a
    broker will forward, or None if the request is not traced.
    """
    if isinstance(request, controller_pb2.ControllerRequest):
        return request
    if isinstance(request, broker_pb2.BrokerRequest):
        if request.HasField("write"):
            return request.write
        return request if request.WhichOneof("body") in _ANSWERED else None
    return None


def parent_of(request: broker_pb2.BrokerRequest) -> str:
    """Return the sampled span, named by the request, that waits for the broker's own answer, or ""
    if the answer needs no span.

    Callers keep this text instead of the request, which may be large and is freed before its
    answer.
    """
    found = _TRACEPARENT.fullmatch(request.traceparent)
    if found is None or not int(found[3], 16) & _SAMPLED:
        return ""
    return found[0] if request.WhichOneof("body") in _ANSWERED else ""


def failed_partition(response: Any) -> int:
    """Return the error of the first failed partition in the answer to one of ``RECORDS``, or 0."""
    return next((one.error_code for one in response.partitions if one.error_code), 0)


def take_header(request: Any, metadata: Any) -> None:
    """Set a unary request's trace to the one named in the call's metadata."""
    told = carrier_of(request)
    for key, value in metadata or ():
        if key == HEADER and told is not None and isinstance(value, str):
            told.traceparent = value


class Served:
    """The span of a request in a node, and the consecutive spans of its parts."""

    __slots__ = ("_context", "_since_ns", "_tracer", "span")

    def __init__(self, tracer: Any, context: Any, span: Any, begun_ns: int) -> None:
        self._tracer, self._context, self.span = tracer, context, span
        self._since_ns = begun_ns

    def reached(self, part: str) -> None:
        """End the current part, and start the next one."""
        now_ns = time.time_ns()
        self._tracer.start_span(part, self._context, start_time=self._since_ns).end(now_ns)
        self._since_ns = now_ns

    def end(self, code: int = 0) -> None:
        """End the span, as the request is answered with error ``code``, or 0 for success."""
        if code:
            _fail(self.span, code, "")
        self.span.end()


def traceparent_of(span: Any) -> str:
    """Return the text that identifies a span to another process."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def enable(provider: Any) -> None:
    """Trace this process's requests with an OpenTelemetry TracerProvider, such as your
    application's.
    """
    global active  # noqa: PLW0603
    active = Tracing(provider)


def disable() -> None:
    """Start no more spans; open ones end as usual."""
    global active  # noqa: PLW0603
    active = None


def enable_from_environment(
    service: str, instance: str, environment: Mapping[str, str] | None = None
) -> Callable[[], None]:
    """Trace a node's requests if OTEL_TRACES_EXPORTER names an exporter. Return a function that
    ends tracing.

    OTEL_... variables set everything else: endpoint, sampler, the queue's bound. Raises ConfigError
    if the exporter is not installed.
    """
    environment = os.environ if environment is None else environment
    name = environment.get(EXPORTER, "none").strip()
    if name in ("", "none") or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return lambda: None
    if name == "otlp":
        protocol = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    try:
        from importlib.metadata import entry_points

        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        (found,) = entry_points(group="opentelemetry_traces_exporter", name=name)
        exporter = found.load()()
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{EXPORTER}: there is no exporter {name!r} ({error}). To install those for OTLP: pip "
            "install 'raftlog[otel]'"
        ) from error
    own = Resource.create({"service.instance.id": instance})
    if str(own.attributes.get("service.name", "")).startswith("unknown_service"):
        # Unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES set it.
        own = own.merge(Resource({"service.name": service}))
    provider = TracerProvider(resource=own, shutdown_on_exit=False)
    processor = BatchSpanProcessor(exporter)
    provider.add_span_processor(processor)
    enable(provider)

    def stop() -> None:
        disable()
        # Its own timeouts apply per attempt, so a hanging collector would block the node.
        ending = threading.Thread(target=processor.shutdown, daemon=True, name="last spans")
        ending.start()
        ending.join(STOP_MS / 1000)

    return stop


def _end_call(span: Any, future: Any) -> None:
    if future.cancelled():
        span.set_attribute("raftlog.abandoned", True)
    elif (error := future.exception()) is not None:
        code = getattr(error, "code", None)
        _fail(span, -1 if code is None else int(code), str(error))
    else:
        response = future.result()
        if isinstance(response, broker_pb2.BrokerResponse) and response.HasField("write"):
            response = response.write
        if response.HasField("error"):
            _fail(span, response.error.error_code, response.error.error_message)
        elif (body := response.WhichOneof("body")) in RECORDS and (
            code := failed_partition(getattr(response, body))
        ):
            _fail(span, code, "")
    span.end()


def _fail(span: Any, code: int, message: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    try:
        name = ErrorCode(code).name
    except ValueError:
        name = str(code)
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, message[:200]))
