"""Profiles of the audit: the rules that judge a log, by the kind of cluster that wrote it. Some
need facts that Kafka's log lacks, others facts that only Kafka's log has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from replay.audit import rules
from replay.audit.rules import RULES, Rule
from replay.errors import ReplayError

_NEED_A_PROPOSER = (
    rules.STALE_BROKER_EPOCH,
    rules.UNKNOWN_BROKER_EPOCH,
    rules.STALE_PROPOSER_EPOCH,
    rules.PROPOSER_NOT_LEADER,
    rules.ISR_GREW_UNPROPOSED,
)
_NEED_PROGRESS = (
    rules.LAO_NOT_BELOW_HIGH_WATERMARK,
    rules.HIGH_WATERMARK_BEYOND_LOG,
    rules.HIGH_WATERMARK_WENT_BACK,
    rules.LAO_WENT_BACK,
    rules.LAO_ABOVE_APPLIED,
    rules.LAO_WITHOUT_REPORT,
    rules.APPLIED_BEYOND_LOG,
    rules.APPLIED_WENT_BACK,
)
_NEED_HOSTNAMES = (rules.HOSTNAME_OF_TWO_IDS, rules.HOSTNAME_NOT_OF_REGISTRATION)
_NEED_WRITERS = (
    rules.NUMBER_EXECUTED_TWICE,
    rules.CLOSED_CLIENT_WROTE,
    rules.WRITE_WITHOUT_RIGHT,
)
_NEED_ALL_OF_THE_LOG = (rules.REPLICA_NOT_REGISTERED,)
"""One that begins with a checkpoint creates partitions whose brokers have gone since."""

_ONLY_KAFKA = (
    rules.ELIGIBLE_IN_ISR,
    rules.DIRECTORY_NOT_REGISTERED,
    rules.TRANSACTION_OUT_OF_PLACE,
    rules.ZK_MIGRATION_WENT_BACK,
    rules.PRODUCER_IDS_OVERLAP,
)

NOT_OF_ORIGIN: Mapping[str, frozenset[Rule]] = {
    "": frozenset(_ONLY_KAFKA),
    "kafka": frozenset(
        {
            *_NEED_A_PROPOSER,
            *_NEED_PROGRESS,
            *_NEED_HOSTNAMES,
            *_NEED_WRITERS,
            *_NEED_ALL_OF_THE_LOG,
        }
    ),
}
"""Rules that do not apply, by the manifest's ``origin``, which is empty for raftlog's own log."""


def choose(names: Collection[str], origin: str = "") -> tuple[Rule, ...]:
    """Return the rules of these ids; all that judge a log of this origin if there are none.

    Raises ReplayError for an id that is none.
    """
    wanted = {name.strip().upper().replace("-", "_") for name in names}
    unknown = sorted(wanted - {rule.id for rule in RULES})
    if unknown:
        raise ReplayError(
            f"there is no rule {', '.join(unknown)}: there are"
            f" {', '.join(rule.id for rule in RULES)}"
        )
    if not wanted:
        return tuple(rule for rule in RULES if rule not in NOT_OF_ORIGIN.get(origin, ()))
    return tuple(rule for rule in RULES if rule.id in wanted)
