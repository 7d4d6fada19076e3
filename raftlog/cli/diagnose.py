"""``raftlog doctor``, ``explain``, ``history``, ``debug`` and ``cluster loglevel``: what the nodes
and the log report.
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
from raftlog.metadata.selectors import HISTORY_KINDS
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
"""Kinds of which no entity exists without a change; a topic without configs is not a mistake."""

debug = group()


class Wanted(StrEnum):
    """States that ``--wait`` waits for."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"


@command()
def doctor(
    bootstrap_controller: BootstrapController = "",
    watch: Annotated[bool, opt("--watch -w", "Repeat every 2 s, until Ctrl-C.")] = False,
    wait: Annotated[
        Wanted | None,
        opt(
            "--wait",
            "For rolling restarts: repeat until the cluster is healthy and has an unfenced broker,"
            " or, with `degraded`, until the verdict is healthy or degraded.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        opt(
            "--timeout S",
            "How long to wait for nodes that do not answer (default: 1); a tenth of that once a"
            " leader has answered. With --wait: the total time (default: 60).",
            envvar="RAFTLOG_TIMEOUT",
            min=0.01,
        ),
    ] = None,
    bundle: BundleFile = None,
    as_json: Json = False,
) -> Answer[DoctorReport]:
    """Report what is wrong, the consequences, and the remedy.

    Queries every controller directly, and the leader for the brokers; needs no leader. If no leader
    answers, queries again before reporting that. Exit code 0: healthy, 3: problems detected, 4: no
    node answers, or --wait timed out.

    \b
    Examples:
      raftlog doctor --bootstrap-controller 127.0.0.1:9093
      raftlog doctor --watch
      raftlog doctor --bundle raftlog-debug.tar.gz
      raftlog doctor --wait healthy --timeout 120 && restart-the-next-node
    """
    from raftlog.client.security import security_of_environment
    from raftlog.ops.collector import Collector
    from raftlog.ops.doctor import diagnose, with_local_commands

    if bundle is not None:
        from raftlog.ops.bundle import read_bundle

        with read_bundle(bundle) as found:
            survey = found.survey()
            return _surveyed(survey, diagnose(survey))
    addresses = controllers(bootstrap_controller)
    collector = Collector(security_of_environment())

    async def look(look_s: float) -> Looked:
        survey = await collector.survey(addresses, look_s)
        return survey, with_local_commands(diagnose(survey), addresses)

    if wait is not None:
        return asyncio.run(_survey_until(look, wait, timeout or WAIT_S))
    if watch:
        asyncio.run(_survey_repeatedly(look, timeout or LOOK_S, as_json=as_json))
    return _surveyed(*asyncio.run(look(timeout or LOOK_S)))


async def _survey_repeatedly(look: Look, timeout_s: float, *, as_json: bool) -> None:
    """Survey the cluster and show the findings repeatedly, until Ctrl-C."""
    clear = _CLEAR if sys.stdout.isatty() and not as_json else ""
    while True:
        answer = _surveyed(*await look(timeout_s))
        typer.echo(clear, nl=False)
        finish(replace(answer, errors=()), as_json=as_json)
        await asyncio.sleep(WATCH_PAUSE_S)


async def _survey_until(look: Look, wanted: Wanted, timeout_s: float) -> Answer[DoctorReport]:
    """Survey until the cluster is in the wanted state or the time is over; return the last
    survey.
    """
    from raftlog.ops.doctor import serves, verdict

    deadline = time.monotonic() + timeout_s
    good = ("healthy",) if wanted is Wanted.HEALTHY else ("healthy", "degraded")
    while True:
        left_s = deadline - time.monotonic()
        # The last survey is shown: with less time than this a busy node would seem to hang.
        survey, findings = await look(min(LOOK_S, timeout_s, max(LAST_LOOK_S, left_s)))
        is_good = verdict(findings) in good
        # A cluster that has just started has no broker yet, which is not a finding.
        if is_good and (wanted is Wanted.DEGRADED or serves(survey)):
            return replace(_surveyed(survey, findings), errors=())
        if left_s <= WAIT_PAUSE_S:
            why = ": no broker is unfenced" if is_good else ""
            text = f"the cluster was not {wanted.value} within {timeout_s:g} s{why}"
            failed = FailedError(text, Exit.UNREACHABLE)
            return replace(_surveyed(survey, findings), errors=[failed])
        await asyncio.sleep(WAIT_PAUSE_S)


