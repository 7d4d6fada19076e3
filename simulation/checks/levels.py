"""metadata.version: the committed log holds nothing that programs of its level could not read (KIP-584).

Records that a level brings are not committed below it, and a level is not lowered below what is there: mapped hosts, export cursors, open
clients, the voter set.

Would catch: a record whose level is not asked for, or asked of an older image than the one it is decided on; a downgrade that leaves
something behind, or that a record overtakes.
"""

from __future__ import annotations

from typing import Any

from raftlog.metadata.records import Record, RecordType
from simulation.checks.api import Checker, CheckFailedError
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged

NEEDED: dict[int, int] = {
    RecordType.VOTERS: 2,
    RecordType.OPEN_CLIENT: 2,
    RecordType.CLOSE_CLIENT: 2,
    RecordType.HOSTNAME: 3,
    RecordType.EXPORT_CURSOR: 4,
}
"""The level that brings a type of record."""


class Levels(Checker):
    """Reads the committed records, not the fold."""

    def __init__(self, ledger: Ledger) -> None:
        self._level = 1
        self._there: dict[int, set[Any]] = {kind: set() for kind in NEEDED}
        self.lowered = 0
        ledger.golden.listeners.append(self._committed)

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        for offset, record in enumerate(records, logged.header.base_offset):
            kind, message = record.type, record.message
            if kind == RecordType.FEATURE_LEVEL and message.name == "metadata.version":
                self._moved(message.feature_level, offset)
            elif kind in NEEDED:
                if NEEDED[kind] > self._level:
                    raise CheckFailedError(
                        f"{RecordType(kind).name} is committed at {offset}, at level {self._level} of metadata.version"
                    )
                self._note(kind, message, offset)

    def _moved(self, level: int, offset: int) -> None:
        self.lowered += level < self._level
        left = sorted(RecordType(kind).name for kind, needed in NEEDED.items() if needed > level and self._there[kind])
        if left:
            raise CheckFailedError(
                f"metadata.version is {level} from {offset} on, and there is still something of {left}"
            )
        self._level = level

    def _note(self, kind: int, message: Any, offset: int) -> None:
        there = self._there[kind]
        if kind == RecordType.VOTERS:
            there.add("voters")
        elif kind == RecordType.HOSTNAME:
            (there.add if message.HasField("broker_id") else there.discard)(message.hostname)
        elif kind == RecordType.EXPORT_CURSOR:
            (there.add if message.HasField("end_offset") else there.discard)(message.name)
        elif kind == RecordType.OPEN_CLIENT:
            there.add(offset)
        else:
            self._there[RecordType.OPEN_CLIENT].discard(message.client_id)
