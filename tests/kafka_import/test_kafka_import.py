"""Imports of Kafka's logs: those of a real cluster of three, and hand-made ones."""

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka_writer as kafka
import msgspec
import pytest

from controller.rules.partition_change import Brokers, next_state
from raftlog import batch
from raftlog.metadata.entities import Partition
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.imported import detail_key
from raftlog.metadata.partitions import changed_partition
from raftlog.metadata.records import record
from raftlog.segments.manifest import read_manifest
from raftlog.segments.raw import read_batches
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.kafka.conversion import decoded
from replay.kafka.copies import find_copies
from replay.kafka.importing import Imported, Importer
from replay.kafka.log_format import NoKafkaLogError, batches
from replay.request import JobRequest
from replay.run import compute, run_job

NO_DIRECTORY = "A" * 22
HERE = Path(__file__).parent
LOG = f"{0:020d}.log"

NOOP = kafka.metadata("NoOpRecord")
ELR_ON = kafka.metadata(
    "FeatureLevelRecord", name="eligible.leader.replicas.version", feature_level=1
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three controllers of Kafka 4.4.0, killed; ``truth.json`` has the output of Kafka's Admin from
    before.
    """
    directory = tmp_path_factory.mktemp("kafka")
    kafka.unpack(HERE / "kafka-4.4.0.tar.gz", directory)
    return directory


def import_all(target: Path, *paths: Path, **options: Any) -> Imported:
    with Importer(find_copies(paths), str(target), **options) as importer:
        return importer.run()


def import_log(directory: Path, log: bytes) -> Imported:
    """Import one node's log into ``exported`` below a directory."""
    return import_all(directory / "exported", kafka.write_node(directory / "node", log))


def cut_begin(inside: Path) -> None:
    """Delete the records of a real log up to offset 198, which its snapshots cover."""
    segment = inside / LOG
    log = segment.read_bytes()
    cut, start = next(
        (end, one.last_offset + 1) for end, one in batches(log) if one.last_offset > 198
    )
    segment.unlink()
    (inside / f"{start:020d}.log").write_bytes(log[cut:])


def chunks(target: Path) -> Iterator[bytes]:
    for segment in read_manifest(target).of_kind("raw"):
        yield from read_batches(target / segment.file)


def state(target: Path) -> Image:
    fold = ImageBuilder(Image())
    fold.offset = read_manifest(target).history_begin - 1
    for chunk in chunks(target):
        fold.apply_chunk(chunk)
    return fold.snapshot()


@pytest.fixture(scope="module")
def imported(real: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Imported, Path]:
    target = tmp_path_factory.mktemp("export") / "exported"
    return import_all(target, real), target


def test_state_equals_each_snapshot_of_kafka(imported: tuple[Imported, Path]) -> None:
    found, target = imported
    assert found.sound
    assert (found.first_offset, found.end_offset, found.agreed_offset) == (0, 379, 379)
    ends = [(one.node, one.end_offset) for one in found.snapshots]
    assert ends == [
        ("node 101", 159), ("node 102", 159), ("node 103", 159), ("node 101", 247),
        ("node 102", 295), ("node 101", 308), ("node 103", 310),
    ]  # fmt: skip
    verify_export(target)
    manifest = read_manifest(target)
    assert (manifest.origin, manifest.cluster_id) == ("kafka", "4L6g3nShT-eMCtK--X86sw")
    assert {one.offset for one in manifest.state_hashes} == {158, 246, 294, 307, 309}
    assert manifest.metadata_version is None
    assert (manifest.features or {})["kafka.metadata.version"] == 33


def test_imported_checkpoints_are_usable_from_the_start(real: Path, tmp_path: Path) -> None:
    target = tmp_path / "exported"
    import_all(target, real, checkpoint_records=10)
    verify_export(target)
    checkpoints = read_manifest(target).checkpoints
    assert len(checkpoints) >= 2
    topics = state(target).topic_ids
    questions: list[tuple[str, dict[str, Any]]] = [
        ("state", {}),
        ("state", {"at_offset": checkpoints[1].offset + 3}),
        ("state", {"key": ("client_quota", "")}),
        ("diff", {"from_offset": checkpoints[1].offset + 5}),
    ]
    for topic in topics:
        questions += [
            ("state", {"key": ("topic", topic)}),
            ("state", {"key": ("partition_detail", f"{topic}-0")}),
            ("state", {"key": ("config", f"topic:{topic}")}),
            ("history", {"key": ("topic", topic), "from_offset": checkpoints[0].offset + 2}),
        ]
    for job, asked in questions:
        found, whole = (
            compute(JobRequest(job=job, export=str(target), from_the_beginning=beginning, **asked))
            for beginning in (False, True)
        )
        assert (found.checkpoint is None, whole.checkpoint) == (False, None)
        assert msgspec.structs.replace(found, checkpoint=None) == whole


def test_state_at_the_end_equals_kafkas_admin(imported: tuple[Imported, Path], real: Path) -> None:
    image = state(imported[1])
    truth = json.loads((real / "truth.json").read_text())
    topics = {}
    for name, id_ in image.topic_ids.items():
        partitions = []
        for index in range(image.topics[id_].partition_count):
            one = image.partitions[id_, index]
            text = image.imported.get(("partition_detail", detail_key(id_, index)), "{}")
            detail = json.loads(text)
            told: dict[str, Any] = {"p": index, "leader": one.leader, "isr": list(one.isr)}
            told["replicas"] = list(one.replicas)
            told["elr"] = detail.get("eligible_leader_replicas", [])
            partitions.append(told | {"last_known_elr": detail.get("last_known_elr", [])})
        topics[name] = partitions
    assert topics == {one["name"]: one["partitions"] for one in truth["topics"]}
    dynamic_source = "DYNAMIC_TOPIC_CONFIG"
    dynamic = {
        name: {key: one["value"] for key, one in values.items() if one["source"] == dynamic_source}
        for name, values in truth["configs"].items()
        if name.startswith("TOPIC:")
    }
    ours = {f"TOPIC:{name}": dict(image.configs.get((2, name), {})) for name in image.topic_ids}
    assert ours == dynamic
    features = {name.removeprefix("kafka."): level for name, level in image.features.items()}
    assert features == truth["finalized_features"]
    brokers = [
        (one.id, one.fenced, one.listeners[0].port) for _, one in sorted(image.brokers.items())
    ]
    assert brokers == [(one["id"], one["fenced"], one["port"]) for one in truth["brokers"]]
    assert image.leader is not None
    assert image.leader.leader_id == truth["quorum"]["leader"]
    assert image.epoch == truth["quorum"]["epoch"]
    quotas = {
        key: float(value) for (kind, key), value in image.imported.items() if kind == "client_quota"
    }
    assert quotas == {
        "user=alice:consumer_byte_rate": 1048576.0,
        "client-id=c1:producer_byte_rate": 2048.0,
    }


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def as_kafka_prints(value: Any) -> Any:
    if isinstance(value, dict):
        return {camel(name): as_kafka_prints(one) for name, one in value.items()}
    return [as_kafka_prints(one) for one in value] if isinstance(value, list) else value


def test_every_record_equals_the_output_of_kafkas_own_tool(real: Path) -> None:
    log = (real / "node101/__cluster_metadata-0/00000000000000000000.log").read_bytes()
    ours = {
        raw.offset: one
        for _, source in batches(log)
        if not source.control
        for raw, one in zip(source.records, decoded(source), strict=True)
    }
    dump = gzip.decompress((HERE / "kafka-4.4.0-dump.txt.gz").read_bytes()).decode()
    of_the_log = dump.split("### ")[2]
    assert of_the_log.startswith("00000000000000000000.log")
    lines = re.findall(r"offset: (\d+) .*? payload: (.*)", of_the_log)
    assert len(lines) == len(ours) > 370
    for offset, text in lines:
        said, one = json.loads(text), ours[int(offset)]
        assert camel(said["type"].lower()).casefold() == one.name.casefold()
        assert said["version"] == one.version
        fields = as_kafka_prints(one.fields)
        for name, value in said["data"].items():
            mine = fields[name]
            if isinstance(mine, bytes):
                mine = base64.b64encode(mine).decode()
            assert mine == value, (offset, name)


def test_import_of_one_copy_is_sound(real: Path, tmp_path: Path) -> None:
    found = import_all(tmp_path / "exported", real / "node102/__cluster_metadata-0")
    assert found.sound
    assert (found.nodes, found.end_offset) == (["node 102"], 379)


def test_log_that_begins_with_a_snapshot_folds_to_the_same_state(
    real: Path, imported: tuple[Imported, Path], tmp_path: Path
) -> None:
    node = tmp_path / "node"
    inside = node / "__cluster_metadata-0"
    shutil.copytree(real / "node101/__cluster_metadata-0", inside)
    cut_begin(inside)
    found = import_all(tmp_path / "exported", node, cluster_id="4L6g3nShT-eMCtK--X86sw")
    assert found.sound
    assert found.state_from == 247
    assert (found.first_offset, found.end_offset) == (247 - 44, 379)
    whole, late = state(imported[1]), state(tmp_path / "exported")
    for name in ("topics", "partitions", "configs", "features", "acls", "imported"):
        assert dict(getattr(late, name)) == dict(getattr(whole, name)), name


def test_import_refuses_a_late_log_without_a_snapshot(tmp_path: Path) -> None:
    node = kafka.write_node(tmp_path / "n", kafka.batch(9, [NOOP]), start=9)
    with pytest.raises(NoKafkaLogError, match=r"begins at offset 9.*copy the \.checkpoint files"):
        import_all(tmp_path / "exported", node)


def break_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_import_reads_damaged_records_from_another_copy(real: Path, tmp_path: Path) -> None:
    shutil.copytree(real, tmp_path / "nodes")
    broken = tmp_path / "nodes/node101/__cluster_metadata-0/00000000000000000000.log"
    break_byte(broken, 9000)
    found = import_all(tmp_path / "exported", tmp_path / "nodes")
    assert found.end_offset == found.agreed_offset == 379
    assert not found.sound
    (damage,) = found.damages
    assert damage.startswith(f"{broken}: at byte ")
    assert "does not match its CRC32C" in damage


def test_damaged_log_is_imported_up_to_the_damage(real: Path, tmp_path: Path) -> None:
    shutil.copytree(real / "node101", tmp_path / "node")
    break_byte(tmp_path / "node/__cluster_metadata-0/00000000000000000000.log", 9000)
    found = import_all(tmp_path / "exported", tmp_path / "node")
    (damage,) = found.damages
    assert f"the batch at offset {found.end_offset} does not match" in damage
    assert 0 < found.end_offset < 379
    verify_export(tmp_path / "exported")


def test_log_with_the_higher_last_epoch_wins_where_copies_differ(tmp_path: Path) -> None:
    common = kafka.batch(0, [kafka.leader_change()], epoch=1) + kafka.batch(1, [NOOP], epoch=1)
    never_committed = kafka.batch(2, [kafka.topic("lost")], epoch=1)
    right = kafka.batch(2, [kafka.leader_change(2)], epoch=2) + kafka.batch(3, [NOOP], epoch=2)
    for node, log in enumerate((common + never_committed, common + right, common + right), 1):
        kafka.write_node(tmp_path / f"node{node}", log, node_id=node)
    found = import_all(tmp_path / "exported", *(tmp_path / f"node{node}" for node in (1, 2, 3)))
    assert found.differences == ["the batch at offset 2 differs at node 1"]
    assert (found.end_offset, found.agreed_offset) == (4, 4)
    assert not state(tmp_path / "exported").topics


@pytest.mark.parametrize(
    ("lengths", "agreed"),
    [((3, 2, 1), 2), ((3, 1), 1), ((3, 3, 2, 2), 2), ((3, 3, 3, 1), 3), ((2, 1, 1, 1), 1)],
)
def test_agreed_offset_requires_more_than_half_of_the_copies(
    tmp_path: Path, lengths: tuple[int, ...], agreed: int
) -> None:
    log = [kafka.batch(0, [kafka.leader_change()]), kafka.batch(1, [NOOP]), kafka.batch(2, [NOOP])]
    for node, length in enumerate(lengths, 1):
        kafka.write_node(tmp_path / f"node{node}", b"".join(log[:length]), node_id=node)
    found = import_all(tmp_path / "exported", tmp_path)
    assert (found.end_offset, found.agreed_offset) == (max(lengths), agreed)
    assert found.sound


FIRST, SECOND, THIRD = ("AAAAAAAAAAAAAAAAAAAA" + end for end in ("gA", "gQ", "gg"))
MOVED: dict[str, Any] = {"replicas": [1, 2, 3], "directories": [FIRST, SECOND, THIRD]}


@pytest.mark.parametrize(
    "change",
    [
        {"directories": [FIRST]},
        {"directories": [FIRST, SECOND, THIRD]},
        {"replicas": [1, 2, 3]},
        {"replicas": [1]},
        {"replicas": [1, 2, 3], "directories": [FIRST, SECOND]},
    ],
)
def test_partition_requires_a_directory_per_replica(tmp_path: Path, change: dict[str, Any]) -> None:
    """Kafka refuses such a record, too."""
    changed = kafka.metadata("PartitionChangeRecord", partition_id=0, topic_id=kafka.UUID, **change)
    log = log_of(kafka.topic(), kafka.partition(0, directories=[FIRST, SECOND]), changed, NOOP)
    found = import_log(tmp_path, log)
    assert found.end_offset == 2
    assert "partition 0 of 'orders' has " in found.stopped
    assert " directories" in found.stopped
    changed = kafka.metadata("PartitionChangeRecord", partition_id=0, topic_id=kafka.UUID, **MOVED)
    log = log_of(kafka.topic(), kafka.partition(0, directories=[FIRST, SECOND]), changed)
    found = import_log(tmp_path / "moved", log)
    assert (found.end_offset, found.sound) == (3, True)


def test_logs_of_several_clusters_are_refused(tmp_path: Path) -> None:
    for node, cluster in ((1, "a"), (2, "b")):
        kafka.write_node(
            tmp_path / f"node{node}", kafka.batch(0, [NOOP]), node_id=node, cluster_id=cluster
        )
    with pytest.raises(NoKafkaLogError, match="from several clusters: a, b"):
        find_copies([tmp_path])


def test_gap_in_the_log_ends_the_import_before_it(tmp_path: Path) -> None:
    log = kafka.batch(0, [kafka.leader_change()]) + kafka.batch(5, [NOOP])
    found = import_log(tmp_path, log)
    assert found.end_offset == 1
    assert found.stopped == "no copy has an intact batch at offset 1"


def log_of(*records: Any, first: int = 0) -> bytes:
    return b"".join(kafka.batch(first + at, [one]) for at, one in enumerate(records))


def edges(*ends: str) -> list[bytes]:
    return [kafka.metadata(f"{one}TransactionRecord") for one in ends]


def test_transaction_is_one_batch(tmp_path: Path) -> None:
    begin, end = edges("Begin", "End")
    import_log(tmp_path, log_of(NOOP, begin, kafka.topic(), kafka.partition(), end, NOOP))
    headers = (one for chunk in chunks(tmp_path / "exported") for one in batch.headers(chunk))
    assert [(one.base_offset, one.last_offset) for one in headers] == [(0, 0), (1, 4), (5, 5)]
    assert "orders" in state(tmp_path / "exported").topic_ids


def test_aborted_transaction_has_no_effect(tmp_path: Path) -> None:
    begin, abort = edges("Begin", "Abort")
    found = import_log(tmp_path, log_of(begin, kafka.topic(), kafka.partition(), abort, NOOP))
    assert (found.aborted, found.end_offset) == (4, 5)
    assert not state(tmp_path / "exported").topics


def test_unfinished_transaction_is_waited_for(tmp_path: Path) -> None:
    begin, end = edges("Begin", "End")
    node = kafka.write_node(tmp_path / "node", log_of(NOOP, begin, kafka.topic()))
    with Importer(find_copies([node]), str(tmp_path / "exported")) as importer:
        found = importer.run()
        assert (found.open_transaction, found.end_offset) == (1, 1)
        with (node / LOG).open("ab") as log:
            log.write(log_of(kafka.partition(), end, first=3))
        found = importer.run()
        assert (found.open_transaction, found.end_offset) == (None, 5)
    assert "orders" in state(tmp_path / "exported").topic_ids


def test_new_topic_does_not_inherit_configs_of_a_deleted_one_of_its_name(tmp_path: Path) -> None:
    other = "AAAAAAAAAAAAAAAAAAAAAg"
    log = log_of(
        kafka.topic(), kafka.config("retention.ms", "1"), kafka.partition(),
        kafka.metadata("RemoveTopicRecord", topic_id=kafka.UUID),
        kafka.topic(topic_id=other), kafka.config("cleanup.policy", "compact"),
    )  # fmt: skip
    import_log(tmp_path, log)
    image = state(tmp_path / "exported")
    assert dict(image.configs.items()) == {(2, "orders"): {"cleanup.policy": "compact"}}
    assert not image.imported


def test_partitions_are_put_into_order(tmp_path: Path) -> None:
    records = [kafka.topic(), kafka.partition(2), kafka.partition(0), kafka.partition(1)]
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, records))
    assert import_all(tmp_path / "exported", node).reordered == 3
    assert len(state(tmp_path / "exported").partitions) == 3


