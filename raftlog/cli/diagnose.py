"""``raftlog doctor``, ``explain``, ``history``, ``debug`` and ``cluster loglevel``: what the nodes
and the log of a cluster say.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.exits import EPILOG, Exit, FailedError
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
from raftlog.cli.times import From, Period, Since, To, parse_span_ms
from raftlog.metadata.history import KINDS

if TYPE_CHECKING:
    from raftlog.metadata.changes import Changed
    from raftlog.ops.collector import LogLevelAnswer
    from raftlog.ops.evidence import Survey, Timeline
    from raftlog.ops.quorum_findings import Finding

    Looked = tuple[Survey, list[Finding]]

LOOK_S, LAST_LOOK_S, WAIT_S = 1.0, 0.5, 60.0
WATCH_PAUSE_S, WAIT_PAUSE_S = 2.0, 0.5
DEFAULT_LIMIT = 100
CONFIGURED = "configured"
_CLEAR = "\x1b[H\x1b[2J"
_EXIST_BY_A_CHANGE = frozenset({"topic", "partition", "broker"})
"""Kinds of which nothing exists without a change; a topic without configs is no mistake."""

debug = typer.Typer(
    help="Evidence for a bug report, and clusters in virtual time.",
    epilog=EPILOG,
    no_args_is_help=True,
)


@debug.callback()
def _group() -> None:
    """Evidence for a bug report, and clusters in virtual time."""


class Wanted(StrEnum):
    """States that ``--wait`` waits for."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"


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
) -> None:
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
    if bundle is not None:
        from raftlog.ops.bundle import read_bundle
        from raftlog.ops.doctor import diagnose

        with read_bundle(bundle) as found:
            survey = found.survey()
            code = _show_findings((survey, diagnose(survey)), as_json=as_json)
        raise typer.Exit(code)
    looking = _Looking(controllers(bootstrap_controller), as_json=as_json)
    if wait is not None:
        work = looking.until(wait, timeout or WAIT_S)
    elif watch:
        work = looking.for_ever(timeout or LOOK_S)
    else:
        work = looking.once(timeout or LOOK_S)
    raise typer.Exit(asyncio.run(work))


class _Looking:
    """Looks at a cluster, once or repeatedly, on one event loop. Returns exit codes."""

    def __init__(self, addresses: list[str], *, as_json: bool) -> None:
        from raftlog.client.options import security_of_environment
        from raftlog.ops.collector import Collector

        self._addresses, self._as_json = addresses, as_json
        self._collector = Collector(security_of_environment())

    async def once(self, timeout_s: float) -> Exit:
        """Look, and show what was found."""
        return _show_findings(await self._look(timeout_s), as_json=self._as_json)

    async def for_ever(self, timeout_s: float) -> Exit:
        """Look until Ctrl-C."""
        clear = _CLEAR if sys.stdout.isatty() and not self._as_json else ""
        while True:
            looked = await self._look(timeout_s)
            typer.echo(clear, nl=False)
            _show_findings(looked, as_json=self._as_json)
            await asyncio.sleep(WATCH_PAUSE_S)

    async def until(self, wanted: Wanted, timeout_s: float) -> Exit:
        """Look until the cluster is as wanted, and show the last look.

        Raises FailedError when the time is over.
        """
        from raftlog.ops.doctor import serves, verdict

        deadline = time.monotonic() + timeout_s
        good = ("healthy",) if wanted is Wanted.HEALTHY else ("healthy", "degraded")
        while True:
            left_s = deadline - time.monotonic()
            # The last look is the one that is shown: in less time a busy node seems to hang.
            looked = await self._look(min(LOOK_S, timeout_s, max(LAST_LOOK_S, left_s)))
            is_good = verdict(looked[1]) in good
            # A cluster that has just been started has no broker yet, and nothing is wrong with it.
            if is_good and (wanted is Wanted.DEGRADED or serves(looked[0])):
                _show_findings(looked, as_json=self._as_json)
                return Exit.OK
            if left_s <= WAIT_PAUSE_S:
                _show_findings(looked, as_json=self._as_json)
                why = ": no broker is unfenced" if is_good else ""
                raise FailedError(
                    f"the cluster was not {wanted.value} within {timeout_s:g} s{why}",
                    Exit.UNREACHABLE,
                )
            await asyncio.sleep(WAIT_PAUSE_S)

    async def _look(self, timeout_s: float) -> Looked:
        from raftlog.ops.doctor import diagnose, with_local_commands

        survey = await self._collector.survey(self._addresses, timeout_s)
        return survey, with_local_commands(diagnose(survey), self._addresses)


