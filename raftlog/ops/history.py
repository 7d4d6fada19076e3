"""The history of a cluster: the changes to an entity, and the timeline of a period."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from msgspec.json import decode, encode

from raftlog import batch
from raftlog.client.security import security_of_environment
from raftlog.errors import ApiError, ConfigError, CorruptLogError, DirectoryInUseError, StorageError
from raftlog.metadata.changes import Changed, ChangeRecorder, changes_of_chunk
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.selectors import Query
from raftlog.metadata.words import (
    field_changes,
    id_field,
    parse_topic_id,
    raw,
    recovery_in_words,
    with_kafka_id,
    words,
)
from raftlog.node.observability.journal import read_journal
from raftlog.ops.collector import LOOK_S, Collector, nodes_of
from raftlog.ops.evidence import LogPeriod, NodeEvents, Survey, Timeline
from raftlog.ops.logs import LogSource, begins_late, chunks, open_log, require_node

Period = Callable[[Callable[[], int]], tuple[int, int]]
"""Function that returns the first and last millisecond of a period; it calls its argument to get
the present time if needed.
"""
JOURNAL_S, LOG_TIMEOUT_S = 2.0, 5.0
"""Timeouts in seconds for a node's journal, and for the leader's answer with a part of the log."""
MAX_CHANGES, MAX_WRITES = 100_000, 1_000_000
"""Maximum numbers of changes and writes in a period, of which the newest are kept, as nobody would
read a longer story.
"""
_UNTOLD = frozenset({"client", "client_result", "export_cursor", "kv", "lease"})
"""Kinds of changes that get no line in a story."""


def changes_of(source: LogSource, asked: Query, first_ms: int, last_ms: int) -> Iterator[Changed]:
    """Yield the changes that a query selects, oldest first. The log before the period is folded,
    and its changes are omitted.
    """
    recorder = ChangeRecorder(source.image_up_to(source.high_watermark - 1))
    for chunk in chunks(source, source.high_watermark, begin=recorder.offset + 1):
        for one in changes_of_chunk(recorder, chunk, asked.kinds.__contains__):
            if first_ms <= one.timestamp_ms <= last_ms and asked.matches(one.kind, one.key):
                yield _as_kafka(one) if source.origin else one


def changes_of_topic_id(
    source: LogSource, key: str, first_ms: int, last_ms: int
) -> Iterator[Changed]:
    """Yield the changes to the topic with this id and of its partitions."""
    id_ = parse_topic_id(key)
    if id_ is None:
        return
    topics = Query(frozenset({"topic", "partition"}), lambda of, at: True)
    for one in changes_of(source, topics, first_ms, last_ms):
        value = decode(one.after or one.before or "{}")
        if parse_topic_id(value.get(id_field(one.kind), "")) == id_:
            yield one


def in_words(one: Changed) -> str:
    """Return a change as one line of text."""
    fields = field_changes(one.before, one.after)
    text = words(raw(one.before), raw(one.after), fields, one.kind).replace("\n", "; ")
    return f"{text}; {recovery_in_words(decode(one.recovery))}" if one.recovery else text


async def journals_of(
    collector: Collector,
    addresses: Sequence[str],
    brokers: Sequence[str],
    timeout_s: float,
    period: Period,
) -> tuple[Survey, Timeline]:
    """Survey a cluster and read the journals of a period, as a timeline without a log.

    ``brokers``: further addresses to query, since without a leader no node names the brokers.
    """
    survey = await collector.survey(addresses, min(timeout_s, LOOK_S))
    first_ms, last_ms = period(lambda: survey.at_ms)
    age_ms = max(1, survey.at_ms - first_ms)
    told = await collector.journals(
        survey, nodes_of(survey, brokers), age_ms, min(timeout_s, JOURNAL_S)
    )
    return survey, Timeline(first_ms, last_ms, tuple(told))


def with_log(timeline: Timeline, log: LogPeriod, now_ms: int) -> Timeline:
    """Return a timeline with its log; a period without an end ends now."""
    if timeline.to_ms > now_ms:
        return Timeline.until_now(timeline.from_ms, now_ms, timeline.nodes, log)
    return replace(timeline, log=log)


def timeline_of_cluster(
    addresses: Sequence[str], brokers: Sequence[str], timeout_s: float, period: Period
) -> tuple[Survey, Timeline]:
    """Survey a cluster, and read all journals and the log of a period. Blocks. Never raises for a
    failure of a node.
    """
    collector = Collector(security_of_environment())
    survey, timeline = asyncio.run(journals_of(collector, addresses, brokers, timeout_s, period))
    controllers = [one.endpoint for one in survey.nodes if one.endpoint not in addresses]
    log_timeout_s = min(timeout_s, LOG_TIMEOUT_S)
    log = log_of_cluster(
        [*controllers, *addresses], log_timeout_s, timeline.from_ms, timeline.to_ms
    )
    return survey, with_log(timeline, log, survey.at_ms)


def timeline_of_directories(directories: Sequence[Path], period: Period) -> Timeline:
    """Read the journals of stopped nodes, and the longest log among them.

    A period without an end ends with the last event or write of any node. Raises ConfigError for an
    invalid data directory.
    """
    with StoppedNodes(directories) as stopped:
        first_ms, last_ms = period(lambda: stopped.now_ms)
        timeline = Timeline(first_ms, last_ms, tuple(stopped.nodes))
        return with_log(timeline, stopped.log(first_ms, last_ms), stopped.now_ms)


def log_of_cluster(
    addresses: Sequence[str], timeout_s: float, first_ms: int, last_ms: int
) -> LogPeriod:
    """Read a period of a running cluster's log. Blocks. Never raises for failures of the
    cluster.
    """
    try:
        with open_log(None, None, lambda: addresses, timeout_s) as source:
            return log_of(source, first_ms, last_ms)
    except (ApiError, CorruptLogError, ConfigError) as error:
        return LogPeriod(failure=str(error))


def log_of(source: LogSource, first_ms: int, last_ms: int) -> LogPeriod:
    """Read a period of a log; the earlier log is folded, and its changes are omitted. Raises
    ApiError, CorruptLogError, ConfigError.
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
        late.append(f"only the newest {len(changes)} of {total} changes in the period are shown")
    return LogPeriod(tuple(changes), tuple(writes), late="; ".join(filter(None, late)))


