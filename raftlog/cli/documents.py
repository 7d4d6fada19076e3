"""The types of what each command prints with ``--json``, declared once.

The reference of the site and its JSON Schema (scripts/reference_pages/json_documents.py) are made
from these types, and ``tests/cli/test_json_documents.py`` checks the commands' output against them.
Commands do not import this module when they run.

Every document is an object with all its keys, also where there is nothing to list. Bytes are in
hex, times in milliseconds since 1970, unless the name says otherwise. ``offset`` beside a list is
that of the metadata shown; in a row it is what the row says it is.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypedDict

Reached = Literal["none", "committed", "acknowledged", "visible"]
Json = Any
"""An entity as JSON; null: it is not there."""


class Write(TypedDict):
    """Where a write is in the log."""

    offset: int
    """Offset of the write's last record."""
    epoch: int
    generation: int
    """The generation of the log."""
    reached: Reached
    """The level of --acks that it reached in time."""
    waiting_for_brokers: list[int]
    """Brokers that lack it, if the level that was asked for is not reached."""


class Written(TypedDict):
    """The end of a change."""

    write: Write | None
    """Null: nothing was written."""


# --- Start ----------------------------------------------------------------------------------


class LocalNode(TypedDict):
    """A node of a local cluster."""

    name: str
    id: int
    role: Literal["controller", "broker"]
    endpoint: str
    http: str
    pid: int | None
    """Null: it does not run."""


class LocalCluster(TypedDict):
    """A cluster on this machine."""

    cluster_id: str
    directory: str
    bootstrap_servers: str
    bootstrap_controllers: str
    console: str
    nodes: list[LocalNode]


class LocalNodeStatus(LocalNode):
    """A node, and what it says."""

    ready: bool
    reason: str


class LocalStatus(TypedDict):
    """A cluster on this machine, and what its nodes say."""

    cluster_id: str
    directory: str
    bootstrap_servers: str
    bootstrap_controllers: str
    console: str
    nodes: list[LocalNodeStatus]


# --- Data -----------------------------------------------------------------------------------


class TopicResult(TypedDict):
    """The result for one topic."""

    name: str
    topic_id: str | None
    error: str | None
    """The name of the error code."""
    message: str | None


class TopicsChanged(Written):
    """Each topic by itself, in the order given."""

    topics: list[TopicResult]


class ListedTopic(TypedDict):
    """A topic."""

    name: str
    topic_id: str
    partitions: int
    """How many it has."""


class TopicList(TypedDict):
    """All topics, by name."""

    offset: int
    topics: list[ListedTopic]


class DescribedPartition(TypedDict):
    """A partition of a topic."""

    topic: str
    partition: int
    leader_id: int | None
    leader_epoch: int
    replicas: list[int]
    """Broker ids, the preferred leader first."""
    offline_replicas: list[int]
    not_served: str | None
    """Why it cannot be used now."""


class TopicDescriptions(TypedDict):
    """The partitions of the topics given."""

    offset: int
    partitions: list[DescribedPartition]
    missing: list[str]
    """Topics that are not there: the exit code is 1."""


class ConfigsAltered(Written):
    """The resource whose configs were changed."""

    resource_type: str
    resource_name: str


class DescribedConfig(TypedDict):
    """One key."""

    name: str
    value: str
    source: str
    """The source of the value: default, dynamic topic, …"""
    without_effect: str | None
    """Why the value changes nothing in this build."""


class ConfigDescriptions(TypedDict):
    """Every key of the resource, or those given."""

    offset: int
    configs: list[DescribedConfig]


class ProducedRecord(TypedDict):
    """Where a record was written."""

    topic: str
    partition: int
    offset: int
    """In the partition."""


class RecordHeader(TypedDict):
    """A header of a record."""

    key: str
    value: str | None
    value_base64: str | None


class ConsumedRecord(TypedDict):
    """A record of a topic. Text is in ``value`` if it is UTF-8, else ``value_base64`` has it."""

    topic: str
    partition: int
    offset: int
    """In the partition."""
    leader_epoch: int
    timestamp_ms: int
    key: str | None
    key_base64: str | None
    value: str | None
    value_base64: str | None
    headers: list[RecordHeader]


