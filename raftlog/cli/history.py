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
from raftlog.cli.times import From, Period, Since, To
from raftlog.metadata.history import KINDS

if TYPE_CHECKING:
    from raftlog.cli.log_sources import LogSource
    from raftlog.metadata.changes import Changed
    from raftlog.metadata.history import Question

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
            help=f"{', '.join(KINDS[:-1])} or {KINDS[-1]}.",
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
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help=f"Show the newest N changes. Default: {DEFAULT_LIMIT}; with --json: all.",
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
    from raftlog.cli.log_sources import begins_late, open_log
    from raftlog.cli.output import print_error, print_json_line, print_line
    from raftlog.metadata.authors import why_nobody
    from raftlog.plural import counted

    asked = _question(kind, key or [])
    period = Period(since, begin, end)
    most = limit if limit is not None else (None if as_json else DEFAULT_LIMIT)
    shown: deque[Changed] = deque(maxlen=most)
    total = 0
    with open_log(directory, export, bootstrap_controller, timeout) as source:
        first_ms, last_ms = period.at(source.now_ms)
        for one in found(source, asked, first_ms, last_ms):
            total += 1
            shown.append(one)
        if not total and kind in {"topic", "topics"} and len(key or ()) == 1:
            for one in _found_by_id(source, (key or [""])[0], first_ms, last_ms):
                total += 1
                shown.append(one)
        late, origin, end_offset = begins_late(source), source.origin, source.high_watermark
    if as_json:
        for one in shown:
            print_json_line(_document(one))
    else:
        _print(shown, origin)
    name = " ".join([kind, *(key or [])])
    exists = bool(asked.kinds & _EXIST_BY_A_CHANGE)
    if not total and key and exists and not period.is_given and not late:
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
            if first_ms <= one.timestamp_ms <= last_ms and asked.matches(one.kind, one.key):
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
