"""Rules that only the records of a Kafka cluster allow: blocks of producer ids, the migration from
ZooKeeper, and transactions of the metadata log (KIP-868).

Few records say it, and each is compared with the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from raftlog.metadata.records import RecordType
from replay import rules
from replay.kernels.facts import Facts, Row
from replay.kernels.findings import Finding, offence, place_of

BLOCK_IDS = 1000
"""Number of producer ids in a block that Kafka hands out."""
_STATES = ("NONE", "PRE_MIGRATION", "MIGRATION", "POST_MIGRATION")
_BEGIN, _ENDS = "BeginTransactionRecord", ("EndTransactionRecord", "AbortTransactionRecord")


def check(facts: Facts) -> Iterator[Finding]:
    """Check each of these records."""
    rows = facts.of(RecordType.IMPORTED)
    yield from _producer_ids(rows)
    yield from _migration(rows)
    yield from _transactions(rows)


def _numbers(rows: Iterable[Row], name: str, field: str) -> Iterator[tuple[Row, int]]:
    """A field of the records of a name; those of aborted transactions say nothing."""
    for row in rows:
        if row["imported_name"] == name and row["imported_fields"] is not None:
            yield row, int(msgspec.json.decode(row["imported_fields"])[field])


def _producer_ids(rows: list[Row]) -> Iterator[Finding]:
    """A record says where the next block begins, and gives away the one before that."""
    before: tuple[Row, int] | None = None
    for row, following in _numbers(rows, "ProducerIdsRecord", "next_producer_id"):
        if before is not None and following < before[1] + BLOCK_IDS:
            yield offence(
                rules.PRODUCER_IDS_OVERLAP,
                place_of(row, "producer ids"),
                also=before[0]["offset"],
                found=f"the block up to {following - 1}",
                expected=f"one that begins at {before[1]} or after it",
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
    """A transaction that has ended as it should is one batch, from its first record to its last; of
    an aborted one that outlived its controller, the parts are several.
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
                    expected=f"the end of the one that began at {begun['offset']} first",
                )
            begun = row
        elif name in _ENDS:
            if begun is None:
                yield offence(
                    rules.TRANSACTION_OUT_OF_PLACE,
                    place_of(row, "a transaction"),
                    found="ended" if name == _ENDS[0] else "aborted",
                    expected="the record that begins it first",
                )
            elif name == _ENDS[0] and begun["epoch"] != row["epoch"]:
                yield offence(
                    rules.TRANSACTION_OUT_OF_PLACE,
                    place_of(row, "a transaction"),
                    also=begun["offset"],
                    found=f"ended in controller epoch {row['epoch']}",
                    expected=f"aborted, as the controller of epoch {begun['epoch']} is gone",
                )
            begun = None