def _show_findings(looked: Looked, *, as_json: bool) -> Exit:
    """Show what was found, and return the exit code that says so."""
    from raftlog.cli.output import print_json
    from raftlog.ops.doctor import document, screen, verdict

    if as_json:
        print_json(document(*looked))
    else:
        typer.echo(screen(*looked))
    if not looked[0].answers:
        return Exit.UNREACHABLE
    return Exit.OK if verdict(looked[1]) == "healthy" else Exit.FOUND


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
    as_json: Json = False,
) -> None:
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
            _show_story(told, found.survey(), everything=everything, as_json=as_json)
        return
    if directories:
        from raftlog.ops.history import timeline_of_directories

        told = timeline_of_directories(directories, period.at)
    else:
        from raftlog.ops.history import timeline_of_cluster

        addresses = controllers(bootstrap_controller)
        servers = _addresses(bootstrap_server)
        survey, told = timeline_of_cluster(addresses, servers, timeout, period.at)
    _show_story(told, survey, everything=everything, as_json=as_json)


def _show_story(
    timeline: Timeline, survey: Survey | None, *, everything: bool, as_json: bool
) -> None:
    """``survey``: the cluster now; None: it was not asked."""
    from raftlog.cli.output import print_json
    from raftlog.ops.doctor import diagnose
    from raftlog.ops.story import document, screen, tell

    now = None if survey is None else diagnose(survey)
    story = tell(timeline)
    if as_json:
        print_json(document(story, now))
    else:
        typer.echo(screen(story, now, everything=everything))


def history(
    kind: Annotated[
        str,
        arg(
            "KIND",
            f"{', '.join(KINDS[:-1])} or {KINDS[-1]}.",
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
    from raftlog.cli.output import print_error, print_json_line, print_line
    from raftlog.metadata.authors import why_nobody
    from raftlog.metadata.history import question
    from raftlog.ops.history import changes_of, changes_of_topic_id
    from raftlog.ops.logs import begins_late, open_log
    from raftlog.text import counted

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
        raise FailedError(f"there is and was no {name}: the log has no change of it", Exit.REFUSED)
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


def _change_document(one: Changed) -> dict[str, Any]:
    from msgspec.json import decode

    from raftlog.metadata.differences import field_changes

    return {
        **one._asdict(),
        "before": None if one.before is None else decode(one.before),
        "after": None if one.after is None else decode(one.after),
        "fields": [
            {"field": each.field, "before": decode(each.before), "after": decode(each.after)}
            for each in field_changes(one.before, one.after)
        ],
    }


def _print_changes(shown: Iterable[Changed], *, with_author: bool) -> None:
    from raftlog.cli.output import print_table
    from raftlog.cli.render import time_text
    from raftlog.metadata.authors import author
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


@debug.command("bundle", epilog=EPILOG)
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
    from raftlog.cli.output import print_line
    from raftlog.ops import bundle
    from raftlog.ops.history import timeline_of_cluster
    from raftlog.text import counted

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
    as_json: Json = False,
) -> None:
    """Show the log level of each node, or set another one for a while.

    The configured level is back after --for, a day at most, or at the next start.

    \b
    Examples:
      raftlog cluster loglevel
      raftlog cluster loglevel debug --node broker-4 --for 2m
      raftlog cluster loglevel configured
    """
    from raftlog.cli.output import print_json, print_table
    from raftlog.cli.render import time_text

    wanted: str | None = None
    for_ms = parse_span_ms(span)
    if level:
        wanted, for_ms = ("", 0) if level == CONFIGURED else (level, for_ms)
    addresses, servers = controllers(bootstrap_controller), _addresses(bootstrap_server)
    found = asyncio.run(_log_levels(addresses, servers, timeout, wanted, for_ms, nodes or []))
    if as_json:
        rows = [
            {
                "node": one.node.name,
                "level": one.level or None,
                "until_ms": one.until_ms or None,
                "failure": one.failure or None,
            }
            for one in found
        ]
        print_json({"nodes": rows})
    else:
        until = [time_text(one.until_ms)[:19] + "Z" if one.until_ms else None for one in found]
        print_table(
            ("NODE", "LEVEL", "UNTIL", ""),
            [
                (one.node.name, one.level or None, at, one.failure)
                for one, at in zip(found, until, strict=True)
            ],
        )
    if any(one.failure for one in found):
        raise typer.Exit(Exit.REFUSED if any(one.level for one in found) else Exit.UNREACHABLE)


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


def register_debug(app: typer.Typer) -> None:
    """Add the group ``debug``."""
    app.add_typer(debug, name="debug")


def _register(command: Callable[..., None]) -> Callable[[typer.Typer], None]:
    def register(app: typer.Typer) -> None:
        app.command(command.__name__, epilog=EPILOG)(command)

    return register


register_doctor, register_explain = _register(doctor), _register(explain)
register_history, register_loglevel = _register(history), _register(loglevel)
