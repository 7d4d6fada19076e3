"""The rules of the audit, as a table: id, severity, family, examined record types, the logs that
they judge, and the offence in a sentence.
"""

from __future__ import annotations

from collections.abc import Collection

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
_FEATURES = (RecordType.FEATURE_LEVEL, RecordType.REGISTER_BROKER, RecordType.IMPORTED)
_PROGRESS = (RecordType.PROGRESS,)
_ALL = tuple(RecordType)

OWN, KAFKAS, EVERY = frozenset({""}), frozenset({"kafka"}), frozenset({"", "kafka"})
"""The origins of the logs that a rule judges, as the manifest names them: raftlog's own is empty.
Kafka's log names neither proposers, progress, hostnames nor writers; and a log that begins with a
checkpoint creates partitions whose brokers have gone since.
"""


class Rule(msgspec.Struct, frozen=True):
    """A rule of the audit.

    ``family``: the module of :mod:`replay.kernels.rules` that judges it; ``looks_at``: the types of
    the records that it judges; ``origins``: of the logs that it judges.
    """

    id: str
    severity: str
    family: str
    looks_at: tuple[RecordType, ...]
    origins: frozenset[str]
    title: str

    @property
    def documentation(self) -> str:
        """Address of the rule's explanation."""
        return f"{DOCUMENTATION}#{self.id.lower()}"


