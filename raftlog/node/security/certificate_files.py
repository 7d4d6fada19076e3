"""Write the files of ``raftlog certs``.

Other users can never read a key, and no file is overwritten by accident.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from raftlog.errors import ConfigError
from raftlog.files import OWNER_ONLY, fsync_directory, make_directories

_PUBLIC = 0o644
_PRIVATE_DIRECTORY = 0o700


@dataclass(frozen=True, slots=True)
class PairPaths:
    """The paths of a certificate and its key."""

    certificate: Path
    key: Path

    @classmethod
    def of(cls, directory: Path, name: str) -> PairPaths:
        """Return the paths ``name``.pem and ``name``.key in a directory."""
        return cls(directory / f"{name}.pem", directory / f"{name}.key")


def make_private_directory(directory: Path) -> None:
    """Create a directory that only its owner can access, or accept an empty one.

    Raises ConfigError if it exists and is not empty.
    """
    try:
        make_directories(directory, _PRIVATE_DIRECTORY)
        if any(directory.iterdir()):
            raise ConfigError(
                f"{directory} is not empty: an authority needs an empty directory, and never"
                " replaces another one"
            )
        directory.chmod(_PRIVATE_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}") from error


def write_pair(
    paths: PairPaths, certificate: bytes, key: bytes, *, replace: bool, remedy: str = ""
) -> None:
    """Write a certificate and its key.

    Raises ConfigError if a file exists and ``replace`` is False; ``remedy`` is appended to that
    message.
    """
    there = [str(path) for path in (paths.certificate, paths.key) if os.path.lexists(path)]
    if there and not replace:
        raise ConfigError(f"{' and '.join(there)}: already exists{remedy}")
    written: list[Path] = []
    files = ((paths.key, key, OWNER_ONLY), (paths.certificate, certificate, _PUBLIC))
    try:
        for path, content, mode in files:
            made = _fresh(path) if replace else path
            _write(made, content, mode)
            written.append(made)
        for made, (path, _, _) in zip(written, files, strict=True):
            made.replace(path)
        fsync_directory(paths.key.parent)
    except OSError as error:
        for made in written:
            made.unlink(missing_ok=True)
        raise ConfigError(f"{error.filename or paths.key.parent}: {error.strerror}") from error


def replace_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, replacing an existing one. Raises ConfigError."""
    try:
        made = _fresh(path)
        _write(made, content, OWNER_ONLY)
        made.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}") from error


def _fresh(path: Path) -> Path:
    """Return an unused temporary path, so that a node that starts meanwhile reads a whole file, old
    or new.
    """
    made = path.with_name(f"{path.name}.new")
    made.unlink(missing_ok=True)
    return made


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
