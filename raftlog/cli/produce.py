"""``raftlog produce``: write records, one a line of stdin."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli import completion
from raftlog.cli.command import command
from raftlog.cli.exits import Exit, FailedError, exit_code
from raftlog.cli.options import JsonLines, arg, opt
from raftlog.cli.output import print_error, print_json_line
from raftlog.cli.standard_input import standard_input
from raftlog.client.producer import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducerSettings,
    RecordMetadata,
)
from raftlog.errors import ApiError, ErrorCode
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient

_READ_BYTES = 1 << 16
_ERRORS_SHOWN = 5


class DataAcks(StrEnum):
    """When a record counts as written."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


_WIRE = {DataAcks.ALL: ACKS_ALL, DataAcks.LEADER: ACKS_LEADER, DataAcks.NONE: ACKS_NONE}


def register(app_: typer.Typer) -> None:
    """Add the command."""
    command(app_, "produce", shared=("bootstrap_server", "timeout"))(produce)


async def produce(
    client: AsyncClient,
    topic: Annotated[str, arg("TOPIC", "The topic to write to.", autocompletion=completion.topics)],
    values: Annotated[
        list[str] | None, opt("--value", "A record's value; may be repeated. Instead of stdin.")
    ] = None,
    key_separator: Annotated[
        str, opt("--key-separator", "The text between key and value in a line; none: no keys.")
    ] = "",
    partition: Annotated[
        int, opt("--partition", "The partition to write to; -1: by the key, or any.", min=-1)
    ] = -1,
    acks: Annotated[
        DataAcks,
        opt(
            "--acks",
            "all: the in-sync replicas have it durably; 1: the leader has; 0: do not wait.",
        ),
    ] = DataAcks.ALL,
    retry_unknown: Annotated[
        bool, opt("--retry-unknown", "Retry writes of unknown outcome: at least once, not at most.")
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
            if outcome.unsaid is not None:
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
    """What became of the records so far."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._pending: dict[asyncio.Future[RecordMetadata], None] = {}
        self._written = 0
        self._unknown = 0
        self._errors: list[ApiError] = []
        self.unsaid: OSError | None = None
        """Why what became of a record could not be printed. Nothing is written from then on."""

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
                self.unsaid = self.unsaid or failed

    def _say(self, done: RecordMetadata) -> None:
        if self.unsaid is not None:
            return
        if self._as_json:
            print_json_line(
                {"topic": done.topic, "partition": done.partition, "offset": done.offset}
            )
        else:
            typer.echo(f"{done.topic}-{done.partition} at offset {done.offset}")

    async def some(self) -> None:
        """Wait until there is room again."""
        await asyncio.wait(list(self._pending), return_when=asyncio.FIRST_COMPLETED)

    async def all(self) -> None:
        """Wait for the rest."""
        while self._pending:
            await asyncio.wait(list(self._pending))

    def finish(self, topic: str) -> None:
        """Fail if any record did, or if it could not be said what became of one."""
        if not self._errors:
            if self.unsaid is not None:
                raise self.unsaid
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
    """The lines of stdin, as they come."""
    rest = b""
    while data := await _read():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _read() -> bytes:
    """What there is; waits for a pipe or a terminal without a thread, which could not be
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
