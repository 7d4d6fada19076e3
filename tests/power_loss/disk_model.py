"""A disk as POSIX promises it, and the states in which a power cut may leave it: what was synced is
there, of the rest anything may be.

*Torn* states are those that are legal on every file system in use: of one file's writes a beginning
survives, the last one cut at a sector, or the file has its size and zeros for what was not written;
each file for itself, and each directory for itself. In a directory any of the changes survive, in
``ORDERED`` ones, RocksDB's, a beginning of them: journals keep that order, and RocksDB relies on
it.

*Scattered* states are harder: of one file's writes any pages survive, with zeros or old bytes
between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

Names = dict[str, int]
NameChange = dict[str, int | None]
"""Names that change together; None: the name goes."""


@dataclass(slots=True)
class File:
    durable: bytes = b""
    pending: list[Written | Resized] = field(default_factory=list)

    def sync(self) -> None:
        """Make all writes durable."""
        self.durable = replay(self.durable, self.pending)
        self.pending = []


@dataclass(slots=True)
class Directory:
    name: str
    """Its own, when it was made."""
    durable: Names = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def sync(self) -> None:
        """Make all changes durable."""
        self.durable = renamed(self.durable, self.pending)
        self.pending = []


def replay(content: bytes, writes: list[Written | Resized]) -> bytes:
    """Return the bytes after these writes."""
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
    """Return the names after these changes."""
    after: dict[str, int | None] = dict(names)
    for change in changes:
        after.update(change)
    return {name: file for name, file in after.items() if file is not None}


class Disk:
    """The files and directories below a root after the events so far."""

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
        """Apply one more event."""
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
    """A new empty file or directory got a name."""

    directory: int
    name: str
    file: int
    is_directory: bool


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes of a file were replaced or appended."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """A file was truncated, or extended with zeros."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A name was changed to ``to_name``, which is replaced if it exists."""

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
    """A name was removed."""

    directory: int
    name: str


@dataclass(frozen=True, slots=True)
class Synced:
    """An fsync or fdatasync of a file, or of a directory, reported success."""

    file: int


@dataclass(frozen=True, slots=True)
class Marked:
    """The process reported something, by ``marks.mark``."""

    text: str


Event = Created | Written | Resized | Renamed | Linked | Unlinked | Synced | Marked


@dataclass(frozen=True, slots=True)
class Recording:
    """``files`` and ``directories``: the initial durable content. Names are relative to the root."""

    files: dict[str, bytes]
    directories: tuple[str, ...]
    numbers: dict[str, int]
    """Numbers of the files and directories that existed at the start."""
    events: tuple[Event, ...]
    exit_code: int


# --- The states that a power cut may leave -------------------------------------------------------


SECTOR, PAGE = 512, 4096
ORDERED = frozenset({"log", "partitions", "partitions.new"})
IGNORED = ("LOG", "LOCK", "lock")
"""Files treated as never written, as no reader uses them: RocksDB's diary, and lock files that are
made if absent.
"""
MINOR = (*IGNORED, "rocksdict-config.json", "OPTIONS")
"""Not lost or kept alone, but with others: the last two are hardly read."""


@dataclass(frozen=True, slots=True)
class CrashState:
    """Everything that the next start finds. ``name``: what survived, for the reader of a failure."""

    name: str
    files: dict[str, bytes]
    directories: tuple[str, ...]
    scattered: bool = False

    @property
    def digest(self) -> bytes:
        """Equal for equal states."""
        found = hashlib.blake2b(repr(sorted(self.directories)).encode(), digest_size=16)
        for name, data in sorted(self.files.items()):
            found.update(f"{name} {len(data)}\n".encode() + data)
        return found.digest()

    def put(self, root: Path) -> None:
        """Write it into an empty directory."""
        root.mkdir(parents=True)
        for name in sorted(self.directories):
            (root / name).mkdir()
        for name, data in self.files.items():
            (root / name).write_bytes(data)


class Survivors:
    """One choice of what survives, item by item: ``of_file`` and ``of_directory`` give content for
    a number.
    """

    def __init__(self, disk: Disk, rng: Random) -> None:
        self._disk = disk
        self._rng = rng
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, Names] = {}

    def nothing(self, number: int) -> None:
        """Return the state that contains only synced data."""
        if (file := self._disk.files.get(number)) is not None:
            self._contents[number] = file.durable
        else:
            self._names[number] = self._disk.directories[number].durable

    def everything(self, number: int) -> None:
        """A prefix of a file's writes; any of a directory's changes, or a prefix of them."""
        if (file := self._disk.files.get(number)) is not None:
            self._contents[number] = replay(file.durable, file.pending)
        else:
            directory = self._disk.directories[number]
            self._names[number] = renamed(directory.durable, directory.pending)

    def some(self, number: int) -> None:
        """A beginning of a file's writes; any of a directory's changes, or a beginning of them."""
        if (file := self._disk.files.get(number)) is not None:
            self._contents[number] = (
                _torn(file, self._rng) if self._rng.random() < 0.7 else _unwritten(file, self._rng)
            )
            return
        directory = self._disk.directories[number]
        kept = [change for change in directory.pending if self._rng.random() < 0.5]
        if directory.name in ORDERED:
            kept = directory.pending[: self._rng.randint(0, len(directory.pending))]
        self._names[number] = renamed(directory.durable, kept)

    def last_alone(self, number: int) -> None:
        """Return the state with only the last change of a directory."""
        directory = self._disk.directories[number]
        self._names[number] = renamed(directory.durable, directory.pending[-1:])

    def size_alone(self, number: int) -> None:
        """The file has its size, and zeros."""
        self._contents[number] = _unwritten(self._disk.files[number], self._rng)

    def scattered(self, number: int) -> None:
        """Return any subset of the pages."""
        self._contents[number] = _scattered(self._disk.files[number], self._rng)

    def state(self, name: str, *, scattered: bool = False) -> CrashState:
        """Return the content of the root after these choices."""
        files: dict[str, bytes] = {}
        directories: list[str] = []
        seen = {ROOT}

        def walk(number: int, path: str) -> None:
            for own, child in self._names[number].items():
                if own.startswith(IGNORED):
                    continue
                if child in self._contents:
                    files[path + own] = self._contents[child]
                elif child not in seen:
                    # A directory has one name. Two of them, if its rename was lost by halves, no
                    # file system gives.
                    seen.add(child)
                    directories.append(path + own)
                    walk(child, f"{path}{own}/")

        walk(ROOT, "")
        return CrashState(name, files, tuple(directories), scattered)


