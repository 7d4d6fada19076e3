"""The generation of a log, in its bytes: a recovery or a restore begins another one and says so in
a RecoveryRecord.

A directory's identity says it only of nodes that were there. One that joined later was formatted
with generation 0; it learns from the log, or from the header of the snapshot that it begins with,
which generation it has.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog import batch
from raftlog.metadata.records import RecordType, parse

RECOVERED, RESTORED = "unsafe recovery", "restore"
"""The kinds of a RecoveryRecord."""


def generation_in(chunk: bytes, control_at: Iterable[int]) -> int:
    """The highest one that a RecoveryRecord in a checked chunk begins; 0: there is none.

    ``control_at``: as of ``batch.Scan``.

    Raises UnknownRecordError, CorruptLogError.
    """
    found = 0
    for position in control_at:
        for data in batch.records(chunk, batch.header_at(chunk, position)):
            if data.type == RecordType.RECOVERY:
                found = max(found, parse(data).generation)
    return found
