"""The voter sets of the log, by offset: each is in force as soon as it is appended, and no more
when it is truncated (KIP-853).

Why: docs/decisions/005-voters-in-the-log.md
"""

from __future__ import annotations

from raftlog.quorum.config import Voter
from raftlog.quorum.voters import VoterSet
from raftlog.storage.api import RecoveredLog
from raftlog.voter import VotersAt


class VoterHistory:
    """A base, which no truncation reaches, and the VotersRecords above it.

    The base is the set of the newest snapshot or of the log that was dropped, else the configured
    one. A set without voters stands for the configured one. Raises ConfigError for a set that names
    a node twice.
    """

    def __init__(self, configured: tuple[Voter, ...], recovered: RecoveredLog) -> None:
        self._configured = configured
        self._base = VotersAt(-1, ())
        self._records: list[VotersAt] = []
        snapshot_end = recovered.snapshots[-1].end_offset if recovered.snapshots else -1
        for at, entry in enumerate(recovered.voters):
            # The snapshot's set has the offset of its end; a record may stand at that very offset,
            # behind it.
            if at == 0 and entry.offset == snapshot_end:
                self._base = entry
            else:
                self._records.append(entry)
        self._take()

    def _take(self) -> None:
        self.voters = self._set_of(self._records[-1] if self._records else self._base)
        """The set in force."""
        self.before = self._set_of(self._before())
        """The set in force before the newest record; the same as ``voters`` if there is no
        record.
        """

        self._note_newest()

    def _note_newest(self) -> None:
        self.record_offset = self._records[-1].offset if self._records else -1
        """Of the newest VotersRecord in the log; -1 if there is none above what is certainly
        committed.
        """

    def _before(self) -> VotersAt:
        return self._records[-2] if len(self._records) > 1 else self._base

    def _set_of(self, entry: VotersAt) -> VoterSet:
        return VoterSet(entry.voters or self._configured)

    @property
    def offset(self) -> int:
        """Of the VotersRecord in force, or the end of the snapshot it came in; -1: the configured
        set.
        """
        entry = self._records[-1] if self._records else self._base
        return entry.offset if entry.voters else -1

    @property
    def before_logged(self) -> bool:
        """Whether a record or a snapshot named the set before the newest record."""
        return bool(self._before().voters)

    def may_lead(self, node_id: int, high_watermark: int) -> bool:
        """Whether a set that may be in force somewhere has this voter: the newest that is certainly
        committed, or one behind it.

        Not one before it: who was removed then is of no majority, and its requests would end the
        leadership of others.
        """
        committed = sum(record.offset < high_watermark for record in self._records)
        base = [self._base] if committed == 0 else []
        held = (*base, *self._records[max(0, committed - 1) :])
        return any(
            voter.node_id == node_id for entry in held for voter in entry.voters or self._configured
        )

    def append(self, entry: VotersAt) -> None:
        """A VotersRecord was appended."""
        self._records.append(entry)
        try:
            self._take()
        except Exception:
            self._records.pop()
            raise

    def truncate(self, end_offset: int) -> bool:
        """The log was truncated to ``end_offset``. Whether that changed the set in force."""
        length = len(self._records)
        while self._records and self._records[-1].offset >= end_offset:
            self._records.pop()
        if len(self._records) == length:
            return False
        self._take()
        return True

    def advance(self, end_offset: int) -> None:
        """The log below ``end_offset`` was dropped: the set in force there is the base.

        Changes no set in force.
        """
        while self._records and self._records[0].offset < end_offset:
            self._base = self._records.pop(0)
        self.before = self._set_of(self._before())
        self._note_newest()

    def reset(self, end_offset: int, voters: tuple[Voter, ...]) -> None:
        """The log was replaced by a snapshot with this set."""
        self._base = VotersAt(end_offset, voters)
        self._records.clear()
        self._take()
