"""A debug bundle: what a cluster said of itself at one time, as one tar.gz that is read offline.

::

    bundle.json               when, by which build, of which period, who was asked
    doctor.txt, explain.txt   what these commands said
    doctor.json, log.json     what they saw: enough to run them again
    nodes/NAME/node.json      build, configuration without secrets, disk
    nodes/NAME/events.jsonl   the journal
    nodes/NAME/log.jsonl      the newest lines of its log
    nodes/NAME/metrics.txt    as Prometheus reads them

A bundle comes from somebody else: what is read of it has bounds, and one that makes no sense is
refused in one line.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message

from raftlog.cli.times import Period
from raftlog.errors import ConfigError
from raftlog.metadata.changes import Changed
from raftlog.observability.journal import NodeEvent
from raftlog.ops.evidence import About as NodeAbout
from raftlog.ops.evidence import LogTold, NodeSeen, NodeTold, Reach, Timeline
from raftlog.ops.evidence import Survey as Seen
from raftlog.transport.tls_look import TlsSeen, TlsTrouble
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.node.v1 import node_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

FORMAT = 1
MEMBER_MAX_BYTES, BUNDLE_MAX_BYTES, MEMBERS_MAX = 64 << 20, 512 << 20, 10_000
READ_MAX_BYTES = 128 << 20
"""Of the parts that are read here: as objects they take six times as much."""
_READ = frozenset({"bundle.json", "doctor.json", "log.json"})
_EVENTS = "/events.jsonl"
_BLOCK = 512
TEXT_MAX = 200
"""Characters of an error, which may quote all of a part."""


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
            # No header but those of files: who reads it refuses others.
            with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
                for name, data in parts.items():
                    info = tarfile.TarInfo(f"{file.name.split('.')[0][:60]}/{name}")
                    info.size, info.mtime, info.mode = len(data), created_ms // 1000, 0o600
                    tar.addfile(info, io.BytesIO(data))
    except FileExistsError:
        raise ConfigError(f"{file} is there already") from None
    except OSError as error:
        if made:
            file.unlink(missing_ok=True)  # A part of one is of no use.
        raise ConfigError(f"can't write {file}: {error.strerror}") from error


@contextmanager
def read_bundle(file: Path) -> Iterator[Bundle]:
    """A bundle, for as long as something is made of it.

    Raises ConfigError for what is none, and in place of what its content makes the rules about
    clusters raise.
    """
    try:
        yield Bundle(file)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        msgspec.MsgspecError,
    ) as error:
        what = f"{type(error).__name__}: {error!s:.{TEXT_MAX}}"
        raise ConfigError(f"{file} holds what no node says ({what})") from error


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
        except json_format.ParseError as error:
            raise ConfigError(f"{self._file}: doctor.json: {error!s:.{TEXT_MAX}}") from error
        return Seen(nodes, brokers, found.brokers_failure, found.at_ms, told)

    def told(self, period: Period) -> Timeline:
        """What happened, as far as the bundle has it. Raises BadParameter for no such period."""
        first_ms, last_ms = self.about.from_ms, self.about.to_ms
        if period.is_given:
            first_ms, last_ms = period.at(lambda: self.about.to_ms)
        nodes = []
        for one in {each.name: each for each in self.about.nodes}.values():
            lines = self._parts.get(f"nodes/{one.name}{_EVENTS}", b"").splitlines()
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
        return Timeline(first_ms, min(last_ms, self.about.to_ms), tuple(nodes), told)

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
    """The parts that are read here, by name.

    Not by ``tarfile``, which reads headers of any size [11 MB made 2.5 GB]: a bundle has none but
    those of files.
    """
    parts: dict[str, bytes] = {}
    members = total = kept = 0
    try:
        with gzip.open(file) as stream:
            while (header := stream.read(_BLOCK)).strip(b"\0"):
                member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
                if not member.isreg():
                    raise ConfigError(f"{file} is no debug bundle: it has more than files in it")
                name = member.name.partition("/")[2]
                needed = name in _READ or name.endswith(_EVENTS)
                members, total = members + 1, total + member.size
                kept += member.size if needed else 0
                if (
                    not 0 <= member.size <= MEMBER_MAX_BYTES
                    or total > BUNDLE_MAX_BYTES
                    or kept > READ_MAX_BYTES
                ):
                    raise ConfigError(f"{file} is too large to be a debug bundle")
                if members > MEMBERS_MAX:
                    raise ConfigError(f"{file} has too many files to be a debug bundle")
                content = stream.read(member.size + -member.size % _BLOCK)
                if needed:
                    parts[name] = content[: member.size]
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{file} is a directory: give the file that raftlog debug bundle wrote, as it is"
        ) from None
    except (OSError, EOFError, UnicodeError, tarfile.TarError, zlib.error) as error:
        raise ConfigError(f"{file} is no debug bundle: {error}") from error
    return parts
