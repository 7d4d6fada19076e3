"""The command line of the jobs, written once: ``raftlog replay`` starts spark-submit with it, and spark-submit runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from replay.errors import ReplayError
from replay.request import DEFAULT_OUTPUT, VIEW_NAMES, WATCHES, JobRequest, parse_time_ms

Runner = Callable[[JobRequest, list[str]], int]
"""Given a request and settings for Spark ("key=value"), run it and return the exit code."""


def _time(text: str) -> int:
    try:
        return parse_time_ms(text)
    except ReplayError as error:
        raise typer.BadParameter(str(error)) from error


def _watch(name: str) -> str:
    if name not in WATCHES:
        raise typer.BadParameter(f"there is no {name!r} to watch: there are {', '.join(WATCHES)}")
    return name


_Export = Annotated[str, typer.Argument(metavar="EXPORT", help="A directory or URI written by raftlog export.")]
_AtOffset = Annotated[int | None, typer.Option(help="Only up to this offset, inclusive; back to the last whole batch.")]
_AtTime = Annotated[
    int | None,
    typer.Option(
        parser=_time, metavar="TIME", help="Only up to this time: ISO 8601 (UTC if it names no zone) or milliseconds."
    ),
]
_KINDS = "topic, partition, broker, config, client, feature, hostname, export_cursor, leader, voters, …"
_Kind = Annotated[str, typer.Argument(metavar="KIND", help=_KINDS)]
_Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A NAME, a broker's or client's ID, TOPIC-NUMBER of a partition, TYPE:NAME[:KEY] of a config.",
    ),
]
_Limit = Annotated[int, typer.Option(min=1, help="Show at most this many rows of a list.")]
_Partitions = Annotated[
    int | None, typer.Option(min=1, help="Tasks of the fold; the result is the same for every number.")
]
_Since = Annotated[
    int | None,
    typer.Option(parser=_time, metavar="TIME", help="Only what happened from this time on; format as for --at-time."),
]
_Stall = Annotated[
    int, typer.Option(min=1, metavar="MS", help="Report LAO as held back where a record waited this long.")
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")]
_Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting for spark-submit; repeatable.")
]
_Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML file to write.")]


def create_app(run: Runner) -> typer.Typer:
    """The commands, each ending in ``run``."""
    app = typer.Typer(
        name="replay", help="Ask an exported log what happened, with Spark.", no_args_is_help=True, add_completion=False
    )
    _add_state(app, run)
    _add_diff(app, run)
    _add_lao(app, run)
    _add_availability(app, run)
    _add_churn(app, run)
    _add_audit(app, run)
    _add_plain(
        app,
        run,
        "verify",
        "Check that the export is whole and folds to the state hashes of the nodes. Exit code 3: not so.",
    )
    _add_plain(app, run, "summary", "What the log holds, its state hash at the end, and the audit.")

    _add_history(app, run)
    _add_report(app, run)
    _add_sql(app, run)
    _add_watch(app, run)
    return app


def _add_state(app: typer.Typer, run: Runner) -> None:
    @app.command(
        help="State at an offset or a time: every entity and the state hash; or those of a KIND, or the one under a KEY."
    )
    def state(
        export: _Export,
        kind: _Kind = "",
        key: _Key = "",
        *,
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 100,
        partitions: _Partitions = None,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="state",
            export=export,
            key=(kind, key) if kind else None,
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            partitions=partitions,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_history(app: typer.Typer, run: Runner) -> None:
    @app.command(help="Changes of one entity, or of all of a KIND: when, by whom, from what, to what.")
    def history(
        export: _Export,
        kind: Annotated[str, typer.Argument(metavar="KIND", help=_KINDS)],
        key: _Key = "",
        *,
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 100,
        partitions: _Partitions = None,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="history",
            export=export,
            key=(kind, key),
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            partitions=partitions,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_diff(app: typer.Typer, run: Runner) -> None:
    @app.command(help="What differs between two offsets or times: what was created, changed (field by field), deleted.")
    def diff(
        export: _Export,
        kind: _Kind = "",
        key: _Key = "",
        *,
        from_offset: Annotated[
            int | None,
            typer.Option(help="From this offset, inclusive; back to the last whole batch. Default: nothing."),
        ] = None,
        from_time: Annotated[int | None, typer.Option(parser=_time, metavar="TIME", help="From this time.")] = None,
        at_offset: Annotated[
            int | None, typer.Option("--to-offset", "--at-offset", help="To here. Default: the end.")
        ] = None,
        at_time: Annotated[
            int | None, typer.Option("--to-time", "--at-time", parser=_time, metavar="TIME", help="To this time.")
        ] = None,
        limit: _Limit = 100,
        partitions: _Partitions = None,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="diff",
            export=export,
            key=(kind, key) if kind else None,
            from_offset=from_offset,
            from_time_ms=from_time,
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            partitions=partitions,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_report(app: typer.Typer, run: Runner) -> None:
    @app.command(help="What happened, on one page that opens offline. Exit code 3: the audit found something.")
    def report(
        export: _Export,
        *,
        output: _Output = Path(DEFAULT_OUTPUT),
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 20,
        partitions: _Partitions = None,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="report",
            export=export,
            output=str(output),
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            partitions=partitions,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_audit(app: typer.Typer, run: Runner) -> None:
    @app.command(help="Whether the rules were kept, over the whole history. Exit code 3: one was not.")
    def audit(
        export: _Export,
        *,
        rule: Annotated[
            list[str] | None, typer.Option(metavar="ID", help="Only this rule; repeatable. See docs/audit.md.")
        ] = None,
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 100,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="audit",
            export=export,
            rules=tuple(rule or ()),
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_plain(app: typer.Typer, run: Runner, job: str, text: str) -> None:
    @app.command(name=job, help=text)
    def command(
        export: _Export,
        *,
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 100,
        partitions: _Partitions = None,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job=job,
            export=export,
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            partitions=partitions,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_sql(app: typer.Typer, run: Runner) -> None:
    @app.command(help=f"Ask in SQL. Views: {', '.join(VIEW_NAMES)}.")
    def sql(
        export: _Export,
        query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT, in quotes.")],
        *,
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 100,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="sql",
            export=export,
            query=query,
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_lao(app: typer.Typer, run: Runner) -> None:
    @app.command(help="LowestAcknowledgedOffset: how long writes took to be visible everywhere, and who held them up.")
    def lao(
        export: _Export,
        *,
        since: _Since = None,
        stall: _Stall = 2000,
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 100,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="lao",
            export=export,
            since_ms=since,
            stall_ms=stall,
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_availability(app: typer.Typer, run: Runner) -> None:
    @app.command(
        help="What was not available, for how long and why: partitions, brokers, controllers. Exit code 3: below the target."
    )
    def availability(
        export: _Export,
        *,
        since: _Since = None,
        target: Annotated[
            float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="Judge by this target, say 99.9.")
        ] = None,
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 20,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="availability",
            export=export,
            since_ms=since,
            target_percent=target,
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_churn(app: typer.Typer, run: Runner) -> None:
    @app.command(help="What changed over and over, and what grew: ISRs, leaders, configs, the log; with a forecast.")
    def churn(
        export: _Export,
        *,
        since: _Since = None,
        at_offset: _AtOffset = None,
        at_time: _AtTime = None,
        limit: _Limit = 20,
        partitions: _Partitions = None,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="churn",
            export=export,
            since_ms=since,
            at_offset=at_offset,
            at_time_ms=at_time,
            limit=limit,
            partitions=partitions,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))


def _add_watch(app: typer.Typer, run: Runner) -> None:
    @app.command(
        help="Audit an export, or its LAO, while it is written: what is new since the last time. Exit code 3: there are alerts."
    )
    def watch(
        export: _Export,
        job: Annotated[str, typer.Argument(metavar="JOB", parser=_watch, help=f"What to watch: {', '.join(WATCHES)}.")],
        *,
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="DIR", help="Alerts as rows, and how far it has come.")
        ],
        every: Annotated[
            int | None, typer.Option(min=1, metavar="SECONDS", help="Go on for ever, so often. Without it: once.")
        ] = None,
        stall: _Stall = 2000,
        limit: _Limit = 100,
        conf: _Conf = None,
        json: _Json = False,
    ) -> None:
        request = JobRequest(
            job="watch",
            export=export,
            watch=job,
            output=str(output),
            every_s=every,
            stall_ms=stall,
            limit=limit,
            json=json,
        )
        raise typer.Exit(run(request, conf or []))
