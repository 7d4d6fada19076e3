"""The audit of permissions, compared with the authorizer on random entries and writes."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from asking import ask
from log_history import PRINCIPALS, LogHistory
from msgspec import structs
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from rich.console import Console
from spark_runs import Replay
from test_streaming_audit import audited_rows, rows_of

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
from raftlog.segments.export import export
from raftlog.segments.manifest import RECORDS
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.jobs import audit as job
from replay.kernels.audit import judge_records
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding
from replay.kernels.rights import ENTRIES, NEEDS
from replay.kernels.steps import Partitions
from replay.request import JobRequest
from replay.rules import WRITE_WITHOUT_RIGHT, of_family
from replay.run import compute
from replay.streaming import audit
from replay.streaming.ledger import Ledger, output
from replay.streaming.watch import take

RULE = ("write-without-right",)
TOPIC, CREATE, ALTER_CONFIGS = (
    AclResourceType.TOPIC, AclOperation.CREATE, AclOperation.ALTER_CONFIGS
)  # fmt: skip
HOSTS = ("10.0.0.1", "10.0.0.2", "192.0.2.1")
"""The last is in no entry."""
NAMES = ("a", "ab", "abc", "b", "żółw")


def judged_rights(rows: pa.Table, end_offset: int, **named: Any) -> list[Finding]:
    facts = Facts(audit.rare_of(rows), end_offset, **named)
    return list(judge_records(rows, facts, of_family("rights"), Partitions(facts)))


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
            topic_id = rng.getrandbits(128).to_bytes(16, "big")
            name = f"{rng.choice(NAMES)}{log.end_offset}"
            log.append(
                pb.TopicRecord(name=name, topic_id=topic_id), principal=rng.choice(PRINCIPALS)
            )
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
    on = rng.choice(
        ((AclResourceType.CLUSTER, "kafka-cluster"), *((TOPIC, name) for name in (*NAMES, "*")))
    )
    operation = rng.choice((AclOperation.ALL, ALTER_CONFIGS, CREATE, AclOperation.DESCRIBE))
    host = rng.choice(("*", *HOSTS[:2]))
    log.add_entry(principal, operation, *on, host=host, permission=permission)


def batches(log: LogHistory) -> Iterator[tuple[batch.BatchHeader, list[Any], Image]]:
    """Yield each batch with its messages, and the image below it."""
    draft = ImageBuilder(Image())
    for chunk in log.batches:
        header = batch.header_at(chunk, 0)
        messages = [parse(data) for data in batch.records(chunk, header)]
        yield header, messages, draft.snapshot()
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
        for message in messages:
            if not any(
                authorizer.allows(
                    image.acl_index, Caller(header.principal, host), operation, resource
                )
                for operation, resource in ways(message)
                for host in HOSTS
            ):
                found.append(header.base_offset)
    return found


def ways(message: Any) -> list[tuple[AclOperation, Resource]]:
    if isinstance(message, pb.TopicRecord):
        cluster = Resource(AclResourceType.CLUSTER, "kafka-cluster")
        return [(CREATE, Resource(TOPIC, message.name)), (CREATE, cluster)]
    return [(ALTER_CONFIGS, Resource(TOPIC, message.resource_name))]


def _asked(directory: Path, *super_users: str) -> JobRequest:
    return JobRequest(
        job="audit", export=str(directory), rules=RULE, super_users=super_users, limit=10_000
    )


@pytest.fixture(scope="module")
def log() -> LogHistory:
    return random_history(5, 600)


def test_audit_agrees_with_the_authorizer(log: LogHistory, tmp_path: Path) -> None:
    expected = refused(log)
    writes = sum(bool(header.principal) for header, _, _ in batches(log))
    assert 0.2 * writes < len(expected) < 0.8 * writes
    export(log, tmp_path)
    result = ask("audit", tmp_path, rules=RULE, limit=10_000)
    assert [each.offset for each in result.findings] == expected
    (rule,) = result.rules
    assert rule.begins == next(
        header.base_offset
        for header, (message, *_), _ in batches(log)
        if isinstance(message, pb.AccessControlEntryRecord)
    )
    console = Console(record=True, width=200)
    job.render(result, console)
    assert f"applies to writes after offset {rule.begins}" in console.export_text()


def test_super_user_is_not_reported(log: LogHistory, tmp_path: Path) -> None:
    """And with a named super user writes from before the first entry are reported, too."""
    export(log, tmp_path)
    named = frozenset({"User:alice", "User:nobody"})
    result = ask("audit", tmp_path, rules=RULE, super_users=tuple(named), limit=10_000)
    expected = refused(log, named)
    assert [each.offset for each in result.findings] == expected
    (rule,) = result.rules
    assert rule.begins == 1 < expected[0] < min(refused(log))


def test_resource_without_entries_is_open(replay: Replay, log: LogHistory, tmp_path: Path) -> None:
    """The setting ``allow.everyone.if.no.acl.found`` opens only resources without an entry."""
    export(log, tmp_path)
    for named in ((), ("User:nobody",)):
        asked = structs.replace(_asked(tmp_path, *named), allow_everyone_if_no_acl_found=True)
        expected = refused(log, frozenset(named), everyone=True)
        result = compute(asked)
        assert [each.offset for each in result.findings] == expected
        assert set() < set(expected) < set(refused(log, frozenset(named)))
    in_spark = replay(
        "audit",
        tmp_path,
        rules=RULE,
        super_users=named,
        allow_everyone_if_no_acl_found=True,
        limit=10_000,
    )
    assert in_spark == result


class TurnsOfEveryone(NamedTuple):
    """``closed``: refused writes, each with its entries; ``pieces``: offsets of removed entries."""

    log: LogHistory
    closed: list[tuple[int, int]]
    pieces: tuple[int, int]


def turns_of_everyone() -> TurnsOfEveryone:
    """Any entry about the resource, also by a prefix or for all names, and for whichever principal,
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
    return TurnsOfEveryone(log, closed, (first_piece, second_piece))