def detail(image: Image, index: int = 0) -> dict[str, Any]:
    id_ = image.topic_ids["orders"]
    text = image.imported.get(("partition_detail", detail_key(id_, index)), "{}")
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("of", ["orders", ""])
def test_eligible_leader_replicas_are_tracked_and_cleared(tmp_path: Path, of: str) -> None:
    change = kafka.metadata(
        "PartitionChangeRecord", partition_id=0, topic_id=kafka.UUID, isr=[1], eligible_leader_replicas=[2],
        last_known_elr=[],
    )  # fmt: skip
    node = kafka.write_node(tmp_path / "node", log_of(kafka.topic(), kafka.partition(), change))
    import_all(tmp_path / "before", node)
    assert detail(state(tmp_path / "before")) == {"eligible_leader_replicas": [2]}
    with (node / LOG).open("ab") as file:
        file.write(log_of(kafka.metadata("ClearElrRecord", topic_name=of), first=3))
    import_all(tmp_path / "after", node)
    image = state(tmp_path / "after")
    assert detail(image) == {}
    (partition,) = image.partitions.values()
    assert (partition.isr, partition.partition_epoch) == ((1,), 2)


def test_cluster_wide_clear_equals_kafkas_snapshot_of_every_topic(tmp_path: Path) -> None:
    """A topic without eligible replicas keeps its partition epoch."""
    other, third = kafka.UUID.replace("Q", "g"), kafka.UUID.replace("Q", "w")
    elr: dict[str, Any] = {"eligible_leader_replicas": [2], "last_known_elr": [1]}
    log = log_of(
        *(kafka.topic(), kafka.partition(0, **elr), kafka.partition(1)),
        *(kafka.topic("other", other), kafka.partition(0, other, **elr, partition_epoch=5)),
        *(kafka.topic("third", third), kafka.partition(0, third)),
        kafka.metadata("ClearElrRecord", topic_name=""),
        kafka.partition(2, **elr),
        ELR_ON,
    )
    node = kafka.write_node(tmp_path / "node", log)
    kafka.write_checkpoint(
        node,
        10,
        ELR_ON,
        *(kafka.topic(), kafka.partition(0, partition_epoch=1), kafka.partition(1)),
        kafka.partition(2, **elr),
        *(kafka.topic("other", other), kafka.partition(0, other, partition_epoch=6)),
        *(kafka.topic("third", third), kafka.partition(0, third)),
    )
    found = import_all(tmp_path / "exported", node)
    assert [(one.end_offset, one.differences) for one in found.snapshots] == [(10, [])]
    assert found.sound


