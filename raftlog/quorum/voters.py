"""Voter sets, and the history of voter sets in the log: a set is current as soon as it is appended,
until it is truncated or replaced (KIP-853).

Why: docs/decisions/005-voters-in-the-log.md
"""

from __future__ import annotations

from raftlog.endpoint import VotersAt
from raftlog.errors import ConfigError
from raftlog.node.storage.api import RecoveredLog
from raftlog.quorum.config import Voter


class VoterSet:
    """The voters, by ascending node id; matched by (node id, directory id) where the directory is
    known.

    A node with an empty voter set knows no voters: it is an observer. Raises ConfigError if an id
    is negative or occurs twice.
    """

    def __init__(self, voters: tuple[Voter, ...]) -> None:
        self._by_id = {
            voter.node_id: voter for voter in sorted(voters, key=lambda voter: voter.node_id)
        }
        if len(self._by_id) != len(voters):
            ids = [voter.node_id for voter in voters]
            twice = next(node_id for node_id in ids if ids.count(node_id) > 1)
            raise ConfigError(f"the voter set names node {twice} more than once")
        if any(node_id < 0 for node_id in self._by_id):
            raise ConfigError(f"the voter set contains the negative node id {min(self._by_id)}")
        self.ids = tuple(self._by_id)
        self.majority = len(self.ids) // 2 + 1

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._by_id

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def all(self) -> tuple[Voter, ...]:
        """The voters, by ascending node id."""
        return tuple(self._by_id.values())

    @staticmethod
    def flaw(voters: tuple[Voter, ...]) -> str:
        """Return why these voters are not a valid set, or empty if they are."""
        try:
            VoterSet(voters)
        except ConfigError as error:
            return str(error)
        return ""

    def includes(self, node_id: int, directory_id: str) -> bool:
        """Return whether this replica is a voter. An unknown directory id in the set matches any
        (kraft.version 0).
        """
        voter = self._by_id.get(node_id)
        return voter is not None and voter.directory_id in ("", directory_id)

    def directory_of(self, node_id: int) -> str:
        """Return the voter's directory id, or empty if unknown."""
        return self._by_id[node_id].directory_id

    def endpoint_of(self, node_id: int) -> str:
        """Return the voter's endpoint."""
        return self._by_id[node_id].endpoint

    def rank(self, node_id: int) -> int:
        """Return the voter's position in the order of ids, from 0."""
        return self.ids.index(node_id)

    def replicas_changed(self, other: VoterSet) -> int:
        """Return the number of replicas that joined or left between this set and ``other``.

        With at most one, every majority of one set intersects every majority of the other. A
        directory that becomes known changes nothing; another directory is another replica, so it
        counts as one that left and one that joined.
        """
        changed = 0
        for node_id in sorted({*self.ids, *other.ids}):
            if node_id not in self or node_id not in other:
                changed += 1
            elif self.directory_of(node_id) not in ("", other.directory_of(node_id)):
                changed += 2
        return changed


class VoterHistory:
    """The voter sets in the log: a base, which no truncation reaches, and the VotersRecords above
    it.

    The base is the set of the newest snapshot, or of the dropped part of the log; otherwise the
    configured set. An entry without voters stands for the configured set. Raises ConfigError for a
    set that names a node twice.
    """

    def __init__(self, configured: tuple[Voter, ...], recovered: RecoveredLog) -> None:
        self._configured = configured
        self._base = VotersAt(-1, ())
        self._records: list[VotersAt] = []
        snapshot_end = recovered.snapshots[-1].end_offset if recovered.snapshots else -1
        for at, entry in enumerate(recovered.voters):
            # The snapshot's set has the offset of the snapshot's end; a record may have the same
            # offset, after it.
            if at == 0 and entry.offset == snapshot_end:
                self._base = entry
            else:
                self._records.append(entry)
        self._refresh()

    def _refresh(self) -> None:
        self.voters = self._set_of(self._records[-1] if self._records else self._base)
        """The current voter set."""
        self.before = self._set_of(self._before())
        """The voter set before the newest record; the same as ``voters`` if there is no record."""

        self._note_newest()

    def _note_newest(self) -> None:
        self.record_offset = self._records[-1].offset if self._records else -1
        """Offset of the newest VotersRecord above the base, or -1 if none."""

    def _before(self) -> VotersAt:
        return self._records[-2] if len(self._records) > 1 else self._base

    def _set_of(self, entry: VotersAt) -> VoterSet:
        return VoterSet(entry.voters or self._configured)

    @property
    def offset(self) -> int:
        """Offset of the VotersRecord of the current set, or the end of the snapshot that contains
        the set; -1 for the configured set.
        """
        entry = self._records[-1] if self._records else self._base
        return entry.offset if entry.voters else -1

    @property
    def before_logged(self) -> bool:
        """Whether the set before the newest record is itself in a record or a snapshot."""
        return bool(self._before().voters)

    def may_lead(self, node_id: int, high_watermark: int) -> bool:
        """Return whether this voter is in a set that may be current on some node: the newest set
        that is certainly committed, or a later one.

        An earlier set does not count, as a voter removed since then is in no majority, and its
        requests could only depose leaders.
        """
        committed = sum(record.offset < high_watermark for record in self._records)
        base = [self._base] if committed == 0 else []
        held = (*base, *self._records[max(0, committed - 1) :])
        return any(
            voter.node_id == node_id for entry in held for voter in entry.voters or self._configured
        )

    def append(self, entry: VotersAt) -> None:
        """Add a VotersRecord that was appended to the log."""
        self._records.append(entry)
        try:
            self._refresh()
        except Exception:
            self._records.pop()
            raise

    def truncate(self, end_offset: int) -> bool:
        """Drop the records at or above the new log end. Return whether the current set has
        changed.
        """
        length = len(self._records)
        while self._records and self._records[-1].offset >= end_offset:
            self._records.pop()
        if len(self._records) == length:
            return False
        self._refresh()
        return True

    def advance(self, end_offset: int) -> None:
        """Make the set that is current at ``end_offset`` the base, because the log below was
        dropped. The current set stays the same.
        """
        while self._records and self._records[0].offset < end_offset:
            self._base = self._records.pop(0)
        self.before = self._set_of(self._before())
        self._note_newest()

    def reset(self, end_offset: int, voters: tuple[Voter, ...]) -> None:
        """Start over with the set of a snapshot that has replaced the log."""
        self._base = VotersAt(end_offset, voters)
        self._records.clear()
        self._refresh()
