"""``raftlog log``: the records of the log, and all metadata at one offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypedDict

import typer

from raftlog import batch
from raftlog.cli.command import Answer, command, group
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    DataDirectory,
    ExportDirectory,
    JsonLines,
    Timeout,
    controllers,
    opt,
)
from raftlog.cli.output import print_error, print_json, print_json_line, print_table, terminal_width
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.metadata.config_keys import LONG_MAX
from raftlog.metadata.describe import KEY_FIELDS, image_to_dict
from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.record_text import (
    config_text,
    fields_text,
    one_line,
    record_fields,
    record_name,
    record_to_dict,
    time_text,
)
from raftlog.metadata.records import RecordType
from raftlog.metadata.words import parse_topic_id, with_kafka_id
from raftlog.ops.logs import READ_BYTES, LogSource, RunningLog, begins_late, chunks, open_log

if TYPE_CHECKING:
    from raftlog.segments.manifest import StateHash


POLL_S = 2.0
app = group()


@dataclass
class DumpedRecord:
    """A record of the log."""

    offset: int
    epoch: int
    timestamp_ms: int
    batch_base_offset: int
    batch_records: int
    control: bool
    principal: str | None
    client_id: int | None
    sequence: int | None
    type: str
    record: dict[str, Any]
    """The fields of the message in records.proto."""


@command(app, lines=DumpedRecord)
def dump(
    first: Annotated[int, opt("--from OFFSET", "The first offset shown.", min=0)] = 0,
    until: Annotated[
        int | None, opt("--until OFFSET", "The offset after the last one shown.", min=0)
    ] = None,
    types: Annotated[
        list[str] | None, opt("--type TYPE", "Only records of this type; may be repeated.")
    ] = None,
    follow: Annotated[
        bool, opt("--follow -f", "Keep printing new committed records, until interrupted.")
    ] = False,
    directory: DataDirectory = None,
    export: ExportDirectory = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: JsonLines = False,
) -> None:
    """Print records, one a line: offset, epoch, time, type, content.

    Times are UTC. Bytes that are UTF-8 text are shown as text, others in hex. On a terminal, each
    record is cut to one line: a truncated value ends with "…" and its size, and omitted fields are
    counted. Pipes, files and --json get everything. Verifies every checksum.

    Reads the running cluster (committed records only), a stopped node's directory (to its end,
    committed or not), or an export. If the log is corrupt, the dump names the offset and ends with
    exit code 3.

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
        raise typer.BadParameter(f"--until {until} must be greater than --from {first}")
    if follow and (directory is not None or export is not None or until is not None):
        raise typer.BadParameter(
            "--follow needs a running cluster: omit --until, --directory and --export"
        )
    with open_log(directory, export, partial(controllers, bootstrap_controller), timeout) as source:
        end = source.end_offset if until is None else min(until, source.end_offset)
        if first < source.start_offset:
            print_error(begins_late(source))
        show = _print_json if as_json else _printer(terminal_width())
        records = _records(chunks(source, end), first, end)
        if follow:
            to_come = _records(_to_come(source, end, timeout), first, LONG_MAX)
            records = chain(records, to_come)
        for found in records:
            if not wanted or record_name(found.data.type) in wanted:
                show(found, is_kafka=bool(source.origin))


class _Found(NamedTuple):
    """A record with its position in the log."""

    offset: int
    header: batch.BatchHeader
    data: batch.RecordData


class _Show(Protocol):
    """A function that prints one record. ``is_kafka``: print topic ids as Kafka does."""

    def __call__(self, found: _Found, *, is_kafka: bool) -> None: ...


def _as_kafka(record: dict[str, Any]) -> dict[str, Any]:
    from raftlog.metadata.words import kafka_id

    said = ((name, record.get(name)) for name in ("topic_id", "clears_elr_of"))
    ids = {
        name: kafka_id(value.hex() if isinstance(value, bytes) else value)
        for name, value in said
        if value
    }
    return record | ids


def _print_json(found: _Found, *, is_kafka: bool) -> None:
    header = found.header
    record = record_to_dict(found.data)
    dumped = DumpedRecord(
        found.offset,
        header.epoch,
        header.timestamp_ms,
        header.base_offset,
        header.record_count,
        header.control,
        header.principal or None,
        header.client_id or None,
        header.sequence or None,
        record_name(found.data.type),
        _as_kafka(record) if is_kafka else record,
    )
    print_json_line(vars(dumped))


