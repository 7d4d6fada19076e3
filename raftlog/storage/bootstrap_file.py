"""What formatting decides about a quorum's beginning: its first voters, and its metadata.version.

Read at every start, never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raftlog.storage.checked_file import read_checked, write_checked
from raftlog.voter import Voter

BOOTSTRAP_FILE = "bootstrap.json"
_KIND = "bootstrap"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """``voters``: the set to begin with, directory ids included; empty: of a node that joins; None:
    the configured one.

    ``metadata_version``: the level a new cluster starts with; 0: the latest that the program knows.
    ``super_users``: principals that may do everything, by access control entries that the new
    cluster begins with.
    """

    voters: tuple[Voter, ...] | None = None
    metadata_version: int = 0
    super_users: tuple[str, ...] = ()


NO_BOOTSTRAP = Bootstrap()
"""Nothing was said."""


def write_bootstrap(directory: Path, bootstrap: Bootstrap) -> None:
    """Write it, durably when this returns. Raises StorageError."""
    write_checked(directory / BOOTSTRAP_FILE, _KIND, bootstrap)


def read_bootstrap(directory: Path) -> Bootstrap:
    """What the directory was formatted with; the default if by an older program.

    Raises CorruptLogError, StorageError.
    """
    try:
        return read_checked(directory / BOOTSTRAP_FILE, _KIND, Bootstrap)
    except FileNotFoundError:
        return Bootstrap()
