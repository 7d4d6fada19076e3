"""The RPCs about the node itself: its build and configuration, its journal, its log level.

Each is answered locally, without a leader and without another node.
"""

from __future__ import annotations

import asyncio
import platform
import re
import shutil
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from raftlog.errors import ApiError, ErrorCode
from raftlog.files import BackgroundLook
from raftlog.limits import check as check_limits
from raftlog.node.observability.journal import NodeEvent, RecentEvents, as_text
from raftlog.node.observability.log_level import LogLevel
from raftlog.node.observability.logs import TAIL, TAIL_LINES
from raftlog.node.storage.directory import probe_sync_us
from raftlog.transport.unary import Caller, unary_handler
from raftlog.wire.node.v1 import node_pb2 as pb

LOG_LINES = 500
EVENTS_MAX = 1_000
"""Maximum number of events in one response."""
_SECRET = re.compile(r"password|secret|credential|token$", re.IGNORECASE)

MayCall = Callable[[str, Any, Caller], None]
"""Check of a method, a request and its caller; raises ApiError if the caller has no permission."""
Changed = Callable[[str, Caller, ApiError | None], None]
"""Callback after a call that changes the node: the method, the caller, and the refusal or None."""
CHANGES = frozenset({"AlterLogLevel"})


class NodeFacts(NamedTuple):
    """The constants of a running node. ``config``: plain values by key."""

    cluster_id: str
    node_id: int
    role: str
    version: Callable[[], str]
    started_at_ms: int
    config: dict[str, Any]
    http: Callable[[], str]
    metrics: Callable[[], Awaitable[bytes]]
    directory: Path
    certificate_ends: Callable[[], datetime | None] = lambda: None
    """Function that returns when the first of its certificates expires, or None. Reads files."""
    low_on_space: Callable[[], bool] = lambda: False
    log_contradiction: Callable[[], str] = lambda: ""


