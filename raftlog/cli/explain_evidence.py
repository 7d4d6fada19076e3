"""Gathers what is known of a period: of a running cluster, or of data directories."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from raftlog import batch
from raftlog.cli.doctor_evidence import LOOK_S, gather
from raftlog.cli.log_sources import LogSource, begins_late, chunks, open_log
from raftlog.cli.node_queries import NodeAt, journals, nodes_of
from raftlog.cli.times import FOR_EVER_MS, Period
from raftlog.client.security import security_of_environment
from raftlog.errors import (
    ApiError,
    ConfigError,
    CorruptLogError,
    DirectoryInUseError,
    StorageError,
)
from raftlog.metadata.changes import Changed, ChangeRecorder, changes_of_chunk
from raftlog.metadata.fold import ImageBuilder
from raftlog.observability.journal import read_journal
from raftlog.ops.evidence import LogTold, NodeTold, Timeline
from raftlog.ops.evidence import Survey as Seen

if TYPE_CHECKING:
    from raftlog.storage.api import NodeIdentity

NODE_TIMEOUT_S = 2.0
"""Of a node that hangs: its journal is missing then."""
LOG_TIMEOUT_S = 5.0
MAX_CHANGES, MAX_WRITES = 100_000, 1_000_000
"""The newest of a period; a story of more would be read by nobody."""
_UNTOLD = frozenset(
    {"applied", "progress", "client", "client_result", "export_cursor", "kv", "lease"}
)
"""What no line of a story is made of."""


def of_cluster(
    addresses: Sequence[str], servers: Sequence[str], timeout_s: float, period: Period
) -> tuple[Timeline, Seen]:
    """Look at the cluster, ask all nodes for their journals, and read the log.

    Never raises for what nodes do. Raises BadParameter for a period that ends before it begins.
    """
    seen, told, (first_ms, last_ms) = asyncio.run(_told_of(addresses, servers, timeout_s, period))
    voters = (one.endpoint for one in nodes_of(seen) if one.role == "controller")
    bootstrap = ",".join(dict.fromkeys([*voters, *addresses]))
    try:
        with open_log(None, None, bootstrap, min(timeout_s, LOG_TIMEOUT_S)) as source:
            log = log_of(source, first_ms, last_ms)
    except (ApiError, CorruptLogError, ConfigError) as error:
        log = LogTold(failure=str(error))
    return _evidence(first_ms, last_ms, seen.at_ms, told, log), seen


async def _told_of(
    addresses: Sequence[str], servers: Sequence[str], timeout_s: float, period: Period
) -> tuple[Seen, list[NodeTold], tuple[int, int]]:
    security = security_of_environment()
    seen = await gather(addresses, min(timeout_s, LOOK_S), security)
    first_ms, last_ms = period.at(lambda: seen.at_ms)
    nodes = nodes_of(seen, [NodeAt("broker", -1, one) for one in servers])
    age_ms = max(1, seen.at_ms - first_ms)
    told = await journals(seen, nodes, age_ms, min(timeout_s, NODE_TIMEOUT_S), security)
    return seen, told, (first_ms, last_ms)


def _evidence(
    first_ms: int, last_ms: int, now_ms: int, nodes: Sequence[NodeTold], log: LogTold
) -> Timeline:
    if last_ms == FOR_EVER_MS:
        return Timeline.until_now(first_ms, now_ms, tuple(nodes), log)
    return Timeline(first_ms, last_ms, tuple(nodes), log)


def of_directories(directories: Sequence[Path], period: Period) -> Timeline:
    """Read the journals of data directories, and the longest log that one of them has.

    What time it is, they say themselves: that of the last that any of them has.
    Raises ConfigError for what is no data directory, BadParameter as ``of_cluster``.
    """
    from raftlog.cli.data_directory import require_node
    from raftlog.storage.meta_file import read_identity

    nodes, failures, longest = [], [], None
    with ExitStack() as stack:
        for directory in directories:
            require_node(directory)
            identity = read_identity(directory)
            has_log = (directory / "log" / "CURRENT").exists() and _is_controller(directory)
            nodes.append(_told(directory, identity, "controller" if has_log else "broker"))
            if not has_log:
                continue
            try:
                source = stack.enter_context(open_log(directory, None, "", 0))
                if longest is None or source.high_watermark > longest.high_watermark:
                    longest = source
            except DirectoryInUseError as error:
                failures.append(
                    f"{error}: its node runs. Ask the cluster instead, without --directory:"
                    " --bootstrap-controller, or RAFTLOG_BOOTSTRAP_CONTROLLER"
                )
            except (ConfigError, CorruptLogError, StorageError) as error:
                failures.append(str(error))
        newest = [event.at_ms for node in nodes for event in node.events]
        if longest is None:
            now_ms = max(newest, default=0)
            first_ms, last_ms = period.at(lambda: now_ms)
            why = "; ".join(failures) or "no directory of a controller was given"
            log = LogTold(failure=why)
        else:
            now_ms = max([longest.now_ms(), *newest])
            first_ms, last_ms = period.at(lambda: now_ms)
            log = log_of(longest, first_ms, last_ms)
    return _evidence(first_ms, last_ms, now_ms, nodes, log)


def _is_controller(directory: Path) -> bool:
    return (directory / "quorum-state.json").exists() or (directory / "log-state.json").exists()


def _told(directory: Path, identity: NodeIdentity, role: str) -> NodeTold:
    name = f"{role}-{identity.node_id}"
    try:
        events = tuple(read_journal(directory))
    except OSError as error:
        return NodeTold(name, role, identity.node_id, (), f"{directory}: {error.strerror}")
    failure = "" if events else f"{directory} has no journal"
    return NodeTold(name, role, identity.node_id, events, failure)


def log_of(source: LogSource, first_ms: int, last_ms: int) -> LogTold:
    """What a log has of a period; what was before is folded, and not told.

    Raises ApiError, CorruptLogError, ConfigError.
    """
    end = source.high_watermark
    builder = ImageBuilder(source.image_up_to(end - 1))
    recorder: ChangeRecorder | None = None
    changes: deque[Changed] = deque(maxlen=MAX_CHANGES)
    writes: deque[int] = deque(maxlen=MAX_WRITES)
    total = 0
    for chunk in chunks(source, end, begin=builder.offset + 1):
        headers = list(batch.headers(chunk, verify=False))
        if recorder is None:
            if max(one.timestamp_ms for one in headers) < first_ms:
                builder.apply_chunk(chunk)
                continue
            recorder = ChangeRecorder(builder.snapshot())
        for one in changes_of_chunk(recorder, chunk, lambda kind: kind not in _UNTOLD):
            if first_ms <= one.timestamp_ms <= last_ms:
                changes.append(one)
                total += 1
        writes += [
            one.timestamp_ms
            for one in headers
            if one.principal and first_ms <= one.timestamp_ms <= last_ms
        ]
    late = [begins_late(source)]
    if total > len(changes):
        late.append(f"of {total} changes in the period the newest {len(changes)} are told")
    return LogTold(tuple(changes), tuple(writes), late="; ".join(filter(None, late)))