class StoppedNodes:
    """The journals of stopped nodes' directories, and the longest log among them; a context
    manager.

    Raises ConfigError for an invalid data directory.
    """

    _log: LogSource | None = None

    def __init__(self, directories: Sequence[Path]) -> None:
        self._stack = ExitStack()
        self._failures: list[str] = []
        self.nodes: list[NodeEvents] = []
        try:
            for directory in directories:
                self._read(directory)
        except BaseException:
            self._stack.close()
            raise
        newest = [event.at_ms for node in self.nodes for event in node.events]
        if self._log is not None:
            newest.append(self._log.now_ms())
        self.now_ms = max(newest, default=0)
        """Time of the last event or write of any node, in ms."""

    def __enter__(self) -> StoppedNodes:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def log(self, first_ms: int, last_ms: int) -> LogPeriod:
        """Read a period of the log."""
        if self._log is None:
            why = "; ".join(self._failures) or "no controller's directory was given"
            return LogPeriod(failure=why)
        return log_of(self._log, first_ms, last_ms)

    def _read(self, directory: Path) -> None:
        require_node(directory)
        states = ("quorum-state.json", "log-state.json")
        has_log = (directory / "log" / "CURRENT").exists() and any(
            (directory / name).exists() for name in states
        )
        self.nodes.append(_journal_of(directory, "controller" if has_log else "broker"))
        if not has_log:
            return
        try:
            source = self._stack.enter_context(open_log(directory, None, tuple, 0))
            if self._log is None or source.high_watermark > self._log.high_watermark:
                self._log = source
        except DirectoryInUseError as error:
            self._failures.append(
                f"{error}: its node is running. Query the cluster instead: omit --directory, and "
                "give --bootstrap-controller or set RAFTLOG_BOOTSTRAP_CONTROLLER"
            )
        except (ConfigError, CorruptLogError, StorageError) as error:
            self._failures.append(str(error))


def _journal_of(directory: Path, role: str) -> NodeEvents:
    # Imported only here: a client installation has no storage.
    from raftlog.node.storage.directory import read_identity

    node_id = read_identity(directory).node_id
    name = f"{role}-{node_id}"
    try:
        events = tuple(read_journal(directory))
    except OSError as error:
        return NodeEvents(name, role, node_id, failure=f"{directory}: {error.strerror}")
    return NodeEvents(name, role, node_id, events, "" if events else f"{directory} has no journal")


def _as_kafka(one: Changed) -> Changed:
    """Return a change with topic ids in the form that Kafka prints."""
    before, after = (
        None if value is None else encode(with_kafka_id(one.kind, decode(value))).decode()
        for value in (one.before, one.after)
    )
    return one._replace(before=before, after=after)