class KeyValue(TypedDict):
    """A key of the key-value store."""

    key: str
    value: str | None
    """The value, if it is UTF-8."""
    value_base64: str | None
    """Else this is it."""
    offset: int
    """Where it was last put: what --expected-offset compares."""
    create_offset: int
    lease_id: int | None


class KeyValueFound(TypedDict):
    """One key."""

    offset: int
    key_value: KeyValue | None
    """Null: it is not there, and the exit code is 1."""


class KeyValueList(TypedDict):
    """Keys by name. ``offset``: of the last part of the answer; none is newer."""

    offset: int
    key_values: list[KeyValue]


class KeysAltered(Written):
    """The offset of each key by its name."""

    keys: dict[str, int | None]
    """Null: it is deleted."""


class ListedLease(TypedDict):
    """A lease."""

    id: int
    ttl_ms: int
    remaining_ms: int
    keys: int
    """How many keys go with it."""
    name: str | None
    principal: str | None


class LeaseList(TypedDict):
    """All leases, by id."""

    offset: int
    leases: list[ListedLease]


class LeaseGranted(Written):
    """A new lease."""

    id: int
    ttl_ms: int


class LeaseRevoked(Written):
    """A lease that has ended."""

    id: int


class WatchedChange(TypedDict):
    """A change of one entity."""

    token: str
    """``watch --since`` with it continues behind this change."""
    offset: int
    epoch: int
    timestamp_ms: int
    principal: str | None
    kind: str
    key: str
    path: str
    initial: bool
    """It was there when the watch began."""
    before: Json
    after: Json


# --- Cluster --------------------------------------------------------------------------------


class ClusterBroker(TypedDict):
    """A broker as a broker shows it."""

    broker_id: int
    endpoint: str
    rack: str | None
    broker_epoch: int
    version: str | None
    """The build; null: it did not answer in time."""
    is_fenced: bool


class ClusterDescription(TypedDict):
    """The cluster as a broker shows it."""

    offset: int
    cluster_id: str
    controller_id: int | None
    brokers: list[ClusterBroker]


class NodeLogLevel(TypedDict):
    """The log level of a node."""

    node: str
    level: str | None
    until_ms: int | None
    """When the configured level is back; null: it is the configured one."""
    failure: str | None
    """Why the node has not answered."""


class LogLevels(TypedDict):
    """The nodes that were asked."""

    nodes: list[NodeLogLevel]


class PerfReport(TypedDict):
    """What ``cluster perf`` measured."""

    writers: int
    target_rate: int
    """Writes a second that were tried."""
    seconds: int
    writes: int
    rate: float
    """Writes a second."""
    p50_ms: float | None
    p99_ms: float | None
    slowest_ms: float | None
    majority_sync_ms: float | None
    """What a small sync takes on a majority of the disks."""
    failed: list[str]
    """Each limit that was not kept, in words; empty: it passed."""


class NodeFeature(TypedDict):
    """A feature, as one controller knows it."""

    feature: str
    node_id: int
    finalized_level: int
    min_supported_version: int
    max_supported_version: int


class FeatureDescriptions(TypedDict):
    """Each feature at each controller that answers."""

    features: list[NodeFeature]
    silent: list[str]
    """Addresses that did not answer."""


class FeaturesUpdated(Written):
    """The levels that were asked for, by feature."""

    features: dict[str, int]
    validate_only: bool
    warnings: list[str]


class MappedHostname(TypedDict):
    """A host and its broker id."""

    hostname: str
    mapping: dict[str, int]
    """``version``, and the id as ``broker.id``: KIP-426's names."""
    offset: int
    """Where it was last set: what --expected-offset compares."""
    reason: str
    cause: str
    endpoint: str | None


class AbsentId(TypedDict):
    """An id that holds replicas, and whose broker is absent."""

    broker_id: int
    absent_for_ms: int
    missing: bool
    """A broker without an id may get it."""
    missing_in_ms: int
    replica_count: int
    endpoint: str | None


class WaitingBroker(TypedDict):
    """A broker without an id that waits for one."""

    endpoint: str
    waiting_for_ms: int
    awaited_broker_id: int
    remaining_ms: int


class HostnameList(TypedDict):
    """The hosts by name, and what is missing."""

    offset: int
    hostnames: list[MappedHostname]
    absent_ids: list[AbsentId]
    waiting_brokers: list[WaitingBroker]


