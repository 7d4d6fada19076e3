"""A debug bundle: what a cluster said of itself at one time, as one tar.gz that is read offline.

::

    bundle.json               when, by which build, of which period, who was asked
    doctor.txt, explain.txt   what these commands said
    doctor.json, log.json     what they saw: enough to run them again
    nodes/NAME/node.json      build, configuration without secrets, disk
    nodes/NAME/events.jsonl   the journal
    nodes/NAME/log.jsonl      the newest lines of its log
    nodes/NAME/metrics.txt    as Prometheus reads them

A bundle comes from somebody else: what is read of it has bounds.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message

from raftlog.cli.times import Period
from raftlog.doctor.evidence import About as NodeAbout
from raftlog.doctor.evidence import Evidence as Seen
from raftlog.doctor.evidence import NodeSeen, Reach
from raftlog.errors import ConfigError
from raftlog.incident.evidence import Evidence, LogTold, NodeTold
from raftlog.journal.event import NodeEvent
from raftlog.metadata.changes import Changed
from raftlog.transport.tls_look import TlsSeen, TlsTrouble
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.node.v1 import node_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

FORMAT = 1
MEMBER_MAX_BYTES, BUNDLE_MAX_BYTES, MEMBERS_MAX = 64 << 20, 512 << 20, 10_000


class ToldNode(msgspec.Struct):
    """As in ``bundle.json``."""

    name: str
    role: str
    node_id: int
    endpoint: str = ""
    failure: str = ""


class About(msgspec.Struct):
    """``bundle.json``."""

    format: int
    created_ms: int
    version: str
    from_ms: int
    to_ms: int
    nodes: list[ToldNode]


class _Log(msgspec.Struct):
    changes: list[Changed]
    writes_ms: list[int]
    failure: str = ""
    late: str = ""


class _About(msgspec.Struct):
    name: str
    node: dict[str, Any]
    ahead_ms: int = 0


class _Looked(msgspec.Struct):
    endpoint: str
    reach: str
    failure: str
    waited_ms: int
    node_id: int
    description: dict[str, Any] | None = None
    about: _About | None = None
    tls_trouble: str = ""
    tls_text: str = ""


class _Doctor(msgspec.Struct):
    nodes: list[_Looked]
    at_ms: int
    brokers: dict[str, Any] | None = None
    brokers_failure: str = ""
    broker_nodes: list[_About] = []


def write_bundle(file: Path, parts: Mapping[str, bytes], created_ms: int) -> None:
    """Write the parts by their names; the file is its owner's alone. Raises ConfigError."""
    made = False
    try:
        with file.open("xb") as out:
            made = True
            file.chmod(0o600)
            with tarfile.open(fileobj=out, mode="w:gz") as tar:
                for name, data in parts.items():
                    info = tarfile.TarInfo(f"{file.name.split('.')[0]}/{name}")
                    info.size, info.mtime, info.mode = len(data), created_ms / 1000, 0o600
                    tar.addfile(info, io.BytesIO(data))
    except FileExistsError:
        raise ConfigError(f"{file} is there already") from None
    except OSError as error:
        if made:
            file.unlink(missing_ok=True)  # A part of one is of no use.
        raise ConfigError(f"can't write {file}: {error.strerror}") from error


