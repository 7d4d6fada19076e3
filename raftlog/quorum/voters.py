"""Voter sets, and the voter sets of the log by offset: each is in force as soon as it is appended,
and no more when it is truncated (KIP-853).

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

    An empty set is that of a node that knows no voters: it observes. Raises ConfigError if an id
    comes twice or is negative.
    """

    def __init__(self, voters: tuple[Voter, ...]) -> None:
        self._by_id = {
            voter.node_id: voter for voter in sorted(voters, key=lambda voter: voter.node_id)
        }
        if len(self._by_id) != len(voters):
            raise ConfigError("the voter set must name each node once")
        if any(node_id < 0 for node_id in self._by_id):
            raise ConfigError("node ids of voters must not be negative")
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
        """Return why these voters make no set; empty if they do."""
        try:
            VoterSet(voters)
        except ConfigError as error:
            return str(error)
        return ""

    def includes(self, node_id: int, directory_id: str) -> bool:
        """Return whether this replica is a voter.

        An unknown directory id in the set matches any (kraft.version 0).
        """
        voter = self._by_id.get(node_id)
        return voter is not None and voter.directory_id in ("", directory_id)

    def directory_of(self, node_id: int) -> str:
        """Return the voter's directory id; empty if not known."""
        return self._by_id[node_id].directory_id

    def endpoint_of(self, node_id: int) -> str:
        """Return the voter's endpoint."""
        return self._by_id[node_id].endpoint

    def rank(self, node_id: int) -> int:
        """Return the voter's place in the order of ids, from 0."""
        return self.ids.index(node_id)

    def replicas_changed(self, other: VoterSet) -> int:
        """Return the number of replicas that joined or left between this set and ``other``.

        At most one keeps every majority of the one in touch with every majority of the other. A
        directory that becomes known changes nothing; another directory is another replica, so it is
        one that left and one that joined.
        """
        changed = 0
        for node_id in sorted({*self.ids, *other.ids}):
            if node_id not in self or node_id not in other:
                changed += 1
            elif self.directory_of(node_id) not in ("", other.directory_of(node_id)):
                changed += 2
        return changed


class VoterHistory:
    """The voter sets of the log: a base, which no truncation reaches, and the VotersRecords above
    it.

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
            # after it.
            if at == 0 and entry.offset == snapshot_end:
                self._base = entry
            else:
                self._records.append(entry)
        self._refresh()

    def _refresh(self) -> None:
        self.voters = self._set_of(self._records[-1] if self._records else self._base)
        """The set in force."""
        self.before = self._set_of(self._before())
        """The set in force before the newest record; the same as ``voters`` if there is no
        record.
        """

        self._note_newest()

    def _note_newest(self) -> None:
        self.record_offset = self._records[-1].offset if self._records else -1
        """Of the newest VotersRecord in the log; -1 without one above what is
        certainly committed.
        """

    def _before(self) -> VotersAt:
        return self._records[-2] if len(self._records) > 1 else self._base

    def _set_of(self, entry: VotersAt) -> VoterSet:
        return VoterSet(entry.voters or self._configured)

    @property
    def offset(self) -> int:
        """Offset of the VotersRecord in force, or the end of the snapshot with the set; -1: the
        configured set.
        """
        entry = self._records[-1] if self._records else self._base
        return entry.offset if entry.voters else -1

    @property
    def before_logged(self) -> bool:
        """True if a record or a snapshot named the set before the newest record."""
        return bool(self._before().voters)

    def may_lead(self, node_id: int, high_watermark: int) -> bool:
        """Return whether a set that may be in force somewhere has this voter: the newest one that
        is certainly committed, or a later one.

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
        """Add a VotersRecord that was appended."""
        self._records.append(entry)
        try:
            self._refresh()
        except Exception:
            self._records.pop()
            raise

    def truncate(self, end_offset: int) -> bool:
        """Drop the records at or above the new log end; return whether the set in force has
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
        """Make the set in force at ``end_offset`` the base: the log below was dropped.

        Changes no set in force.
        """
        while self._records and self._records[0].offset < end_offset:
            self._base = self._records.pop(0)
        self.before = self._set_of(self._before())
        self._note_newest()

    def reset(self, end_offset: int, voters: tuple[Voter, ...]) -> None:
        """Begin anew with the set of a snapshot that has replaced the log."""
        self._base = VotersAt(end_offset, voters)
        self._records.clear()
        self._refresh()
