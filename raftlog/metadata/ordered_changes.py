"""The order of all changes of a log: each change has a place in it, the same on every node.

A record may change several entities (a topic that goes takes its partitions with it), so a place is
the record's offset and how many of its changes lie before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raftlog import batch
from raftlog.metadata.changes import ChangeRecorder

WHOLE = 2**31 - 1
"""The part of a position that lies behind all changes of its record."""


class Position(NamedTuple):
    """A place in the order of all changes: behind the first ``part`` ones of the record."""

    offset: int
    part: int = WHOLE


class Change(NamedTuple):
    """One change of one entity by the record at ``position.offset``. ``before`` and ``after``: its
    value as the image has it, None: not there.
    """

    position: Position
    """Behind this change: WHOLE if it is the last of its record."""
    epoch: int
    timestamp_ms: int
    principal: str
    kind: str
    key: str
    before: Any
    after: Any


def ordered_changes(draft: ChangeRecorder, chunk: bytes) -> list[Change]:
    """All changes of a chunk of the log that follows the draft, in order; the draft has it then.

    What the chunk has at or below the draft's offset is passed over. The bytes were verified
    before. Raises FoldError, UnknownRecordError.
    """
    found: list[Change] = []
    for header in batch.headers(chunk, verify=False):
        if header.last_offset <= draft.offset:
            continue
        # What a numbered write leaves behind comes by itself, at the offset of its last record.
        of_record: dict[int, list[tuple[str, str, Any, Any]]] = {}
        for offset, _, changes in draft.record_batch(chunk, header):
            of_record.setdefault(offset, []).extend(changes)
        author = (header.epoch, header.timestamp_ms, header.principal)
        for offset, changes in of_record.items():
            last = len(changes)
            found.extend(
                Change(Position(offset, WHOLE if part == last else part), *author, *change)
                for part, change in enumerate(changes, 1)
            )
    return found
