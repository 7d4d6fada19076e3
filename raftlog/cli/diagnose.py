"""``raftlog doctor``, ``explain``, ``history``, ``debug`` and ``cluster loglevel``: what the nodes
and the log of a cluster say.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.command import Answer, command, finish, group
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    BundleFile,
    DataDirectory,
    ExportDirectory,
    Json,
    JsonLines,
    Timeout,
    arg,
    controllers,
    opt,
)
from raftlog.cli.output import print_error, print_json_line, print_line, print_table
from raftlog.cli.values import From, Period, Since, To, parse_span_ms
from raftlog.metadata.selectors import QUESTION_KINDS
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.metadata.changes import Changed
    from raftlog.ops.collector import LogLevelAnswer
    from raftlog.ops.doctor import DoctorReport
    from raftlog.ops.evidence import Survey, Timeline
    from raftlog.ops.quorum_findings import Finding
    from raftlog.ops.story import Explained

    Looked = tuple[Survey, list[Finding]]
    Look = Callable[[float], Coroutine[Any, Any, Looked]]

LOOK_S, LAST_LOOK_S, WAIT_S = 1.0, 0.5, 60.0
WATCH_PAUSE_S, WAIT_PAUSE_S = 2.0, 0.5
DEFAULT_LIMIT = 100
CONFIGURED = "configured"
_CLEAR = "\x1b[H\x1b[2J"
_EXIST_BY_A_CHANGE = frozenset({"topic", "partition", "broker"})
"""Kinds of which nothing exists without a change; a topic without configs is not a mistake."""

debug = group()


class Wanted(StrEnum):
    """States that ``--wait`` waits for."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"


@command()
def doctor(
    bootstrap_controller: BootstrapController = "",
    watch: Annotated[bool, opt("--watch -w", "Look again every 2 s, until Ctrl-C.")] = False,
    wait: Annotated[
        Wanted | None,
        opt(
            "--wait",
            "Look again until the cluster is healthy, and a broker serves (or until it is at"
            " least degraded: it has a leader), for rolling restarts.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        opt(
            "--timeout S",
            "Seconds until nodes that say nothing are given up: 1; a tenth of it once a"
            " leader has answered. With --wait: seconds in all, 60.",
            envvar="RAFTLOG_TIMEOUT",
            min=0.01,
        ),
    ] = None,
    bundle: BundleFile = None,
    as_json: Json = False,
) -> Answer[DoctorReport]:
    """Say what is wrong, what follows from it, and what to do.

    Asks every controller by itself, and the leader for the brokers; needs no leader. Where none
    answers, it looks a second time before it says so. Exit code 0: healthy, 3: something was found,
    4: nobody answers, or --wait took too long.

    \b
    Examples:
      raftlog doctor --bootstrap-controller 127.0.0.1:9093
      raftlog doctor --watch
      raftlog doctor --bundle raftlog-debug.tar.gz
      raftlog doctor --wait healthy --timeout 120 && restart-the-next-node
    """
    from raftlog.client.options import security_of_environment
    from raftlog.ops.collector import Collector
    from raftlog.ops.doctor import diagnose, with_local_commands

    if bundle is not None:
        from raftlog.ops.bundle import read_bundle

        with read_bundle(bundle) as found:
            survey = found.survey()
            return _looked(survey, diagnose(survey))
    addresses = controllers(bootstrap_controller)
    collector = Collector(security_of_environment())

    async def look(look_s: float) -> Looked:
        survey = await collector.survey(addresses, look_s)
        return survey, with_local_commands(diagnose(survey), addresses)

    if wait is not None:
        return asyncio.run(_until(look, wait, timeout or WAIT_S))
    if watch:
        asyncio.run(_look_for_ever(look, timeout or LOOK_S, as_json=as_json))
    return _looked(*asyncio.run(look(timeout or LOOK_S)))


async def _look_for_ever(look: Look, timeout_s: float, *, as_json: bool) -> None:
    """Look, and show what was found, until Ctrl-C."""
    clear = _CLEAR if sys.stdout.isatty() and not as_json else ""
    while True:
        answer = _looked(*await look(timeout_s))
        typer.echo(clear, nl=False)
        finish(replace(answer, errors=()), as_json=as_json)
        await asyncio.sleep(WATCH_PAUSE_S)