class HostnamesAltered(Written):
    """The offset of each mapping by its host."""

    hostnames: dict[str, int | None]
    """Null: it is deleted."""


class ExportCursor(TypedDict):
    """An export cursor."""

    name: str
    end_offset: int
    """The first offset that the export does not have."""
    lag: int
    """Committed records from there on."""
    state: Literal["kept", "passed"]
    timestamp_ms: int
    offset: int
    """Where it was last set: what --expected-offset compares."""
    target: str | None


class CursorList(TypedDict):
    """The export cursors, by name."""

    offset: int
    log_start_offset: int
    high_watermark: int
    cursors: list[ExportCursor]


class CursorsAltered(Written):
    """The offset of each cursor by its name."""

    cursors: dict[str, int | None]
    """Null: it is removed."""


class PartitionCounts(TypedDict):
    """Partitions, by what they lack."""

    total: int
    offline: int
    not_led_by_preferred: int
    reassigning: int
    recovering: int


class ListedBroker(TypedDict):
    """A registered broker, as the active controller sees it."""

    broker_id: int
    state: str
    broker_epoch: int
    endpoint: str
    rack: str | None
    applied_offset: int | None
    told_lowest_acknowledged_offset: int | None
    lag: int | None
    last_contact_age_ms: int | None
    leader_count: int
    replica_count: int
    state_age_ms: int
    reason: str | None
    cause: str | None
    state_age_is_at_least: bool
    """It has been in its state for longer than this controller leads."""
    registration_version: int
    holds_lao_back: bool


class BrokerList(TypedDict):
    """The registered brokers, by id."""

    offset: int
    high_watermark: int
    lowest_acknowledged_offset: int | None
    lao_unknown_reason: str | None
    held_back_by: list[int]
    held_back_ms: int
    partitions: PartitionCounts
    brokers: list[ListedBroker]


class BrokerUnregistered(Written):
    """The broker whose registration was removed."""

    broker_id: int


class ApiKey(TypedDict):
    """Versions of one request."""

    api_key: int
    name: str
    min_version: int
    max_version: int


class BrokerFeature(TypedDict):
    """A feature, as a broker offers it."""

    feature: str
    min_supported_version: int
    max_supported_version: int
    finalized_level: int


class ApiVersions(TypedDict):
    """What a broker offers."""

    api_keys: list[ApiKey]
    features: list[BrokerFeature]
    finalized_features_epoch: int | None


class IsrMember(TypedDict):
    """A replica in an ISR."""

    broker_id: int
    broker_epoch: int | None


class Follower(TypedDict):
    """A follower, as its leader sees it."""

    replica_id: int
    replica_epoch: int | None
    log_end_offset: int | None
    last_caught_up_age_ms: int | None


class LeaderSays(TypedDict):
    """What a leader says of its partition."""

    leader_epoch: int
    partition_epoch: int
    isr: list[IsrMember]
    proposed_isr: list[IsrMember] | None
    high_watermark: int | None
    log_end_offset: int
    followers: list[Follower]


class LedPartition(LeaderSays):
    """A partition, as its leader sees it."""

    topic: str
    partition: int
    leader_id: int


class CommittedIsr(TypedDict):
    """A partition, as the metadata has it."""

    leader_epoch: int
    partition_epoch: int
    isr: list[int]


class IsrDifference(TypedDict):
    """What the leader and the controller see differently."""

    why: str
    text: str
    lasting: bool


class ComparedPartition(TypedDict):
    """A partition, as its leader and as the controller see it."""

    topic: str
    partition: int
    leader_id: int | None
    leader: LeaderSays | None
    committed: CommittedIsr | None
    differences: list[IsrDifference]


class AskedBroker(TypedDict):
    """A broker that was asked."""

    broker_id: int
    broker_epoch: int | None
    failure: str | None


class IsrList(TypedDict):
    """Partitions as their leaders see them: no view of the metadata."""

    partitions: list[LedPartition]
    brokers: list[AskedBroker]


class IsrComparison(TypedDict):
    """With --compare: both views."""

    offset: int
    partitions: list[ComparedPartition]
    brokers: list[AskedBroker]
    lasting: int
    """How many differences last: exit code 3 if any."""


