"""The type of what each command prints with ``--json``.

A command that returns an :class:`raftlog.cli.command.Answer` says its type there; those of the
others are here. The reference of the site and its JSON Schema
(scripts/reference_pages/json_documents.py) are made from these types, and
``tests/cli/test_json_documents.py`` checks the commands' output against them. Commands do not
import this module when they run.

Every document is an object with all its keys, also where there is nothing to list. Bytes are in
hex, times in milliseconds since 1970, unless the name says otherwise. ``offset`` beside a list is
that of the metadata shown; in a row it is what the row says it is.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import typer

from raftlog.cli.command import Answer
from raftlog.cli.features import FeatureDescriptions
from raftlog.cli.main import build
from raftlog.cli.watch import WatchedChange
from raftlog.ops.isr_compare import IsrComparison, LeaderViews

Json = Any
"""An entity as JSON; null: it is not there."""


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


# --- Cluster --------------------------------------------------------------------------------


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


_DECLARED: dict[str, Printed] = {
    "local start": Printed(LocalCluster),
    "local status": Printed(LocalStatus),
    "produce": Printed(ProducedRecord, lines=True),
    "consume": Printed(ConsumedRecord, lines=True),
    "kv watch": Printed(WatchedChange, lines=True),
    "watch": Printed(WatchedChange, lines=True),
    "cluster features describe": Printed(FeatureDescriptions),
    "cluster loglevel": Printed(LogLevels),
    "partitions isr": Printed(LeaderViews),
    "partitions isr --compare": Printed(IsrComparison),
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
    "certs inspect": Printed(Certificates),
}
"""By command, and option if the document is another one with it."""


@cache
def names_of(module: ModuleType) -> dict[str, Any]:
    """The names of a module, with those that only type checkers import."""
    names = {**vars(module)}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(ast.unparse(ast.Module(node.body, [])), names)
    return names


def _commands(app: typer.Typer, path: str = "") -> Iterator[tuple[str, Any]]:
    for one in app.registered_commands:
        assert one.callback is not None
        name = one.name or one.callback.__name__.replace("_", "-")
        yield f"{path}{name}", inspect.unwrap(one.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _commands(group.typer_instance, f"{path}{group.name} ")


def _printed() -> dict[str, Printed]:
    found = {}
    for name, body in _commands(build()):
        returned = body.__annotations__.get("return")
        if str(returned).startswith("Answer["):
            names = names_of(sys.modules[body.__module__]) | {"Answer": Answer}
            (document,) = get_args(eval(returned, names))
            found[name] = Printed(document)
    return found | _DECLARED


PRINTED = _printed()
"""By command."""
NOT_DECLARED = ("export --follow", "import kafka --follow")
"""Commands with --json whose documents are not declared yet."""