async def _until(look: Look, wanted: Wanted, timeout_s: float) -> Answer[DoctorReport]:
    """Look until the cluster is as wanted, or the time is over; return the last look."""
    from raftlog.ops.doctor import serves, verdict

    deadline = time.monotonic() + timeout_s
    good = ("healthy",) if wanted is Wanted.HEALTHY else ("healthy", "degraded")
    while True:
        left_s = deadline - time.monotonic()
        # The last look is the one that is shown: in less time a busy node seems to hang.
        survey, findings = await look(min(LOOK_S, timeout_s, max(LAST_LOOK_S, left_s)))
        is_good = verdict(findings) in good
        # A cluster that has just been started has no broker yet, and nothing is wrong with it.
        if is_good and (wanted is Wanted.DEGRADED or serves(survey)):
            return replace(_looked(survey, findings), errors=())
        if left_s <= WAIT_PAUSE_S:
            why = ": no broker is unfenced" if is_good else ""
            text = f"the cluster was not {wanted.value} within {timeout_s:g} s{why}"
            failed = FailedError(text, Exit.UNREACHABLE)
            return replace(_looked(survey, findings), errors=[failed])
        await asyncio.sleep(WAIT_PAUSE_S)


def _looked(survey: Survey, findings: Sequence[Finding]) -> Answer[DoctorReport]:
    """Return the answer of one look, with the exit code that says what was found."""
    from raftlog.ops.doctor import report, screen, verdict

    code = Exit.OK if verdict(findings) == "healthy" else Exit.FOUND
    code = code if survey.answers else Exit.UNREACHABLE
    errors = [typer.Exit(code)] if code else []
    return Answer(report(survey, findings), lambda: typer.echo(screen(survey, findings)), errors)