class PartitionResult(TypedDict):
    """What became of one partition."""

    topic: str
    partition: int
    error: str | None
    """The name of the error code."""
    message: str | None


class ElectedPartition(PartitionResult):
    """What became of one election."""

    leader_id: int | None


class Elected(Written):
    """Each partition by itself."""

    partitions: list[ElectedPartition]
    remaining: int
    """How many a further call would elect."""


class PlannedPartition(TypedDict):
    """A partition in a plan."""

    topic: str
    partition: int
    replicas: list[int]


class Plan(TypedDict):
    """A plan of Kafka's form, for ``--reassignment-json-file``."""

    version: int
    partitions: list[PlannedPartition]


class Reassigned(Written):
    """Each partition by itself."""

    partitions: list[PartitionResult]
    before: Plan | None
    """The replicas before, as a plan that leads back; null without --bootstrap-server."""


class Cancelled(Written):
    """Each partition by itself."""

    partitions: list[PartitionResult]


class OngoingMove(TypedDict):
    """A move in progress."""

    topic: str
    partition: int
    replicas: list[int]
    adding_replicas: list[int]
    removing_replicas: list[int]
    isr: list[int]
    waiting_for: list[int]


class ReassignmentList(TypedDict):
    """The moves in progress."""

    offset: int
    reassignments: list[OngoingMove]


class PartitionsIncreased(Written):
    """The topic and its new count."""

    topic: str
    partitions: int
    validate_only: bool


class QuorumNode(TypedDict):
    """A controller, as it sees itself; null in all but three: it did not answer."""

    node_id: int | None
    endpoint: str
    failure: str | None
    """Why it has not answered."""
    directory_id: str | None
    role: str | None
    epoch: int | None
    leader_id: int | None
    voted_id: int | None
    log_start_offset: int | None
    log_end_offset: int | None
    durable_end_offset: int | None
    high_watermark: int | None
    lag: int | None
    last_fetch_age_ms: int | None
    version: str | None


class QuorumMember(TypedDict):
    """A voter or an observer, as the leader sees it."""

    node_id: int
    directory_id: str | None
    endpoint: str | None
    connected_from: str | None
    endpoints: list[str]
    log_end_offset: int | None
    lag: int | None
    last_fetch_age_ms: int | None
    last_caught_up_age_ms: int | None
    max_metadata_version: int | None
    low_on_space: bool


class Snapshot(TypedDict):
    """A snapshot of the node that describes the quorum."""

    end_offset: int
    epoch: int


class QuorumDescription(TypedDict):
    """The controllers: not a view of the metadata, so it has no offset but theirs."""

    cluster_id: str
    generation: int
    leader_id: int | None
    leader_epoch: int | None
    high_watermark: int | None
    lowest_acknowledged_offset: int | None
    lao_unknown_reason: str | None
    nodes: list[QuorumNode]
    voters_offset: int | None
    voters: list[QuorumMember]
    observers: list[QuorumMember]
    snapshots: list[Snapshot]
    log_start_offset: int


class VoterAdded(TypedDict):
    """A new voter."""

    voter_id: int
    directory_id: str
    endpoint: str


class VoterRemoved(TypedDict):
    """A voter that is none any more."""

    voter_id: int
    directory_id: str
    auto_join: bool | None
    """It joins again by itself; null: it does not answer."""


class LeadershipTransferred(TypedDict):
    """The successor."""

    target_id: int


class BackupWritten(TypedDict):
    """A backup: the committed state before ``end_offset``."""

    file: str
    cluster_id: str
    generation: int
    end_offset: int
    epoch: int
    timestamp_ms: int
    metadata_version: int
    state_hash: str
    bytes: int


class BackupCounts(TypedDict):
    """How many of each there are."""

    brokers: int
    topics: int
    partitions: int
    configs: int
    acls: int
    clients: int


class BackupInspected(BackupWritten):
    """What is in a backup."""

    voters: list[str]
    features: dict[str, int]
    counts: BackupCounts


# --- Diagnose -------------------------------------------------------------------------------


class Finding(TypedDict):
    """Something that is wrong."""

    code: str
    severity: str
    cause: str
    consequence: str
    remedy: str
    command: str | None


