"""``raftlog log image``: all metadata as it was at one offset."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    DataDirectory,
    ExportDirectory,
    Json,
    Timeout,
    controllers,
)
from raftlog.cli.output import print_json, print_table
from raftlog.cli.render import time_text
from raftlog.errors import ConfigError
from raftlog.metadata.describe import image_to_dict
from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.kafka_ids import parse_topic_id, with_kafka_id
from raftlog.ops.logs import LogSource, chunks, open_log

if TYPE_CHECKING:
    from raftlog.segments.manifest import StateHash

RESOURCE_KINDS = {"topic": 2, "broker": 4, "client-metrics": 16, "group": 32}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("image", epilog=EPILOG)(image_)


def image_(
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="OFFSET",
            min=0,
            help="The offset, inclusive. Default: the last committed.",
        ),
    ] = None,
    entity: Annotated[
        str,
        typer.Option(
            "--entity",
            metavar="PATH",
            help=(
                "Only this: brokers/4, topics/orders, topics/orders/0, configs/topic/orders,"
                " features, leader, acls/ID, ..."
            ),
        ),
    ] = "",
    directory: DataDirectory = None,
    export: ExportDirectory = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
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
        # Of the others, running nodes have gone on since, and snapshots take long to check.
        recorded = source.said() if export is not None else []
        origin = source.origin
    said_by = _compared(image, recorded)
    if at is not None and image.offset != at:
        typer.echo(
            f"offset {at} is within a batch; this is the image at offset {image.offset}, before it",
            err=True,
        )
    document = image_to_dict(image)
    if origin:
        document["topics"] = [with_kafka_id("topic", one) for one in document["topics"]]
    if entity:
        found = find(document, entity)
        print_json({"offset": image.offset, "path": entity, "entity": found})
    elif as_json:
        print_json(document)
    else:
        _show(image, said_by)


def _compared(image: Image, recorded: list[StateHash]) -> str:
    """Who had this state at this offset. Raises FailedError if somebody had another."""
    said = [one for one in recorded if one.offset == image.offset]
    for one in said:
        if one.state_hash != format_hash(image.state_hash):
            raise FailedError(
                f"at offset {image.offset} the fold gives the state hash"
                f" {format_hash(image.state_hash)}, and {one.describe()} had {one.state_hash}: the"
                " node's memory, this log, or the fold of this build is not right",
                Exit.FOUND,
            )
    return ", ".join(sorted(one.describe() for one in said))


def fold(source: LogSource, at: int | None) -> Image:
    """The image at an offset, or at the last committed one, folded from the log's beginning or from
    a snapshot.

    Raises ConfigError if the log does not reach it, or begins behind it.
    """
    last = source.high_watermark - 1 if at is None else at
    if last >= source.end_offset:
        raise ConfigError(f"--at {last}: the log ends before offset {source.end_offset}")
    builder = ImageBuilder(source.image_up_to(last))
    for chunk in chunks(source, last + 1, begin=builder.offset + 1):
        builder.apply_chunk(chunk, until=last + 1)
    return builder.snapshot()


def _topics(topics: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """The one of this name, or else of this id."""
    named = [one for one in topics if one["name"] == key]
    id_ = parse_topic_id(key)
    if named or id_ is None:
        return named
    return [one for one in topics if parse_topic_id(one["id"]) == id_]


def find(document: dict[str, Any], path: str) -> Any:
    """The part of an image's document that a path names. Raises FailedError if it is not there."""
    kind, _, rest = path.partition("/")
    if kind not in document:
        raise FailedError(f"--entity {path}: an image has {', '.join(document)}", Exit.USAGE)
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
    elif kind == "brokers":
        matches = [broker for broker in part if str(broker["id"]) == rest]
    elif kind == "applied":
        matches = [applied for applied in part if str(applied["broker_id"]) == rest]
    elif kind == "acls":
        matches = [one for one in part if one["id"] == rest]
    elif kind in ("hostnames", "export_cursors"):
        matches = [one for one in part if one["name"] == rest]
    elif kind == "kv":
        matches = [one for one in part if one["key"] == rest]
    elif kind == "leases":
        matches = [one for one in part if str(one["id"]) == rest]
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
            f"--entity {path}: not there at offset {document['offset']}", Exit.REFUSED
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