def test_export_differs_from_the_first_differing_snapshot_on(tmp_path: Path) -> None:
    """In any order of discovery: another copy's snapshot may be earlier or later."""
    node = kafka.write_node(tmp_path / "node", log_of(kafka.topic(), *[NOOP] * 5))
    other = kafka.topic("other")
    for end_offset, doubt in ((4, 3), (2, 1), (5, 1)):
        kafka.write_checkpoint(node, end_offset, other)
        assert not import_all(tmp_path / "exported", node).sound
        assert read_manifest(tmp_path / "exported").differs_from == doubt
        (node / f"{end_offset:020d}-{1:010d}.checkpoint").unlink()


def test_snapshot_of_an_empty_state_is_compared_and_used_as_a_start(tmp_path: Path) -> None:
    """A controller that was elected before the bootstrap records were written takes one."""
    log = kafka.batch(0, [kafka.leader_change()]) + log_of(kafka.topic(), first=1)
    node = kafka.write_node(tmp_path / "node", log)
    snapshot = kafka.write_checkpoint(node, 1)
    found = import_all(tmp_path / "exported", node)
    assert [(one.end_offset, one.differences) for one in found.snapshots] == [(1, [])]
    assert found.sound
    late = kafka.write_node(tmp_path / "late", log_of(kafka.topic(), first=1), start=1)
    snapshot.rename(late / snapshot.name)
    found = import_all(tmp_path / "begun", late)
    assert (found.first_offset, found.state_from, found.end_offset) == (0, 1, 2)
    assert list(state(tmp_path / "begun").topic_ids) == ["orders"]
    verify_export(tmp_path / "begun")


