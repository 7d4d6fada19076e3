"""Whether a directory that a command is to read is a node's."""

from __future__ import annotations

from pathlib import Path

from raftlog.errors import ConfigError
from raftlog.segments.manifest import MANIFEST_NAME
from raftlog.storage.meta_file import META_FILE

_NAMED = 3


def require_node(directory: Path) -> None:
    """Whoever reads has nothing to format: say what it is instead, and where there are some.

    Raises ConfigError.
    """
    if (directory / META_FILE).exists():
        return
    if not directory.is_dir():
        why = "it is a file" if directory.exists() else "it does not exist"
    elif (directory / MANIFEST_NAME).exists():
        why = "it is an export"
    else:
        why = f"it has no {META_FILE}"
    raise ConfigError(f"{directory} is no data directory of a node: {why}. {_where(directory)}")


def _where(directory: Path) -> str:
    patterns = (f"*/{META_FILE}", f"*/*/{META_FILE}")
    there = [path.parent for pattern in patterns for path in sorted(directory.glob(pattern))]
    # Brokers keep no log: they come last.
    found = [str(path) for path in sorted(there, key=lambda path: (path / "partitions").exists())]
    if not found:
        return "The configuration of a node names it under log.dirs"
    return f"There are some in it: {', '.join(found[:_NAMED])}" + (", …" if found[_NAMED:] else "")
