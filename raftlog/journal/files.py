"""The journal's files in a data directory: JSON lines, read with or without the node.

A crash may tear the last line, and a reader may come between two renames. So a reader leaves out
what is no event, and takes each number once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from raftlog.journal.event import NodeEvent
from raftlog.rotated_file import backup_of

DIRECTORY = "journal"
FILE = "events.jsonl"
MAX_BYTES = 1 << 20
MAX_BACKUPS = 3
"""Four files of a megabyte: some twenty thousand events."""
LINE_MAX_BYTES = 4_096
_DECODE = msgspec.json.Decoder(NodeEvent).decode


def journal_file(directory: Path) -> Path:
    """The file that a node appends to."""
    return directory / DIRECTORY / FILE


def read_journal(directory: Path) -> list[NodeEvent]:
    """All events of a data directory, oldest first; none if it has no journal.

    Raises OSError for files that cannot be read.
    """
    found: dict[int, NodeEvent] = {}
    for number in range(MAX_BACKUPS, -1, -1):
        for event in _events(backup_of(journal_file(directory), number)):
            found[event.seq] = event
    return [found[seq] for seq in sorted(found)]


def end_last_line(path: Path) -> None:
    """A line that a crash has torn ends here, so that the next one can be read. Raises OSError."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def _events(path: Path) -> Iterator[NodeEvent]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(LINE_MAX_BYTES):
            try:
                yield _DECODE(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