def test_fields_of_kafka_snapshots_alone_are_not_a_difference(tmp_path: Path) -> None:
    """Directories from before directory ids, eligible replicas at a level without them, and a
    migration that never was.
    """
    log = log_of(
        *(kafka.topic(), kafka.partition(0)),
        kafka.partition(1, eligible_leader_replicas=[2]),
        kafka.metadata("FeatureLevelRecord", name="kraft.version", feature_level=1),
    )
    node = kafka.write_node(tmp_path / "node", log)
    kafka.write_checkpoint(
        node,
        4,
        *(kafka.topic(), kafka.partition(0, directories=[NO_DIRECTORY] * 2)),
        kafka.partition(1, directories=[NO_DIRECTORY] * 2),
        kafka.metadata("ZkMigrationStateRecord", zk_migration_state=0),
    )
    found = import_all(tmp_path / "exported", node)
    assert [(one.end_offset, one.differences) for one in found.snapshots] == [(4, [])]
    assert "kraft.version" not in state(tmp_path / "exported").features


def test_differences_are_named_by_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(kafka.topic(), *(kafka.partition(index) for index in range(30)), NOOP)
    node = kafka.write_node(tmp_path / "node", log)
    changed = [kafka.partition(index, isr=[1], leader=2) for index in range(30)]
    kafka.write_checkpoint(node, 32, kafka.topic(), *changed)
    (one,) = import_all(tmp_path / "exported", node).snapshots
    assert one.differences[0] == (
        "partition orders-0: isr is [1,2] in the log, [1] in the snapshot, leader is 1 in the log,"
        " 2 in the snapshot"
    )
    assert one.differences[20:] == ["and 10 more entities"]
    assert one.summary == "30 partitions of 1 topic: ISR, leader"
    manifest = read_manifest(tmp_path / "exported")
    assert (manifest.differs_from, manifest.differs_in) == (31, one.summary)
    said = "offset 31, and perhaps from others, in 30 partitions of 1 topic: ISR, leader"
    for job, code in (("state", 0), ("verify", 3)):
        assert run_job(JobRequest(job=job, export=str(tmp_path / "exported")), spark=False) == code
        shown = capsys.readouterr()
        assert said in shown.err
    assert "STATE: the state in this export differs from Kafka's own snapshot" in shown.out