class SeenNode(TypedDict):
    """A controller that was asked."""

    node_id: int | None
    endpoint: str
    reach: str
    role: str | None
    failure: str | None


class Diagnosis(TypedDict):
    """What ``doctor`` found."""

    verdict: str
    cluster_id: str | None
    leader_id: int | None
    leader_epoch: int | None
    high_watermark: int | None
    lowest_acknowledged_offset: int | None
    findings: list[Finding]
    nodes: list[SeenNode]
    brokers: dict[str, int] | None
    """How many are in each state; null: nobody could say."""
    unreported: list[str]
    """Nodes that serve, and whose disk, clock, certificate and build are not known."""


class IncidentLine(TypedDict):
    """One event."""

    at_ms: int
    until_ms: int | None
    code: str
    weight: str
    subject: str
    text: str
    because: list[str]


class FindingNow(TypedDict):
    """Something that is wrong now."""

    code: str
    severity: str
    cause: str


class IncidentNow(TypedDict):
    """What the doctor says now."""

    verdict: str
    findings: list[FindingNow]


class Incident(TypedDict):
    """What ``explain`` tells."""

    from_ms: int
    to_ms: int
    summary: list[str]
    missing: list[str]
    """What some node did not answer."""
    lines: list[IncidentLine]
    suspects: list[IncidentLine]
    now: IncidentNow | None


class FieldChange(TypedDict):
    """A field before and after."""

    field: str
    before: Json
    after: Json


class HistoryChange(TypedDict):
    """A change of one entity."""

    offset: int
    epoch: int
    timestamp_ms: int
    principal: str
    """Empty: the controller by itself, or nobody said."""
    client_id: int
    sequence: int
    type_name: str
    kind: str
    key: str
    before: Json
    after: Json
    fields: list[FieldChange]


class DumpedRecord(TypedDict):
    """A record of the log."""

    offset: int
    epoch: int
    timestamp_ms: int
    batch_base_offset: int
    batch_records: int
    control: bool
    principal: str | None
    client_id: int | None
    sequence: int | None
    type: str
    record: dict[str, Json]
    """The fields of the message in records.proto."""


class Image(TypedDict):
    """All metadata at one offset; entities as docs/protocol.md has them."""

    offset: int
    epoch: int
    timestamp_ms: int
    state_hash: str
    leader: dict[str, Json] | None
    progress: dict[str, Json] | None
    features: dict[str, int]
    brokers: list[dict[str, Json]]
    topics: list[dict[str, Json]]
    configs: list[dict[str, Json]]
    voters: dict[str, Json] | None
    clients: list[dict[str, Json]]
    hostnames: list[dict[str, Json]]
    export_cursors: list[dict[str, Json]]
    acls: list[dict[str, Json]]
    kv: list[dict[str, Json]]
    leases: list[dict[str, Json]]
    applied: list[dict[str, Json]]
    imported: list[dict[str, Json]]


class ImageEntity(TypedDict):
    """With --entity: one part of it."""

    offset: int
    path: str
    entity: Json


class SimulatedRun(TypedDict):
    """One simulated cluster."""

    seed: int
    config: str
    """JSON, for --config: it runs again with the seed."""
    failure: str
    """Empty: every check passed."""
    virtual_s: float
    steps: int
    faults: dict[str, int]
    """How often each fault happened."""
    operations: dict[str, int]
    looked_at: dict[str, int]
    """How much each check has seen."""
    state_hash: str
    digest: str
    """Equal for equal runs."""


# --- Analyse --------------------------------------------------------------------------------


class Exported(TypedDict):
    """What an export did: records from ``first_offset`` to before ``end_offset``."""

    directory: str
    cluster_id: str
    generation: int
    first_offset: int
    end_offset: int
    history_begin: int
    batches: int
    files: int
    bytes: int
    checkpoints: int
    not_folded: str
    """Why there are no more checkpoints; empty: there are."""
    records: int
    verified: bool


class Fault(TypedDict):
    """Something that is not as it must be; offsets are inclusive."""

    first_offset: int
    last_offset: int
    check: str
    file: str
    message: str


class Witness(TypedDict):
    """Who vouches for the bytes between two offsets, inclusive."""

    who: str
    how: str
    first_offset: int
    last_offset: int


