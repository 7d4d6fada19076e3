"""A disk as POSIX promises it, and the events below one directory that a recording holds: what was
synced is there, of the rest anything may be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Names = dict[str, int]
NameChange = dict[str, int | None]
"""Names that change together; None: the name goes."""


@dataclass(slots=True)
class File:
    """Bytes."""

    durable: bytes = b""
    pending: list[Written | Resized] = field(default_factory=list)

    def sync(self) -> None:
        """All of it is durable."""
        self.durable = replay(self.durable, self.pending)
        self.pending = []


@dataclass(slots=True)
class Directory:
    """Names."""

    name: str
    """Its own, when it was made."""
    durable: Names = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def sync(self) -> None:
        """All of it is durable."""
        self.durable = renamed(self.durable, self.pending)
        self.pending = []


def replay(content: bytes, writes: list[Written | Resized]) -> bytes:
    """The bytes after these writes."""
    data = bytearray(content)
    for one in writes:
        if isinstance(one, Resized):
            del data[one.size :]
            data.extend(bytes(one.size - len(data)))
        else:
            data.extend(bytes(max(0, one.offset - len(data))))
            data[one.offset : one.offset + len(one.data)] = one.data
    return bytes(data)


def renamed(names: Names, changes: list[NameChange]) -> Names:
    """The names after these changes."""
    after: dict[str, int | None] = dict(names)
    for change in changes:
        after.update(change)
    return {name: file for name, file in after.items() if file is not None}


class Disk:
    """The files and directories below a root, after the events so far."""

    def __init__(self, recording: Recording) -> None:
        self.files: dict[int, File] = {}
        self.directories = {ROOT: Directory("")}
        for name in sorted((*recording.directories, *recording.files)):
            parent, _, own = name.rpartition("/")
            number = recording.numbers[name]
            self.directories[recording.numbers.get(parent, ROOT)].durable[own] = number
            if name in recording.files:
                self.files[number] = File(recording.files[name])
            else:
                self.directories[number] = Directory(own)

    def apply(self, event: Event) -> None:
        """One more event."""
        match event:
            case Created(directory, name, file, is_directory):
                self._change(directory, {name: file})
                if is_directory:
                    self.directories[file] = Directory(name)
                else:
                    self.files[file] = File()
            case Written() | Resized():
                self.files[event.file].pending.append(event)
            case Renamed(directory, name, to_directory, to_name, file):
                if directory == to_directory:
                    self._change(directory, {name: None, to_name: file})
                else:
                    self._change(to_directory, {to_name: file})
                    self._change(directory, {name: None})
            case Linked(directory, name, file):
                self._change(directory, {name: file})
            case Unlinked(directory, name):
                self._change(directory, {name: None})
            case Synced(file):
                (self.directories.get(file) or self.files[file]).sync()
            case Marked():
                pass

    def _change(self, directory: int, change: NameChange) -> None:
        self.directories[directory].pending.append(change)


# --- What a process did to the files below one directory -----------------------------------------


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
