"""The order of all changes of a log: each change has a place in it, the same on every node.

A record may change several entities (a deleted topic takes its partitions along), so a place is the
record's offset and the number of its changes before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raftlog import batch
from raftlog.metadata.changes import ChangeRecorder

WHOLE = 2**31 - 1
"""The part of a position after all changes of its record."""


class Position(NamedTuple):
    """A place in the order of all changes: after the first ``part`` changes of the record."""

    offset: int
    part: int = WHOLE


class Change(NamedTuple):
    """One change of one entity by the record at ``position.offset``. ``before`` and ``after``: its
    value in the image, None: absent.
    """

    position: Position
    """Position after this change: WHOLE if it is the last of its record."""
    epoch: int
    timestamp_ms: int
    principal: str
    kind: str
    key: str
    before: Any
    after: Any


def ordered_changes(draft: ChangeRecorder, chunk: bytes) -> list[Change]:
    """Fold a chunk of the log into the draft, and return all its changes, in order.

    Batches at or below the draft's offset are skipped. The bytes must have been verified before.
    Raises FoldError, UnknownRecordError.
    """
    found: list[Change] = []
    for header in batch.headers(chunk, verify=False):
        if header.last_offset <= draft.offset:
            continue
        # The result of a numbered write is a change of its own, at the offset of its last record.
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