def test_difference_in_eligible_replicas_is_described_in_kafkas_terms(tmp_path: Path) -> None:
    """[a list of 20 entities did not show what they had in common]"""
    ids = [f"{'A' * 20}{number:X}A" for number in range(7)]
    topics = [kafka.topic(f"topic-{number}", id_) for number, id_ in enumerate(ids)]
    places = [(index, id_) for id_ in ids for index in range(2)][:11]
    records = [ELR_ON, *topics]
    log = log_of(*records, *(kafka.partition(*one, isr=[1]) for one in places), NOOP)
    node = kafka.write_node(tmp_path / "node", log)
    changed = [kafka.partition(*one, isr=[1], eligible_leader_replicas=[2]) for one in places]
    secrets = {"salt": b"", "stored_key": b"", "server_key": b"", "iterations": 1}
    gone = kafka.metadata("UserScramCredentialRecord", name="u", mechanism=1, **secrets)
    kafka.write_checkpoint(node, len(records) + len(places) + 1, *records, *changed, gone)
    (one,) = import_all(tmp_path / "exported", node).snapshots
    assert one.summary == "11 partitions of 6 topics: ELR; 1 scram credential: only in the snapshot"


def test_partition_state_shows_what_kafka_prints(tmp_path: Path) -> None:
    """Its eligible replicas and directories; a partition without any has empty ones."""
    log = log_of(
        kafka.topic(),
        kafka.partition(0, directories=[FIRST, SECOND], eligible_leader_replicas=[2]),
        kafka.partition(1, last_known_elr=[1]),
    )
    import_log(tmp_path, log)
    for key in ("", "orders-0"):
        request = JobRequest(job="state", export=str(tmp_path / "exported"), key=("partition", key))
        found = [msgspec.json.decode(row.value) for row in compute(request).rows]
        shown = [(one["elr"], one["last_known_elr"], one["directories"]) for one in found]
        assert shown == [([2], [], [FIRST, SECOND]), ([], [1], [])][: len(found)]
    assert len(found) == 1


