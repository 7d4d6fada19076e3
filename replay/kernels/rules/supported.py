"""Levels of features and what registered brokers support: who does not know a level cannot read the
records that it allows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from raftlog.metadata.records import RecordType
from replay.audit import rules
from replay.kernels.facts import BrokerSpan, Facts, Row
from replay.kernels.finding import Finding, Place, offence

RULES = (rules.FEATURE_LEVEL_NOT_SUPPORTED,)


def check(facts: Facts) -> Iterator[Finding]:
    """Each level that is set, beside those who are registered; and each registration, beside the
    levels in force. A broker that does not name a feature says nothing of it.
    """
    levels: dict[str, list[Row]] = defaultdict(list)
    for row in facts.of(RecordType.FEATURE_LEVEL):
        levels[row["feature_name"]].append(row)
        for span in facts.brokers:
            if span.begins < row["offset"] < span.ends:
                yield from _judge(span, row, behind=False)
    for span in facts.brokers:
        for one in span.supported_features or () if span.registration else ():
            of_feature = levels.get(one["name"], [])
            at = bisect_left(of_feature, span.begins, key=lambda row: int(row["offset"]))
            if at:
                yield from _judge(span, of_feature[at - 1], behind=True)


def _judge(span: BrokerSpan, row: Row, *, behind: bool) -> Iterator[Finding]:
    """``behind``: the registration stands behind the level, and is the offence."""
    name, level, broker = row["feature_name"], row["feature_level"], f"broker {span.broker_id}"
    for one in span.supported_features or ():
        low, high = one["min_supported_version"], one["max_supported_version"]
        # Level 0: the feature is off.
        if one["name"] != name or not level or low <= level <= high:
            continue
        place = (
            Place(span.begins, span.epoch, span.begins_ms, span.principal, broker)
            if behind
            else Place(row["offset"], row["epoch"], row["timestamp_ms"], row["principal"], name)
        )
        yield offence(
            rules.FEATURE_LEVEL_NOT_SUPPORTED,
            place,
            broker_id=span.broker_id,
            also=row["offset"] if behind else span.begins,
            found=f"{name} = {level}, {broker} supports {low} to {high}",
            expected="a level that each registered broker supports",
        )