def test_access_of_everyone_closes_and_opens_with_entries(tmp_path: Path) -> None:
    log, closed, _ = turns_of_everyone()
    export(log, tmp_path)
    asked = structs.replace(_asked(tmp_path), allow_everyone_if_no_acl_found=True)
    assert [(each.offset, each.offsets) for each in compute(asked).findings] == [
        (offset, [offset, turned]) for offset, turned in closed
    ]


@pytest.mark.nightly
def test_watch_knows_resources_open_to_everyone_by_forgotten_entries(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Removed entries are not remembered."""
    log, closed, pieces = turns_of_everyone()
    rows = rows_of(spark, log, tmp_path / "export")
    ledger = Ledger(tmp_path / "job")
    judge = audit.judge([WRITE_WITHOUT_RIGHT], allow_everyone_if_no_acl_found=True)
    bounds = (-1, *pieces, log.end_offset)
    for number, (low, high) in enumerate(pairwise(bounds)):
        piece = rows.where((sf.col("offset") > low) & (sf.col("offset") <= high))
        take(piece, number, ledger, judge)
    told = output(spark, tmp_path / "job")
    assert told is not None
    assert sorted(row.offset for row in told.collect()) == [offset for offset, _ in closed]


def test_rights_audit_judges_nothing_without_entries(tmp_path: Path) -> None:
    log = LogHistory(6)
    written = log.alter_config("a", "key", "1", "User:bob")
    export(log, tmp_path)
    result = ask("audit", tmp_path, rules=RULE)
    (rule,) = result.rules
    assert (rule.begins, rule.checked, result.total) == (None, 0, 0)
    named = ask("audit", tmp_path, rules=RULE, super_users=("User:alice",))
    assert [(each.rule, each.offset) for each in named.findings] == [(rule.id, written)]


def test_export_from_before_the_columns_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """It has no entries; a session with an unknown name is not judged."""
    old = LogHistory(8)
    old.append(pb.OpenClientRecord(name="c"), principal="User:bob")
    old.alter_config("a", "key", "1", "User:bob")
    export(old, tmp_path / "export")
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
    spark: SparkSession, log: LogHistory, tmp_path: Path
) -> None:
    """Each finding once, by entries of all earlier pieces."""
    rows = rows_of(spark, log, tmp_path / "export")
    bases = sorted(log.positions)
    bounds = [0, *(bases[len(bases) * quarter // 4] for quarter in (1, 2, 3)), log.end_offset]
    ledger = Ledger(tmp_path / "job")
    for number, (low, high) in enumerate(pairwise(bounds)):
        piece = rows.where((sf.col("offset") >= low) & (sf.col("offset") < high))
        take(piece, number, ledger, audit.judge([WRITE_WITHOUT_RIGHT]))
    found = output(spark, tmp_path / "job")
    assert found is not None
    assert sorted(row.offset for row in found.collect()) == refused(log)


def test_rights_audit_remembers_entries_over_batches(spark: SparkSession, tmp_path: Path) -> None:
    """The present entries and the first one, whose removal must not disable the rule; and the first
    level with entries, which counts where super users are named.
    """
    log = LogHistory(7)
    ids = [log.add_entry("User:a", ALTER_CONFIGS, TOPIC, name) for name in ("a", "b", "c")]
    at = [log.end_offset - 3, log.end_offset - 2, log.end_offset - 1]
    gone = [log.remove_entry(ids[0]), log.remove_entry(ids[1])]
    lowered = log.append(pb.FeatureLevelRecord(name="metadata.version", feature_level=2))
    rows = rows_of(spark, log, tmp_path)
    known = audit.remember(audited_rows(rows)).to_pylist()
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