class NodeRpc:
    """The service of one node."""

    def __init__(
        self,
        facts: NodeFacts,
        events: RecentEvents,
        level: LogLevel,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._facts, self._events, self._level = facts, events, level
        self._clock = wall_clock_ms
        self._probing = False
        self._disk = DiskUsage(facts.directory)
        self._certificates = BackgroundLook(facts.certificate_ends)

    def handler(self, may_call: MayCall, changed: Changed) -> Any:
        """Return the handler for ``Transport.listen(extra_handlers=...)`` on one listener."""

        def guarded(name: str, answer: Callable[[Any], Any]) -> Any:
            async def call(request: Any, caller: Caller) -> Any:
                may_call(name, request, caller)
                try:
                    self._check(request)
                    response = answer(request)
                    if asyncio.iscoroutine(response):
                        response = await response
                except ApiError as error:
                    if name in CHANGES:
                        changed(name, caller, error)
                    raise
                if name in CHANGES:
                    changed(name, caller, None)
                return response

            return call

        return unary_handler(
            pb.DESCRIPTOR.services_by_name["Node"],
            explicit={
                name: guarded(name, answer)
                for name, answer in (
                    ("DescribeNode", self.describe),
                    ("DescribeNodeEvents", self.events),
                    ("DiagnoseNode", self.diagnose),
                    ("AlterLogLevel", self.alter_log_level),
                )
            },
        )

    async def describe(self, request: pb.DescribeNodeRequest) -> pb.DescribeNodeResponse:
        """Return the identity and state of the node."""
        facts = self._facts
        (free_bytes, total_bytes), ends = await asyncio.gather(
            self._disk.free_and_total(), self._certificates.now()
        )
        return pb.DescribeNodeResponse(
            cluster_id=facts.cluster_id,
            node_id=facts.node_id,
            role=facts.role,
            version=facts.version(),
            python_version=platform.python_version(),
            platform=platform.platform(),
            started_at_ms=facts.started_at_ms,
            now_ms=self._clock(),
            log_level=self._level.level,
            log_level_until_ms=self._level.until_ms,
            http_listener=facts.http(),
            config=[
                pb.NodeConfigValue(name=name, value=_shown(name, value))
                for name, value in sorted(facts.config.items())
            ],
            disk_free_bytes=free_bytes,
            disk_total_bytes=total_bytes,
            certificate_ends_at_ms=0 if ends is None else int(ends.timestamp() * 1000),
            low_on_space=facts.low_on_space(),
            time_ms=self._events.time_ms(),
            log_contradiction=facts.log_contradiction(),
        )

    def events(self, request: pb.DescribeNodeEventsRequest) -> pb.DescribeNodeEventsResponse:
        """Return a page of the journal. Raises ApiError."""
        for field in ("max_age_ms", "after_seq", "limit"):
            if getattr(request, field) < 0:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"{getattr(request, field)} is negative",
                    field=field,
                )
        limit = min(request.limit or EVENTS_MAX, EVENTS_MAX)
        time_ms = self._events.time_ms()
        since_ms = time_ms - request.max_age_ms if request.max_age_ms else 0
        found, more = self._events.since(since_ms, request.after_seq, limit)
        return pb.DescribeNodeEventsResponse(
            cluster_id=self._facts.cluster_id,
            node_id=self._facts.node_id,
            role=self._facts.role,
            events=[_on_the_wire(one) for one in found],
            more=more,
            time_ms=time_ms,
        )

    async def diagnose(self, request: pb.DiagnoseNodeRequest) -> pb.DiagnoseNodeResponse:
        """Return metrics, the newest log lines, and the disk's state. Raises ApiError."""
        if request.log_lines < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{request.log_lines} is negative", field="log_lines"
            )
        response = pb.DiagnoseNodeResponse(
            node_id=self._facts.node_id,
            role=self._facts.role,
            metrics=(await self._facts.metrics()).decode(),
            log_lines=TAIL.newest(min(request.log_lines or LOG_LINES, TAIL_LINES)),
        )
        directory = self._facts.directory
        if not request.probe_disk:
            response.probe_failure = "no disk probe was requested"
        elif self._probing:
            response.probe_failure = "a disk probe for another caller is still running"
        else:
            self._probing = True
            try:
                took, failure = await asyncio.to_thread(probe_sync_us, directory)
            finally:
                self._probing = False
            response.sync_us[:] = took
            response.probe_failure = failure
        response.free_bytes, response.total_bytes = await self._disk.free_and_total()
        return response

    def alter_log_level(self, request: pb.AlterLogLevelRequest) -> pb.AlterLogLevelResponse:
        """Change the log level temporarily. Raises ApiError."""
        self._level.alter(request.level, request.for_ms)
        return pb.AlterLogLevelResponse(
            node_id=self._facts.node_id, level=self._level.level, until_ms=self._level.until_ms
        )

    def _check(self, request: Any) -> None:
        check_limits(request)
        if request.cluster_id and request.cluster_id != self._facts.cluster_id:
            raise ApiError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"this is cluster {self._facts.cluster_id!r}, not {request.cluster_id[:80]!r}",
                field="cluster_id",
            )


class DiskUsage:
    """The free and total space of a disk. A disk that hangs does not delay the node's responses."""

    def __init__(self, directory: Path) -> None:
        self._look = BackgroundLook(lambda: shutil.disk_usage(directory))

    async def free_and_total(self) -> tuple[int, int]:
        """Return the free and total space in bytes, or (0, 0) if not known in time."""
        usage = await self._look.now()
        return (0, 0) if usage is None else (usage.free, usage.total)


def _on_the_wire(event: NodeEvent) -> pb.NodeEvent:
    return pb.NodeEvent(
        seq=event.seq,
        at_ms=event.at_ms,
        kind=event.kind,
        details=[
            pb.NodeEventDetail(name=name, value=as_text(value))
            for name, value in event.details.items()
        ],
        repeats=event.repeats,
        left_out=event.left_out,
    )


def _shown(name: str, value: Any) -> str:
    if value and _SECRET.search(name):
        return '"(left out)"'
    return msgspec.json.encode(value, enc_hook=str).decode()