@command()
def explain(
    since: Since = "",
    begin: From = "",
    end: To = "",
    directories: Annotated[
        list[Path] | None,
        opt(
            "--directory -d DIR", "Read data directories of stopped nodes instead; may be repeated."
        ),
    ] = None,
    everything: Annotated[
        bool, opt("--all -a", "Show what is normal, too: starts, snapshots, …")
    ] = False,
    bundle: BundleFile = None,
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[Explained]:
    """Tell an incident in order: elections, crashes, stalls, changes.

    Elections with their reasons, fences, which broker held visibility back, gaps in the writes,
    what was changed before, and what is wrong now. Asks each node for its journal, and the leader
    for the log. What some node does not answer is named as missing. Default: the last hour. Times
    are UTC, by the clock of the leader; of directories and bundles, the last hour that they tell
    of.

    \b
    Examples:
      raftlog explain
      raftlog explain --since 15m --all
      raftlog explain --from 12:00 --to 12:30 --json
      raftlog explain -d data/controller-1 -d data/controller-2 --since 7d
    """
    period = Period(since, begin, end, default="1h")
    survey: Survey | None = None
    if bundle is not None:
        from raftlog.ops.bundle import read_bundle

        with read_bundle(bundle) as found:
            told = found.timeline(period.at if period.is_given else None)
            return _told(told, found.survey(), everything=everything)
    if directories:
        from raftlog.ops.history import timeline_of_directories

        told = timeline_of_directories(directories, period.at)
    else:
        from raftlog.ops.history import timeline_of_cluster

        addresses = controllers(bootstrap_controller)
        servers = _addresses(bootstrap_server)
        survey, told = timeline_of_cluster(addresses, servers, timeout, period.at)
    return _told(told, survey, everything=everything)


def _told(timeline: Timeline, survey: Survey | None, *, everything: bool) -> Answer[Explained]:
    """Return the story of a period. ``survey``: the cluster now; None if it was not asked."""
    from raftlog.ops.doctor import diagnose
    from raftlog.ops.story import explained, screen, tell

    now = None if survey is None else diagnose(survey)
    story = tell(timeline)
    text = screen(story, now, everything=everything)
    return Answer(explained(story, now), lambda: typer.echo(text))


@dataclass
class ChangedField:
    """A field before and after."""

    field: str
    before: Any
    after: Any


@dataclass
class HistoryChange:
    """A change of one entity."""

    offset: int
    epoch: int
    timestamp_ms: int
    principal: str
    """Empty: the controller itself, or unknown."""
    client_id: int
    sequence: int
    type_name: str
    kind: str
    key: str
    before: Any
    """The entity as JSON; null if it does not exist."""
    after: Any
    fields: Sequence[ChangedField]
    recovery: Any
    """The reports by which a leader was elected, the replicas that were silent, and what may be
    lost; null for any other change.
    """


@command(lines=HistoryChange)
def history(
    kind: Annotated[
        str,
        arg(
            "KIND",
            f"{', '.join(QUESTION_KINDS[:-1])} or {QUESTION_KINDS[-1]}.",
            autocompletion=completion.history_kinds,
        ),
    ],
    key: Annotated[
        list[str] | None,
        arg(
            "[KEY]",
            "Of the kind: orders, orders-0, 4, topic orders. Default: all.",
            autocompletion=completion.history_keys,
        ),
    ] = None,
    since: Since = "",
    begin: From = "",
    end: To = "",
    limit: Annotated[
        int | None,
        opt(
            "--limit N",
            f"Show the newest N changes. Default: {DEFAULT_LIMIT}; with --json: all.",
            min=1,
        ),
    ] = None,
    directory: DataDirectory = None,
    export: ExportDirectory = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: JsonLines = False,
) -> None:
    """List the changes of a topic, broker or config: who, when, what.

    Each with the values before and after. Reads the log of the running cluster, of a stopped node's
    directory, or of an export, which reaches back beyond what the cluster keeps. A topic's history
    has its partitions and configs, too; that of the cluster has leaders, voters and features.

    \b
    Examples:
      raftlog history topic orders --since 7d
      raftlog history config topic orders
      raftlog history broker 4 --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z
      raftlog history acl --export exported
    """
    from raftlog.metadata.selectors import question
    from raftlog.metadata.words import why_nobody
    from raftlog.ops.history import changes_of, changes_of_topic_id
    from raftlog.ops.logs import begins_late, open_log

    keys = key or []
    try:
        asked = question(kind, ":".join(keys))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    period = Period(since, begin, end)
    most = limit if limit is not None else (None if as_json else DEFAULT_LIMIT)
    shown: deque[Changed] = deque(maxlen=most)
    total = 0
    addresses = partial(controllers, bootstrap_controller)
    with open_log(directory, export, addresses, timeout) as source:
        span = period.at(source.now_ms)
        found: Iterable[Changed] = changes_of(source, asked, *span)
        if kind in {"topic", "topics"} and len(keys) == 1:
            by_id = changes_of_topic_id(source, keys[0], *span)
            found = chain(found, (one for one in by_id if not total))
        for one in found:
            shown.append(one)
            total += 1
        late, origin, end_offset = begins_late(source), source.origin, source.high_watermark
    if as_json:
        for one in shown:
            print_json_line(_change_document(one))
    elif shown:
        _print_changes(shown, with_author=not origin)
    name = " ".join([kind, *keys])
    exists = bool(asked.kinds & _EXIST_BY_A_CHANGE)
    if not total and keys and exists and not period.is_given and not late:
        raise FailedError(
            f"there is and was not a {name}: the log has no change of it", Exit.REFUSED
        )
    if late:
        print_error(f"{late}. Older changes of {name} are in an export, if there is one: --export")
    more = f" ({len(shown)} shown, the newest: raise --limit for more)"
    counts = f"{counted(total, 'change')} of {name}, up to offset {end_offset}"
    if not as_json:
        print_line(f"{counts}{more if len(shown) < total else ''}")
        if origin and shown:
            print_line(why_nobody(origin))
    elif len(shown) < total:
        print_error(f"{counts}{more}")


def _change_document(one: Changed) -> HistoryChange:
    from msgspec.json import decode

    from raftlog.metadata.words import field_changes

    before, after = (None if value is None else decode(value) for value in (one.before, one.after))
    changed = [
        ChangedField(each.field, decode(each.before), decode(each.after))
        for each in field_changes(one.before, one.after)
    ]
    recovery = decode(one.recovery) if one.recovery else None
    return HistoryChange(*one[:-3], before, after, changed, recovery)


def _print_changes(shown: Iterable[Changed], *, with_author: bool) -> None:
    from raftlog.cli.output import print_table
    from raftlog.metadata.record_text import time_text
    from raftlog.metadata.words import author
    from raftlog.ops.history import in_words

    print_table(
        ("OFFSET", "TIME", *(("BY",) if with_author else ()), "WHAT", "CHANGE"),
        [
            (
                one.offset,
                time_text(one.timestamp_ms)[:19].replace("T", " ") + "Z",
                *((author(one.principal, one.client_id),) if with_author else ()),
                f"{one.kind} {one.key}".rstrip(),
                in_words(one),
            )
            for one in shown
        ],
        right=("OFFSET",),
        least=("OFFSET",),
    )


@command(debug, "bundle")
def bundle_(
    file: Annotated[Path | None, arg("[FILE]", "Default: raftlog-debug-TIME.tar.gz, here.")] = None,
    since: Since = "",
    disk: Annotated[
        bool, opt("--disk/--no-disk", "Measure each node's disk with 20 small syncs.")
    ] = True,
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Write one tar.gz with what every node says of itself.

    Build, configuration without secrets, journal, newest log lines, metrics, disk; the changes of
    the last day; what doctor and explain say. It holds names of topics, principals and hosts. Read
    it with `raftlog doctor --bundle FILE` and `raftlog explain --bundle FILE`.

    \b
    Examples:
      raftlog debug bundle
      raftlog debug bundle /tmp/incident.tar.gz --since 2h --no-disk
    """
    from raftlog.ops import bundle
    from raftlog.ops.history import timeline_of_cluster

    addresses, servers = controllers(bootstrap_controller), _addresses(bootstrap_server)
    period = Period(since, default="1d")
    target = file or Path(f"raftlog-debug-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    survey, timeline = timeline_of_cluster(addresses, servers, timeout, period.at)
    diagnoses = asyncio.run(bundle.diagnose(survey, servers, timeout, disk=disk))
    parts, nodes = bundle.parts_of(survey, timeline, diagnoses)
    bundle.write_bundle(target, parts, survey.at_ms)
    missing = [f"{one.name}: {one.failure}" for one in nodes if one.failure]
    if timeline.log.failure:
        missing.append(f"the log: {timeline.log.failure}")
    print_line(f"{target}: {counted(len(nodes), 'node')}, {target.stat().st_size} bytes")
    for one in missing:
        print_line(f"missing: {one}")
    if len(missing) >= len(nodes):
        raise typer.Exit(Exit.UNREACHABLE)


@dataclass
class NodeLogLevel:
    """The log level of a node."""

    node: str
    level: str | None
    until_ms: int | None
    """Time when the configured level is back; null if it is the configured one."""
    failure: str | None
    """Reason why the node has not answered."""


@dataclass
class LogLevels:
    """The nodes that were asked."""

    nodes: Sequence[NodeLogLevel]


@command()
def loglevel(
    level: Annotated[
        str, arg("[LEVEL]", "debug, info, warning, error, or configured. Default: show the levels.")
    ] = "",
    nodes: Annotated[
        list[str] | None,
        opt(
            "--node NAME",
            "Only broker-4, controller-1, …; may be repeated.",
            autocompletion=completion.node_names,
        ),
    ] = None,
    span: Annotated[str, opt("--for SPAN", "How long; then the configured is back.")] = "10m",
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[LogLevels]:
    """Show the log level of each node, or set another one for a while.

    The configured level is back after --for, a day at most, or at the next start.

    \b
    Examples:
      raftlog cluster loglevel
      raftlog cluster loglevel debug --node broker-4 --for 2m
      raftlog cluster loglevel configured
    """
    from raftlog.metadata.record_text import time_text

    wanted: str | None = None
    for_ms = parse_span_ms(span)
    if level:
        wanted, for_ms = ("", 0) if level == CONFIGURED else (level, for_ms)
    addresses, servers = controllers(bootstrap_controller), _addresses(bootstrap_server)
    found = asyncio.run(_log_levels(addresses, servers, timeout, wanted, for_ms, nodes or []))
    rows = [
        NodeLogLevel(one.node.name, one.level or None, one.until_ms or None, one.failure or None)
        for one in found
    ]

    def show() -> None:
        until = [time_text(one.until_ms)[:19] + "Z" if one.until_ms else None for one in rows]
        cells = [
            (one.node, one.level, at, one.failure or "")
            for one, at in zip(rows, until, strict=True)
        ]
        print_table(("NODE", "LEVEL", "UNTIL", ""), cells)

    code = Exit.REFUSED if any(one.level for one in rows) else Exit.UNREACHABLE
    errors = [typer.Exit(code)] if any(one.failure for one in rows) else []
    return Answer(LogLevels(rows), show, errors)


async def _log_levels(
    addresses: Sequence[str],
    servers: Sequence[str],
    timeout_s: float,
    level: str | None,
    for_ms: int,
    names: Sequence[str],
) -> list[LogLevelAnswer]:
    from raftlog.client.options import security_of_environment
    from raftlog.ops.collector import Collector, nodes_of

    collector = Collector(security_of_environment())
    nodes = nodes_of(await collector.survey(addresses, min(timeout_s, 2.0)), servers)
    if unknown := set(names) - {one.name for one in nodes}:
        there = ", ".join(one.name for one in nodes)
        raise FailedError(f"there is no {', '.join(sorted(unknown))}; there is {there}", Exit.USAGE)
    nodes = [one for one in nodes if not names or one.name in names]
    return await collector.log_levels(nodes, timeout_s, level, for_ms)


def _addresses(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]
