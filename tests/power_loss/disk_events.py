"""What a process did to the files below one directory: the events that a recorder writes and a
model of a disk reads.

Files and directories are numbers, which stay the same when a name changes. 0 is the directory
itself.
"""

from __future__ import annotations

from dataclasses import dataclass

ROOT = 0


@dataclass(frozen=True, slots=True)
class Created:
    """A new and empty file, or directory, got a name."""

    directory: int
    name: str
    file: int
    is_directory: bool


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes of a file were replaced, or added."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """A file was cut off, or continued with zeros."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A name went over to ``to_name``, in place of whatever had that."""

    directory: int
    name: str
    to_directory: int
    to_name: str
    file: int


@dataclass(frozen=True, slots=True)
class Linked:
    """A file got one more name."""

    directory: int
    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A name is gone."""

    directory: int
    name: str


@dataclass(frozen=True, slots=True)
class Synced:
    """An fsync or fdatasync of a file, or of a directory, reported success."""

    file: int


@dataclass(frozen=True, slots=True)
class Marked:
    """The process said something, by ``marks.mark``."""

    text: str


Event = Created | Written | Resized | Renamed | Linked | Unlinked | Synced | Marked


@dataclass(frozen=True, slots=True)
class Recording:
    """``files`` and ``directories``: what was there before, taken for durable.

    Names are relative to the root.
    """

    files: dict[str, bytes]
    directories: tuple[str, ...]
    numbers: dict[str, int]
    """Of the files and directories that were there."""
    events: tuple[Event, ...]
    exit_code: int
