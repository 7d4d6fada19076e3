"""The command line of the jobs, shared by ``raftlog replay`` and spark-submit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from replay.errors import ReplayError
from replay.request import (
    DEFAULT_OUTPUT,
    ENGINES,
    VIEW_NAMES,
    JobRequest,
    parse_time_ms,
)

Runner = Callable[[JobRequest, list[str]], int]
"""Runs a request with Spark settings ("key=value") and returns the exit code."""


class _Option(NamedTuple):
    """A command-line option or argument: the JobRequest field it sets, its type, its typer
    declaration, and its default.
    """

    field: str
    kind: Any
    shown: Any
    default: Any = None


class _Job(NamedTuple):
    """A command. ``options``: its own options, in the order of its help, in addition to the common
    ones.
    """

    name: str
    help: str
    options: tuple[_Option, ...]


def _time(text: str) -> int:
    try:
        return parse_time_ms(text)
    except ReplayError as error:
        raise typer.BadParameter(str(error)) from error


def _one_of(names: Sequence[str], label: str) -> Callable[[str], str]:
    """Return a parser that accepts only the given names."""

    def parse(word: str) -> str:
        if word not in names:
            raise typer.BadParameter(
                f"there is no {label.format(word)}: there are {', '.join(names)}"
            )
        return word

    return parse


def _path(text: str) -> str:
    return str(Path(text))


_REQUIRED = Parameter.empty
_DEFAULTS = JobRequest(job="", export="")


def _argument(
    field: str, metavar: str, help_: str, default: Any = _REQUIRED, **shown: Any
) -> _Option:
    return _Option(field, str, typer.Argument(metavar=metavar, help=help_, **shown), default)


def _option(field: str, kind: Any, *names: str, default: Any = None, **shown: Any) -> _Option:
    default = (getattr(_DEFAULTS, field, None) or None) if default is None else default
    return _Option(field, kind, typer.Option(*names, **shown), default)


def _moment(field: str, names: Sequence[str], help_: str) -> _Option:
    return _option(field, int | None, *names, parser=_time, metavar="TIME", help=help_)


JSON = typer.Option("--json", help="One JSON document, for programs.")
_JSON = _Option("json", bool, JSON, _DEFAULTS.json)
_EXPORT = _argument("export", "EXPORT", "A directory or URI written by raftlog export.")
_CONF = _option(
    "conf",
    list[str] | None,
    "--conf",
    metavar="KEY=VALUE",
    help="A setting for spark-submit; repeatable.",
)
"""Passed to spark-submit; not a field of JobRequest."""
_ENGINE = _option(
    "engine",
    str,
    "--engine",
    parser=_one_of(ENGINES, "engine {!r}"),
    metavar="ENGINE",
    help=(
        "spark; local (worker processes on this machine, no Java); or auto (local if the export is"
        " small)."
    ),
)
_KIND = _argument(
    "kind",
    "KIND",
    "topic, partition, broker, config, client, feature, hostname, export_cursor, kv, lease, acl,"
    " leader, voters, …",
    "",
)
"""Together with ``_KEY``, sets JobRequest.key."""
_KEY = _argument(
    "key",
    "KEY",
    "A NAME; the ID of a broker, client or acl; TOPIC-NUMBER for a partition; TYPE:NAME[:KEY] for a"
    " config.",
    "",
)
_FROM_OFFSET = _option(
    "from_offset",
    int | None,
    help="Start after this offset, rounded down to a whole batch. Default: the empty log.",
)
_FROM_TIME = _moment("from_time_ms", ["--from-time"], "Start at this time.")
_HISTORY_FROM = _option("from_offset", int | None, help="Only changes at or after this offset.")
_FROM_THE_BEGINNING = _option(
    "from_the_beginning",
    bool,
    "--from-the-beginning",
    help="Fold the whole log; ignore the export's checkpoints.",
)
_TO_OFFSET = _option(
    "at_offset", int | None, "--to-offset", "--at-offset", help="End here. Default: the log end."
)
_TO_TIME = _moment("at_time_ms", ["--to-time", "--at-time"], "End at this time.")
_AT_OFFSET = _option(
    "at_offset",
    int | None,
    help="Only up to this offset, inclusive, rounded down to a whole batch.",
)
_AT_TIME = _moment(
    "at_time_ms",
    ["--at-time"],
    "Only up to this time: ISO 8601 (UTC unless it has a zone) or milliseconds since 1970.",
)
_SINCE = _moment(
    "since_ms",
    ["--since"],
    "Only what happened at or after this time; same format as --at-time.",
)
_LIMIT = _option("limit", int, min=1, help="Show at most this many rows per list.")
_LIMIT_OF_FIGURES = _LIMIT._replace(default=20)
_STALL = _option(
    "stall_ms",
    int,
    "--stall",
    min=1,
    metavar="MS",
    help="Report LAO as held back if a record waited at least this long.",
)
_RULE = _option(
    "rules",
    list[str] | None,
    "--rule",
    metavar="ID",
    help="Only this rule; repeatable. See docs/audit.md.",
)
_SUPER_USER = _option(
    "super_users",
    list[str] | None,
    "--super-user",
    metavar="PRINCIPAL",
    help="A principal from super.users, which the log does not record; repeatable.",
)
_ALLOW_EVERYONE = _option(
    "allow_everyone_if_no_acl_found",
    bool,
    "--allow-everyone-if-no-acl-found",
    help="The nodes set this key, which the log does not record.",
)
_RIGHTS = (_SUPER_USER, _ALLOW_EVERYONE)
"""Node configuration that the audit of rights needs and the log does not contain."""
_QUERY = _argument("query", "QUERY", "One SELECT, in quotes.")
_PAGE = _option(
    "output",
    str,
    "--output",
    "-o",
    default=DEFAULT_OUTPUT,
    parser=_path,
    metavar="FILE",
    help="The HTML file to write.",
)
_ALERTS = _option(
    "output",
    str,
    "--output",
    "-o",
    default=_REQUIRED,
    parser=_path,
    metavar="DIR",
    help="Directory for the alerts and the progress of the watch.",
)
_EVERY = _option(
    "every_s",
    int | None,
    "--every",
    min=1,
    metavar="SECONDS",
    help="Keep running, and check this often. Without it, run once.",
)

_JOBS = (
    _Job(
        "state",
        "State at an offset or time, with its hash. All entities, those of a KIND, or the one with"
        " a KEY.",
        (_KIND, _KEY, _AT_OFFSET, _AT_TIME, _FROM_THE_BEGINNING, _LIMIT),
    ),
    _Job(
        "diff",
        "What changed between two offsets or times. Created, changed and deleted entities, field by"
        " field.",
        (
            *(_KIND, _KEY, _FROM_OFFSET, _FROM_TIME, _TO_OFFSET, _TO_TIME),
            *(_FROM_THE_BEGINNING, _LIMIT),
        ),
    ),
    _Job(
        "lao",
        "How long writes took to become visible on every broker. Also which brokers held"
        " LowestAcknowledgedOffset back.",
        (_SINCE, _STALL, _AT_OFFSET, _AT_TIME, _LIMIT),
    ),
    _Job(
        "availability",
        "Outages of partitions, brokers and controllers. When, for how long and why.",
        (_SINCE, _AT_OFFSET, _AT_TIME, _LIMIT_OF_FIGURES),
    ),
    _Job(
        "audit",
        "Check the whole history against the rules. Exit code 3: a rule was broken.",
        (_RULE, *_RIGHTS, _AT_OFFSET, _AT_TIME, _LIMIT),
    ),
    _Job(
        "verify",
        "Check an export, and its fold against the nodes. Every file, and the state hashes that"
        " nodes reported. Exit code 3: a fault was found.",
        (_AT_OFFSET, _AT_TIME, _LIMIT),
    ),
    _Job(
        "summary",
        "Contents of the log, its state hash at the end, and the audit.",
        (*_RIGHTS, _AT_OFFSET, _AT_TIME, _FROM_THE_BEGINNING, _LIMIT),
    ),
    _Job(
        "history",
        "Changes to one entity or of a KIND: when, who and what.",
        (
            *(_KIND._replace(default=_REQUIRED), _KEY, _HISTORY_FROM, _SINCE),
            *(_AT_OFFSET, _AT_TIME, _FROM_THE_BEGINNING, _LIMIT),
        ),
    ),
    _Job(
        "report",
        "The history as one HTML page that opens offline. Exit code 3: the audit has findings.",
        (_PAGE, *_RIGHTS, _AT_OFFSET, _AT_TIME, _LIMIT_OF_FIGURES),
    ),
    _Job(
        "sql",
        f"Run an SQL query. Views: {', '.join(VIEW_NAMES)}.",
        (_QUERY, _AT_OFFSET, _AT_TIME, _LIMIT),
    ),
    _Job(
        "watch",
        "Audit an export while it is written. Shows the alerts since the last run. Exit code 3:"
        " there are some.",
        (_ALERTS, _EVERY, *_RIGHTS, _LIMIT),
    ),
)


def create_app(run: Runner) -> typer.Typer:
    """Return the command group; every command finally calls ``run``."""
    app = typer.Typer(
        name="replay",
        help="Find out from an exported log what happened.",
        no_args_is_help=True,
        add_completion=False,
    )
    for job in _JOBS:
        app.command(job.name, help=job.help)(_command(job, run))
    return app


def _command(job: _Job, run: Runner) -> Callable[..., None]:
    """Return the function that typer calls with the option values. Its signature declares the
    options.
    """

    def command(**given: Any) -> None:
        conf = given.pop(_CONF.field)
        raise typer.Exit(run(_request(job.name, given), conf or []))

    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(
                one.field,
                Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=Annotated[one.kind, one.shown],
            )
            for one in (_EXPORT, *job.options, _ENGINE, _CONF, _JSON)
        ]
    )
    return command


def _request(job: str, given: dict[str, Any]) -> JobRequest:
    kind, key = given.pop(_KIND.field, ""), given.pop(_KEY.field, "")
    fields = {name: value for name, value in given.items() if value is not None}
    return msgspec.convert(fields | {"job": job, "key": (kind, key) if kind else None}, JobRequest)
