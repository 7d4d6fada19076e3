"""The rules by name: severity, the offence in a sentence, and the examined record types."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from raftlog.metadata.records import RecordType
from replay.errors import ReplayError

CRITICAL = "critical"
"""Acknowledged writes may be lost by it, or brokers may answer differently."""
ERROR = "error"
"""A rule is broken; by itself it loses nothing."""
DOCUMENTATION = "docs/audit.md"

_PARTITIONS = (RecordType.PARTITION, RecordType.PARTITION_CHANGE)
_IMPORTED = (RecordType.IMPORTED,)
_CHANGES = (RecordType.PARTITION_CHANGE,)
_REGISTRATIONS = (RecordType.REGISTER_BROKER,)
_STANDINGS = (
    RecordType.REGISTER_BROKER,
    RecordType.UNREGISTER_BROKER,
    RecordType.BROKER_REGISTRATION_CHANGE,
)

_BY_CLIENTS = (
    RecordType.UNREGISTER_BROKER,
    RecordType.TOPIC,
    RecordType.PARTITION,
    RecordType.PARTITION_CHANGE,
    RecordType.REMOVE_TOPIC,
    RecordType.CONFIG,
    RecordType.FEATURE_LEVEL,
    RecordType.HOSTNAME,
    RecordType.EXPORT_CURSOR,
    RecordType.KEY_VALUE,
    RecordType.LEASE,
    RecordType.OPEN_CLIENT,
    RecordType.ACCESS_CONTROL_ENTRY,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
)


class Rule(msgspec.Struct, frozen=True):
    """A rule of the audit. ``looks_at``: the types of the records that it judges."""

    id: str
    severity: str
    title: str
    looks_at: tuple[RecordType, ...]

    @property
    def documentation(self) -> str:
        """Address of the rule's explanation."""
        return f"{DOCUMENTATION}#{self.id.lower()}"


