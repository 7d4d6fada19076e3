"""Damage to one file, drawn from a seed and described so that it can be repeated."""

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from raftlog.node.storage.wal import BLOCK, HEADER

from .bases import Base

NOT_DATA = ("LOG", "LOCK", "lock", ".lock", "IDENTITY", "OPTIONS", "rocksdict-config")
"""Prefixes of files whose content no reader depends on: rarely damaged."""


class Wound(NamedTuple):
    """One damage. ``victim``: relative to the directory; ``other``: the second file of a swap, or
    the older one.
    """

    kind: str
    victim: str
    at: int = 0
    length: int = 0
    data: bytes = b""
    other: Path | None = None

    def __str__(self) -> str:
        other = (
            f" with {self.other.parent.parent.name}/{self.other.name}"
            if self.other is not None
            else ""
        )
        return (
            f"{self.kind} {self.victim} at {self.at} length {self.length}"
            f" {self.data[:16].hex()}{other}"
        )


def files_of(directory: Path) -> list[Path]:
    """All files, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def systematic(base: Base) -> Iterator[Wound]:
    for path in files_of(base.directory):
        name = str(path.relative_to(base.directory))
        if path.name.startswith(NOT_DATA):
            yield Wound("delete", name)
            continue
        for kind in ("delete", "directory", "empty"):
            yield Wound(kind, name)
        for size in interesting(path):
            yield Wound("cut", name, at=size)
        for at in sorted({0, path.stat().st_size - 1} - {-1}):
            yield Wound("flip", name, at, data=b"\x20")
        for old in base.older:
            if (old / name).exists() and (old / name).read_bytes() != path.read_bytes():
                yield Wound("older", name, other=old / name)
    for folder in sorted({path.parent for path in files_of(base.directory)} - {base.directory}):
        name = str(folder.relative_to(base.directory))
        yield Wound("delete", name)
        for old in base.older:
            if (old / name).exists():
                yield Wound("older", name, other=old / name)


def interesting(path: Path) -> list[int]:
    """Return lengths at which something ends: a record of RocksDB's logs, a batch, a footer; and
    their neighbours.
    """
    size = path.stat().st_size
    found = {1, size // 2, size - 1, size - 4, size - 8, size - 32}
    if path.suffix == ".log" or path.name.startswith("MANIFEST"):
        found |= set(_records(path.read_bytes()))
    elif path.suffix in (".rls", ".checkpoint"):
        found |= set(_batches(path.read_bytes()))
    return sorted(one for one in found if 0 < one < size)


def _records(data: bytes) -> Iterator[int]:
    for start in range(0, len(data), BLOCK):
        position, end = start, min(start + BLOCK, len(data))
        while end - position >= HEADER.size:
            _, length, type_ = HEADER.unpack_from(data, position)
            if type_ == 0 and length == 0:
                break
            position += HEADER.size + length
            yield position
            yield position - 1


def _batches(data: bytes) -> Iterator[int]:
    position = 0 if data[:1] == b"\0" else 60
    while position + 4 <= len(data):
        yield position
        (length,) = struct.unpack_from(">I", data, position)
        if not length:
            return
        position += 4 + length


def drawn(base: Base, rng: Random) -> Wound:
    """Draw one at random."""
    files = files_of(base.directory)
    weights = [1 if path.name.startswith(NOT_DATA) else 10 for path in files]
    (path,) = rng.choices(files, weights)
    name, size = str(path.relative_to(base.directory)), path.stat().st_size
    kind = rng.choices(
        ("cut", "flip", "zeros", "garbage", "swap", "shift", "noise"), (3, 8, 3, 3, 2, 1, 1)
    )[0]
    at = rng.randrange(size) if size else 0
    if kind == "flip":
        return Wound(kind, name, at, data=bytes([1 << rng.randrange(8)]))
    if kind == "zeros":
        return Wound(kind, name, at, length=rng.choice((1, 4, 64, 512, 4096)))
    if kind == "garbage":
        tail = rng.choice(
            (
                rng.randbytes(rng.choice((1, 7, 60, 600))),
                bytes(rng.choice((8, 64, 4096))),
                rng.randbytes(4)
                + bytes([rng.randrange(64), 0, rng.randrange(16)])
                + rng.randbytes(60),
                path.read_bytes()[:4096],
            )
        )
        return Wound(kind, name, size, data=tail)
    if kind == "swap":
        alike = [
            one
            for one in files
            if one != path and (one.suffix == path.suffix or rng.random() < 0.1)
        ]
        return Wound(kind, name, other=rng.choice(alike)) if alike else Wound("empty", name)
    if kind == "shift":
        return Wound(kind, name, at, data=rng.randbytes(rng.randrange(1, 9)))
    if kind == "noise":
        return Wound(kind, name, at, data=rng.randbytes(rng.choice((4, 64, 512))))
    return Wound("cut", name, at)


def inflict(wound: Wound, directory: Path) -> None:
    """Apply it to a copy."""
    path = directory / wound.victim
    content = path.read_bytes() if path.is_file() else b""
    at, data = wound.at, wound.data
    if wound.kind == "delete":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif wound.kind == "directory":
        path.unlink()
        path.mkdir()
    elif wound.kind == "older":
        assert wound.other is not None
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(wound.other, path)
        else:
            shutil.copyfile(wound.other, path)
    elif wound.kind == "swap":
        assert wound.other is not None
        other = next(
            one
            for one in files_of(directory)
            if str(wound.other).endswith(str(one.relative_to(directory)))
        )
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif wound.kind == "flip":
        path.write_bytes(
            content[:at] + bytes(one ^ data[0] for one in content[at : at + 1]) + content[at + 1 :]
        )
    elif wound.kind == "zeros":
        path.write_bytes(
            (content[:at] + bytes(wound.length) + content[at + wound.length :])[: len(content)]
        )
    elif wound.kind == "shift":
        path.write_bytes(content[:at] + data + content[at:])
    elif wound.kind == "noise":
        path.write_bytes((content[:at] + data + content[at + len(data) :])[: len(content)])
    else:
        path.write_bytes({"cut": content[:at], "empty": b"", "garbage": content + data}[wound.kind])
