"""Rules about registrations, and the hostnames that they map to broker ids (KIP-426).

A broker epoch is the offset of its registration, so each is of one
incarnation; and fenced at first. Kafka takes the offset where the batch begins: after an unclean
shutdown (KIP-966) the changes of partitions come first.

A process that registers again under the incarnation id it is registered by keeps its epoch: that
amends a registration, and is none.

The level of a feature is one that each registered program supports: a program that does not know
the level cannot read the records that it allows.

A host is mapped to one id at a time, and a registration maps its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from raftlog.metadata.entities import HostnameCause, hostname_key
from raftlog.metadata.imported import KAFKAS_METADATA_VERSION
from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import LAO_VERSION, METADATA_VERSION
from replay import rules
from replay.kernels.arrays import NEVER
from replay.kernels.facts import BrokerSpan, Facts, Row
from replay.kernels.findings import Finding, Place, offence, place_of


def check(facts: Facts) -> Iterator[Finding]:
    """Check each new registration, the levels of features, and the mappings of hostnames."""
    for _, spans in groupby(facts.standings.spans, key=lambda span: span.broker_id):
        before: BrokerSpan | None = None
        for span in spans:
            if span.registration and not _amends(span, before):
                yield from _judge(span)
            before = span
    yield from _features(facts)
    yield from _hostnames(facts)


def _amends(span: BrokerSpan, before: BrokerSpan | None) -> bool:
    return (
        before is not None
        and before.ends == span.begins
        and before.broker_epoch == span.broker_epoch
        and before.incarnation_id == span.incarnation_id
    )


def _judge(span: BrokerSpan) -> Iterator[Finding]:
    epoch, offset = span.broker_epoch, span.begins
    place = Place(offset, span.epoch, span.begins_ms, span.principal, f"broker {span.broker_id}")
    if not span.batch_base_offset <= epoch <= offset:
        yield offence(
            rules.BROKER_EPOCH_REUSED,
            place,
            broker_id=span.broker_id,
            # The registration that it is of, if there is one.
            also=epoch if 0 <= epoch < offset else None,
            found=f"epoch {epoch}, incarnation {span.incarnation_id}",
            expected=f"{offset}, the offset of the registration",
        )
    if span.fenced is False:
        yield offence(
            rules.REGISTERED_UNFENCED,
            place,
            broker_id=span.broker_id,
            found="unfenced",
            expected="fenced at first",
        )


CONTROLLERS = ("RegisterControllerRecord", "UnregisterControllerRecord")
"""Kafka's, which say what a controller supports. Our own log does not."""
_NOT_REFUSED = {LAO_VERSION}
"""Brokers that do not know it may register: LAO is unknown while they are there."""


class _Program(NamedTuple):
    """A broker or a controller, from when to when (exclusive) it was registered as it was.

    ``place``: of the record; ``judged``: it says what is supported. ``ranges``: feature -> lowest
    and highest level.
    """

    place: Place
    broker_id: int | None
    ends: int
    judged: bool
    ranges: dict[str, tuple[int, int]]


def _features(facts: Facts) -> Iterator[Finding]:
    """Check each level that is set, beside those who are registered; and each registration, beside
    the levels in force. A program that does not name a feature says nothing of it.
    """
    programs = [*_brokers(facts), *_controllers(facts)]
    levels: dict[str, list[Row]] = defaultdict(list)
    for row in facts.of(RecordType.FEATURE_LEVEL):
        levels[row["feature_name"]].append(row)
        for program in programs:
            if program.place.offset < row["offset"] < program.ends:
                yield from _judge_level(program, row, behind=False)
    for program in programs:
        for name in program.ranges if program.judged else ():
            of_feature = levels.get(name, [])
            at = bisect_left(of_feature, program.place.offset, key=lambda row: int(row["offset"]))
            if at:
                yield from _judge_level(program, of_feature[at - 1], behind=True)


def _brokers(facts: Facts) -> Iterator[_Program]:
    for span in facts.brokers:
        who = f"broker {span.broker_id}"
        place = Place(span.begins, span.epoch, span.begins_ms, span.principal, who)
        ranges = _ranges(span.supported_features or ())
        yield _Program(place, span.broker_id, span.ends, span.registration, ranges)


def _controllers(facts: Facts) -> Iterator[_Program]:
    """Kafka's. Those of aborted transactions say nothing."""
    last: dict[int, _Program] = {}
    for row in facts.of(RecordType.IMPORTED):
        if row["imported_name"] not in CONTROLLERS or row["imported_fields"] is None:
            continue
        said = msgspec.json.decode(row["imported_fields"])
        id_, offset = said["controller_id"], row["offset"]
        if id_ in last:
            yield last.pop(id_)._replace(ends=offset)
        if row["imported_name"] == CONTROLLERS[0]:
            place, ranges = place_of(row, f"controller {id_}"), _ranges(said["features"])
            # Named as Kafka does: what is not mapped stays as it is.
            if METADATA_VERSION in ranges:
                ranges[KAFKAS_METADATA_VERSION] = ranges.pop(METADATA_VERSION)
            last[id_] = _Program(place, None, NEVER, True, ranges)
    yield from last.values()


def _ranges(said: Iterable[Row]) -> dict[str, tuple[int, int]]:
    return {
        one["name"]: (one["min_supported_version"], one["max_supported_version"]) for one in said
    }


def _judge_level(program: _Program, row: Row, *, behind: bool) -> Iterator[Finding]:
    """``behind``: the registration stands behind the level, and is the offence."""
    name, level, who = row["feature_name"], row["feature_level"], program.place.subject
    # Level 0: the feature is off.
    if name not in program.ranges or not level or name in _NOT_REFUSED:
        return
    low, high = program.ranges[name]
    if low <= level <= high:
        return
    yield offence(
        rules.FEATURE_LEVEL_NOT_SUPPORTED,
        program.place if behind else place_of(row, name),
        broker_id=program.broker_id,
        also=row["offset"] if behind else program.place.offset,
        found=f"{name} = {level}, {who} supports {low} to {high}",
        expected="a level that each registered broker and controller supports",
    )


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


def _hostnames(facts: Facts) -> Iterator[Finding]:
    """Check each mapping. That a host is mapped to another id later is not an offence: the last
    broker that registered from it has it.
    """
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
            place_of(now.row, f"host {now.host}"),
            broker_id=now.broker_id,
            also=before.offset,
            found=f"{now.name} mapped to broker {now.broker_id}",
            expected=f"broker {before.broker_id}, as {before.name} is",
        )


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
                        place_of(row, f"host {name}"),
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
