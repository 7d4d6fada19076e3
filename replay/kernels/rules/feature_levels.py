"""The rule about metadata.version: it is lowered only where the state holds nothing that programs
of the lower level cannot read.

The controllers' side of it: controller/decisions/quorum/downgrade.py. What was there and is gone is
no offence. Nor can the log say that it began behind a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import ACLS, CAUSES, METADATA_VERSION
from replay.audit import rules
from replay.kernels.entries import ENTRIES
from replay.kernels.facts import Facts, Row
from replay.kernels.finding import Finding, Place, offence

RULES = (rules.LEVEL_LOWERED,)
COLUMNS = ("offset", "group_id", "cursor_end_offset")
"""What the kernel needs of records of TYPES."""
TYPES = (RecordType.EXPORT_CURSOR,)
"""There can be too many of these for everybody to have them."""
_VOTERS = _CLIENTS = 2
_HOSTNAMES = 3
_CURSORS = 4
_VOTER_LISTENERS = 7


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
        self._cursors: dict[str, int] = {}
        """Those that are there, and where each was set last."""
        self._judged = 0

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Of a slice of the cursors, in order, COLUMNS."""
        for offset, name, end in zip(
            *(table[column].to_pylist() for column in COLUMNS), strict=True
        ):
            yield from self._up_to(offset)
            if end is None:
                self._cursors.pop(name, None)
            else:
                self._cursors[name] = offset

    def end(self) -> Iterator[Finding]:
        """Those that no cursor comes behind."""
        if self._lowerings:
            yield from self._up_to(self._facts.end_offset)

    def _up_to(self, offset: int) -> Iterator[Finding]:
        while self._judged < len(self._lowerings):
            lowering = self._lowerings[self._judged]
            if lowering.row["offset"] >= offset:
                return
            self._judged += 1
            yield from _judge(self._facts, lowering, self._cursors)


def _judge(facts: Facts, lowering: _Lowering, cursors: dict[str, int]) -> Iterator[Finding]:
    left = list(_left(facts, lowering))
    if lowering.level < _CURSORS and cursors:
        left.append(_of("export cursors", cursors))
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
    if level < CAUSES:
        yield from _causes(facts, lowering.row["batch_last_offset"] + 1)
    if level < ACLS:
        entries = _standing(facts.of(*ENTRIES), offset, (RecordType.ACCESS_CONTROL_ENTRY,))
        if entries:
            yield _of("access control entries", entries)
        owned = {id_: row for id_, row in clients.items() if row["client_principal"]}
        if owned and level >= _CLIENTS:
            yield _of("clients of a principal", owned)
    if level < _VOTER_LISTENERS and any(
        "://" in each["endpoint"] for row in voters for each in row["voters"] or ()
    ):
        yield _Left("voters with several listeners", voters[0]["offset"])


def _causes(facts: Facts, end: int) -> Iterator[_Left]:
    """The batch that lowers the level takes them back."""
    brokers = {
        str(span.broker_id): span.begins
        for span in facts.brokers
        if span.begins < end <= span.ends and span.cause
    }
    if brokers:
        yield _of("brokers with a cause", brokers)
    if names := {name: row for name, row in _hostnames(facts, end).items() if row["cause"]}:
        yield _of("hostnames with a cause", names)


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
