"""The rule about metadata.version: it is lowered only where the state holds nothing that programs
of the lower level cannot read.

The controllers' side of it: controller/decisions/quorum/features.py. What was there and is gone is
no offence. Nor can the log say that it began behind a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.acls import AclResourceType
from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import ACLS, METADATA_VERSION
from replay.audit import rules
from replay.kernels.entries import ENTRIES
from replay.kernels.facts import Facts, Row
from replay.kernels.finding import Finding, Place, offence

RULES = (rules.LEVEL_LOWERED,)
COLUMNS = ("offset", "type", "group_id", "cursor_end_offset", "kv_value")
"""What the kernel needs of records of TYPES."""
TYPES = (
    RecordType.EXPORT_CURSOR,
    RecordType.KEY_VALUE,
    RecordType.LEASE,
    RecordType.REMOVE_LEASE,
)
"""There can be too many of these for everybody to have them."""
_MANY: dict[str, tuple[RecordType, int]] = {
    "export cursors": (RecordType.EXPORT_CURSOR, 4),
    "keys": (RecordType.KEY_VALUE, 8),
    "leases": (RecordType.LEASE, 8),
}
"""What they put there: by which type, and the first level that can read it."""
_VOTERS = _CLIENTS = 2
_HOSTNAMES = 3
_VOTER_LISTENERS = 7
_KEY_VALUES = 8


class _Lowering(NamedTuple):
    """``before``: the record that had set the level before."""

    row: Row
    before: Row

    @property
    def level(self) -> int:
        """The new one."""
        level: int = self.row["feature_level"]
        return level


class _Left(NamedTuple):
    """What is there, in words, and the record that put it there."""

    words: str
    offset: int


def lowerings(facts: Facts) -> list[_Lowering]:
    """Where metadata.version becomes lower."""
    found: list[_Lowering] = []
    before: Row | None = None
    for row in facts.of(RecordType.FEATURE_LEVEL):
        if row["feature_name"] != METADATA_VERSION:
            continue
        if before is not None and row["feature_level"] < before["feature_level"]:
            found.append(_Lowering(row, before))
        before = row
    return found


class Lowered:
    """Each lowering, beside what was there below its record."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lowerings = lowerings(facts)
        self._there: dict[RecordType, dict[str, int]] = {type_: {} for type_, _ in _MANY.values()}
        """Of each type what is there, and where each was set last."""
        self._judged = 0

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Of a slice of the records of TYPES, in order, COLUMNS."""
        set_ = pc.or_(table["cursor_end_offset"].is_valid(), table["kv_value"].is_valid())
        columns = [table[name].to_pylist() for name in COLUMNS[:3]]
        for offset, type_, id_, is_set in zip(*columns, set_.to_pylist(), strict=True):
            yield from self._up_to(offset)
            of = RecordType.LEASE if type_ == RecordType.REMOVE_LEASE else RecordType(type_)
            if is_set or type_ == RecordType.LEASE:
                self._there[of][id_] = offset
            else:
                self._there[of].pop(id_, None)

    def end(self) -> Iterator[Finding]:
        """Those that no such record comes behind."""
        if self._lowerings:
            yield from self._up_to(self._facts.end_offset)

    def _up_to(self, offset: int) -> Iterator[Finding]:
        while self._judged < len(self._lowerings):
            lowering = self._lowerings[self._judged]
            if lowering.row["offset"] >= offset:
                return
            self._judged += 1
            yield from _judge(self._facts, lowering, self._there)


def _judge(
    facts: Facts, lowering: _Lowering, there: dict[RecordType, dict[str, int]]
) -> Iterator[Finding]:
    left = list(_left(facts, lowering))
    left += [
        _of(what, there[type_])
        for what, (type_, readable) in _MANY.items()
        if lowering.level < readable and there[type_]
    ]
    if left:
        row = lowering.row
        yield offence(
            rules.LEVEL_LOWERED,
            Place(
                row["offset"], row["epoch"], row["timestamp_ms"], row["principal"], METADATA_VERSION
            ),
            also=min(each.offset for each in left),
            found=f"level {lowering.level}, with {'; '.join(each.words for each in left)}",
            expected=f"nothing that only level {lowering.before['feature_level']} can read",
        )


def _left(facts: Facts, lowering: _Lowering) -> Iterator[_Left]:
    level, offset = lowering.level, lowering.row["offset"]
    voters = [row for row in facts.of(RecordType.VOTERS) if row["offset"] < offset][-1:]
    clients = _standing(
        facts.of(RecordType.OPEN_CLIENT, RecordType.CLOSE_CLIENT), offset, (RecordType.OPEN_CLIENT,)
    )
    if level < _VOTERS and voters:
        yield _Left("the voter set in the log", voters[0]["offset"])
    if level < _CLIENTS and clients:
        yield _of("open clients", clients)
    if level < _HOSTNAMES and (names := _hostnames(facts, offset)):
        yield _of("mapped hostnames", names)
    entries = _standing(facts.of(*ENTRIES), offset, (RecordType.ACCESS_CONTROL_ENTRY,))
    of_keys = {
        id_: row
        for id_, row in entries.items()
        if row["acl_resource_type"] == AclResourceType.KEY_VALUE
    }
    if ACLS <= level < _KEY_VALUES and of_keys:
        yield _of("access control entries of keys", of_keys)
    if level < ACLS:
        if entries:
            yield _of("access control entries", entries)
        owned = {id_: row for id_, row in clients.items() if row["client_principal"]}
        if owned and level >= _CLIENTS:
            yield _of("clients of a principal", owned)
    if level < _VOTER_LISTENERS and any(
        "://" in each["endpoint"] for row in voters for each in row["voters"] or ()
    ):
        yield _Left("voters with several listeners", voters[0]["offset"])


def _hostnames(facts: Facts, end: int) -> dict[str, Row]:
    rows = _standing(facts.of(RecordType.HOSTNAME), end, (RecordType.HOSTNAME,))
    return {name: row for name, row in rows.items() if row["broker_id"] is not None}


def _standing(rows: Iterable[Row], end: int, there: Collection[RecordType]) -> dict[str, Row]:
    """The last record of each group below an offset, if it is of a type that puts it there."""
    last = {row["group_id"]: row for row in rows if row["offset"] < end}
    return {id_: row for id_, row in last.items() if row["type"] in there}


def _of(what: str, there: dict[str, Row] | dict[str, int]) -> _Left:
    offsets = {
        name: each if isinstance(each, int) else each["offset"] for name, each in there.items()
    }
    first = min(offsets, key=lambda name: offsets[name])
    return _Left(f"{what}: {len(there)}, the first is {first}", offsets[first])