def test_clear_of_unknown_topic_stops_the_import(tmp_path: Path) -> None:
    log = log_of(kafka.topic(), kafka.metadata("ClearElrRecord", topic_name="gone"))
    found = import_log(tmp_path, log)
    assert "ClearElrRecord names topic 'gone'" in found.stopped
    assert found.end_offset == 1


@pytest.mark.parametrize("begins_with_state", [False, True])
def test_import_refuses_a_rewritten_log(tmp_path: Path, begins_with_state: bool) -> None:
    """Each batch of the export is compared: the one at the seam, and all before it."""
    start = 3 if begins_with_state else 0
    batches = [
        kafka.batch(start + at, [kafka.config("retention.ms", str(at), f"topic-{at}")])
        for at in range(6)
    ]
    node = kafka.write_node(tmp_path / "node", b"".join(batches), start=start)
    if begins_with_state:
        kafka.write_checkpoint(node, 3, kafka.topic())
    target = tmp_path / "exported"
    assert import_all(target, node).new_records == 6 + begins_with_state
    assert import_all(target, node).sound
    log = next(node.glob("*.log"))
    for kept in (5, 2):
        anew = [
            kafka.batch(start + at, [NOOP], epoch=2, timestamp_ms=2000) for at in range(kept, 9)
        ]
        log.write_bytes(b"".join(batches[:kept] + anew))
        found = import_all(target, node)
        assert f"a batch of epoch 1 at offset {start + kept}" in found.stopped
        assert "the log has a different batch of epoch 2" in found.stopped
        assert (found.new_records, found.end_offset) == (0, start + 6)
        assert not found.sound
    log.write_bytes(b"".join(batches) + kafka.batch(start + 6, [NOOP], epoch=2))
    assert import_all(target, node).new_records == 1
    verify_export(target)


