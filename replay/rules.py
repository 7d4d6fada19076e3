"""The audit rules as a table: id, severity, module, record types examined, origins judged, and the
offence in a sentence.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from raftlog.metadata.records import RecordType
from replay.errors import ReplayError

CRITICAL = "critical"
"""The offence may lose acknowledged writes, or make brokers give different answers."""
ERROR = "error"
"""A rule was broken, but the offence alone loses nothing."""
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
"""Origins of the logs that a rule judges, as named in the manifest; "" is raftlog itself. Kafka's
logs record no proposers, progress, hostnames or writers, and a log that begins with a checkpoint
may create partitions on brokers that are gone.
"""


class Rule(msgspec.Struct, frozen=True):
    """An audit rule.

    ``family``: the module of :mod:`replay.kernels.rules` that judges it. ``looks_at``: the record
    types it examines. ``origins``: the logs it judges.
    """

    id: str
    severity: str
    family: str
    looks_at: tuple[RecordType, ...]
    origins: frozenset[str]
    title: str

    @property
    def documentation(self) -> str:
        """Link to the rule's section in the documentation."""
        return f"{DOCUMENTATION}#{self.id.lower()}"


# fmt: off
STALE_BROKER_EPOCH = Rule(
    "STALE_BROKER_EPOCH", CRITICAL, "members", _CHANGES, OWN,
    "a replica entered an ISR under a broker epoch that was not its registration's",
)
UNKNOWN_BROKER_EPOCH = Rule(
    "UNKNOWN_BROKER_EPOCH", ERROR, "members", _CHANGES, OWN,
    "a replica entered an ISR without a broker epoch, although leaders had to send one",
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
    "a broker entered an ISR although no leader had proposed it",
)
ISR_NOT_IN_REPLICAS = Rule(
    "ISR_NOT_IN_REPLICAS", ERROR, "partitions", _PARTITIONS, EVERY,
    "an ISR has a member that is not a replica, or contains one twice",
)
DUPLICATE_REPLICA = Rule(
    "DUPLICATE_REPLICA", ERROR, "partitions", _PARTITIONS, EVERY,
    "a partition has no replica, or contains one twice",
)
REPLICA_NOT_REGISTERED = Rule(
    "REPLICA_NOT_REGISTERED", ERROR, "members", _PARTITIONS, OWN,
    "a broker became a replica while it was not registered",
)
ISR_EMPTY = Rule(
    "ISR_EMPTY", CRITICAL, "partitions", _PARTITIONS, EVERY,
    "an ISR is empty: no replica is known to hold the acknowledged records",
)
LEADER_OUTSIDE_ISR = Rule(
    "LEADER_OUTSIDE_ISR", CRITICAL, "partitions", _PARTITIONS, EVERY,
    "a leader is not in its ISR",
)
UNDECLARED_UNCLEAN_ELECTION = Rule(
    "UNDECLARED_UNCLEAN_ELECTION", CRITICAL, "partitions", _CHANGES, EVERY,
    "a leader was elected from outside the ISR, but the record does not declare it",
)
UNCLEAN_ELECTION_TOO_EARLY = Rule(
    "UNCLEAN_ELECTION_TOO_EARLY", CRITICAL, "members", _CHANGES, EVERY,
    "an unclean leader was elected although an ISR member or eligible replica could have led",
)
INELIGIBLE_LEADER = Rule(
    "INELIGIBLE_LEADER", CRITICAL, "members", _PARTITIONS, EVERY,
    "a broker became leader while it was not registered, fenced or shutting down",
)
INACTIVE_IN_ISR = Rule(
    "INACTIVE_IN_ISR", CRITICAL, "departed", _STANDINGS, EVERY,
    "a broker that was fenced, shut down, replaced or unregistered stayed in an ISR with "
    "others, or stayed leader",
)
LEADER_EPOCH_WENT_BACK = Rule(
    "LEADER_EPOCH_WENT_BACK", CRITICAL, "partitions", _PARTITIONS, EVERY,
    "the leader epoch of a partition decreased",
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
    "an ongoing reassignment does not record the original replicas",
)
RECOVERING_WITH_FOLLOWERS = Rule(
    "RECOVERING_WITH_FOLLOWERS", ERROR, "partitions", _PARTITIONS, EVERY,
    "an unclean leader that had not recovered had others in its ISR",
)
ELIGIBLE_IN_ISR = Rule(
    "ELIGIBLE_IN_ISR", ERROR, "partitions", _PARTITIONS, EVERY,
    "a replica was in the ISR and in the eligible leader replicas at once",
)
ELIGIBLE_NEVER_IN_SYNC = Rule(
    "ELIGIBLE_NEVER_IN_SYNC", CRITICAL, "partitions", _CHANGES, EVERY,
    "a replica became eligible to lead without having been in the ISR or eligible before",
)
UNFOUNDED_RECOVERY = Rule(
    "UNFOUNDED_RECOVERY", CRITICAL, "members", _CHANGES, OWN,
    "an unclean recovery elected a replica although another had more records or had not reported",
)
DIRECTORY_NOT_REGISTERED = Rule(
    "DIRECTORY_NOT_REGISTERED", ERROR, "directories", _PARTITIONS, KAFKAS,
    "a replica is in a directory that its broker has never registered",
)
BROKER_EPOCH_REUSED = Rule(
    "BROKER_EPOCH_REUSED", CRITICAL, "registrations", _REGISTRATIONS, EVERY,
    "a new incarnation was registered under a broker epoch that is not its own",
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
    "the high watermark was lower than before in the same controller epoch",
)
LAO_WENT_BACK = Rule(
    "LAO_WENT_BACK", CRITICAL, "progress", _PROGRESS, OWN,
    "LAO was lower than before",
)
LAO_ABOVE_APPLIED = Rule(
    "LAO_ABOVE_APPLIED", CRITICAL, "progress", _PROGRESS, OWN,
    "LAO was above the applied offset of a broker that was unfenced",
)
LAO_WITHOUT_REPORT = Rule(
    "LAO_WITHOUT_REPORT", CRITICAL, "progress", _PROGRESS, OWN,
    "LAO was known before every unfenced broker had reported in that epoch",
)
APPLIED_BEYOND_LOG = Rule(
    "APPLIED_BEYOND_LOG", CRITICAL, "progress", _PROGRESS, OWN,
    "a broker had applied more than the log holds",
)
APPLIED_WENT_BACK = Rule(
    "APPLIED_WENT_BACK", CRITICAL, "progress", _PROGRESS, OWN,
    "a broker's applied offset decreased under the same registration",
)
HOSTNAME_OF_TWO_IDS = Rule(
    "HOSTNAME_OF_TWO_IDS", ERROR, "registrations", (RecordType.HOSTNAME,), OWN,
    "a hostname was mapped to two broker ids at once",
)
HOSTNAME_NOT_OF_REGISTRATION = Rule(
    "HOSTNAME_NOT_OF_REGISTRATION", ERROR, "registrations", (RecordType.HOSTNAME,), OWN,
    "a registration mapped its host to another broker",
)
TWO_CONTROLLERS_IN_EPOCH = Rule(
    "TWO_CONTROLLERS_IN_EPOCH", CRITICAL, "quorum", (RecordType.LEADER_CHANGE,), EVERY,
    "a controller epoch was started twice",
)
CONTROLLER_EPOCH_WENT_BACK = Rule(
    "CONTROLLER_EPOCH_WENT_BACK", CRITICAL, "quorum", _ALL, EVERY,
    "a record of an earlier controller epoch follows one of a later epoch",
)
EPOCH_WITHOUT_CONTROLLER = Rule(
    "EPOCH_WITHOUT_CONTROLLER", ERROR, "quorum", _ALL, EVERY,
    "a controller epoch does not begin with the record of its election",
)
VOTERS_REPLACED_WHOLESALE = Rule(
    "VOTERS_REPLACED_WHOLESALE", CRITICAL, "quorum", (RecordType.VOTERS,), EVERY,
    "the voter set changed by more than one voter at once",
)
FEATURE_LEVEL_NOT_SUPPORTED = Rule(
    "FEATURE_LEVEL_NOT_SUPPORTED", ERROR, "registrations", _FEATURES, EVERY,
    "a feature had a level that a registered broker or controller does not support",
)
TRANSACTION_OUT_OF_PLACE = Rule(
    "TRANSACTION_OUT_OF_PLACE", ERROR, "kafka", _IMPORTED, KAFKAS,
    "a transaction of Kafka's metadata log began inside another one, or ended without having begun",
)
ZK_MIGRATION_WENT_BACK = Rule(
    "ZK_MIGRATION_WENT_BACK", ERROR, "kafka", _IMPORTED, KAFKAS,
    "the migration from ZooKeeper went back to an earlier state",
)
PRODUCER_IDS_OVERLAP = Rule(
    "PRODUCER_IDS_OVERLAP", CRITICAL, "kafka", _IMPORTED, KAFKAS,
    "a block of producer ids was allocated twice, in whole or in part",
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
    "a config was written for a topic that did not exist",
)
WRITE_WITHOUT_RIGHT = Rule(
    "WRITE_WITHOUT_RIGHT", ERROR, "rights", _BY_CLIENTS, OWN,
    "a principal wrote something that the access control entries did not allow at that time",
)
# fmt: on

RULES: tuple[Rule, ...] = tuple(each for each in globals().values() if isinstance(each, Rule))
"""All rules, in the order above."""


def choose(names: Collection[str], origin: str = "") -> tuple[Rule, ...]:
    """Return the rules with these ids, or all that judge a log of this origin if no id is given.

    Raises ReplayError for an unknown id.
    """
    wanted = {name.strip().upper().replace("-", "_") for name in names}
    unknown = sorted(wanted - {rule.id for rule in RULES})
    if unknown:
        raise ReplayError(
            f"unknown rules: {', '.join(unknown)}; the rules are"
            f" {', '.join(rule.id for rule in RULES)}"
        )
    if not wanted:
        return tuple(rule for rule in RULES if origin in rule.origins)
    return tuple(rule for rule in RULES if rule.id in wanted)