STALE_BROKER_EPOCH = Rule(
    "STALE_BROKER_EPOCH",
    CRITICAL,
    "a replica entered an ISR under a broker epoch that was not its registration's",
    _CHANGES,
)
UNKNOWN_BROKER_EPOCH = Rule(
    "UNKNOWN_BROKER_EPOCH",
    ERROR,
    "a replica entered an ISR without a broker epoch, where every leader names them",
    _CHANGES,
)
BROKER_NOT_REGISTERED = Rule(
    "BROKER_NOT_REGISTERED",
    CRITICAL,
    "a broker entered an ISR while it was not registered",
    _PARTITIONS,
)
INELIGIBLE_ISR_MEMBER = Rule(
    "INELIGIBLE_ISR_MEMBER",
    CRITICAL,
    "a broker entered an ISR while it was fenced or shutting down",
    _PARTITIONS,
)
STALE_PROPOSER_EPOCH = Rule(
    "STALE_PROPOSER_EPOCH",
    CRITICAL,
    "an ISR was changed by a broker under an epoch that was not its registration's",
    _CHANGES,
)
PROPOSER_NOT_LEADER = Rule(
    "PROPOSER_NOT_LEADER",
    CRITICAL,
    "an ISR was changed by a broker that did not lead the partition",
    _CHANGES,
)
ISR_GREW_UNPROPOSED = Rule(
    "ISR_GREW_UNPROPOSED",
    CRITICAL,
    "a broker entered an ISR, and no leader had proposed it",
    _CHANGES,
)
ISR_NOT_IN_REPLICAS = Rule(
    "ISR_NOT_IN_REPLICAS",
    ERROR,
    "an ISR has a member that is no replica, or names one twice",
    _PARTITIONS,
)
DUPLICATE_REPLICA = Rule(
    "DUPLICATE_REPLICA",
    ERROR,
    "a partition has no replica, or names one twice",
    _PARTITIONS,
)
REPLICA_NOT_REGISTERED = Rule(
    "REPLICA_NOT_REGISTERED",
    ERROR,
    "a broker became a replica while it was not registered",
    _PARTITIONS,
)
ISR_EMPTY = Rule(
    "ISR_EMPTY",
    CRITICAL,
    "an ISR is empty: nobody is known to hold what was acknowledged",
    _PARTITIONS,
)
LEADER_OUTSIDE_ISR = Rule("LEADER_OUTSIDE_ISR", CRITICAL, "a leader is not in its ISR", _PARTITIONS)
UNDECLARED_UNCLEAN_ELECTION = Rule(
    "UNDECLARED_UNCLEAN_ELECTION",
    CRITICAL,
    "a leader came from outside the ISR, and the record does not say so",
    _CHANGES,
)
UNCLEAN_ELECTION_TOO_EARLY = Rule(
    "UNCLEAN_ELECTION_TOO_EARLY",
    CRITICAL,
    "an unclean leader was elected while one of the ISR, or an eligible replica, could have led",
    _CHANGES,
)
INELIGIBLE_LEADER = Rule(
    "INELIGIBLE_LEADER",
    CRITICAL,
    "a broker became leader while it was not registered, fenced or shutting down",
    _PARTITIONS,
)
INACTIVE_IN_ISR = Rule(
    "INACTIVE_IN_ISR",
    CRITICAL,
    "a broker that was fenced, shut down, replaced or unregistered stayed in an ISR with others, or"
    " led on",
    _STANDINGS,
)
LEADER_EPOCH_WENT_BACK = Rule(
    "LEADER_EPOCH_WENT_BACK", CRITICAL, "the leader epoch of a partition went back", _PARTITIONS
)
PARTITION_EPOCH_WENT_BACK = Rule(
    "PARTITION_EPOCH_WENT_BACK",
    CRITICAL,
    "the partition epoch of a partition did not grow",
    _PARTITIONS,
)
REASSIGNMENT_INCOMPLETE = Rule(
    "REASSIGNMENT_INCOMPLETE",
    CRITICAL,
    "a reassignment ended before the replicas that it added were in the ISR",
    _CHANGES,
)
REASSIGNMENT_LOST_ORIGINAL = Rule(
    "REASSIGNMENT_LOST_ORIGINAL",
    ERROR,
    "a reassignment under way does not say which replicas there were at first",
    _CHANGES,
)
RECOVERING_WITH_FOLLOWERS = Rule(
    "RECOVERING_WITH_FOLLOWERS",
    ERROR,
    "an unclean leader that had not recovered had others in its ISR",
    _PARTITIONS,
)
ELIGIBLE_IN_ISR = Rule(
    "ELIGIBLE_IN_ISR",
    ERROR,
    "a replica was eligible to lead outside the ISR, and in it",
    _PARTITIONS,
)
ELIGIBLE_NEVER_IN_SYNC = Rule(
    "ELIGIBLE_NEVER_IN_SYNC",
    CRITICAL,
    "a replica became eligible to lead that had been neither in the ISR nor eligible",
    _CHANGES,
)
UNFOUNDED_RECOVERY = Rule(
    "UNFOUNDED_RECOVERY",
    CRITICAL,
    "an unclean recovery elected a replica although another had more, or was not waited for",
    _CHANGES,
)
DIRECTORY_NOT_REGISTERED = Rule(
    "DIRECTORY_NOT_REGISTERED",
    ERROR,
    "a replica is in a directory that its broker has never registered",
    _PARTITIONS,
)
BROKER_EPOCH_REUSED = Rule(
    "BROKER_EPOCH_REUSED",
    CRITICAL,
    "another incarnation was registered under an epoch that is not its own",
    _REGISTRATIONS,
)
REGISTERED_UNFENCED = Rule(
    "REGISTERED_UNFENCED", ERROR, "a new registration was not fenced at first", _REGISTRATIONS
)
LAO_NOT_BELOW_HIGH_WATERMARK = Rule(
    "LAO_NOT_BELOW_HIGH_WATERMARK",
    CRITICAL,
    "LAO was at or above the high watermark",
    (RecordType.PROGRESS,),
)
HIGH_WATERMARK_BEYOND_LOG = Rule(
    "HIGH_WATERMARK_BEYOND_LOG",
    CRITICAL,
    "the high watermark was above the end of the log",
    (RecordType.PROGRESS,),
)
HIGH_WATERMARK_WENT_BACK = Rule(
    "HIGH_WATERMARK_WENT_BACK",
    CRITICAL,
    "the high watermark was lower than it had been before in its controller epoch",
    (RecordType.PROGRESS,),
)
LAO_WENT_BACK = Rule(
    "LAO_WENT_BACK", CRITICAL, "LAO was lower than it had been before", (RecordType.PROGRESS,)
)
LAO_ABOVE_APPLIED = Rule(
    "LAO_ABOVE_APPLIED",
    CRITICAL,
    "LAO was above what a broker that was unfenced then had applied",
    (RecordType.PROGRESS,),
)
LAO_WITHOUT_REPORT = Rule(
    "LAO_WITHOUT_REPORT",
    CRITICAL,
    "LAO was known before an unfenced broker had reported in that epoch",
    (RecordType.PROGRESS,),
)
APPLIED_BEYOND_LOG = Rule(
    "APPLIED_BEYOND_LOG",
    CRITICAL,
    "a broker had applied more than the log holds",
    (RecordType.PROGRESS,),
)
APPLIED_WENT_BACK = Rule(
    "APPLIED_WENT_BACK",
    CRITICAL,
    "what a broker had applied was less than it had been before, under one registration",
    (RecordType.PROGRESS,),
)
HOSTNAME_OF_TWO_IDS = Rule(
    "HOSTNAME_OF_TWO_IDS",
    ERROR,
    "a hostname was mapped to two broker ids at a time",
    (RecordType.HOSTNAME,),
)
HOSTNAME_NOT_OF_REGISTRATION = Rule(
    "HOSTNAME_NOT_OF_REGISTRATION",
    ERROR,
    "a registration mapped its host to another broker",
    (RecordType.HOSTNAME,),
)
TWO_CONTROLLERS_IN_EPOCH = Rule(
    "TWO_CONTROLLERS_IN_EPOCH",
    CRITICAL,
    "a controller epoch was begun twice",
    (RecordType.LEADER_CHANGE,),
)
CONTROLLER_EPOCH_WENT_BACK = Rule(
    "CONTROLLER_EPOCH_WENT_BACK",
    CRITICAL,
    "a record of an earlier controller epoch stands behind one of a later",
    tuple(RecordType),
)
EPOCH_WITHOUT_CONTROLLER = Rule(
    "EPOCH_WITHOUT_CONTROLLER",
    ERROR,
    "a controller epoch does not begin with the record of its election",
    tuple(RecordType),
)
VOTERS_REPLACED_WHOLESALE = Rule(
    "VOTERS_REPLACED_WHOLESALE",
    CRITICAL,
    "the voter set changed by more than one voter at a time",
    (RecordType.VOTERS,),
)
FEATURE_LEVEL_NOT_SUPPORTED = Rule(
    "FEATURE_LEVEL_NOT_SUPPORTED",
    ERROR,
    "the level of a feature was one that a registered broker or controller does not support",
    (RecordType.FEATURE_LEVEL, RecordType.REGISTER_BROKER, RecordType.IMPORTED),
)
TRANSACTION_OUT_OF_PLACE = Rule(
    "TRANSACTION_OUT_OF_PLACE",
    ERROR,
    "a transaction of Kafka's metadata log began within another, or ended without a beginning",
    _IMPORTED,
)
ZK_MIGRATION_WENT_BACK = Rule(
    "ZK_MIGRATION_WENT_BACK",
    ERROR,
    "the migration from ZooKeeper went back to an earlier state",
    _IMPORTED,
)
PRODUCER_IDS_OVERLAP = Rule(
    "PRODUCER_IDS_OVERLAP",
    CRITICAL,
    "a block of producer ids was given away twice, or a part of it",
    _IMPORTED,
)
NUMBER_EXECUTED_TWICE = Rule(
    "NUMBER_EXECUTED_TWICE",
    CRITICAL,
    "a numbered write of a client was executed twice",
    tuple(RecordType),
)
CLOSED_CLIENT_WROTE = Rule(
    "CLOSED_CLIENT_WROTE",
    ERROR,
    "a numbered write was executed after its client was closed",
    tuple(RecordType),
)
CONFIG_OF_UNKNOWN_TOPIC = Rule(
    "CONFIG_OF_UNKNOWN_TOPIC",
    ERROR,
    "a config was written of a topic that was not there",
    (RecordType.CONFIG,),
)
WRITE_WITHOUT_RIGHT = Rule(
    "WRITE_WITHOUT_RIGHT",
    ERROR,
    "somebody wrote who had no right to it, by the access control entries of that moment",
    _BY_CLIENTS,
)