class Bundle:
    """A bundle that was read. Raises ConfigError for what is none."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._parts = _parts_of(file)
        self.about = self._decode("bundle.json", About)
        if self.about.format != FORMAT:
            raise ConfigError(
                f"{file} has the format {self.about.format}; this build reads {FORMAT}"
            )

    def seen(self) -> Seen:
        """What the doctor saw."""
        found = self._decode("doctor.json", _Doctor)
        brokers = None
        try:
            if found.brokers is not None:
                brokers = json_format.ParseDict(
                    found.brokers,
                    controller_pb2.DescribeBrokersResponse(),
                    ignore_unknown_fields=True,
                )
            nodes = tuple(_looked(one) for one in found.nodes)
            told = tuple(_about(one) for one in found.broker_nodes)
        except (json_format.ParseError, ValueError) as error:
            raise ConfigError(f"{self._file}: doctor.json: {error}") from error
        return Seen(nodes, brokers, found.brokers_failure, found.at_ms, told)

    def told(self, period: Period) -> Evidence:
        """What happened, as far as the bundle has it. Raises BadParameter for no such period."""
        first_ms, last_ms = self.about.from_ms, self.about.to_ms
        if period.is_given:
            first_ms, last_ms = period.at(lambda: self.about.to_ms)
        nodes = []
        for one in self.about.nodes:
            lines = self._parts.get(f"nodes/{one.name}/events.jsonl", b"").splitlines()
            try:
                events = tuple(msgspec.json.decode(line, type=NodeEvent) for line in lines)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{self._file}: events of {one.name}: {error}") from error
            nodes.append(NodeTold(one.name, one.role, one.node_id, events, one.failure))
        log = self._decode("log.json", _Log)
        told = LogTold(
            tuple(log.changes),
            tuple(log.writes_ms),
            log.failure,
            log.late,
        )
        return Evidence(first_ms, min(last_ms, self.about.to_ms), tuple(nodes), told)

    def _decode(self, name: str, type_: type[Any]) -> Any:
        try:
            return msgspec.json.decode(self._parts[name], type=type_)
        except KeyError:
            raise ConfigError(f"{self._file} is no debug bundle: it has no {name}") from None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._file}: {name}: {error}") from error


def doctor_part(seen: Seen) -> bytes:
    """``doctor.json``."""
    return msgspec.json.encode(
        _Doctor(
            [
                _Looked(
                    one.endpoint,
                    one.reach.name,
                    one.failure,
                    one.waited_ms,
                    one.node_id,
                    None if one.description is None else _plain(one.description),
                    None if one.about is None else _written(one.about),
                    one.tls.trouble.value,
                    one.tls.text,
                )
                for one in seen.nodes
            ],
            seen.at_ms,
            None if seen.brokers is None else _plain(seen.brokers),
            seen.brokers_failure,
            [_written(one) for one in seen.broker_nodes],
        )
    )


def _written(one: NodeAbout) -> _About:
    """Without the configuration, which has a part of its own."""
    node = {name: value for name, value in _plain(one.node).items() if name != "config"}
    return _About(one.name, node, one.ahead_ms)


def _about(one: _About) -> NodeAbout:
    node = json_format.ParseDict(
        one.node, node_pb2.DescribeNodeResponse(), ignore_unknown_fields=True
    )
    return NodeAbout(one.name, node, one.ahead_ms)


def _plain(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def log_part(log: LogTold) -> bytes:
    """``log.json``."""
    return msgspec.json.encode(_Log(list(log.changes), list(log.writes_ms), log.failure, log.late))


def _looked(one: _Looked) -> NodeSeen:
    description = None
    if one.description is not None:
        description = json_format.ParseDict(
            one.description, quorum_pb2.DescribeQuorumResponse(), ignore_unknown_fields=True
        )
    if one.reach not in Reach.__members__:
        raise ValueError(f"reach {one.reach!r}")
    return NodeSeen(
        one.endpoint,
        Reach[one.reach],
        description,
        one.failure,
        one.waited_ms,
        one.node_id,
        None if one.about is None else _about(one.about),
        TlsSeen(TlsTrouble(one.tls_trouble), one.tls_text),
    )


def _parts_of(file: Path) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(file, "r:gz") as tar:
            for member in tar:
                total += member.size
                if member.size > MEMBER_MAX_BYTES or total > BUNDLE_MAX_BYTES:
                    raise ConfigError(f"{file} is too large to be a debug bundle")
                if len(parts) >= MEMBERS_MAX:
                    raise ConfigError(f"{file} has too many files to be a debug bundle")
                content = tar.extractfile(member) if member.isfile() else None
                if content is not None:
                    parts[member.name.partition("/")[2]] = content.read()
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{file} is a directory: give the file that raftlog debug bundle wrote, as it is"
        ) from None
    except (OSError, EOFError, tarfile.TarError) as error:
        raise ConfigError(f"{file} is no debug bundle: {error}") from error
    return parts
