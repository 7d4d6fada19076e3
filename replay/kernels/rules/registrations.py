"""Rules about registrations, feature levels, and the mapping of hostnames to broker ids (KIP-426).

A broker epoch is the offset of its registration, so each belongs to one incarnation, which is
fenced at first. Kafka uses the base offset of the batch, as after an unclean shutdown partition
changes come first in the batch (KIP-966). A process that registers again with the same incarnation
id amends its registration and keeps its epoch.

Every registered program must support the level of each feature, as otherwise it could not read the
records that the level allows.

A host is mapped to one id at a time, and a registration maps its own host.
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
    """Check each new registration, the feature levels, and the mappings of hostnames."""
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
            # The registration with that epoch, if there is one.
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
"""Kafka's record types that state what a controller supports. Raftlog's logs do not contain
this.
"""
_NOT_REFUSED = {LAO_VERSION}
"""Feature that registering brokers need not support; LAO is unknown while such a broker is
registered.
"""


class _Program(NamedTuple):
    """A broker or controller during a period in which its registration was unchanged; ``ends`` is
    exclusive.

    ``place``: the record that started the period. ``judged``: it states what is supported.
    ``ranges``: feature -> lowest and highest level.
    """

    place: Place
    broker_id: int | None
    ends: int
    judged: bool
    ranges: dict[str, tuple[int, int]]


def _features(facts: Facts) -> Iterator[Finding]:
    """Compare each new level with the registered programs, and each registration with the current
    levels. A program is judged only by the features that it names.
    """
    programs = [*_brokers(facts), *_controllers(facts)]
    levels: dict[str, list[Row]] = defaultdict(list)
    for row in facts.of(RecordType.FEATURE_LEVEL):
        levels[row["feature_name"]].append(row)
        for program in programs:
            if program.place.offset < row["offset"] < program.ends:
                yield from _judge_level(program, row, later=False)
    for program in programs:
        for name in program.ranges if program.judged else ():
            of_feature = levels.get(name, [])
            at = bisect_left(of_feature, program.place.offset, key=lambda row: int(row["offset"]))
            if at:
                yield from _judge_level(program, of_feature[at - 1], later=True)


def _brokers(facts: Facts) -> Iterator[_Program]:
    for span in facts.brokers:
        who = f"broker {span.broker_id}"
        place = Place(span.begins, span.epoch, span.begins_ms, span.principal, who)
        ranges = _ranges(span.supported_features or ())
        yield _Program(place, span.broker_id, span.ends, span.registration, ranges)


def _controllers(facts: Facts) -> Iterator[_Program]:
    """Yield Kafka's controllers; skips aborted transactions."""
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
            # The import maps feature names of brokers only.
            if METADATA_VERSION in ranges:
                ranges[KAFKAS_METADATA_VERSION] = ranges.pop(METADATA_VERSION)
            last[id_] = _Program(place, None, NEVER, True, ranges)
    yield from last.values()


def _ranges(said: Iterable[Row]) -> dict[str, tuple[int, int]]:
    return {
        one["name"]: (one["min_supported_version"], one["max_supported_version"]) for one in said
    }


def _judge_level(program: _Program, row: Row, *, later: bool) -> Iterator[Finding]:
    """Compare a program with a level. ``later``: the registration follows the level, and is the
    offence.
    """
    name, level, who = row["feature_name"], row["feature_level"], program.place.subject
    # Level 0: the feature is off.
    if name not in program.ranges or not level or name in _NOT_REFUSED:
        return
    low, high = program.ranges[name]
    if low <= level <= high:
        return
    yield offence(
        rules.FEATURE_LEVEL_NOT_SUPPORTED,
        program.place if later else place_of(row, name),
        broker_id=program.broker_id,
        also=row["offset"] if later else program.place.offset,
        found=f"{name} = {level}, {who} supports {low} to {high}",
        expected="a level that each registered broker and controller supports",
    )


class _Mapping(NamedTuple):
    """A mapping of a name, as spelled, to an id, and how long it lasts. ``host``: the normalized
    name.
    """

    offset: int
    name: str
    broker_id: int
    host: str
    ends: int
    batch: int
    row: Row


def _hostnames(facts: Facts) -> Iterator[Finding]:
    """Check each mapping. A host may be mapped to another id later, as the last broker to register
    from it owns it.
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
    """Yield hosts that are mapped to two ids at once, by two records of a batch or two
    spellings.
    """
    for before, now in pairwise(mapped):
        if before.batch == now.batch:
            yield from _differ(before, now)
    # Controllers normalize names, so another spelling occurs only in forged records.
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
            expected=f"broker {before.broker_id}, like {before.name}",
        )


def _of_registrations(facts: Facts, of_name: dict[str, list[Row]]) -> Iterator[Finding]:
    registered = {
        row["batch_base_offset"]: row["broker_id"] for row in facts.of(RecordType.REGISTER_BROKER)
    }
    for name, changes in of_name.items():
        for row in changes:
            if _by_registration(row):
                # A batch contains at most one registration.
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
                            else f"broker {registers}, which registered"
                        ),
                    )


def _by_registration(row: Row) -> bool:
    return row["broker_id"] is not None and row["cause"] == HostnameCause.BY_REGISTRATION.name
