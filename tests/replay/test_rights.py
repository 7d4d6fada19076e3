"""The audit of permissions, compared with the authorizer on random entries and writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from asking import ask, written
from log_history import PRINCIPALS, LogHistory
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from rich.console import Console
from spark_runs import audited_rows, in_pieces, rows_of

from raftlog import batch
from raftlog.metadata.acls import (
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    Resource,
)
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, parse
from raftlog.node.security.authorizer import Authorizer, Caller
from raftlog.node.security.permissions import CONTROLLER, All, Each, Whole
from raftlog.segments.columns import SCHEMA
from raftlog.segments.manifest import RECORDS
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.jobs import audit as job
from replay.jobs.audit import AuditResult
from replay.kernels.audit import judge_records
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding
from replay.kernels.rights import ENTRIES, NEEDS
from replay.kernels.steps import Partitions
from replay.rules import WRITE_WITHOUT_RIGHT
from replay.streaming import audit

RULE = ("write-without-right",)
TOPIC, CREATE, ALTER_CONFIGS = (
    AclResourceType.TOPIC, AclOperation.CREATE, AclOperation.ALTER_CONFIGS
)  # fmt: skip
HOSTS = ("10.0.0.1", "10.0.0.2", "192.0.2.1")
"""The last is in no entry."""
NAMES = ("a", "ab", "abc", "b", "żółw")


def judged_rights(rows: pa.Table, end_offset: int, **named: Any) -> list[Finding]:
    facts = Facts(audit.rare_of(rows), end_offset, **named)
    return list(judge_records(rows, facts, (WRITE_WITHOUT_RIGHT,), Partitions(facts)))


def random_history(seed: int, writes: int) -> LogHistory:
    """Entries are added and removed; principals set configs and create topics."""
    log = LogHistory(seed)
    rng = log.rng
    log.alter_config("a", "key", "1")
    while writes:
        dice = rng.random()
        if dice < 0.1 and log.entries:
            log.remove_entry(rng.choice(log.entries))
        elif dice < 0.35:
            random_entry(log)
        elif dice < 0.45:
            topic = pb.TopicRecord(name=f"{rng.choice(NAMES)}{log.end_offset}")
            topic.topic_id = rng.getrandbits(128).to_bytes(16, "big")
            log.append(topic, principal=rng.choice(PRINCIPALS))
            writes -= 1
        else:
            log.alter_config(rng.choice(NAMES), "key", "1", rng.choice(PRINCIPALS))
            writes -= 1
    return log


def random_entry(log: LogHistory) -> None:
    rng = log.rng
    principal = rng.choice((*PRINCIPALS, "User:*"))
    permission = rng.choice((AclPermission.ALLOW, AclPermission.ALLOW, AclPermission.DENY))
    if rng.random() < 0.3:
        prefix = rng.choice(NAMES)[: rng.randrange(1, 4)]
        log.add_entry(
            principal, ALTER_CONFIGS, TOPIC, prefix, pattern=PatternType.PREFIXED,
            permission=permission,
        )  # fmt: skip
        return
    topics = [(TOPIC, name) for name in (*NAMES, "*")]
    on = rng.choice([(AclResourceType.CLUSTER, "kafka-cluster"), *topics])
    operation = rng.choice((AclOperation.ALL, ALTER_CONFIGS, CREATE, AclOperation.DESCRIBE))
    host = rng.choice(("*", *HOSTS[:2]))
    log.add_entry(principal, operation, *on, host=host, permission=permission)


def batches(log: LogHistory) -> Iterator[tuple[batch.BatchHeader, list[Any], Image]]:
    """Yield each batch with its messages, and the image below it."""
    draft = ImageBuilder(Image())
    for chunk in log.batches:
        header = batch.header_at(chunk, 0)
        yield header, [parse(data) for data in batch.records(chunk, header)], draft.snapshot()
        draft.apply_chunk(chunk)


def refused(
    log: LogHistory, super_users: frozenset[str] = frozenset(), *, everyone: bool = False
) -> list[int]:
    """Return what the authorizer refuses from every host: from the first entry on, or always."""
    found, begun = list[int](), bool(super_users)
    authorizer = Authorizer(super_users, everyone)
    for header, messages, image in batches(log):
        begun = begun or bool(len(image.acls))
        if not begun or not header.principal:
            continue
        callers = [Caller(header.principal, host) for host in HOSTS]
        for message in messages:
            if not any(
                authorizer.allows(image.acl_index, caller, *way)
                for way in ways(message)
                for caller in callers
            ):
                found.append(header.base_offset)
    return found


def ways(message: Any) -> list[tuple[AclOperation, Resource]]:
    if isinstance(message, pb.TopicRecord):
        cluster = Resource(AclResourceType.CLUSTER, "kafka-cluster")
        return [(CREATE, Resource(TOPIC, message.name)), (CREATE, cluster)]
    return [(ALTER_CONFIGS, Resource(TOPIC, message.resource_name))]


@pytest.fixture(scope="module")
def log() -> LogHistory:
    return random_history(5, 600)


@pytest.fixture(scope="module")
def exported(log: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(log, tmp_path_factory.mktemp("export"))


def audited(directory: Path, **options: Any) -> AuditResult:
    result: AuditResult = ask("audit", directory, rules=RULE, limit=10_000, **options)
    return result


def offsets(result: AuditResult) -> list[int]:
    return [each.offset for each in result.findings]


def test_audit_agrees_with_the_authorizer(log: LogHistory, exported: Path) -> None:
    expected = refused(log)
    writes = sum(bool(header.principal) for header, _, _ in batches(log))
    assert 0.2 * writes < len(expected) < 0.8 * writes
    result = audited(exported)
    assert offsets(result) == expected
    (rule,) = result.rules
    assert rule.begins == next(
        header.base_offset
        for header, (message, *_), _ in batches(log)
        if isinstance(message, pb.AccessControlEntryRecord)
    )
    console = Console(record=True, width=200)
    job.render(result, console)
    assert f"applies to writes after offset {rule.begins}" in console.export_text()


def test_super_user_is_not_reported(log: LogHistory, exported: Path) -> None:
    """And with a named super user writes from before the first entry are reported, too."""
    named = ("User:alice", "User:nobody")
    result = audited(exported, super_users=named)
    expected = refused(log, frozenset(named))
    assert offsets(result) == expected
    (rule,) = result.rules
    assert rule.begins == 1 < expected[0] < min(refused(log))


@pytest.mark.parametrize("named", [(), ("User:nobody",)])
def test_resource_without_entries_is_open(
    log: LogHistory, exported: Path, named: tuple[str, ...]
) -> None:
    """The setting ``allow.everyone.if.no.acl.found`` opens only resources without an entry."""
    expected = refused(log, frozenset(named), everyone=True)
    result = audited(exported, super_users=named, allow_everyone_if_no_acl_found=True)
    assert offsets(result) == expected
    assert set() < set(expected) < set(refused(log, frozenset(named)))


def turns_of_everyone() -> tuple[LogHistory, list[tuple[int, int]], tuple[int, int]]:
    """Return the log, the refused writes, each with its entry, and the offsets of removed entries.

    Any entry about the resource, also by a prefix or for all names, and for whichever principal,
    closes it; without one it is open again.
    """
    log = LogHistory(9)

    def write() -> int:
        return log.alter_config("ab", "key", "1", "User:bob")

    log.add_entry("User:alice", ALTER_CONFIGS, TOPIC, "b")
    write()
    of_prefix = log.add_entry(
        "User:alice", AclOperation.DESCRIBE, TOPIC, "a", pattern=PatternType.PREFIXED
    )
    closed = [(write(), log.end_offset - 2)]
    of_all = log.add_entry("User:alice", ALTER_CONFIGS, TOPIC, "*")
    first_piece = log.remove_entry(of_prefix)
    closed.append((write(), closed[0][1]))
    second_piece = log.remove_entry(of_all)
    write()
    log.add_entry("User:bob", CREATE, TOPIC, "ab")
    closed.append((write(), log.end_offset - 2))
    return log, closed, (first_piece, second_piece)


def test_access_of_everyone_closes_and_opens_with_entries(tmp_path: Path) -> None:
    log, closed, _ = turns_of_everyone()
    result = audited(written(log, tmp_path), allow_everyone_if_no_acl_found=True)
    found = [(each.offset, each.offsets) for each in result.findings]
    assert found == [(offset, [offset, turned]) for offset, turned in closed]


@pytest.mark.nightly
def test_watch_knows_resources_open_to_everyone_by_forgotten_entries(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Removed entries are not remembered."""
    log, closed, pieces = turns_of_everyone()
    judge = audit.judge([WRITE_WITHOUT_RIGHT], allow_everyone_if_no_acl_found=True)
    rows = rows_of(spark, written(log, tmp_path / "export"))
    bounds = (0, *(offset + 1 for offset in pieces), log.end_offset)
    told = in_pieces(rows, bounds, tmp_path / "job", judge)
    assert sorted(row.offset for row in told) == [offset for offset, _ in closed]


