"""Bucketed exports: the same answers, with the buckets shared among workers."""

import importlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from asking import ask_shared, opened
from log_history import CLUSTER_ID, LogHistory

from raftlog.segments.buckets import COUNT, add_buckets
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.manifest import RECORDS, read_manifest
from raftlog.segments.parquet_files import bucket_number
from raftlog.segments.writer import ExportWriter
from replay.engine import reading
from replay.engine.fold import selected_groups
from replay.engine.passes import partition_shuffle
from replay.engine.plan import Share, shares
from replay.engine.pool import Pool
from replay.export import from_checkpoint, open_export
from replay.jobs import audit
from replay.kernels.steps import COLUMNS, PARTITION_TYPES
from replay.request import JobRequest
from replay.selection import select


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same generated history without buckets, and with some of its ranges in buckets."""
    log = LogHistory(11).run(440)
    plain, cut = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("cut")
    for directory in (plain, cut):
        with ExportWriter(
            directory, CLUSTER_ID, 0, max_segment_records=100, checkpoint_records=60
        ) as writer:
            writer.append_chunk(b"".join(log.batches))
            writer.commit(log.end_offset)
            if directory == cut:
                assert 2 < add_buckets(writer) < len(writer.manifest.of_kind(RECORDS))
    return plain, cut


def audited(directory: Path, workers: int, at_offset: int | None = None) -> audit.AuditResult:
    found: audit.AuditResult = ask_shared(
        workers, "audit", directory, limit=500, at_offset=at_offset
    )
    return found


@pytest.mark.parametrize("job", ["availability", "lao"])
def test_other_jobs_give_the_same_answers_for_buckets(twice: tuple[Path, Path], job: str) -> None:
    plain, cut = twice
    assert ask_shared(3, job, cut, limit=500) == ask_shared(1, job, plain, limit=500)


QUESTIONS: list[dict[str, Any]] = [
    {"job": "state"},
    {"job": "state", "at_offset": 251},
    {"job": "state", "key": ("topic", "topic-3")},
    {"job": "state", "key": ("config", "topic:topic-3")},
    {"job": "state", "key": ("topic", "never-there")},
    {"job": "history", "key": ("topic", "")},
    {"job": "history", "key": ("topic", "topic-3"), "from_offset": 120},
    {"job": "history", "key": ("client", "")},
    {"job": "history", "key": ("broker", "2"), "limit": 2},
    {"job": "diff", "from_offset": 333},
    {"job": "diff", "from_offset": 105, "at_offset": 290},
    {"job": "diff"},
]


@pytest.mark.parametrize("asked", QUESTIONS, ids=str)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_state_diff_and_history_give_the_same_answers_for_buckets(
    twice: tuple[Path, Path], asked: dict[str, Any], checkpoints: bool
) -> None:
    found = []
    for directory, workers in zip((twice[0], *twice[1:] * 2), (1, 1, 3), strict=True):
        request = JobRequest(
            **{"limit": 500} | asked, export=str(directory), from_the_beginning=not checkpoints
        )
        export = from_checkpoint(open_export(request), request)
        job = importlib.import_module(f"replay.jobs.{request.job}")
        with Pool(0) as one:
            one.size = workers
            found.append(job.run(export, request, one))
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize(
    "asked",
    [
        {"job": "state", "key": ("topic", "topic-3")},
        {"job": "history", "key": ("topic", "topic-3")},
        {"job": "diff", "key": ("topic", "topic-3"), "from_offset": 30},
    ],
    ids=str,
)
def test_query_for_one_topic_reads_only_its_buckets(
    twice: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    _, cut = twice
    read: set[str] = set()
    plain_read = reading.read_file

    def noted(export: object, segment: object, columns: list[str], coded: object) -> object:
        if "group_id" in columns:
            read.add(segment.file)  # type: ignore[attr-defined]
        return plain_read(export, segment, columns, coded)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "read_file", noted)
    request = JobRequest(**asked, export=str(cut), from_the_beginning=True)
    export = open_export(request)
    with Pool(0) as one:
        importlib.import_module(f"replay.jobs.{request.job}").run(export, request, one)
    ids = selected_groups(export, Pool(0), select("topic", "topic-3")).wanted or ()
    buckets = {bucket_number(id_, COUNT) for _, id_ in ids}
    assert 0 < len(buckets) < COUNT // 2
    filed = {one.base_offset: one for one in export.manifest.buckets}
    own = {one.file for one in export.manifest.buckets if one.bucket in buckets}
    tail = {one.file for one in export.segments if one.base_offset not in filed}
    assert read == own | tail


@pytest.mark.parametrize("at_offset", [None, 251])
def test_audit_of_buckets_equals_that_of_the_whole(
    twice: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, at_offset: int | None
) -> None:
    plain, cut = twice
    expected = audited(plain, 1, at_offset)
    assert expected.total > 50
    monkeypatch.setattr(reading, "SLICE_ROWS", 19)
    for workers in (1, 2, 3, COUNT + 5):
        assert audited(cut, workers, at_offset) == expected


def test_workers_share_the_files(twice: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, cut = twice
    read: Counter[str] = Counter()
    plain_read = reading.read_file

    def noted(export: object, segment: object, columns: list[str], coded: object) -> object:
        if "isr" in columns:
            read[segment.file] += 1  # type: ignore[attr-defined]
        return plain_read(export, segment, columns, coded)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "read_file", noted)
    audited(cut, 3)
    manifest = opened(cut).manifest
    ranges = {one.base_offset for one in manifest.buckets}
    tail = [one.file for one in manifest.of_kind(RECORDS) if one.base_offset not in ranges]
    assert read == Counter({one.file: 1 for one in manifest.buckets} | dict.fromkeys(tail, COUNT))


def test_exchanged_bucket_is_refused(twice: tuple[Path, Path], tmp_path: Path) -> None:
    """Its pages' checksums are right."""
    _, cut = twice
    export = tmp_path / "export"
    shutil.copytree(cut, export)
    one = max(read_manifest(export).buckets, key=lambda each: each.records)
    pq.write_table(
        pq.read_table(export / one.file).slice(1), export / one.file, write_page_checksum=True
    )
    with pytest.raises(CorruptExportError, match=f"{one.file}.*is corrupt"):
        audited(export, 2)


def test_all_buckets_are_shared_among_workers(twice: tuple[Path, Path]) -> None:
    plain, cut = (partition_shuffle(opened(one), COLUMNS, types=PARTITION_TYPES) for one in twice)
    assert shares(plain, 2) == [Share((0,), 2), Share((1,), 2)]
    assert shares(cut, 1) == [Share()]
    for size in (2, 5, COUNT, 40):
        found = shares(cut, size)
        assert len(found) == min(size, COUNT)
        assert sorted(bucket for one in found for bucket in one.buckets) == list(range(COUNT))
        assert {(one.of, one.filed) for one in found} == {(COUNT, True)}