def test_clock_set_back_is_reported(tmp_path: Path) -> None:
    log = kafka.batch(0, [NOOP], timestamp_ms=5000) + kafka.batch(1, [NOOP], timestamp_ms=3000)
    found = import_log(tmp_path, log)
    assert found.later_ms == 2000


def test_import_in_parts_has_the_checkpoints_of_the_whole(real: Path, tmp_path: Path) -> None:
    """Each part folds the existing export, and writes none of it again."""
    log = next((real / "node101/__cluster_metadata-0").glob("*.log"))
    ends = [end for end, _ in batches(log.read_bytes())]
    kept = {}
    for parts in (1, 4):
        target = tmp_path / f"exported{parts}"
        for part in range(1, parts + 1):
            until = ends[len(ends) * part // parts - 1]
            node = kafka.write_node(tmp_path / f"{part} of {parts}", log.read_bytes()[:until])
            import_all(target, node, checkpoint_records=10)
        verify_export(target)
        kept[parts] = [
            (one.offset, one.state_hash, one.sha256) for one in read_manifest(target).checkpoints
        ]
    assert len(kept[1]) >= 2
    assert kept[4] == kept[1]


def test_import_continues_where_it_stopped(tmp_path: Path) -> None:
    node = kafka.write_node(
        tmp_path / "node", log_of(kafka.topic(), kafka.config("retention.ms", "1"))
    )
    import_all(tmp_path / "exported", node)
    with (node / LOG).open("ab") as file:
        file.write(log_of(kafka.metadata("RemoveTopicRecord", topic_id=kafka.UUID), first=2))
    assert import_all(tmp_path / "exported", node).end_offset == 3
    assert not state(tmp_path / "exported").configs
    verify_export(tmp_path / "exported")


def test_contradictory_log_is_imported_up_to_the_contradiction(tmp_path: Path) -> None:
    found = import_log(tmp_path, log_of(kafka.topic(), kafka.topic(), NOOP))
    at = len(log_of(kafka.topic()))
    assert found.stopped == (
        f"{tmp_path / 'node/__cluster_metadata-0' / LOG}: at byte {at}: the log contradicts itself: topic"
        " 'orders' at offset 1 already exists"
    )
    assert (found.end_offset, found.sound) == (1, False)
    verify_export(tmp_path / "exported")


def test_malformed_record_with_a_valid_checksum_is_damage(tmp_path: Path) -> None:
    """It is read from another copy if possible; records before it are imported."""
    begin, cut = log_of(kafka.topic()), kafka.batch(1, [kafka.topic("cut")[:-4]])
    broken = kafka.write_node(tmp_path / "node1", begin + cut + log_of(NOOP, first=2), node_id=1)
    log = f"{broken / LOG}: "
    alone = import_all(tmp_path / "alone", tmp_path / "node1")
    assert (alone.end_offset, alone.stopped) == (1, "")
    (damage,) = alone.damages
    assert damage.startswith(f"{log}at byte {len(begin)}: the record at offset 1 is malformed: ")
    whole = begin + log_of(kafka.topic("whole", "AAAAAAAAAAAAAAAAAAAACQ"), NOOP, first=1)
    kafka.write_node(tmp_path / "node2", whole, node_id=2)
    both = import_all(tmp_path / "both", tmp_path / "node1", tmp_path / "node2")
    assert (both.end_offset, both.damages) == (3, [damage])
    assert set(state(tmp_path / "both").topic_ids) == {"orders", "whole"}


def test_export_of_a_raftlog_cluster_is_not_continued(tmp_path: Path) -> None:
    with ExportWriter(tmp_path / "exported", "c", 0) as writer:
        chunk = batch.encode([record(pb.NoOpRecord())], base_offset=0, epoch=1, timestamp_ms=1)
        writer.append_chunk(chunk)
        writer.commit(1)
    node = kafka.write_node(tmp_path / "node", log_of(NOOP, NOOP))
    with pytest.raises(NoKafkaLogError, match="is the export of a raftlog cluster"):
        import_all(tmp_path / "exported", node)


def test_snapshot_without_a_log_before_it_is_refused_with_the_reason(tmp_path: Path) -> None:
    """[Kafka's own manual has shown it as an example of a snapshot to inspect.]"""
    path = kafka.write_checkpoint(kafka.write_node(tmp_path / "node", b""), 0, epoch=0)
    with pytest.raises(NoKafkaLogError, match="the snapshot at offset 0 before any metadata"):
        import_all(tmp_path / "exported", path)


def test_file_that_is_not_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(NoKafkaLogError, match="is neither a directory"):
        find_copies([tmp_path / "x.txt"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoKafkaLogError, match="there is no metadata log"):
        find_copies([tmp_path / "empty"])


def test_eligible_leader_replicas_equal_those_of_kafka(imported: tuple[Imported, Path]) -> None:
    """Each ISR change in Kafka's history is decided again by the controller's own rules. Kafka's
    records give the ISR; leader, ELR and last known leader follow from it.
    """

    def with_elr(image: Image, one: Partition) -> Partition:
        key = "partition_detail", detail_key(one.topic_id, one.index)
        detail = json.loads(image.imported.get(key, "{}"))
        elr, last = detail.get("eligible_leader_replicas", []), detail.get("last_known_elr", [])
        return msgspec.structs.replace(one, elr=tuple(elr), last_known_elr=tuple(last))

    fold, changes, eligible = ImageBuilder(Image()), 0, 0
    for chunk in chunks(imported[1]):
        before = fold.snapshot()
        fold.apply_chunk(chunk)
        after = fold.snapshot()
        for key, now in after.partitions.items():
            was = before.partitions.get(key)
            if was is None or was.isr == now.isr or was.replicas != now.replicas:
                continue
            old, new = with_elr(before, was), with_elr(after, now)
            decided = next_state(Brokers(after), old, isr=now.isr if was.isr else ())
            assert decided is not None
            ours = changed_partition(old, decided)
            names = ("isr", "elr", "last_known_elr")
            assert [getattr(ours, one) for one in names] == [getattr(new, one) for one in names]
            changes, eligible = changes + 1, eligible + bool(new.elr)
    assert (changes, eligible) > (30, 3)