def test_rights_audit_judges_nothing_without_entries(tmp_path: Path) -> None:
    log = LogHistory(6)
    offset = log.alter_config("a", "key", "1", "User:bob")
    result = audited(written(log, tmp_path))
    (rule,) = result.rules
    assert (rule.begins, rule.checked, result.total) == (None, 0, 0)
    named = audited(tmp_path, super_users=("User:alice",))
    assert [(each.rule, each.offset) for each in named.findings] == [(rule.id, offset)]


def test_export_from_before_the_columns_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """It has no entries; a session with an unknown name is not judged."""
    old = LogHistory(8)
    old.append(pb.OpenClientRecord(name="c"), principal="User:bob")
    old.alter_config("a", "key", "1", "User:bob")
    written(old, tmp_path / "export")
    columns = SCHEMA.names[: SCHEMA.names.index("acl_resource_type")]
    table = pq.read_table(tmp_path / "export" / RECORDS, columns=columns)
    pq.write_table(table, tmp_path / "old.parquet")
    rows = spark.read.schema(from_arrow_schema(SCHEMA)).parquet(str(tmp_path / "old.parquet"))
    read = audited_rows(rows)
    assert judged_rights(read, old.end_offset) == []
    assert audit.remember(read).num_rows > 0
    found = judged_rights(read, old.end_offset, super_users=frozenset({"User:x"}))
    assert [each.subject for each in found] == ["topic a"]


