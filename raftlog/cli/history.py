"""``raftlog history``: who changed what, when, from what to what."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.log_sources import DataDirectory, ExportDirectory
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BootstrapController, JsonLines, Timeout
from raftlog.cli.times import From, Since, To, now_ms, period_ms

if TYPE_CHECKING:
    from raftlog.cli.log_sources import LogSource
    from raftlog.metadata.changes import Changed
    from raftlog.metadata.history import Question

FOR_EVER_MS = 100 * 365 * 86_400_000
DEFAULT_LIMIT = 100
_EXIST_BY_A_CHANGE = frozenset({"topic", "partition", "broker"})
"""One of these without a change never was; a topic without configs is no mistake."""


def register(app_: typer.Typer) -> None:
    """Add the command."""
    app_.command("history", epilog=EPILOG)(history)


def history(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=(
                "topic, partition, broker, config, acl, cluster, feature, hostname, export_cursor"
                " or client."
            ),
            autocompletion=completion.history_kinds,
        ),
    ],
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]",
            help="Of the kind: orders, orders-0, 4, topic orders. Default: all.",
            autocompletion=completion.history_keys,
        ),
    ] = None,
    since: Since = "",
    begin: From = "",
    end: To = "",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Show the newest N changes.")
    ] = DEFAULT_LIMIT,
    directory: DataDirectory = None,
    export: ExportDirectory = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: JsonLines = False,
) -> None:
    """Every change of a topic, broker, config, …: when, who, and from what to what.

    Reads the log of the running cluster, of a stopped node's directory, or of an export, which
    reaches back beyond what the cluster keeps. A topic's history has its partitions and configs,
    too; that of the cluster has leaders, voters and features.

    \b
    Examples:
      raftlog history topic orders --since 7d
      raftlog history config topic orders
      raftlog history broker 4 --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z
      raftlog history acl --export exported
    """
    from raftlog.cli.log_sources import begins_late, open_log
    from raftlog.cli.output import print_error, print_json_line, print_line
    from raftlog.metadata.authors import why_nobody

    asked = _question(kind, key or [])
    first_ms, last_ms = period_ms(since, begin, end, FOR_EVER_MS)
    shown: deque[Changed] = deque(maxlen=limit)
    total = 0
    with open_log(directory, export, bootstrap_controller, timeout) as source:
        for one in found(source, asked, first_ms, last_ms):
            total += 1
            shown.append(one)
        if not total and kind in {"topic", "topics"} and len(key or ()) == 1:
            for one in _found_by_id(source, (key or [""])[0], first_ms, last_ms):
                total += 1
                shown.append(one)
        late, origin = begins_late(source), source.origin
    if as_json:
        for one in shown:
            print_json_line(_document(one))
    else:
        _print(shown, origin)
    name = " ".join([kind, *(key or [])])
    exists = bool(asked.kinds & _EXIST_BY_A_CHANGE)
    if not total and key and exists and not (since or begin or end) and not late:
        raise FailedError(f"there is and was no {name}: the log has no change of it", Exit.REFUSED)
    if late:
        print_error(f"{late}. Older changes of {name} are in an export, if there is one: --export")
    if not as_json:
        _print_total(name, total, len(shown))
        if origin and shown:
            print_line(why_nobody(origin))


def _question(kind: str, key: list[str]) -> Question:
    from raftlog.metadata.history import question

    try:
        return question(kind, ":".join(key))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def found(source: LogSource, asked: Question, first_ms: int, last_ms: int) -> Iterator[Changed]:
    """The changes of a log that a question is about, oldest first.

    What was before the period is folded and not told.
    """
    from raftlog.cli.log_sources import chunks
    from raftlog.metadata.changes import ChangeRecorder, changes_of_chunk

    recorder = ChangeRecorder(source.image_up_to(source.high_watermark - 1))
    for chunk in chunks(source, source.high_watermark, begin=recorder.offset + 1):
        for one in changes_of_chunk(recorder, chunk, asked.kinds.__contains__):
            if one.timestamp_ms > last_ms:
                return
            if one.timestamp_ms >= first_ms and asked.matches(one.kind, one.key):
                yield _as_kafka(one) if source.origin else one


def _found_by_id(source: LogSource, key: str, first_ms: int, last_ms: int) -> Iterator[Changed]:
    """The changes of the topic that has this id, and of its partitions."""
    from msgspec.json import decode

    from raftlog.metadata.history import Question
    from raftlog.metadata.kafka_ids import id_field, parse_topic_id

    id_ = parse_topic_id(key)
    if id_ is None:
        return
    topics = Question(frozenset({"topic", "partition"}), lambda of, at: True)
    for one in found(source, topics, first_ms, last_ms):
        value = decode(one.after or one.before or "{}")
        if parse_topic_id(value.get(id_field(one.kind), "")) == id_:
            yield one


def _as_kafka(one: Changed) -> Changed:
    """With the ids of topics as Kafka prints them."""
    from msgspec.json import decode, encode

    from raftlog.metadata.kafka_ids import with_kafka_id

    before, after = (
        None if value is None else encode(with_kafka_id(one.kind, decode(value))).decode()
        for value in (one.before, one.after)
    )
    return one._replace(before=before, after=after)


def _document(one: Changed) -> dict[str, Any]:
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


def in_words(one: Changed) -> str:
    """What has changed, in one line."""
    from raftlog.metadata.differences import field_changes, raw, words

    fields = field_changes(one.before, one.after)
    return words(raw(one.before), raw(one.after), fields, one.kind).replace("\n", "; ")


def _print(shown: deque[Changed], origin: str) -> None:
    from raftlog.cli.output import print_table
    from raftlog.cli.render import time_text
    from raftlog.metadata.authors import author

    if shown:
        print_table(
            ("OFFSET", "TIME", *(() if origin else ("BY",)), "WHAT", "CHANGE"),
            [
                (
                    one.offset,
                    time_text(one.timestamp_ms)[:19].replace("T", " ") + "Z",
                    *(() if origin else (author(one.principal, one.client_id),)),
                    f"{one.kind} {one.key}".rstrip(),
                    in_words(one),
                )
                for one in shown
            ],
            right=("OFFSET",),
            least=("OFFSET",),
        )


def _print_total(name: str, total: int, shown: int) -> None:
    from raftlog.cli.output import print_line
    from raftlog.plural import counted

    more = f" ({shown} shown, the newest: raise --limit for more)" if shown < total else ""
    print_line(f"{counted(total, 'change')} of {name}, as of {_utc(now_ms())}{more}")


def _utc(at_ms: int) -> str:
    from raftlog.cli.render import time_text

    return time_text(at_ms)[:19] + "Z"
