"""Small checksummed JSON files, replaced atomically: what must survive a crash but is no log.

One line of canonical JSON: ``{"content":{...},"crc32c":N,"kind":"..."}``. A reader compares the
whole file with what a writer would have written, so that *any* changed byte is found. A replacement
is written under a temporary name, synced, renamed over the old file, and the directory is synced:
after a crash the file is the old one or the new one.
"""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import google_crc32c
import msgspec

from raftlog.durable import fsync_directory
from raftlog.errors import CorruptLogError, StorageError
from raftlog.storage.private import private_opener

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TEMPORARY_SUFFIX = ".tmp"

T = TypeVar("T", bound="DataclassInstance")


def write_checked(path: Path, kind: str, content: DataclassInstance) -> None:
    """Replace ``path`` by the dataclass ``content``, durably when this returns.

    Raises StorageError.
    """
    replace_file(path, encode_checked(kind, asdict(content)))


def replace_file(path: Path, data: bytes) -> None:
    """Replace ``path`` by a file of these bytes, durably when this returns. Raises StorageError."""
    temporary = _stage(path, data)
    try:
        temporary.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"can't replace {path}: {error}") from error


def stage_checked(path: Path, kind: str, content: DataclassInstance) -> Path:
    """Write and sync the temporary file of ``path`` without renaming it; return its name.

    Raises StorageError.
    """
    return _stage(path, encode_checked(kind, asdict(content)))


def _stage(path: Path, data: bytes) -> Path:
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with open(temporary, "wb", opener=private_opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"can't write {temporary}: {error}") from error
    return temporary


def read_content(path: Path, kind: str) -> dict[str, Any]:
    """The checked content of ``path``.

    Raises FileNotFoundError, StorageError, or CorruptLogError if any byte differs.
    """
    content = decode_checked(read_raw(path), kind)
    if content is None:
        raise not_intact(path)
    return content


def read_raw(path: Path) -> bytes:
    """The bytes of ``path``. Raises FileNotFoundError, StorageError, CorruptLogError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise CorruptLogError(f"{path} is corrupt: it is a directory") from None
    except OSError as error:
        raise StorageError(f"can't read {path}: {error}") from error


def not_intact(path: Path) -> CorruptLogError:
    """What to raise if ``path`` is not what a writer wrote."""
    return CorruptLogError(f"{path} is corrupt: its content does not match its checksum")


def decode_checked(raw: bytes, kind: str) -> dict[str, Any] | None:
    """The content that a writer wrote as exactly these bytes; None if none did."""
    try:
        content: dict[str, Any] = msgspec.json.decode(raw)["content"]
        intact = isinstance(content, dict) and raw == encode_checked(kind, content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        intact = False
    return content if intact else None


def read_checked(path: Path, kind: str, type_: type[T]) -> T:
    """``read_content`` as the dataclass ``type_``; a wrong shape is CorruptLogError too."""
    return convert(path, read_content(path, kind), type_)


def convert(path: Path, content: dict[str, Any], type_: type[T]) -> T:
    """``content`` of ``path`` as the dataclass ``type_``, every field present and no other.

    Raises CorruptLogError.
    """
    try:
        value = msgspec.convert(content, type_)
    except msgspec.ValidationError as error:
        raise CorruptLogError(f"{path} is corrupt: {error}") from error
    if content.keys() != {field.name for field in fields(type_)}:
        raise CorruptLogError(f"{path} is corrupt: it has the fields {', '.join(sorted(content))}")
    return value


def remove_leftovers(directory: Path) -> None:
    """Delete the temporary files that a crash left. Raises StorageError."""
    try:
        for path in sorted(directory.glob(f"*.json{TEMPORARY_SUFFIX}")):
            path.unlink()
    except OSError as error:
        raise StorageError(f"can't clean {directory}: {error}") from error


def encode_checked(kind: str, content: dict[str, Any]) -> bytes:
    """The line that holds ``content``."""
    checked = {"content": content, "kind": kind}
    crc = google_crc32c.value(msgspec.json.encode(checked, order="deterministic"))
    return msgspec.json.encode({**checked, "crc32c": crc}, order="deterministic") + b"\n"
