"""A debug bundle: evidence about a cluster at one time, in a tar.gz for offline reading.

::

    bundle.json               time, build, period, and the nodes queried
    doctor.txt, explain.txt   the output of these commands
    doctor.json, log.json     their input: enough to run them again
    nodes/NAME/node.json      build, configuration without secrets, disk
    nodes/NAME/events.jsonl   the journal
    nodes/NAME/log.jsonl      the newest lines of its log
    nodes/NAME/metrics.txt    as Prometheus reads them

A bundle is untrusted: reading it is bounded, and an invalid one is refused with one line.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from raftlog.client.security import security_of_environment
from raftlog.errors import ConfigError
from raftlog.node.observability.journal import NodeEvent
from raftlog.ops import doctor, story
from raftlog.ops.collector import Collector, Diagnosis, nodes_of
from raftlog.ops.evidence import LogPeriod, NodeEvents, Survey, Timeline
from raftlog.ops.history import Period
from raftlog.process import build_text

FORMAT = 2
MEMBER_MAX_BYTES, BUNDLE_MAX_BYTES, MEMBERS_MAX = 64 << 20, 512 << 20, 10_000
READ_MAX_BYTES = 128 << 20
"""Total size limit of the parts that are read here, in bytes: as objects they take six times as
much memory.
"""
LOG_LINES = 1_000
DIAGNOSE_S = 6.0
TEXT_MAX = 200
"""Maximum length of an error, which may quote a whole part."""
_READ = frozenset({"bundle.json", "doctor.json", "log.json"})
_EVENTS = "/events.jsonl"
_BLOCK = 512


class About(msgspec.Struct):
    """The content of ``bundle.json``. The events of ``nodes`` are in separate parts."""

    format: int
    created_ms: int
    version: str
    from_ms: int
    to_ms: int
    nodes: list[NodeEvents]


async def diagnose(
    survey: Survey, brokers: Sequence[str], timeout_s: float, *, disk: bool
) -> list[Diagnosis]:
    """Query each node of a surveyed cluster for the parts that only a bundle contains."""
    collector = Collector(security_of_environment())
    nodes = nodes_of(survey, brokers)
    timeout_s = min(timeout_s, DIAGNOSE_S)
    return await collector.diagnoses(nodes, timeout_s, log_lines=LOG_LINES, disk=disk)


def parts_of(
    survey: Survey, timeline: Timeline, diagnoses: Sequence[Diagnosis]
) -> tuple[dict[str, bytes], list[NodeEvents]]:
    """Return the parts of a bundle by name, and its nodes, with the reason for missing data."""
    failures = {one.node.name: one.failure for one in diagnoses}
    nodes = [
        msgspec.structs.replace(one, failure=one.failure or failures.get(one.name, ""))
        for one in timeline.nodes
    ]
    parts: dict[str, bytes] = {}
    for one in diagnoses:
        if one.described or one.diagnosed:
            parts |= _node_parts(one)
    listed = [msgspec.structs.replace(one, events=()) for one in nodes]
    span = timeline.from_ms, timeline.to_ms
    about = About(FORMAT, survey.at_ms, build_text(), *span, listed)
    findings = doctor.diagnose(survey)
    explained = story.screen(story.tell(timeline), findings, everything=True)
    parts |= {
        "bundle.json": _json(about),
        "doctor.json": msgspec.json.encode(survey),
        "doctor.txt": doctor.screen(survey, findings).encode(),
        "explain.txt": explained.encode(),
        "log.json": msgspec.json.encode(timeline.log),
    }
    for told in nodes:
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in told.events)
        parts[f"nodes/{told.name}{_EVENTS}"] = lines
    return dict(sorted(parts.items())), nodes


def _node_parts(one: Diagnosis) -> dict[str, bytes]:
    document = {"endpoint": one.node.endpoint, **one.described}
    if one.described:
        document["config"] = {key["name"]: _value(key["value"]) for key in one.described["config"]}
    parts, found = {}, one.diagnosed
    if found:
        document["disk"] = {
            "sync_us": found["sync_us"],
            "probe_failure": found["probe_failure"] or None,
            "free_bytes": found["free_bytes"],
            "total_bytes": found["total_bytes"],
        }
        parts["metrics.txt"] = found["metrics"].encode()
        parts["log.jsonl"] = "".join(f"{line}\n" for line in found["log_lines"]).encode()
    parts["node.json"] = _json(document)
    return {f"nodes/{one.node.name}/{name}": data for name, data in parts.items()}


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def _value(text: str) -> Any:
    """Return the value of a configuration key, or its text if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def write_bundle(file: Path, parts: Mapping[str, bytes], created_ms: int) -> None:
    """Write the parts under their names to a file that only its owner can read. Raises
    ConfigError.
    """
    made = False
    try:
        with file.open("xb") as out:
            made = True
            file.chmod(0o600)
            # Only file headers: the reader refuses others.
            with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
                for name, data in parts.items():
                    info = tarfile.TarInfo(f"{file.name.split('.')[0][:60]}/{name}")
                    info.size, info.mtime, info.mode = len(data), created_ms // 1000, 0o600
                    tar.addfile(info, io.BytesIO(data))
    except FileExistsError:
        raise ConfigError(f"{file} already exists") from None
    except OSError as error:
        if made:
            file.unlink(missing_ok=True)  # A partial bundle is useless.
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error