class Vouched(TypedDict):
    """The log hash, and who vouches for it."""

    log_hash: str
    log_hash_begin_offset: int
    last_offset: int
    witnesses: list[Witness]
    warnings: list[str]


class Verified(TypedDict):
    """Whether an export is whole and is the log."""

    passed: bool
    cluster_id: str
    generation: int
    first_offset: int
    last_offset: int
    files: int
    checkpoints: int
    batches: int
    records: int
    faults: list[Fault]
    vouching: Vouched | None


# --- Node -----------------------------------------------------------------------------------


class ConfigKey(TypedDict):
    """A configuration key."""

    key: str
    environment: str
    """The environment variable that sets it."""
    default: str
    unit: str
    roles: list[str]
    doc: str


class ConfigKeys(TypedDict):
    """Every key."""

    keys: list[ConfigKey]


class ConfigChecked(TypedDict):
    """A configuration without mistakes."""

    file: str
    role: Literal["controller", "broker"]
    values: dict[str, Json]
    """The value in force of each key."""


class StorageIdentity(TypedDict):
    """Whose directory it is."""

    directory: str
    cluster_id: str
    node_id: int
    directory_id: str
    generation: int
    """The generation of the log; 0: none yet."""
    format_version: int


class StorageInfo(StorageIdentity):
    """A data directory."""

    vote_epoch: int
    vote_leader_id: int
    voted_id: int
    voted_directory_id: str
    log_start_offset: int
    log_end_offset: int
    vote_copy_damaged: bool


class BackupSource(TypedDict):
    """What a backup says of itself."""

    cluster_id: str
    generations: list[int]
    end_offset: int
    epoch: int
    last_timestamp_ms: int
    metadata_version: int


class StorageRestored(StorageIdentity):
    """A directory made from a backup."""

    restored_from: BackupSource
    state_hash: str
    epoch: int
    log_end_offset: int


class VoterEntry(TypedDict):
    """A voter of the set."""

    node_id: int
    endpoint: str
    directory_id: str


class Survivor(StorageIdentity):
    """What a directory has of the log."""

    vote_epoch: int
    last_record_epoch: int
    log_start_offset: int
    log_end_offset: int
    voters: list[VoterEntry]


class Recovered(TypedDict):
    """With --unsafe: what was done."""

    before: Survivor
    epoch: int
    voter: VoterEntry
    """The only voter."""
    end_offset: int


class SizeFigure(TypedDict):
    """Something that was measured, or is a default."""

    least: float
    most: float
    source: str


class Sized(TypedDict):
    """What the nodes need."""

    controller_memory_bytes: float
    broker_memory_bytes: float
    controller_disk_bytes: float
    controller_log_bytes_per_day: float
    controller_fsyncs_per_second: float
    leader_cpu_percent_for_heartbeats: float
    leader_sent_bytes_per_second: float
    figures: dict[str, SizeFigure]


class Unit(TypedDict):
    """A file of systemd."""

    path: str
    written: bool
    """False: it was there already, or --dry-run."""
    text: str


class Units(TypedDict):
    """The files."""

    files: list[Unit]


# --- Security -------------------------------------------------------------------------------


