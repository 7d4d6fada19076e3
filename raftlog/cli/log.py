"""``raftlog log``: the records themselves."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from time import monotonic
from typing import Annotated, Any

import typer

from raftlog import batch
from raftlog.cli.exits import EPILOG
from raftlog.cli.log_sources import (
    READ_BYTES,
    DataDirectory,
    ExportDirectory,
    LogSource,
    RunningLog,
    begins_late,
    chunks,
    open_log,
)
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BootstrapController, JsonLines, Timeout
from raftlog.cli.output import print_error, print_json_line
from raftlog.cli.render import fields_text, record_name, record_to_dict, time_text
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import LONG_MAX
from raftlog.metadata.records import RecordType
from raftlog.printable import printable

POLL_S = 2.0
app = typer.Typer(
    help="The records of the log, and all metadata at one offset.",
    epilog=EPILOG,
    no_args_is_help=True,
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="log")


@app.callback()
def _group() -> None:
    """The records of the log, and all metadata at one offset."""


@app.command(epilog=EPILOG)
def dump(
    first: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset shown.")
    ] = 0,
    until: Annotated[
        int | None,
        typer.Option(
            "--until", metavar="OFFSET", min=0, help="The offset after the last one shown."
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only records of this type; may be repeated."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on with what is committed later, until interrupted."
        ),
    ] = False,
    directory: DataDirectory = None,
    export: ExportDirectory = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: JsonLines = False,
) -> None:
    """Print records, one a line: offset, epoch, time, type, content.

    Every checksum is verified on the way.

    Reads the running cluster (committed records only), a stopped node's directory (to its end,
    committed or not), or an export. A corrupt log ends the dump with exit code 3, naming the
    offset.

    \b
    Examples:
      raftlog log dump --bootstrap-controller 127.0.0.1:9093
      raftlog log dump -d data/controller-1 --from 1000 --json
      raftlog log dump -e export --type TOPIC --type REMOVE_TOPIC
      raftlog log dump --follow --type CONFIG
    """
    wanted = {name.upper() for name in types or []}
    _check_types(wanted)
    if until is not None and until <= first:
        raise typer.BadParameter(f"--until {until} is not behind --from {first}")
    if follow and (directory is not None or export is not None or until is not None):
        raise typer.BadParameter("--follow reads a running cluster, and to no end")
    with open_log(directory, export, bootstrap_controller, timeout) as source:
        end = source.end_offset if until is None else min(until, source.end_offset)
        if first < source.start_offset:
            print_error(begins_late(source))
        for line in _records(chunks(source, end), first, end):
            if source.origin:
                line["record"] |= _as_kafka(line["record"])
            _print(line, wanted, as_json)
        if follow:
            for line in _records(_to_come(source, end, timeout), first, LONG_MAX):
                _print(line, wanted, as_json)


def _as_kafka(record: dict[str, Any]) -> dict[str, Any]:
    """What it says of topics' ids, as Kafka prints them."""
    from raftlog.metadata.kafka_ids import kafka_id

    said = ((name, record.get(name)) for name in ("topic_id", "clears_elr_of"))
    return {name: kafka_id(value) for name, value in said if value}


def _print(line: dict[str, Any], wanted: set[str], as_json: bool) -> None:
    if wanted and line["type"] not in wanted:
        return
    if as_json:
        print_json_line(line)
    else:
        # Not through rich: a log may have millions of lines.
        text = (
            f"{line['offset']:>10}  {line['epoch']:>4}  {time_text(line['timestamp_ms'])} "
            f" {line['type']:<26}  {fields_text(line['record'])}"
        )
        typer.echo(printable(text))


def _to_come(source: LogSource, offset: int, timeout_s: float) -> Iterator[bytes]:
    """Committed chunks from an offset on, as they come.

    A failover goes by unseen: one that takes longer than the timeout ends it.
    """
    assert isinstance(source, RunningLog)
    give_up_at = monotonic() + timeout_s
    while True:
        try:
            chunk = source.poll(offset, READ_BYTES, POLL_S)
        except ApiError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT or monotonic() > give_up_at:
                raise
            continue
        give_up_at = monotonic() + timeout_s
        if chunk:
            yield chunk
            *_, last = batch.headers(chunk, verify=False)
            offset = last.end_offset


def _check_types(wanted: set[str]) -> None:
    """Refuse what is no record type; UNKNOWN_9 is one of a later program."""
    known = {one.name for one in RecordType}
    for name in sorted(wanted):
        if name not in known and not name.startswith("UNKNOWN_"):
            close = get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            raise typer.BadParameter(f"--type {name}: there is no such record type; {hint}")


def _records(read: Iterator[bytes], first: int, end: int) -> Iterator[dict[str, Any]]:
    for chunk in read:
        for header in batch.headers(chunk, verify=False):
            for offset, data in enumerate(batch.records(chunk, header), header.base_offset):
                if first <= offset < end:
                    yield {
                        "offset": offset,
                        "epoch": header.epoch,
                        "timestamp_ms": header.timestamp_ms,
                        "batch_base_offset": header.base_offset,
                        "batch_records": header.record_count,
                        "control": header.control,
                        "principal": header.principal or None,
                        "client_id": header.client_id or None,
                        "sequence": header.sequence or None,
                        "type": record_name(data.type),
                        "record": record_to_dict(data),
                    }
