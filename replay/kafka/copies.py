"""Copies of a metadata log: directories ``__cluster_metadata-0`` from one or more nodes.

Nodes have equal batches at equal offsets, up to their own log ends, except that uncommitted batches
may differ. Where copies differ, the one whose log ends with the highest epoch is right (Raft's rule
for votes). Where one is damaged, another is read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from replay.kafka.log_format import (
    HEADER_BYTES,
    Frame,
    KafkaBatch,
    KafkaLogError,
    NoKafkaLogError,
    frames,
    is_head_of,
    opened,
    unreadable,
)

DIRECTORY = "__cluster_metadata-0"
_LOG = re.compile(r"(\d{20})\.log")
_CHECKPOINT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_READ_BYTES = 4 << 20
_DAMAGED = -1
"""Position of a damaged file, of which nothing more is read."""
_NUMBER = re.compile(r"[0-9]{1,10}")
_PROPERTIES_BYTES = 64 << 10
_PROPERTY = re.compile(r"^\s*([\w.]+)\s*=\s*(.*?)\s*$", re.MULTILINE)


class Checkpoint(NamedTuple):
    """A snapshot file. ``end_offset``: exclusive."""

    path: Path
    end_offset: int
    epoch: int


class Place(NamedTuple):
    """Location of a batch in a file."""

    base_offset: int
    last_offset: int
    epoch: int
    path: Path
    position: int
    end: int
    fingerprint: int
    """CRC32C of the batch's bytes, as stored in the batch."""

    def is_like(self, other: Place) -> bool:
        """Return whether both are the same batch, possibly in different files. The CRC32C does not
        cover the epoch.
        """
        return (self.base_offset, self.last_offset, self.epoch, self.fingerprint) == (
            other.base_offset,
            other.last_offset,
            other.epoch,
            other.fingerprint,
        )


class Copy:
    """One node's copy. ``refresh`` reads its files again."""

    def __init__(self, paths: Sequence[Path], directory: Path) -> None:
        properties = _properties(directory)
        self.directory = directory
        node_id = properties.get("node.id", "")
        self.node_id = int(node_id) if _NUMBER.fullmatch(node_id) else -1
        self.cluster_id = properties.get("cluster.id", "")
        self.places: list[Place] = []
        """Complete batches by offset, without those that follow damage in the same file."""
        self.damages: list[str] = []
        """Descriptions of damage: file, position, and cause."""
        self._cut_off: dict[Path, str] = {}
        self._expected: dict[Path, int] = {}
        """The lowest offset that may come next in each file; initially the one in its name."""
        self._ends: dict[Path, Place] = {}
        """The last batch found in each file."""
        self._paths, self._read_to = tuple(paths), dict[Path, int]()
        self.refresh()

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"node {self.node_id}" if self.node_id >= 0 else str(self.directory)

    @property
    def cut_off(self) -> list[str]:
        """Descriptions of files that end within a batch."""
        return list(self._cut_off.values())

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The copy's snapshots, by offset."""
        found = []
        for path in self._files():
            match = _CHECKPOINT.fullmatch(path.name)
            if match:
                found.append(Checkpoint(path, int(match[1]), int(match[2])))
        return sorted(found, key=lambda one: one.end_offset)

    @property
    def ends_with(self) -> tuple[int, int]:
        """Epoch and offset of the last batch, by which Raft compares logs."""
        last = self.places[-1:]
        return (last[0].epoch, last[0].last_offset) if last else (-1, -1)

    @property
    def end_offset(self) -> int:
        """End of the log, exclusive, from its batches and file names; -1 without files."""
        logs = (path for path in self._files() if _LOG.fullmatch(path.name))
        return max((self._expected.get(path, int(path.stem)) for path in logs), default=-1)

    def _files(self) -> Iterable[Path]:
        return self._paths or _listed(self.directory)

    def refresh(self) -> bool:
        """Look for new batches, and return whether there are any."""
        before = len(self.places)
        logs = sorted(path for path in self._files() if _LOG.fullmatch(path.name))
        for path in self._read_to.keys() - set(logs):
            # Kafka deleted the file: its unread part is lost.
            self._forget(path)
        for path in logs:
            try:
                self._read_new(path)
            except FileNotFoundError:
                self._forget(path)
            except OSError as error:
                raise unreadable(path, error) from None
        self.places.sort()
        return len(self.places) > before

    def _read_new(self, path: Path) -> None:
        position, size = self._read_to.get(path, 0), path.stat().st_size
        if position == _DAMAGED:
            return
        if size < position or not self._same_end(path):
            # Kafka truncated uncommitted batches and wrote others.
            self._forget(path)
            position = 0
        if size > position:
            self._index(path, position)

    def _same_end(self, path: Path) -> bool:
        """Return whether the last batch found in a file is still there."""
        last = self._ends.get(path)
        if last is None:
            return True
        with path.open("rb") as file:
            file.seek(last.position)
            head = file.read(HEADER_BYTES)
        return is_head_of(head, last.base_offset, last.epoch, last.fingerprint)

    def _forget(self, path: Path) -> None:
        self.places = [one for one in self.places if one.path != path]
        known: dict[Path, Any]
        for known in (self._read_to, self._expected, self._cut_off, self._ends):
            known.pop(path, None)

    def _index(self, path: Path, position: int) -> None:
        """Index the batches from a position onwards, without decoding their records."""
        data = b""
        expected = self._expected.get(path, int(path.stem))
        with path.open("rb") as file:
            file.seek(position)
            try:
                while piece := file.read(_READ_BYTES):
                    data += piece
                    at = 0
                    for end, one in frames(data, at=position):
                        _require_from(expected, one, position + at)
                        expected = one.last_offset + 1
                        found = Place(
                            one.base_offset,
                            one.last_offset,
                            one.epoch,
                            path,
                            position + at,
                            position + end,
                            one.crc32c,
                        )
                        self.places.append(found)
                        self._ends[path] = found
                        at = end
                    data, position = data[at:], position + at
                    if len(data) >= _READ_BYTES and not data.strip(b"\0"):
                        # The rest of a preallocated file is zeros.
                        data = b""
                        break
            except KafkaLogError as error:
                self.damages.append(f"{path}: {error}")
                position, data = _DAMAGED, b""
        self._read_to[path], self._expected[path] = position, expected
        self._cut_off.pop(path, None)
        # Zeros are the rest of a preallocated file.
        if data.strip(b"\0"):
            self._cut_off[path] = f"{path}: at byte {position}: the file ends inside a batch"

    def mark_damaged(self, place: Place, why: str) -> None:
        """Mark a batch as damaged despite its correct checksum, together with the rest of its
        file.
        """
        self.damages.append(f"{place.path}: {why}")
        self._read_to[place.path] = _DAMAGED
        self.places = [
            one for one in self.places if one.path != place.path or one.position < place.position
        ]

    def check_snapshot(self, snapshot: Checkpoint) -> None:
        """Check that a snapshot can belong to this log: Kafka takes snapshots only at the ends of
        batches.
        """
        last = snapshot.end_offset - 1
        place = self.over(last)
        why = f"{snapshot.path} is the state at offset {last}, but no batch of the log ends there"
        if place is not None and place.last_offset != last and why not in self.damages:
            self.damages.append(why)

    def at(self, offset: int) -> Place | None:
        """Return the batch that begins at an offset, or None."""
        found = self.over(offset)
        return found if found is not None and found.base_offset == offset else None

    def over(self, offset: int) -> Place | None:
        """Return the batch that contains an offset, or None."""
        index = bisect_right(self.places, offset, key=lambda one: one.base_offset) - 1
        found = self.places[index] if index >= 0 else None
        return found if found is not None and offset <= found.last_offset else None


