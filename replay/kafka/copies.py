"""The copies of a metadata log: the directories ``__cluster_metadata-0`` of one or several nodes.

Nodes hold the same batches at the same offsets, each as far as it came; what was never committed
may differ. Where copies differ, the one whose log ends with the higher epoch is right (Raft's rule
for votes). Where one is damaged, another one is read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from replay.kafka.batches import KafkaBatch, batches
from replay.kafka.errors import KafkaLogError, NoKafkaLogError, unreadable

DIRECTORY = "__cluster_metadata-0"
_LOG = re.compile(r"(\d{20})\.log")
_CHECKPOINT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_PROPERTY = re.compile(r"^\s*([\w.]+)\s*=\s*(.*?)\s*$", re.MULTILINE)


class Checkpoint(NamedTuple):
    """A snapshot file. ``end_offset``: exclusive."""

    path: Path
    end_offset: int
    epoch: int


class Place(NamedTuple):
    """Where a batch stands."""

    base_offset: int
    last_offset: int
    epoch: int
    path: Path
    position: int
    end: int
    fingerprint: int
    """Of its bytes (the CRC32C that it carries)."""


class Copy:
    """One node's copy. Files are looked at again by ``refresh``."""

    def __init__(self, paths: Sequence[Path], directory: Path) -> None:
        properties = _properties(directory)
        self.directory = directory
        self.node_id = int(properties["node.id"]) if "node.id" in properties else -1
        self.cluster_id = properties.get("cluster.id", "")
        self.places: list[Place] = []
        """Of its whole batches, by offset; not those behind a damage in the same file."""
        self.damages: list[str] = []
        """In words: file, position, what is wrong."""
        self._paths, self._read_to = tuple(paths), dict[Path, int]()
        self.refresh()

    @property
    def name(self) -> str:
        """For messages."""
        return f"node {self.node_id}" if self.node_id >= 0 else str(self.directory)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Its complete snapshots, by offset."""
        found = []
        for path in self._files():
            match = _CHECKPOINT.fullmatch(path.name)
            if match:
                found.append(Checkpoint(path, int(match[1]), int(match[2])))
        return sorted(found, key=lambda one: one.end_offset)

    @property
    def ends_with(self) -> tuple[int, int]:
        """Epoch and offset of the last batch: what Raft compares logs by."""
        last = self.places[-1:]
        return (last[0].epoch, last[0].last_offset) if last else (-1, -1)

    def _files(self) -> Iterable[Path]:
        return self._paths or sorted(self.directory.iterdir())

    def refresh(self) -> bool:
        """Look for what has been added; whether there was anything."""
        before = len(self.places)
        logs = sorted(path for path in self._files() if _LOG.fullmatch(path.name))
        for path in logs:
            position = self._read_to.get(path, 0)
            if position < 0:
                continue
            try:
                size = path.stat().st_size
                if size > position:
                    self._index(path, position)
            except OSError as error:
                raise unreadable(path, error) from None
        self.places.sort()
        return len(self.places) > before

    def _index(self, path: Path, position: int) -> None:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read()
        at = 0
        try:
            for end, one in batches(data):
                self.places.append(
                    Place(
                        one.base_offset,
                        one.last_offset,
                        one.epoch,
                        path,
                        position + at,
                        position + end,
                        int.from_bytes(one.bytes[17:21], "big"),
                    )
                )
                at = end
        except KafkaLogError as error:
            self.damages.append(f"{path}: {error}")
            self._read_to[path] = -1
            return
        self._read_to[path] = position + at

    def at(self, offset: int) -> Place | None:
        """The batch that begins at an offset, if there is one."""
        index = bisect_right(self.places, offset, key=lambda one: one.base_offset) - 1
        found = self.places[index] if index >= 0 else None
        return found if found is not None and found.base_offset == offset else None


def read(place: Place) -> KafkaBatch:
    """The batch at a place. Raises KafkaLogError."""
    try:
        with place.path.open("rb") as file:
            file.seek(place.position)
            data = file.read(place.end - place.position)
    except OSError as error:
        raise unreadable(place.path, error) from None
    for _, one in batches(data):
        return one
    raise KafkaLogError(f"{place.path}: the batch at offset {place.base_offset} is not there now")


def find_copies(paths: Sequence[Path]) -> list[Copy]:
    """The copies in directories (of a log, of a node, or of several nodes) and files.

    Raises NoKafkaLogError if there is none, or if they are of several clusters.
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
                f"{path} is neither a directory, nor a segment (….log), nor a snapshot"
                " (….checkpoint) of a metadata log"
            )
    copies = [Copy((), one) for one in dict.fromkeys(directories)]
    copies += [Copy(of_one, directory) for directory, of_one in files.items()]
    found = [copy for copy in copies if copy.places or copy.checkpoints or copy.damages]
    if not found:
        raise NoKafkaLogError(f"there is no metadata log in {', '.join(map(str, paths))}")
    clusters = {copy.cluster_id for copy in found if copy.cluster_id}
    if len(clusters) > 1:
        raise NoKafkaLogError(f"these are logs of several clusters: {', '.join(sorted(clusters))}")
    return found


def _log_directories(path: Path) -> list[Path]:
    if any(_LOG.fullmatch(one.name) or _CHECKPOINT.fullmatch(one.name) for one in path.iterdir()):
        return [path]
    return sorted(one for one in path.rglob(DIRECTORY) if one.is_dir())


def _properties(directory: Path) -> dict[str, str]:
    """What the node says of itself, beside its logs."""
    for path in (directory.parent / "meta.properties", directory / "meta.properties"):
        try:
            return dict(_PROPERTY.findall(path.read_text(errors="replace")))
        except OSError:
            continue
    return {}