def _surveyed(survey: Survey, findings: Sequence[Finding]) -> Answer[DoctorReport]:
    """Return the answer for one survey, with the exit code for its findings."""
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
        bool, opt("--all -a", "Also show normal events: starts, snapshots, …")
    ] = False,
    bundle: BundleFile = None,
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[Explained]:
    """Reconstruct an incident: elections, crashes, stalls, changes.

    Shows in order of time: elections with their reasons, fencing, which broker held visibility
    back, gaps in the writes, the changes before them, and current problems. Queries each node for
    its journal, and the leader for the log; names what is missing. Default period: the last hour,
    or the last hour recorded in directories and bundles. Times are UTC, by the leader's clock.

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
            return _explained(told, found.survey(), everything=everything)
    if directories:
        from raftlog.ops.history import timeline_of_directories

        told = timeline_of_directories(directories, period.at)
    else:
        from raftlog.ops.history import timeline_of_cluster

        addresses = controllers(bootstrap_controller)
        servers = _addresses(bootstrap_server)
        survey, told = timeline_of_cluster(addresses, servers, timeout, period.at)
    return _explained(told, survey, everything=everything)


def _explained(timeline: Timeline, survey: Survey | None, *, everything: bool) -> Answer[Explained]:
    """Return the report on a period. ``survey``: the cluster's current state, or None if it was not
    queried.
    """
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
    """A change to one entity."""

    offset: int
    epoch: int
    timestamp_ms: int
    principal: str
    """Empty for the controller itself, or if unknown."""
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
    """The reports by which the leader was elected, the replicas that did not report, and what may
    be lost; null for any other change.
    """


@command(lines=HistoryChange)
def history(
    kind: Annotated[
        str,
        arg(
            "KIND",
            f"{', '.join(HISTORY_KINDS[:-1])} or {HISTORY_KINDS[-1]}.",
            autocompletion=completion.history_kinds,
        ),
    ],
    key: Annotated[
        list[str] | None,
        arg(
            "[KEY]",
            "The entity, such as orders, orders-0, 4 or topic orders. Default: all of that kind.",
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
    """List the changes to a topic, broker or config: who, when, what.

    Shows the values before and after each change. Reads the log of the running cluster, a stopped
    node's directory, or an export, which reaches back further than the cluster's log. A topic's
    history includes its partitions and configs; the cluster's includes leaders, voters and
    features.

    \b
    Examples:
      raftlog history topic orders --since 7d
      raftlog history config topic orders
      raftlog history broker 4 --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z
      raftlog history acl --export exported
    """
    from raftlog.metadata.selectors import query_of
    from raftlog.metadata.words import why_nobody
    from raftlog.ops.history import changes_of, changes_of_topic_id
    from raftlog.ops.logs import begins_late, open_log

    keys = key or []
    try:
        asked = query_of(kind, ":".join(keys))
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
            f"{name} does not exist and never did: the log contains no change to it", Exit.REFUSED
        )
    if late:
        print_error(f"{late}. For older changes to {name}, read an export with --export")
    more = f" (the newest {len(shown)} shown; raise --limit for more)"
    counts = f"{counted(total, 'change')} to {name}, up to offset {end_offset}"
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
    file: Annotated[
        Path | None, arg("[FILE]", "Default: raftlog-debug-TIME.tar.gz in the current directory.")
    ] = None,
    since: Since = "",
    disk: Annotated[
        bool, opt("--disk/--no-disk", "Measure each node's disk with 20 small syncs.")
    ] = True,
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Collect diagnostics from every node into one tar.gz.

    Contains each node's build, configuration without secrets, journal, newest log lines, metrics
    and disk latency; the changes of the last day; and the reports of doctor and explain. It
    includes names of topics, principals and hosts. Read it with `raftlog doctor --bundle FILE` and
    `raftlog explain --bundle FILE`.

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
    """Time at which the configured level returns, or None if the configured level is active."""
    failure: str | None
    """Why the node has not answered, or None."""


@dataclass
class LogLevels:
    """The nodes that were queried."""

    nodes: Sequence[NodeLogLevel]


@command()
def loglevel(
    level: Annotated[
        str,
        arg(
            "[LEVEL]",
            "debug, info, warning, error, or configured (the node's own). Default: show the "
            "levels.",
        ),
    ] = "",
    nodes: Annotated[
        list[str] | None,
        opt(
            "--node NAME",
            "Only this node, such as broker-4 or controller-1; may be repeated.",
            autocompletion=completion.node_names,
        ),
    ] = None,
    span: Annotated[
        str, opt("--for SPAN", "How long; then the configured level applies again.")
    ] = "10m",
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[LogLevels]:
    """Show the log level of each node, or change it temporarily.

    The configured level returns after --for, at most a day, or at the next start.

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
    from raftlog.client.security import security_of_environment
    from raftlog.ops.collector import Collector, nodes_of

    collector = Collector(security_of_environment())
    nodes = nodes_of(await collector.survey(addresses, min(timeout_s, 2.0)), servers)
    if unknown := set(names) - {one.name for one in nodes}:
        there = ", ".join(one.name for one in nodes)
        raise FailedError(
            f"no such node: {', '.join(sorted(unknown))}; the nodes are {there}", Exit.USAGE
        )
    nodes = [one for one in nodes if not names or one.name in names]
    return await collector.log_levels(nodes, timeout_s, level, for_ms)


def _addresses(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]