def _printer(width: int | None) -> _Show:
    """Return a function that prints records as text, at most ``width`` columns wide, or unlimited
    if None.
    """
    shown_date = ""

    def show(found: _Found, *, is_kafka: bool) -> None:
        nonlocal shown_date
        header, name, fields = found.header, record_name(found.data.type), record_fields(found.data)
        if is_kafka:
            fields = _as_kafka(fields)
        date, time = time_text(header.timestamp_ms).split("T")
        # Not through rich, which is slow: a log may have millions of lines.
        if width is None:
            begin = f"{found.offset:>10}  {header.epoch:>4}  {date}T{time}  {name:<26}  "
            typer.echo(begin + fields_text(fields))
            return
        if date != shown_date:
            typer.echo(f"{date} (UTC)")
            shown_date = date
        begin = f"{found.offset:>6} {header.epoch:>2}  {time[:8]}  {name}  "
        room = width - len(begin)
        if found.data.type == RecordType.CONFIG:
            typer.echo(begin + one_line(config_text(fields), room))
        else:
            typer.echo(begin + fields_text(fields, room))

    return show


def _to_come(source: LogSource, offset: int, timeout_s: float) -> Iterator[bytes]:
    """Yield committed chunks from an offset onwards, as they are committed. Failovers shorter than
    the timeout go unnoticed; a longer one ends the iteration.
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
    """Reject unknown record types. UNKNOWN_9 stands for type 9 of a later release."""
    known = {one.name for one in RecordType}
    for name in sorted(wanted):
        if name not in known and not name.startswith("UNKNOWN_"):
            close = get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            raise typer.BadParameter(f"--type {name}: there is no such record type; {hint}")


def _records(read: Iterator[bytes], first: int, end: int) -> Iterator[_Found]:
    for chunk in read:
        for header in batch.headers(chunk, verify=False):
            for offset, data in enumerate(batch.records(chunk, header), header.base_offset):
                if first <= offset < end:
                    yield _Found(offset, header, data)


RESOURCE_KINDS = {"topic": 2, "broker": 4, "client-metrics": 16, "group": 32}


class ImageDocument(TypedDict):
    """All metadata at one offset; entities as docs/protocol.md has them."""

    offset: int
    epoch: int
    timestamp_ms: int
    state_hash: str
    leader: dict[str, Any] | None
    features: dict[str, int]
    brokers: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    configs: list[dict[str, Any]]
    voters: dict[str, Any] | None
    clients: list[dict[str, Any]]
    hostnames: list[dict[str, Any]]
    export_cursors: list[dict[str, Any]]
    acls: list[dict[str, Any]]
    kv: list[dict[str, Any]]
    leases: list[dict[str, Any]]
    imported: list[dict[str, Any]]


@dataclass
class ImageEntity:
    """One part of an image, selected by --entity."""

    offset: int
    path: str
    entity: Any


@command()
def image_(
    at: Annotated[
        int | None, opt("--at OFFSET", "The offset, inclusive. Default: the last committed.", min=0)
    ] = None,
    entity: Annotated[
        str,
        opt(
            "--entity PATH",
            "Only this part: brokers/4, topics/orders, topics/orders/0, configs/topic/orders,"
            " features, leader, acls/ID, …",
        ),
    ] = "",
    directory: DataDirectory = None,
    export: ExportDirectory = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[ImageDocument | ImageEntity]:
    """Fold the log up to an offset and show all metadata there.

    The state hash is equal on every node at the same offset. An image is always the state at the
    end of a batch: an offset inside a batch shows the state before that batch. With --entity or
    --json, the content is printed as JSON.

    \b
    Examples:
      raftlog log image --bootstrap-controller 127.0.0.1:9093
      raftlog log image --at 1200 --entity topics/orders/0 --export exported
      raftlog log image -d data/controller-1 --json
    """
    with open_log(directory, export, partial(controllers, bootstrap_controller), timeout) as source:
        image = fold(source, at)
        # Not for other sources: running nodes have moved on, and checking snapshots takes long.
        recorded = source.reported_hashes() if export is not None else []
        origin = source.origin
    said_by = _compared(image, recorded)
    if at is not None and image.offset != at:
        typer.echo(
            f"offset {at} is inside a batch; showing the image at offset {image.offset}, before "
            "that batch",
            err=True,
        )
    document: Any = image_to_dict(image)
    if origin:
        document["topics"] = [with_kafka_id("topic", one) for one in document["topics"]]
    if entity:
        part = ImageEntity(image.offset, entity, find(document, entity))
        return Answer(part, lambda: print_json(part))
    return Answer(document, lambda: _show(image, said_by))


def _compared(image: Image, recorded: list[StateHash]) -> str:
    """Return which nodes recorded this state at this offset. Raises FailedError if a node recorded
    a different one.
    """
    said = [one for one in recorded if one.offset == image.offset]
    for one in said:
        if one.state_hash != format_hash(image.state_hash):
            raise FailedError(
                f"at offset {image.offset} the fold gives the state hash"
                f" {format_hash(image.state_hash)}, but {one.describe()} had {one.state_hash}: the"
                " node's memory, this log, or this build's fold is wrong",
                Exit.FOUND,
            )
    return ", ".join(sorted(one.describe() for one in said))


def fold(source: LogSource, at: int | None) -> Image:
    """Return the image at an offset, or at the last committed one, folded from the start of the log
    or from a snapshot. Raises ConfigError if the log ends before the offset or starts after it.
    """
    last = source.high_watermark - 1 if at is None else at
    if last >= source.end_offset:
        raise ConfigError(f"--at {last}: the log ends before offset {source.end_offset}")
    builder = ImageBuilder(source.image_up_to(last))
    for chunk in chunks(source, last + 1, begin=builder.offset + 1):
        builder.apply_chunk(chunk, until=last + 1)
    return builder.snapshot()


def _topics(topics: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return the topic with this name, or else with this id."""
    named = [one for one in topics if one["name"] == key]
    id_ = parse_topic_id(key)
    if named or id_ is None:
        return named
    return [one for one in topics if parse_topic_id(one["id"]) == id_]


