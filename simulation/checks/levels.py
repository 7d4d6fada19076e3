"""metadata.version: the committed log holds nothing that programs of its level could not read
(KIP-584).

Records that a level brings are not committed below it, and a level is not lowered below what is
there: mapped hosts, export cursors, open clients and whose they are, the voter set, access control
entries.

Would catch: a record whose level is not asked for, or asked of an older image than the one it is
decided on; a downgrade that leaves something behind, or that a record overtakes.
"""

from __future__ import annotations

from typing import Any

from raftlog.metadata.records import Record, RecordType
from raftlog.metadata.versions import (
    ACLS,
    KEY_VALUES,
    LATEST_METADATA_VERSION,
    LOG_HASH,
    METADATA_VERSION,
)
from simulation.checks.api import Checker, CheckFailedError
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged

NEEDED: dict[int, int] = {
    RecordType.VOTERS: 2,
    RecordType.OPEN_CLIENT: 2,
    RecordType.CLOSE_CLIENT: 2,
    RecordType.HOSTNAME: 3,
    RecordType.EXPORT_CURSOR: 4,
    RecordType.ACCESS_CONTROL_ENTRY: ACLS,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: ACLS,
    RecordType.KEY_VALUE: KEY_VALUES,
    RecordType.LEASE: KEY_VALUES,
    RecordType.REMOVE_LEASE: KEY_VALUES,
}
"""The level that brings a type of record."""


class Levels(Checker):
    """Reads the committed records, not the fold."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._level = 1
        self._there: dict[int, set[Any]] = {kind: set() for kind in NEEDED}
        self.lowered = 0
        self.raised = 0
        """After registrations of builds that do not know the latest level."""
        self.older = 0
        """Registrations of builds that do not know the latest level."""
        self._owned: set[int] = set()
        """Open clients that belong to a principal."""
        self._known: dict[int, int] = {}
        """Broker id -> the highest level that its registration says it knows."""
        ledger.golden.listeners.append(self._committed)

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        for offset, record in enumerate(records, logged.header.base_offset):
            kind, message = record.type, record.message
            if kind == RecordType.FEATURE_LEVEL and message.name == "metadata.version":
                self._moved(message.feature_level, offset)
            elif kind == RecordType.PROGRESS:
                self._progress(message, offset)
            elif kind == RecordType.REGISTER_BROKER:
                self._registered(message, offset)
            elif kind == RecordType.UNREGISTER_BROKER:
                self._known.pop(message.broker_id, None)
            elif kind in NEEDED:
                if NEEDED[kind] > self._level:
                    raise CheckFailedError(
                        f"{RecordType(kind).name} is committed at {offset}, at level {self._level}"
                        " of metadata.version"
                    )
                self._note(kind, message, offset)

    def _progress(self, message: Any, offset: int) -> None:
        more = message.log_hash or message.HasField("acknowledged") or message.HasField("told")
        if more and self._level < LOG_HASH:
            raise CheckFailedError(
                f"a progress record with a log hash or a sketch is committed at {offset}, at level"
                f" {self._level} of metadata.version"
            )

    def _registered(self, message: Any, offset: int) -> None:
        highest = max(
            (one.max_supported_version for one in message.features if one.name == METADATA_VERSION),
            default=0,
        )
        self.older += highest < LATEST_METADATA_VERSION
        self._known[message.broker_id] = highest
        if highest < self._level:
            raise CheckFailedError(
                f"broker {message.broker_id} is registered at {offset}: it knows metadata.version"
                f" up to {highest}, the cluster is at {self._level}"
            )

    def _moved(self, level: int, offset: int) -> None:
        behind = [
            f"broker {broker_id} ({known})"
            for broker_id, known in self._known.items()
            if known < level
        ]
        nodes = self._ledger.nodes.values()
        voters = {voter.node_id for node in nodes if node.leads >= 0 for voter in node.voters}
        for node in nodes:
            service = node.host.service
            # Who leads would have refused.
            if service is not None and node.host.id in voters and node.leads < 0:
                known = service.quorum.max_metadata_version
                behind += [f"{node.name} ({known})"] if known < level else []
        if behind:
            raise CheckFailedError(
                f"metadata.version is {level} from {offset} on, and this is of builds that do not"
                f" know it: {behind}"
            )
        self.raised += level > self._level and self.older > 0
        self.lowered += level < self._level
        left = sorted(
            RecordType(kind).name
            for kind, needed in NEEDED.items()
            if needed > level and self._there[kind]
        )
        if level < ACLS and self._owned:
            left.append(f"owners of clients {sorted(self._owned)}")
        if left:
            raise CheckFailedError(
                f"metadata.version is {level} from {offset} on, and there is still something of"
                f" {left}"
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
        elif kind == RecordType.KEY_VALUE:
            (there.add if message.HasField("value") else there.discard)(message.key)
        elif kind == RecordType.LEASE:
            there.add(offset)
        elif kind == RecordType.REMOVE_LEASE:
            self._there[RecordType.LEASE].discard(message.lease_id)
        elif kind == RecordType.ACCESS_CONTROL_ENTRY:
            there.add(message.id)
        elif kind == RecordType.REMOVE_ACCESS_CONTROL_ENTRY:
            self._there[RecordType.ACCESS_CONTROL_ENTRY].discard(message.id)
        elif kind == RecordType.OPEN_CLIENT:
            there.add(offset)
            self._opened(message, offset)
        else:
            self._there[RecordType.OPEN_CLIENT].discard(message.client_id)
            self._owned.discard(message.client_id)

    def _opened(self, message: Any, offset: int) -> None:
        if not message.principal:
            return
        if self._level < ACLS:
            raise CheckFailedError(
                f"a client's owner is committed at {offset}, at level {self._level} of"
                " metadata.version"
            )
        self._owned.add(offset)
