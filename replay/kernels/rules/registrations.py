"""Rules about registrations: a broker epoch is the offset of its registration, so each is of one
incarnation; and fenced at first. Kafka takes the offset where the batch begins: after an unclean
shutdown (KIP-966) the changes of partitions come first.

A process that registers again under the incarnation id it is registered by keeps its epoch: that
amends a registration, and is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from replay import rules
from replay.kernels.facts import BrokerSpan, Facts
from replay.kernels.findings import Finding, Place, offence

RULES = (rules.BROKER_EPOCH_REUSED, rules.REGISTERED_UNFENCED)


def check(facts: Facts) -> Iterator[Finding]:
    """Check each new registration."""
    for _, spans in groupby(facts.standings.spans, key=lambda span: span.broker_id):
        before: BrokerSpan | None = None
        for span in spans:
            if span.registration and not _amends(span, before):
                yield from _judge(span)
            before = span


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
