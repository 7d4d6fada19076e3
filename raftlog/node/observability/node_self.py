"""A node's information about itself, whatever its role: its journal, and the RPCs of the service
Node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from raftlog.errors import ApiError
from raftlog.logger import get_logger
from raftlog.node.config.node import NodeConfig
from raftlog.node.observability.journal import Kind, NodeJournal
from raftlog.node.observability.log_level import LogLevel
from raftlog.node.observability.logs import set_level
from raftlog.node.observability.node_rpc import NodeFacts, NodeRpc
from raftlog.node.security.guard import Authentication, Duties
from raftlog.node.security.single_calls import check_call, report_change
from raftlog.process import build_text
from raftlog.quorum.config import Voter
from raftlog.transport.certificates import first_end
from raftlog.transport.unary import Caller, UnaryLink
from raftlog.wire.node.v1 import node_pb2

log = get_logger(__name__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class NodeSelf:
    """The journal and the RPCs of one process, once it has locked its directory.

    ``http`` returns the address of its HTTP listener, or empty if none yet. ``metrics`` returns the
    metrics text. ``low_on_space`` returns whether its disk is below the reserve.
    ``log_contradiction``: as in DescribeNode.
    """

    def __init__(
        self,
        config: NodeConfig,
        node_id: int,
        http: Callable[[], str],
        metrics: Callable[[], Awaitable[bytes]],
        low_on_space: Callable[[], bool],
        log_contradiction: Callable[[], str],
    ) -> None:
        self.journal = NodeJournal(config.directory, node_id, config.role, wall_clock_ms=_now_ms)
        self._version = ""
        self._telling: asyncio.Task[None] | None = None
        self._stopped = False
        level = LogLevel(config.settings.log_level, _apply, _now_ms)
        facts = NodeFacts(
            cluster_id=config.cluster_id,
            node_id=node_id,
            role=config.role,
            version=lambda: self._version,
            started_at_ms=_now_ms(),
            config={key: _plain(value) for key, value in config.items()},
            http=http,
            metrics=metrics,
            directory=config.directory,
            certificate_ends=partial(first_end, config.certificates),
            low_on_space=low_on_space,
            log_contradiction=log_contradiction,
        )
        self._rpc = NodeRpc(facts, self.journal.recent, level, _now_ms)

    def keep_to(self, time_ms: Callable[[], int]) -> None:
        """Use this clock for later events."""
        self.journal.recent.time_ms = time_ms

    def handler(
        self, listener: str, authentication: Authentication | None, duties: Duties
    ) -> object:
        """Return the handler of the RPCs on one listener. ``duties`` must include the readers."""

        def may_call(method: str, request: Any, caller: Caller) -> None:
            if authentication is not None:
                link = UnaryLink(caller._replace(listener=listener))
                check_call(method, request, link, authentication, duties, "Node")

        def changed(method: str, caller: Caller, error: ApiError | None) -> None:
            if authentication is not None:
                link = UnaryLink(caller._replace(listener=listener))
                report_change(method, link, authentication, duties, error, "Node")

        return self._rpc.handler(may_call, changed)

    def started(self, set_aside: object = "", mended: bool = False) -> None:
        """Record that the node serves.

        ``set_aside``: where its damaged data is, see KINDS, or empty. ``mended``: whether its log
        was mended in the same directory.
        """
        self.journal.note(Kind.STARTED, after=self.journal.after)
        if set_aside:
            kind = Kind.LOG_MENDED if mended else Kind.DIRECTORY_REPLACED
            self.journal.note(kind, set_aside=str(set_aside))
        if self.journal.after == "crash":
            log.warning("the previous process of this node crashed or was killed")
        self._telling = asyncio.create_task(self._find_version(), name="version")

    def stopped(self, reason: str, *, clean: bool) -> None:
        """Record that the node stops; only the first reason is kept."""
        if not self._stopped:
            self._stopped = True
            self.journal.note(Kind.STOPPED, reason=reason, clean=clean)

    def close(self) -> None:
        """Write the queued events."""
        if self._telling is not None:
            self._telling.cancel()
        self.journal.close()

    async def _find_version(self) -> None:
        # In a thread, and deferred: this may run git, and elections come first.
        self._version = await asyncio.to_thread(build_text)


def may_see(
    config: NodeConfig, authentication: Authentication | None, duties: Duties
) -> Callable[[Caller], None] | None:
    """Return a check that raises ApiError for a caller that may not read over HTTP what
    ``DescribeNode`` reports, or None if every caller may.

    ``duties`` must include the permitted readers.
    """
    if authentication is None or duties.readers is None:
        return None
    request = node_pb2.DescribeNodeRequest()
    # If nodes and HTTP have the same CA, a certificate shown over HTTP can identify a node.
    by_http = any(one.for_nodes and one.security.tls == config.http_tls for one in config.listeners)
    duties = duties._replace(accepts_nodes=duties.accepts_nodes and by_http)
    return lambda caller: check_call(
        "DescribeNode", request, UnaryLink(caller), authentication, duties, "Node"
    )


def _apply(level: str) -> None:
    set_level(level)
    log.warning("the log level was changed", level=level)


def _plain(value: Any) -> Any:
    if isinstance(value, Voter):
        return f"{value.node_id}@{value.endpoint}"
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
