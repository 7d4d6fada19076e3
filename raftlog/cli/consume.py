"""``raftlog consume``: read committed records."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.command import command
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import DEFAULT_TIMEOUT_S, JsonLines, arg, opt
from raftlog.cli.output import print_error, print_json_line
from raftlog.client.consumer import (
    EARLIEST,
    LATEST,
    METADATA_MAX_AGE_MS,
    Consumer,
    ConsumerSettings,
    Record,
)
from raftlog.metadata.entity_words import text_and_base64
from raftlog.text import counted, printable

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient

_POLL_S = 0.5
_TELL_AFTER_S = 2.0
_SHOWN = 5


def register(app_: typer.Typer) -> None:
    """Add the command."""
    command(app_, "consume", shared=("bootstrap_server",))(consume)


async def consume(
    client: AsyncClient,
    topic: Annotated[
        str, arg("TOPIC", "The topic to read from.", autocompletion=completion.topics)
    ],
    from_beginning: Annotated[
        bool, opt("--from-beginning", "Read all records; without it only new ones.")
    ] = False,
    partition: Annotated[int, opt("--partition", "The partition to read; -1: all.", min=-1)] = -1,
    offset: Annotated[
        int, opt("--offset", "Begin at this offset; -1: not given. Needs --partition.", min=-1)
    ] = -1,
    max_messages: Annotated[
        int, opt("--max-messages", "End after this many records; 0: never.", min=0)
    ] = 0,
    timeout_s: Annotated[
        float,
        opt(
            "--timeout S",
            "End when all records were read and none arrives for this long; 0: never.",
            min=0.0,
        ),
    ] = 0.0,
    as_json: JsonLines = False,
) -> None:
    """Print the committed records of a topic, until interrupted.

    They are in order within a partition. Prints the values, each with a line break behind it. With
    --json what is no UTF-8 is in base64: value_base64.

    \b
    Examples:
      raftlog consume orders --from-beginning --bootstrap-server 127.0.0.1:9092
      raftlog consume orders --partition 2 --offset 100 --max-messages 10 --json
    """
    if offset >= 0 and partition < 0:
        raise typer.BadParameter("--offset goes with --partition")
    if offset >= 0 and from_beginning:
        raise typer.BadParameter("give --offset or --from-beginning, not both")
    begin = offset if offset >= 0 else EARLIEST if from_beginning else LATEST

    # What was there when it began to read may be dropped before it is read.
    reset = EARLIEST if from_beginning else None
    settings = ConsumerSettings(offset_reset=reset, metadata_max_age_ms=METADATA_MAX_AGE_MS)
    consumer = client.core.consumer(settings)
    try:
        consumer.assign(topic, partition, begin)
        count, idle_s, told = 0, 0.0, ""
        while not (max_messages and count >= max_messages):
            records = await consumer.poll(min(_POLL_S, timeout_s) if timeout_s else _POLL_S)
            idle_s = 0.0 if records else idle_s + _POLL_S
            for record in records[: max_messages - count] if max_messages else records:
                _print(record, as_json)
            count += len(records)
            why, code = _why_nothing_comes(
                consumer, topic, min(_TELL_AFTER_S, timeout_s / 2) if timeout_s else _TELL_AFTER_S
            )
            if idle_s >= DEFAULT_TIMEOUT_S and code is Exit.UNREACHABLE and not consumer.answered:
                raise FailedError(why, code)
            if timeout_s and idle_s >= timeout_s:
                if why:
                    raise FailedError(why, code)
                unread = consumer.unread()
                if unread is None:
                    return
                if idle_s >= DEFAULT_TIMEOUT_S:
                    raise FailedError(unread.message, Exit.UNREACHABLE)
            if why and why != told and (idle_s >= _TELL_AFTER_S or consumer.failing(_TELL_AFTER_S)):
                print_error(f"raftlog: waiting: {why}")
                told = why
    finally:
        consumer.close()


def _why_nothing_comes(consumer: Consumer, topic: str, failing_s: float) -> tuple[str, Exit]:
    """What is wrong, if anything is known to be, and what the command ends with then."""
    if consumer.failure:
        return consumer.failure, Exit.UNREACHABLE
    if consumer.unknown_topics:
        return f"UNKNOWN_TOPIC_OR_PARTITION: there is no topic {topic}", Exit.REFUSED
    failing = sorted(consumer.failing(failing_s).items(), key=lambda item: item[0])
    if not failing:
        return "", Exit.OK
    said = "; ".join(f"{name}:{index}: {error}" for (name, index), error in failing[:_SHOWN])
    more = f"; and {len(failing) - _SHOWN} more" if len(failing) > _SHOWN else ""
    # Something that should have come has not: it is not certain that there was nothing to read.
    return f"{counted(len(failing), 'partition')} cannot be read: {said}{more}", Exit.UNREACHABLE


def _print(record: Record, as_json: bool) -> None:
    if as_json:
        print_json_line(_document(record))
    elif sys.stdout.isatty():
        # A terminal would obey what was produced; a program gets it as it is.
        text = (record.value or b"").decode(errors="backslashreplace")
        typer.echo(printable(text, keep="\n\t"))
    else:
        typer.echo(record.value or b"")


def _document(record: Record) -> dict[str, Any]:
    key, key_base64 = text_and_base64(record.key)
    value, value_base64 = text_and_base64(record.value)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp_ms": record.timestamp_ms,
        "key": key,
        "key_base64": key_base64,
        "value": value,
        "value_base64": value_base64,
        "headers": [
            {"key": name, "value": text, "value_base64": base64}
            for name, content in record.headers
            for text, base64 in (text_and_base64(content),)
        ],
    }
