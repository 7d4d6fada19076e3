"""Rules about the mapping from hostnames to broker ids (KIP-426): one id a host at a time, and a
registration maps its own.

That a host is mapped to another id later is no offence: the last broker that registered from it has
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from raftlog.metadata.entities import HostnameCause, hostname_key
from raftlog.metadata.records import RecordType
from replay import rules
from replay.kernels.arrays import NEVER
from replay.kernels.facts import Facts, Row
from replay.kernels.findings import Finding, Place, offence

RULES = (rules.HOSTNAME_OF_TWO_IDS, rules.HOSTNAME_NOT_OF_REGISTRATION)


class _Mapping(NamedTuple):
    """Mapping of a name, as it is spelled, to an id, with its range; ``host``: the name that it is
    the same as.
    """

    offset: int
    name: str
    broker_id: int
    host: str
    ends: int
    batch: int
    row: Row


def check(facts: Facts) -> Iterator[Finding]:
    """Check each mapping."""
    rows = facts.of(RecordType.HOSTNAME)
    of_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_name[row["group_id"]].append(row)
    yield from _of_registrations(facts, of_name)
    of_host: dict[str, list[_Mapping]] = defaultdict(list)
    for name, changes in of_name.items():
        ends = [row["offset"] for row in changes[1:]] + [NEVER]
        host = hostname_key(name)
        of_host[host] += [
            _Mapping(
                row["offset"], name, row["broker_id"], host, end, row["batch_base_offset"], row
            )
            for row, end in zip(changes, ends, strict=True)
            if row["broker_id"] is not None
        ]
    for mapped in of_host.values():
        yield from _of_two_ids(sorted(mapped))


def _of_two_ids(mapped: list[_Mapping]) -> Iterator[Finding]:
    """Two ids at a time: by two records of one batch, or by two spellings of one host."""
    for before, now in pairwise(mapped):
        if before.batch == now.batch:
            yield from _differ(before, now)
    # What a controller maps is spelled in one way: only of forged names there is another.
    odd = [each for each in mapped if each.name != each.host]
    for one in odd:
        for other in mapped:
            once = other.name == other.host or other.offset < one.offset
            overlap = one.offset < other.ends and other.offset < one.ends
            if one.name != other.name and once and overlap:
                yield from _differ(*sorted((one, other)))


def _differ(before: _Mapping, now: _Mapping) -> Iterator[Finding]:
    if before.broker_id != now.broker_id:
        yield offence(
            rules.HOSTNAME_OF_TWO_IDS,
            _place(now.row, now.host),
            broker_id=now.broker_id,
            also=before.offset,
            found=f"{now.name} mapped to broker {now.broker_id}",
            expected=f"broker {before.broker_id}, as {before.name} is",
        )


def _place(row: Row, host: str) -> Place:
    record = row["offset"], row["epoch"], row["timestamp_ms"], row["principal"]
    return Place(*record, f"host {host}")


def _of_registrations(facts: Facts, of_name: dict[str, list[Row]]) -> Iterator[Finding]:
    registered = {
        row["batch_base_offset"]: row["broker_id"] for row in facts.of(RecordType.REGISTER_BROKER)
    }
    for name, changes in of_name.items():
        for row in changes:
            if _by_registration(row):
                # One registration a batch.
                registers = registered.get(row["batch_base_offset"])
                if row["broker_id"] != registers:
                    yield offence(
                        rules.HOSTNAME_NOT_OF_REGISTRATION,
                        _place(row, name),
                        broker_id=row["broker_id"],
                        found=f"mapped to broker {row['broker_id']}",
                        expected=(
                            "a registration in the same batch"
                            if registers is None
                            else f"broker {registers}, which registers"
                        ),
                    )


def _by_registration(row: Row) -> bool:
    return row["broker_id"] is not None and row["cause"] == HostnameCause.BY_REGISTRATION.name