# fmt: off
STALE_BROKER_EPOCH = Rule(
    "STALE_BROKER_EPOCH", CRITICAL, "members", _CHANGES, OWN,
    "a replica entered an ISR under a broker epoch that was not its registration's",
)
UNKNOWN_BROKER_EPOCH = Rule(
    "UNKNOWN_BROKER_EPOCH", ERROR, "members", _CHANGES, OWN,
    "a replica entered an ISR without a broker epoch, where every leader names them",
)
BROKER_NOT_REGISTERED = Rule(
    "BROKER_NOT_REGISTERED", CRITICAL, "members", _PARTITIONS, EVERY,
    "a broker entered an ISR while it was not registered",
)
INELIGIBLE_ISR_MEMBER = Rule(
    "INELIGIBLE_ISR_MEMBER", CRITICAL, "members", _PARTITIONS, EVERY,
    "a broker entered an ISR while it was fenced or shutting down",
)
STALE_PROPOSER_EPOCH = Rule(
    "STALE_PROPOSER_EPOCH", CRITICAL, "members", _CHANGES, OWN,
    "an ISR was changed by a broker under an epoch that was not its registration's",
)
PROPOSER_NOT_LEADER = Rule(
    "PROPOSER_NOT_LEADER", CRITICAL, "partitions", _CHANGES, OWN,
    "an ISR was changed by a broker that did not lead the partition",
)
ISR_GREW_UNPROPOSED = Rule(
    "ISR_GREW_UNPROPOSED", CRITICAL, "partitions", _CHANGES, OWN,
    "a broker entered an ISR, and no leader had proposed it",
)
ISR_NOT_IN_REPLICAS = Rule(
    "ISR_NOT_IN_REPLICAS", ERROR, "partitions", _PARTITIONS, EVERY,
    "an ISR has a member that is not a replica, or names one twice",
)
DUPLICATE_REPLICA = Rule(
    "DUPLICATE_REPLICA", ERROR, "partitions", _PARTITIONS, EVERY,
    "a partition has no replica, or names one twice",
)
REPLICA_NOT_REGISTERED = Rule(
    "REPLICA_NOT_REGISTERED", ERROR, "members", _PARTITIONS, OWN,
    "a broker became a replica while it was not registered",
)
ISR_EMPTY = Rule(
    "ISR_EMPTY", CRITICAL, "partitions", _PARTITIONS, EVERY,
    "an ISR is empty: nobody is known to hold what was acknowledged",
)
LEADER_OUTSIDE_ISR = Rule(
    "LEADER_OUTSIDE_ISR", CRITICAL, "partitions", _PARTITIONS, EVERY,
    "a leader is not in its ISR",
)
UNDECLARED_UNCLEAN_ELECTION = Rule(
    "UNDECLARED_UNCLEAN_ELECTION", CRITICAL, "partitions", _CHANGES, EVERY,
    "a leader came from outside the ISR, and the record does not say so",
)
UNCLEAN_ELECTION_TOO_EARLY = Rule(
    "UNCLEAN_ELECTION_TOO_EARLY", CRITICAL, "members", _CHANGES, EVERY,
    "an unclean leader was elected while one of the ISR, or an eligible replica, could have led",
)
INELIGIBLE_LEADER = Rule(
    "INELIGIBLE_LEADER", CRITICAL, "members", _PARTITIONS, EVERY,
    "a broker became leader while it was not registered, fenced or shutting down",
)
INACTIVE_IN_ISR = Rule(
    "INACTIVE_IN_ISR", CRITICAL, "departed", _STANDINGS, EVERY,
    "a broker that was fenced, shut down, replaced or unregistered stayed in an ISR with "
    "others, or led on",
)
LEADER_EPOCH_WENT_BACK = Rule(
    "LEADER_EPOCH_WENT_BACK", CRITICAL, "partitions", _PARTITIONS, EVERY,
    "the leader epoch of a partition went back",
)
PARTITION_EPOCH_WENT_BACK = Rule(
    "PARTITION_EPOCH_WENT_BACK", CRITICAL, "partitions", _PARTITIONS, EVERY,
    "the partition epoch of a partition did not grow",
)
REASSIGNMENT_INCOMPLETE = Rule(
    "REASSIGNMENT_INCOMPLETE", CRITICAL, "partitions", _CHANGES, EVERY,
    "a reassignment ended before the replicas that it added were in the ISR",
)
REASSIGNMENT_LOST_ORIGINAL = Rule(
    "REASSIGNMENT_LOST_ORIGINAL", ERROR, "partitions", _CHANGES, EVERY,
    "a reassignment under way does not say which replicas there were at first",
)
RECOVERING_WITH_FOLLOWERS = Rule(
    "RECOVERING_WITH_FOLLOWERS", ERROR, "partitions", _PARTITIONS, EVERY,
    "an unclean leader that had not recovered had others in its ISR",
)
ELIGIBLE_IN_ISR = Rule(
    "ELIGIBLE_IN_ISR", ERROR, "partitions", _PARTITIONS, EVERY,
    "a replica was eligible to lead outside the ISR, and in it",
)
ELIGIBLE_NEVER_IN_SYNC = Rule(
    "ELIGIBLE_NEVER_IN_SYNC", CRITICAL, "partitions", _CHANGES, EVERY,
    "a replica became eligible to lead that had been neither in the ISR nor eligible",
)
UNFOUNDED_RECOVERY = Rule(
    "UNFOUNDED_RECOVERY", CRITICAL, "members", _CHANGES, OWN,
    "an unclean recovery elected a replica although another had more, or was not waited for",
)
DIRECTORY_NOT_REGISTERED = Rule(
    "DIRECTORY_NOT_REGISTERED", ERROR, "directories", _PARTITIONS, KAFKAS,
    "a replica is in a directory that its broker has never registered",
)
BROKER_EPOCH_REUSED = Rule(
    "BROKER_EPOCH_REUSED", CRITICAL, "registrations", _REGISTRATIONS, EVERY,
    "another incarnation was registered under an epoch that is not its own",
)
REGISTERED_UNFENCED = Rule(
    "REGISTERED_UNFENCED", ERROR, "registrations", _REGISTRATIONS, EVERY,
    "a new registration was not fenced at first",
)
LAO_NOT_BELOW_HIGH_WATERMARK = Rule(
    "LAO_NOT_BELOW_HIGH_WATERMARK", CRITICAL, "progress", _PROGRESS, OWN,
    "LAO was at or above the high watermark",
)
HIGH_WATERMARK_BEYOND_LOG = Rule(
    "HIGH_WATERMARK_BEYOND_LOG", CRITICAL, "progress", _PROGRESS, OWN,
    "the high watermark was above the end of the log",
)
HIGH_WATERMARK_WENT_BACK = Rule(
    "HIGH_WATERMARK_WENT_BACK", CRITICAL, "progress", _PROGRESS, OWN,
    "the high watermark was lower than it had been before in its controller epoch",
)
LAO_WENT_BACK = Rule(
    "LAO_WENT_BACK", CRITICAL, "progress", _PROGRESS, OWN,
    "LAO was lower than it had been before",
)
LAO_ABOVE_APPLIED = Rule(
    "LAO_ABOVE_APPLIED", CRITICAL, "progress", _PROGRESS, OWN,
    "LAO was above what a broker that was unfenced then had applied",
)
LAO_WITHOUT_REPORT = Rule(
    "LAO_WITHOUT_REPORT", CRITICAL, "progress", _PROGRESS, OWN,
    "LAO was known before an unfenced broker had reported in that epoch",
)
APPLIED_BEYOND_LOG = Rule(
    "APPLIED_BEYOND_LOG", CRITICAL, "progress", _PROGRESS, OWN,
    "a broker had applied more than the log holds",
)
APPLIED_WENT_BACK = Rule(
    "APPLIED_WENT_BACK", CRITICAL, "progress", _PROGRESS, OWN,
    "what a broker had applied was less than it had been before, under one registration",
)
HOSTNAME_OF_TWO_IDS = Rule(
    "HOSTNAME_OF_TWO_IDS", ERROR, "registrations", (RecordType.HOSTNAME,), OWN,
    "a hostname was mapped to two broker ids at a time",
)
HOSTNAME_NOT_OF_REGISTRATION = Rule(
    "HOSTNAME_NOT_OF_REGISTRATION", ERROR, "registrations", (RecordType.HOSTNAME,), OWN,
    "a registration mapped its host to another broker",
)
TWO_CONTROLLERS_IN_EPOCH = Rule(
    "TWO_CONTROLLERS_IN_EPOCH", CRITICAL, "quorum", (RecordType.LEADER_CHANGE,), EVERY,
    "a controller epoch was begun twice",
)
CONTROLLER_EPOCH_WENT_BACK = Rule(
    "CONTROLLER_EPOCH_WENT_BACK", CRITICAL, "quorum", _ALL, EVERY,
    "a record of an earlier controller epoch stands after one of a later",
)
EPOCH_WITHOUT_CONTROLLER = Rule(
    "EPOCH_WITHOUT_CONTROLLER", ERROR, "quorum", _ALL, EVERY,
    "a controller epoch does not begin with the record of its election",
)
VOTERS_REPLACED_WHOLESALE = Rule(
    "VOTERS_REPLACED_WHOLESALE", CRITICAL, "quorum", (RecordType.VOTERS,), EVERY,
    "the voter set changed by more than one voter at a time",
)
FEATURE_LEVEL_NOT_SUPPORTED = Rule(
    "FEATURE_LEVEL_NOT_SUPPORTED", ERROR, "registrations", _FEATURES, EVERY,
    "the level of a feature was one that a registered broker or controller does not support",
)
TRANSACTION_OUT_OF_PLACE = Rule(
    "TRANSACTION_OUT_OF_PLACE", ERROR, "kafka", _IMPORTED, KAFKAS,
    "a transaction of Kafka's metadata log began within another, or ended without a beginning",
)
ZK_MIGRATION_WENT_BACK = Rule(
    "ZK_MIGRATION_WENT_BACK", ERROR, "kafka", _IMPORTED, KAFKAS,
    "the migration from ZooKeeper went back to an earlier state",
)
PRODUCER_IDS_OVERLAP = Rule(
    "PRODUCER_IDS_OVERLAP", CRITICAL, "kafka", _IMPORTED, KAFKAS,
    "a block of producer ids was given away twice, or a part of it",
)
NUMBER_EXECUTED_TWICE = Rule(
    "NUMBER_EXECUTED_TWICE", CRITICAL, "clients", _ALL, OWN,
    "a numbered write of a client was executed twice",
)
CLOSED_CLIENT_WROTE = Rule(
    "CLOSED_CLIENT_WROTE", ERROR, "clients", _ALL, OWN,
    "a numbered write was executed after its client was closed",
)
CONFIG_OF_UNKNOWN_TOPIC = Rule(
    "CONFIG_OF_UNKNOWN_TOPIC", ERROR, "configs", (RecordType.CONFIG,), EVERY,
    "a config was written of a topic that was not there",
)
WRITE_WITHOUT_RIGHT = Rule(
    "WRITE_WITHOUT_RIGHT", ERROR, "rights", _BY_CLIENTS, OWN,
    "somebody wrote who had no right to it, by the access control entries of that moment",
)
# fmt: on

RULES: tuple[Rule, ...] = tuple(each for each in globals().values() if isinstance(each, Rule))
"""All rules, in the order above."""


def of_family(family: str) -> tuple[Rule, ...]:
    """Return the rules that a module of :mod:`replay.kernels.rules` judges."""
    return tuple(rule for rule in RULES if rule.family == family)


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
        return tuple(rule for rule in RULES if origin in rule.origins)
    return tuple(rule for rule in RULES if rule.id in wanted)