def _require_from(expected: int, one: Frame, position: int) -> None:
    if one.base_offset < expected:
        raise KafkaLogError(
            f"at byte {position}: found a batch at offset {one.base_offset}, expected one at"
            f" {expected} or later"
        )


class PlaceReader:
    """Reads the batches at places; adjacent ones in few reads."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._begin, self._data = 0, b""

    def forget(self) -> None:
        """Drop buffered data: a log that is being written may have changed."""
        self._path = None

    def read(self, place: Place) -> KafkaBatch:
        """Return the batch at a place. Raises KafkaLogError."""
        end = self._begin + len(self._data)
        if place.path != self._path or not self._begin <= place.position <= place.end <= end:
            self._fill(place)
        at = place.position - self._begin
        data = self._data[at : at + place.end - place.position]
        for _, frame in frames(data, at=place.position):
            return opened(frame, place.position)
        raise KafkaLogError(
            f"at byte {place.position}: the batch at offset {place.base_offset} has disappeared"
        )

    def _fill(self, place: Place) -> None:
        try:
            with place.path.open("rb") as file:
                file.seek(place.position)
                self._data = file.read(max(_READ_BYTES, place.end - place.position))
        except OSError as error:
            raise unreadable(place.path, error) from None
        self._path, self._begin = place.path, place.position


def find_copies(paths: Sequence[Path]) -> list[Copy]:
    """Find the copies in files and directories of logs, nodes or several nodes.

    Raises NoKafkaLogError if there are none, or if they are from several clusters.
    """
    files: dict[Path, list[Path]] = {}
    directories: list[Path] = []
    for path in paths:
        if path.is_dir():
            directories += _log_directories(path)
        elif _LOG.fullmatch(path.name) or _CHECKPOINT.fullmatch(path.name):
            files.setdefault(path.parent, []).append(path)
        else:
            raise NoKafkaLogError(
                f"{path} is neither a directory nor a segment (….log) or snapshot (….checkpoint) of"
                " a metadata log"
            )
    copies = [Copy((), one) for one in dict.fromkeys(directories)]
    copies += [Copy(of_one, directory) for directory, of_one in files.items()]
    found = [copy for copy in copies if copy.places or copy.checkpoints or copy.damages]
    if not found:
        raise NoKafkaLogError(f"there is no metadata log in {', '.join(map(str, paths))}")
    clusters = {copy.cluster_id for copy in found if copy.cluster_id}
    if len(clusters) > 1:
        raise NoKafkaLogError(f"the logs are from several clusters: {', '.join(sorted(clusters))}")
    return found


def _log_directories(path: Path) -> list[Path]:
    if any(_LOG.fullmatch(one.name) or _CHECKPOINT.fullmatch(one.name) for one in _listed(path)):
        return [path]
    return sorted(one for one in path.rglob(DIRECTORY) if one.is_dir())


def _properties(directory: Path) -> dict[str, str]:
    """Read a node's ``meta.properties``, next to or in its log directory."""
    for path in (directory.parent / "meta.properties", directory / "meta.properties"):
        try:
            with path.open(errors="replace") as file:
                return dict(_PROPERTY.findall(file.read(_PROPERTIES_BYTES)))
        except OSError:
            continue
    return {}


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError as error:
        raise unreadable(directory, error) from None
