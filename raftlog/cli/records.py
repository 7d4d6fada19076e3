"""``raftlog produce`` and ``consume``: the records of topics."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli import completion
from raftlog.cli.command import command
from raftlog.cli.exits import Exit, FailedError, exit_code, standard_input
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
from raftlog.client.producer import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducerSettings,
    RecordMetadata,
)
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.words import text_and_base64
from raftlog.text import counted, printable

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient

_READ_BYTES = 1 << 16
_ERRORS_SHOWN = 5


class DataAcks(StrEnum):
    """The condition on which a record counts as written."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


_WIRE = {DataAcks.ALL: ACKS_ALL, DataAcks.LEADER: ACKS_LEADER, DataAcks.NONE: ACKS_NONE}


@command(shared=("bootstrap_server", "timeout"), lines=RecordMetadata)
async def produce(
    client: AsyncClient,
    topic: Annotated[str, arg("TOPIC", "The topic to write to.", autocompletion=completion.topics)],
    values: Annotated[
        list[str] | None,
        opt("--value", "The value of a record, instead of reading stdin; may be repeated."),
    ] = None,
    key_separator: Annotated[
        str,
        opt(
            "--key-separator",
            "The text between key and value in a line. Default: lines have no keys.",
        ),
    ] = "",
    partition: Annotated[
        int, opt("--partition", "The partition to write to; -1: chosen by the key, or any.", min=-1)
    ] = -1,
    acks: Annotated[
        DataAcks,
        opt(
            "--acks",
            "all: every in-sync replica has stored it durably; 1: the leader has; 0: do not wait.",
        ),
    ] = DataAcks.ALL,
    retry_unknown: Annotated[
        bool,
        opt("--retry-unknown", "Retry writes of unknown outcome: records may be written twice."),
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """Write records to a topic: each line of stdin is one. --timeout applies to each record.

    \b
    Examples:
      raftlog produce orders --value hello --bootstrap-server 127.0.0.1:9092
      raftlog produce orders --key-separator : < records.txt
    """
    settings = ProducerSettings(
        acks=_WIRE[acks],
        request_timeout_ms=max(1, int(client.options.timeout_s * 1000)),
        delivery_timeout_ms=max(1, int(client.options.timeout_s * 1000)),
        retry_unknown=retry_unknown,
    )
    separator = os.fsencode(key_separator)

    producer = client.core.new_producer(settings)
    outcome = _Outcome(as_json)
    try:
        source = _given(values) if values else _lines()
        async for line in source:
            if outcome.unprinted is not None:
                break
            key, value = _split(line, separator)
            while True:
                try:
                    outcome.add(producer.post(topic, value, key=key, partition=partition))
                    break
                except ApiError as error:
                    if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                        raise
                    await outcome.some()
        await outcome.all()
    finally:
        producer.close()
    outcome.finish(topic)


class _Outcome:
    """The results of the records so far."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._pending: dict[asyncio.Future[RecordMetadata], None] = {}
        self._written = 0
        self._unknown = 0
        self._errors: list[ApiError] = []
        self.unprinted: OSError | None = None
        """The error that prevented a result from being printed; nothing is written to the topic
        after it.
        """

    def add(self, future: asyncio.Future[RecordMetadata]) -> None:
        self._pending[future] = None
        future.add_done_callback(self._ended)

    def _ended(self, future: asyncio.Future[RecordMetadata]) -> None:
        self._pending.pop(future, None)
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, ApiError):
            self._errors.append(error)
            self._unknown += error.outcome_unknown
        else:
            self._written += 1
            try:
                self._say(future.result())
            except OSError as failed:
                self.unprinted = self.unprinted or failed

    def _say(self, done: RecordMetadata) -> None:
        if self.unprinted is not None:
            return
        if self._as_json:
            print_json_line(done)
        else:
            typer.echo(f"{done.topic}-{done.partition} at offset {done.offset}")

    async def some(self) -> None:
        """Wait until more records may be in flight."""
        await asyncio.wait(list(self._pending), return_when=asyncio.FIRST_COMPLETED)

    async def all(self) -> None:
        """Wait for all records in flight."""
        while self._pending:
            await asyncio.wait(list(self._pending))

    def finish(self, topic: str) -> None:
        """Raise an error if any record failed or a result could not be printed."""
        if not self._errors:
            if self.unprinted is not None:
                raise self.unprinted
            return
        for error in list({str(error): error for error in self._errors}.values())[:_ERRORS_SHOWN]:
            print_error(f"raftlog: {error}")
        refused = len(self._errors) - self._unknown
        code = (
            Exit.UNKNOWN if self._unknown else Exit(min(exit_code(error) for error in self._errors))
        )
        raise FailedError(
            f"{topic}: {counted(self._written, 'record')} written, {refused} not written,"
            f" {self._unknown} of unknown outcome",
            code,
        )


def _split(line: bytes, separator: bytes) -> tuple[bytes | None, bytes]:
    if separator:
        key, found, value = line.partition(separator)
        if found:
            return key, value
    return None, line


async def _given(values: list[str]) -> AsyncIterator[bytes]:
    for value in values:
        yield os.fsencode(value)


async def _lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input as they arrive."""
    rest = b""
    while data := await _read():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _read() -> bytes:
    """Return available bytes. Waits for a pipe or a terminal without a thread, which could not be
    interrupted.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    with standard_input() as stream:
        descriptor = stream.fileno()
        try:
            loop.add_reader(descriptor, ready.set)
        except PermissionError:
            # A file is always ready.
            await asyncio.sleep(0)
        else:
            try:
                await ready.wait()
            finally:
                loop.remove_reader(descriptor)
        return os.read(descriptor, _READ_BYTES)


_POLL_S = 0.5
_TELL_AFTER_S = 2.0
_SHOWN = 5


@dataclass
class RecordHeader:
    """A header of a record."""

    key: str
    value: str | None
    value_base64: str | None


@dataclass
class ConsumedRecord:
    """A record of a topic. A text that is not UTF-8 is in ``value_base64`` instead of ``value``."""

    topic: str
    partition: int
    offset: int
    """Offset in the partition."""
    leader_epoch: int
    timestamp_ms: int
    key: str | None
    key_base64: str | None
    value: str | None
    value_base64: str | None
    headers: Sequence[RecordHeader]


@command(shared=("bootstrap_server",), lines=ConsumedRecord)
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
        int, opt("--offset", "Start at this offset; needs --partition.", min=-1)
    ] = -1,
    max_messages: Annotated[
        int, opt("--max-messages", "Stop after this many records; 0: never.", min=0)
    ] = 0,
    timeout_s: Annotated[
        float,
        opt(
            "--timeout S",
            "Stop when all records have been read and none arrives for S seconds; 0: never.",
            min=0.0,
        ),
    ] = 0.0,
    as_json: JsonLines = False,
) -> None:
    """Print the committed records of a topic, until interrupted.

    Prints one value per line, in order within each partition. With --json, a value that is not
    UTF-8 is in value_base64.

    \b
    Examples:
      raftlog consume orders --from-beginning --bootstrap-server 127.0.0.1:9092
      raftlog consume orders --partition 2 --offset 100 --max-messages 10 --json
    """
    if offset >= 0 and partition < 0:
        raise typer.BadParameter("--offset needs --partition")
    if offset >= 0 and from_beginning:
        raise typer.BadParameter("give --offset or --from-beginning, not both")
    begin = offset if offset >= 0 else EARLIEST if from_beginning else LATEST

    # Records that existed at the start may be deleted before they are read.
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
    """Return the reason, if known, why no records arrive, and its exit code."""
    if consumer.failure:
        return consumer.failure, Exit.UNREACHABLE
    if consumer.unknown_topics:
        return f"UNKNOWN_TOPIC_OR_PARTITION: there is no topic {topic}", Exit.REFUSED
    failing = sorted(consumer.failing(failing_s).items(), key=lambda item: item[0])
    if not failing:
        return "", Exit.OK
    said = "; ".join(f"{name}:{index}: {error}" for (name, index), error in failing[:_SHOWN])
    more = f"; and {len(failing) - _SHOWN} more" if len(failing) > _SHOWN else ""
    # Reads have failed, so it is not certain that there was nothing to read.
    return f"{counted(len(failing), 'partition')} cannot be read: {said}{more}", Exit.UNREACHABLE


def _print(record: Record, as_json: bool) -> None:
    if as_json:
        print_json_line(_consumed(record))
    elif sys.stdout.isatty():
        # A terminal would interpret control characters; a program gets the raw value.
        text = (record.value or b"").decode(errors="backslashreplace")
        typer.echo(printable(text, keep="\n\t"))
    else:
        typer.echo(record.value or b"")


def _consumed(record: Record) -> ConsumedRecord:
    headers = [RecordHeader(name, *text_and_base64(content)) for name, content in record.headers]
    key, value = text_and_base64(record.key), text_and_base64(record.value)
    return ConsumedRecord(*record[:5], *key, *value, headers)