@contextmanager
def read_bundle(file: Path) -> Iterator[Bundle]:
    """Open a bundle while it is in use. Raises ConfigError for an invalid bundle, even if the error
    came from the rules about clusters.
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
        raise ConfigError(f"{file} is not a valid debug bundle ({what})") from error


class Bundle:
    """An opened bundle. Its methods raise ConfigError if it is invalid."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._parts = _parts_of(file)
        self.about = self._decode("bundle.json", About)
        if self.about.format != FORMAT:
            raise ConfigError(
                f"{file} has format {self.about.format}, but this build reads only {FORMAT}"
            )

    def survey(self) -> Survey:
        """Return the evidence for the doctor."""
        found: Survey = self._decode("doctor.json", Survey)
        return found

    def timeline(self, period: Period | None) -> Timeline:
        """Return the timeline of a period, as far as the bundle covers it, or all of it if None."""
        first_ms, last_ms = self.about.from_ms, self.about.to_ms
        if period is not None:
            first_ms, last_ms = period(lambda: self.about.to_ms)
        nodes = []
        for one in {each.name: each for each in self.about.nodes}.values():
            lines = self._parts.get(f"nodes/{one.name}{_EVENTS}", b"").splitlines()
            try:
                events = tuple(msgspec.json.decode(line, type=NodeEvent) for line in lines)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{self._file}: events of {one.name}: {error}") from error
            nodes.append(msgspec.structs.replace(one, events=events))
        log = self._decode("log.json", LogPeriod)
        return Timeline(first_ms, min(last_ms, self.about.to_ms), tuple(nodes), log)

    def _decode(self, name: str, type_: type[Any]) -> Any:
        try:
            return msgspec.json.decode(self._parts[name], type=type_)
        except KeyError:
            raise ConfigError(f"{self._file} is not a debug bundle: it has no {name}") from None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._file}: {name}: {error}") from error


def _parts_of(file: Path) -> dict[str, bytes]:
    """Return the parts that are read here, by name.

    Does not use ``tarfile``, which reads headers of any size (11 MB became 2.5 GB), as a bundle has
    only headers of files.
    """
    parts: dict[str, bytes] = {}
    members = total = kept = 0
    try:
        with gzip.open(file) as stream:
            while (header := stream.read(_BLOCK)).strip(b"\0"):
                member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
                if not member.isreg():
                    raise ConfigError(
                        f"{file} is not a debug bundle: it contains entries that are not files"
                    )
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
            f"{file} is a directory: give the tar.gz written by `raftlog debug bundle`, not "
            "unpacked"
        ) from None
    except (OSError, EOFError, UnicodeError, tarfile.TarError, zlib.error) as error:
        raise ConfigError(f"{file} is not a debug bundle: {error}") from error
    return parts
