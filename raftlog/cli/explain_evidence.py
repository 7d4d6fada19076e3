"""Gathers what is known of a period: of a running cluster, or of data directories."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raftlog import batch
from raftlog.cli.client_security import security_of_environment
from raftlog.cli.log_sources import LogSource, begins_late, chunks, open_log
from raftlog.cli.node_queries import NodeEvents, events_of_all, find_nodes
from raftlog.errors import (
    ApiError,
    ConfigError,
    CorruptLogError,
    DirectoryInUseError,
    StorageError,
)
from raftlog.incident.evidence import Evidence, LogTold, NodeTold
from raftlog.journal.files import read_journal
from raftlog.metadata.changes import Changed, ChangeRecorder, changes_of_chunk
from raftlog.metadata.fold import ImageBuilder

if TYPE_CHECKING:
    from raftlog.storage.api import NodeIdentity

NODE_TIMEOUT_S = 2.0
"""Of a node that hangs: its journal is missing then."""
LOG_TIMEOUT_S = 5.0
MAX_CHANGES, MAX_WRITES = 100_000, 1_000_000
"""The newest of a period; a story of more would be read by nobody."""
_UNTOLD = frozenset({"applied", "progress", "client", "client_result", "export_cursor"})


def of_cluster(
    addresses: Sequence[str],
    servers: Sequence[str],
    timeout_s: float,
    first_ms: int,
    last_ms: int,
) -> Evidence:
    """Ask all nodes, and read the log. Never raises for what nodes do."""
    told = asyncio.run(_journals(addresses, servers, min(timeout_s, NODE_TIMEOUT_S), first_ms))
    bootstrap = ",".join(
        dict.fromkeys(
            [*(one.node.endpoint for one in told if one.node.role == "controller"), *addresses]
        )
    )
    try:
        with open_log(None, None, bootstrap, min(timeout_s, LOG_TIMEOUT_S)) as source:
            log = log_of(source, first_ms, last_ms)
    except (ApiError, CorruptLogError, ConfigError) as error:
        log = LogTold(failure=str(error))
    return Evidence(first_ms, last_ms, tuple(one.told() for one in told), log)


async def _journals(
    addresses: Sequence[str], servers: Sequence[str], timeout_s: float, first_ms: int
) -> list[NodeEvents]:
    security = security_of_environment()
    nodes = await find_nodes(addresses, timeout_s, security, servers)
    found = await events_of_all(nodes, first_ms, timeout_s, security)
    # An address whose node has a name by now is one node, however it was called.
    by_name: dict[tuple[str, str], NodeEvents] = {}
    for one in found:
        key = (one.node.role, one.node.name)
        if key not in by_name or by_name[key].failure:
            by_name[key] = one
    return list(by_name.values())


def of_directories(directories: Sequence[Path], first_ms: int, last_ms: int) -> Evidence:
    """Read the journals of data directories, and the longest log that one of them has.

    Raises ConfigError for what is no data directory.
    """
    from raftlog.cli.data_directory import require_node
    from raftlog.storage.meta_file import read_identity

    nodes, logs = [], []
    for directory in directories:
        require_node(directory)
        identity = read_identity(directory)
        has_log = (directory / "log" / "CURRENT").exists() and _is_controller(directory)
        role = "controller" if has_log else "broker"
        nodes.append(_told(directory, identity, role))
        if has_log:
            logs.append(directory)
    log = LogTold(failure="no directory of a controller was given")
    for directory in logs:
        try:
            with open_log(directory, None, "", 0) as source:
                found = log_of(source, first_ms, last_ms)
        except DirectoryInUseError as error:
            found = LogTold(
                failure=f"{error}: its node runs. Ask the cluster instead, without --directory:"
                " --bootstrap-controller, or RAFTLOG_BOOTSTRAP_CONTROLLER"
            )
        except (ConfigError, CorruptLogError, StorageError) as error:
            found = LogTold(failure=str(error))
        if log.failure or len(found.changes) > len(log.changes):
            log = found
    return Evidence(first_ms, last_ms, tuple(nodes), log)


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
    for chunk in chunks(source, end, begin=builder.offset + 1):
        headers = list(batch.headers(chunk, verify=False))
        if headers[0].timestamp_ms > last_ms:
            break
        if recorder is None:
            if headers[-1].timestamp_ms < first_ms:
                builder.apply_chunk(chunk)
                continue
            recorder = ChangeRecorder(builder.snapshot())
        for one in changes_of_chunk(recorder, chunk, lambda kind: kind not in _UNTOLD):
            if first_ms <= one.timestamp_ms <= last_ms:
                changes.append(one)
        writes += [
            one.timestamp_ms
            for one in headers
            if one.principal and first_ms <= one.timestamp_ms <= last_ms
        ]
    return LogTold(tuple(changes), tuple(writes), late=begins_late(source))