def find(document: dict[str, Any], path: str) -> Any:
    """Return the part of an image's document at a path. Raises FailedError if it does not exist."""
    kind, _, rest = path.partition("/")
    if kind not in document:
        close = get_close_matches(kind, document, n=1)
        hint = f"did you mean {close[0]}?" if close else f"an image has {', '.join(document)}"
        raise FailedError(f"--entity {path}: {hint}", Exit.USAGE)
    part = document[kind]
    if not rest:
        return part
    matches: list[Any] = []
    if kind == "topics":
        name, _, index = rest.rpartition("/")
        matches = _topics(part, rest)
        if not matches and index.isdigit():
            matches = [
                one
                for topic in _topics(part, name)
                for one in topic["partitions"]
                if one["index"] == int(index)
            ]
    elif kind in KEY_FIELDS:
        matches = [one for one in part if str(one[KEY_FIELDS[kind]]) == rest]
    elif kind == "configs":
        resource, _, name = rest.partition("/")
        number = RESOURCE_KINDS.get(resource)
        matches = [
            one for one in part if (one["resource_type"], one["resource_name"]) == (number, name)
        ]
    elif isinstance(part, dict) and rest in part:
        matches = [part[rest]]
    if not matches:
        raise FailedError(
            f"--entity {path}: does not exist at offset {document['offset']}", Exit.REFUSED
        )
    return matches[0]


def _show(image: Image, said_by: str) -> None:
    fenced = sum(broker.fenced for broker in image.brokers.values())
    leader = image.leader
    rows = [
        ("offset", image.offset),
        ("epoch", image.epoch),
        ("time", time_text(image.timestamp_ms)),
        ("state hash", f"{image.state_hash:032x}"),
        *([("recorded by", said_by)] if said_by else []),
        ("controller", f"{leader.leader_id} in epoch {leader.epoch}" if leader else None),
        ("brokers", f"{len(image.brokers)} ({fenced} fenced)"),
        ("topics", len(image.topics)),
        ("partitions", len(image.partitions)),
        ("configs", sum(len(values) for _, values in image.configs.items())),
        (
            "features",
            ", ".join(f"{name}={image.features[name]}" for name in sorted(image.features)) or None,
        ),
    ]
    print_table(("", ""), rows)
