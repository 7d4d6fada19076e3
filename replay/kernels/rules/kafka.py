"""Rules about records that only Kafka's logs contain: producer id blocks, the migration from
ZooKeeper, and metadata transactions (KIP-868).

These records are few, and each is compared with the previous one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from raftlog.metadata.records import RecordType
from replay import rules
from replay.kernels.facts import Facts, Row
from replay.kernels.findings import Finding, offence, place_of

BLOCK_IDS = 1000
"""Number of producer ids in a block."""
_STATES = ("NONE", "PRE_MIGRATION", "MIGRATION", "POST_MIGRATION")
_BEGIN, _ENDS = "BeginTransactionRecord", ("EndTransactionRecord", "AbortTransactionRecord")


def check(facts: Facts) -> Iterator[Finding]:
    """Check all of these records."""
    rows = facts.of(RecordType.IMPORTED)
    yield from _producer_ids(rows)
    yield from _migration(rows)
    yield from _transactions(rows)


def _numbers(rows: Iterable[Row], name: str, field: str) -> Iterator[tuple[Row, int]]:
    """Yield the records with a name and the value of one field; skips aborted transactions."""
    for row in rows:
        if row["imported_name"] == name and row["imported_fields"] is not None:
            yield row, int(msgspec.json.decode(row["imported_fields"])[field])


def _producer_ids(rows: list[Row]) -> Iterator[Finding]:
    """Check that blocks do not overlap. A record names the id after its block."""
    before: tuple[Row, int] | None = None
    for row, following in _numbers(rows, "ProducerIdsRecord", "next_producer_id"):
        if before is not None and following < before[1] + BLOCK_IDS:
            yield offence(
                rules.PRODUCER_IDS_OVERLAP,
                place_of(row, "producer ids"),
                also=before[0]["offset"],
                found=f"the block up to {following - 1}",
                expected=f"a block that begins at {before[1]} or later",
            )
        before = row, following


def _migration(rows: list[Row]) -> Iterator[Finding]:
    before: tuple[Row, int] | None = None
    for row, state in _numbers(rows, "ZkMigrationStateRecord", "zk_migration_state"):
        if before is not None and state < before[1]:
            yield offence(
                rules.ZK_MIGRATION_WENT_BACK,
                place_of(row, "the migration from ZooKeeper"),
                also=before[0]["offset"],
                found=_state(state),
                expected=f"{_state(before[1])} or a later state",
            )
        before = row, state


def _state(number: int) -> str:
    return _STATES[number] if 0 <= number < len(_STATES) else f"state {number}"


def _transactions(rows: list[Row]) -> Iterator[Finding]:
    """Check the records that begin and end transactions.

    A completed transaction is one batch, from its first record to its last; an aborted one that
    outlived its controller consists of several.
    """
    begun: Row | None = None
    for row in rows:
        name = row["imported_name"]
        if name == _BEGIN:
            if begun is not None:
                yield offence(
                    rules.TRANSACTION_OUT_OF_PLACE,
                    place_of(row, "a transaction"),
                    also=begun["offset"],
                    found="begun",
                    expected=f"the end of the transaction begun at {begun['offset']} first",
                )
            begun = row
        elif name in _ENDS:
            if begun is None:
                yield offence(
                    rules.TRANSACTION_OUT_OF_PLACE,
                    place_of(row, "a transaction"),
                    found="ended" if name == _ENDS[0] else "aborted",
                    expected="a record that begins it, before this one",
                )
            elif name == _ENDS[0] and begun["epoch"] != row["epoch"]:
                yield offence(
                    rules.TRANSACTION_OUT_OF_PLACE,
                    place_of(row, "a transaction"),
                    also=begun["offset"],
                    found=f"ended in controller epoch {row['epoch']}",
                    expected=f"aborted, as epoch {begun['epoch']} is over",
                )
            begun = None