class Acl(TypedDict):
    """An access control entry."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission_type: str


class AclList(TypedDict):
    """The entries that match."""

    offset: int
    authorizer_enabled: bool
    super_users: list[str]
    allow_everyone_if_no_acl_found: bool
    acls: list[Acl]


class AddedAcl(Acl):
    """An entry that was asked for."""

    existed: bool
    """It was there already."""


class AclsAdded(Written):
    """The entries that were asked for."""

    acls: list[AddedAcl]


class AclsRemoved(Written):
    """The entries that matched."""

    acls: list[Acl]


class AclVerdict(TypedDict):
    """What is decided of one resource."""

    resource_type: str
    resource_name: str
    allowed: bool
    why: str
    entry: Acl | None
    """The entry that decides."""


class AclVerdicts(TypedDict):
    """What a principal may do; exit code 1: not all of it."""

    offset: int
    authorizer_enabled: bool
    verdicts: list[AclVerdict]


class Certificate(TypedDict):
    """A certificate."""

    subject: str
    issuer: str
    names: list[str]
    authority: bool
    usages: list[str] | None
    """Null: any."""
    nodes: list[int]
    """The nodes that it makes its owner."""
    not_before: str
    not_after: str
    validity: str
    days_left: int
    fingerprint_sha256: str


class Certificates(TypedDict):
    """The certificates of a file."""

    file: str
    certificates: list[Certificate]


class Printed(NamedTuple):
    """What a command prints."""

    document: Any
    """The type of the document."""
    lines: bool = False
    """One document a line, and none if there is nothing."""


PRINTED: dict[str, Printed] = {
    "local start": Printed(LocalCluster),
    "local status": Printed(LocalStatus),
    "topics create": Printed(TopicsChanged),
    "topics delete": Printed(TopicsChanged),
    "topics list": Printed(TopicList),
    "topics describe": Printed(TopicDescriptions),
    "configs alter": Printed(ConfigsAltered),
    "configs describe": Printed(ConfigDescriptions),
    "produce": Printed(ProducedRecord, lines=True),
    "consume": Printed(ConsumedRecord, lines=True),
    "kv get": Printed(KeyValueFound),
    "kv list": Printed(KeyValueList),
    "kv put": Printed(KeysAltered),
    "kv delete": Printed(KeysAltered),
    "kv watch": Printed(WatchedChange, lines=True),
    "kv lease list": Printed(LeaseList),
    "kv lease grant": Printed(LeaseGranted),
    "kv lease revoke": Printed(LeaseRevoked),
    "watch": Printed(WatchedChange, lines=True),
    "cluster describe": Printed(ClusterDescription),
    "cluster features describe": Printed(FeatureDescriptions),
    "cluster features upgrade": Printed(FeaturesUpdated),
    "cluster features downgrade": Printed(FeaturesUpdated),
    "cluster loglevel": Printed(LogLevels),
    "cluster hostnames list": Printed(HostnameList),
    "cluster hostnames set": Printed(HostnamesAltered),
    "cluster hostnames delete": Printed(HostnamesAltered),
    "cluster cursors list": Printed(CursorList),
    "cluster cursors set": Printed(CursorsAltered),
    "cluster cursors delete": Printed(CursorsAltered),
    "cluster perf": Printed(PerfReport),
    "brokers list": Printed(BrokerList),
    "brokers unregister": Printed(BrokerUnregistered),
    "brokers api-versions": Printed(ApiVersions),
    "partitions isr": Printed(IsrList),
    "partitions isr --compare": Printed(IsrComparison),
    "partitions reassign": Printed(Reassigned),
    "partitions cancel": Printed(Cancelled),
    "partitions reassignments": Printed(ReassignmentList),
    "partitions elect": Printed(Elected),
    "partitions increase": Printed(PartitionsIncreased),
    "quorum describe": Printed(QuorumDescription),
    "quorum add-voter": Printed(VoterAdded),
    "quorum remove-voter": Printed(VoterRemoved),
    "quorum transfer": Printed(LeadershipTransferred),
    "backup": Printed(BackupWritten),
    "backup inspect": Printed(BackupInspected),
    "doctor": Printed(Diagnosis),
    "explain": Printed(Incident),
    "history": Printed(HistoryChange, lines=True),
    "log dump": Printed(DumpedRecord, lines=True),
    "log image": Printed(Image),
    "log image --entity": Printed(ImageEntity),
    "debug simulate": Printed(SimulatedRun, lines=True),
    "export": Printed(Exported),
    "verify": Printed(Verified),
    "config keys": Printed(ConfigKeys),
    "config check": Printed(ConfigChecked),
    "storage format": Printed(StorageIdentity),
    "storage info": Printed(StorageInfo),
    "storage restore": Printed(StorageRestored),
    "storage recover": Printed(Survivor),
    "storage recover --unsafe": Printed(Recovered),
    "deploy size": Printed(Sized),
    "deploy systemd install": Printed(Units),
    "acls list": Printed(AclList),
    "acls add": Printed(AclsAdded),
    "acls remove": Printed(AclsRemoved),
    "acls test": Printed(AclVerdicts),
    "certs inspect": Printed(Certificates),
}
"""By command, in the order of ``raftlog --help``."""
NOT_DECLARED = ("export --follow", "import kafka --follow")
"""Commands with --json whose documents are not declared yet."""