RULES: tuple[Rule, ...] = tuple(each for each in globals().values() if isinstance(each, Rule))
"""All rules, in the order above."""


_NEED_A_PROPOSER = (
    STALE_BROKER_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    STALE_PROPOSER_EPOCH,
    PROPOSER_NOT_LEADER,
    ISR_GREW_UNPROPOSED,
)
_NEED_PROGRESS = (
    LAO_NOT_BELOW_HIGH_WATERMARK,
    HIGH_WATERMARK_BEYOND_LOG,
    HIGH_WATERMARK_WENT_BACK,
    LAO_WENT_BACK,
    LAO_ABOVE_APPLIED,
    LAO_WITHOUT_REPORT,
    APPLIED_BEYOND_LOG,
    APPLIED_WENT_BACK,
)
_NEED_HOSTNAMES = (HOSTNAME_OF_TWO_IDS, HOSTNAME_NOT_OF_REGISTRATION)
_NEED_WRITERS = (
    NUMBER_EXECUTED_TWICE,
    CLOSED_CLIENT_WROTE,
    WRITE_WITHOUT_RIGHT,
)
_NEED_ALL_OF_THE_LOG = (REPLICA_NOT_REGISTERED,)
"""One that begins with a checkpoint creates partitions whose brokers have gone since."""

_ONLY_KAFKA = (
    DIRECTORY_NOT_REGISTERED,
    TRANSACTION_OUT_OF_PLACE,
    ZK_MIGRATION_WENT_BACK,
    PRODUCER_IDS_OVERLAP,
)

NOT_OF_ORIGIN: Mapping[str, frozenset[Rule]] = {
    "": frozenset(_ONLY_KAFKA),
    "kafka": frozenset(
        {
            *_NEED_A_PROPOSER,
            UNFOUNDED_RECOVERY,
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