def crash_states(
    disk: Disk, rng: Random, *, samples: int, scattered: int = 0
) -> Iterator[CrashState]:
    """Legal states of this moment: the extremes, each item alone lost or alone kept, and
    ``samples`` random ones. Some may be equal.
    """
    files = [number for number, file in disk.files.items() if file.pending]
    directories = [number for number, directory in disk.directories.items() if directory.pending]
    everybody = [*disk.files, *disk.directories]

    def chosen(name: str, kept: list[int], *, zeros: bool = False) -> CrashState:
        survivors = Survivors(disk, rng)
        for number in everybody:
            (survivors.everything if number in kept else survivors.nothing)(number)
        for number in files if zeros else ():
            survivors.size_alone(number)
        return survivors.state(name)

    yield chosen("what was synced", [])
    yield chosen("all", files + directories)
    if files and directories:
        yield chosen("all names, no bytes", directories)
        yield chosen("all bytes, no names", files)
    if files:
        yield chosen("all names, zeros for bytes", directories, zeros=True)
    for one in [*files, *directories]:
        what = _name(disk, one)
        if what.rpartition("/")[2].startswith(MINOR):
            continue
        yield chosen(f"{what} alone", [one])
        yield chosen(f"all but {what}", [other for other in files + directories if other != one])
    for one in directories:
        if len(disk.directories[one].pending) > 1 and disk.directories[one].name not in ORDERED:
            survivors = Survivors(disk, rng)
            for number in everybody:
                survivors.everything(number)
            survivors.last_alone(one)
            yield survivors.state(f"all, but of {_name(disk, one)} the last change alone")
    for index in range(samples if files or directories else 0):
        survivors = Survivors(disk, rng)
        for number in everybody:
            survivors.nothing(number)
        for number in files + directories:
            rng.choice((survivors.some, survivors.some, survivors.everything, survivors.nothing))(
                number
            )
        yield survivors.state(f"drawn {index}")
    for index in range(scattered if files else 0):
        survivors = Survivors(disk, rng)
        for number in everybody:
            survivors.everything(number)
        for number in files:
            survivors.scattered(number)
        yield survivors.state(f"scattered {index}", scattered=True)


def _name(disk: Disk, number: int) -> str:
    if number in disk.directories:
        return f"directory {disk.directories[number].name or '.'}"
    for directory in disk.directories.values():
        for name, file in renamed(directory.durable, directory.pending).items():
            if file == number:
                return f"{directory.name}/{name}"
    return f"file {number}, which has no name"


def _torn(file: File, rng: Random) -> bytes:
    """Return a prefix of the writes, the last of them cut at a sector."""
    if not file.pending:
        return file.durable
    whole = rng.randrange(len(file.pending))
    last = file.pending[whole]
    kept = file.pending[:whole]
    if isinstance(last, Written):
        cut = rng.randrange(0, len(last.data) + 1)
        at = (last.offset + cut) // SECTOR * SECTOR
        if at > last.offset:
            kept = [*kept, Written(last.file, last.offset, last.data[: at - last.offset])]
    return replay(file.durable, kept)


def _unwritten(file: File, rng: Random) -> bytes:
    """Return the full size, with zeros from the start of a write or a sector on, after the durable
    part. Not only from a sector: the disk has zeros after the end of a file in its last block, and
    the size may be durable before the bytes.
    """
    whole = replay(file.durable, file.pending)
    changed = (
        at for at in range(min(len(whole), len(file.durable))) if whole[at] != file.durable[at]
    )
    begin = next(changed, min(len(file.durable), len(whole)))
    starts = {
        one.offset
        for one in file.pending
        if isinstance(one, Written) and begin <= one.offset < len(whole)
    }
    starts.update(range(-(-begin // SECTOR) * SECTOR, len(whole), SECTOR))
    if not starts:
        return file.durable
    at = rng.choice((min(starts), rng.choice(sorted(starts))))
    return whole[:at] + bytes(len(whole) - at)


def _scattered(file: File, rng: Random) -> bytes:
    """Return a random subset of the changed pages; the full size."""
    whole = replay(file.durable, file.pending)
    old = (file.durable + bytes(max(0, len(whole) - len(file.durable))))[: len(whole)]
    pages = [
        whole[at : at + PAGE] if rng.random() < 0.5 else old[at : at + PAGE]
        for at in range(0, len(whole), PAGE)
    ]
    return b"".join(pages)