@pytest.mark.nightly
def test_audit_in_pieces_finds_each_refused_write_once(
    spark: SparkSession, log: LogHistory, exported: Path, tmp_path: Path
) -> None:
    """By entries of all earlier pieces."""
    bases = sorted(log.positions)
    bounds = [0, *(bases[len(bases) * quarter // 4] for quarter in (1, 2, 3)), log.end_offset]
    judge = audit.judge([WRITE_WITHOUT_RIGHT])
    found = in_pieces(rows_of(spark, exported), bounds, tmp_path / "job", judge)
    assert sorted(row.offset for row in found) == refused(log)


def test_rights_audit_remembers_entries_over_batches(spark: SparkSession, tmp_path: Path) -> None:
    """The present entries and the first one, whose removal must not disable the rule; and the first
    level with entries, which counts where super users are named.
    """
    log = LogHistory(7)
    ids = [log.add_entry("User:a", ALTER_CONFIGS, TOPIC, name) for name in ("a", "b", "c")]
    at = [log.end_offset - 3, log.end_offset - 2, log.end_offset - 1]
    gone = [log.remove_entry(ids[0]), log.remove_entry(ids[1])]
    lowered = log.append(pb.FeatureLevelRecord(name="metadata.version", feature_level=2))
    known = audit.remember(audited_rows(rows_of(spark, written(log, tmp_path)))).to_pylist()
    levels = {row["offset"] for row in known if row["feature_name"] == "metadata.version"}
    assert levels == {1, lowered}
    assert {(row["offset"], row["type"]) for row in known if row["type"] in ENTRIES} == {
        (at[0], RecordType.ACCESS_CONTROL_ENTRY),
        (gone[0], RecordType.REMOVE_ACCESS_CONTROL_ENTRY),
        (at[2], RecordType.ACCESS_CONTROL_ENTRY),
    }


@pytest.mark.parametrize(
    ("request_", "type_"),
    [
        ("create_topics", RecordType.TOPIC),
        ("create_partitions", RecordType.PARTITION),
        ("delete_topics", RecordType.REMOVE_TOPIC),
        ("alter_partition_reassignments", RecordType.PARTITION_CHANGE),
        ("elect_leaders", RecordType.PARTITION_CHANGE),
        ("unregister_broker", RecordType.UNREGISTER_BROKER),
        ("update_features", RecordType.FEATURE_LEVEL),
        ("alter_hostnames", RecordType.HOSTNAME),
        ("alter_export_cursors", RecordType.EXPORT_CURSOR),
        ("alter_key_values", RecordType.KEY_VALUE),
        ("grant_lease", RecordType.LEASE),
        ("open_client", RecordType.OPEN_CLIENT),
        ("create_acls", RecordType.ACCESS_CONTROL_ENTRY),
        ("delete_acls", RecordType.REMOVE_ACCESS_CONTROL_ENTRY),
    ],
)
def test_record_requires_the_permission_of_its_request(request_: str, type_: RecordType) -> None:
    row = CONTROLLER[request_]
    assert isinstance(row, Each | All | Whole)
    assert (NEEDS[type_].operation, NEEDS[type_].type.name) == (row.operation, row.of)
