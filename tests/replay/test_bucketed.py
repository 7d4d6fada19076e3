"""Bucketed exports: the same answers, with the buckets shared among workers."""

import importlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from asking import ask_shared, opened
from exports import written
from log_history import LogHistory

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
from replay.kernels.steps import COLUMNS, PARTITION_TYPES
from replay.request import JobRequest
from replay.selection import select

Twice = tuple[Path, Path]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """The same generated history without buckets, and with some of its ranges in buckets."""
    log = LogHistory(11).run(440)
    plain, cut = (
        written(log, tmp_path_factory.mktemp(name), max_segment_records=100, checkpoint_records=60)
        for name in ("plain", "cut")
    )
    with ExportWriter(cut, log.cluster_id, 0, max_segment_records=100) as writer:
        assert 2 < add_buckets(writer) < len(writer.manifest.of_kind(RECORDS))
    return plain, cut


def answer(directory: Path, workers: int, job: str, **asked: Any) -> Any:
    """Return the answer with the help of the checkpoints, unless it is ``from_the_beginning``."""
    request = JobRequest(**{"limit": 500} | asked, job=job, export=str(directory))
    with Pool(0) as one:
        one.size = workers
        run = importlib.import_module(f"replay.jobs.{job}").run
        return run(from_checkpoint(open_export(request), request), request, one)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often each column of each file has been read."""
    found, plain_read = Counter[tuple[str, str]](), reading.read_file

    def noted(export: Any, segment: Any, columns: list[str], coded: Any) -> Any:
        found.update((segment.file, column) for column in columns)
        return plain_read(export, segment, columns, coded)

    monkeypatch.setattr(reading, "read_file", noted)
    return found


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
@pytest.mark.parametrize("beginning", [True, False])
def test_state_diff_and_history_give_the_same_answers_for_buckets(
    twice: Twice, asked: dict[str, Any], beginning: bool
) -> None:
    plain, cut = twice
    expected = answer(plain, 1, **asked, from_the_beginning=beginning)
    for workers in (1, 3):
        assert answer(cut, workers, **asked, from_the_beginning=beginning) == expected


@pytest.mark.parametrize("job", ["availability", "lao"])
def test_figures_are_the_same_for_buckets(twice: Twice, job: str) -> None:
    plain, cut = twice
    assert ask_shared(3, job, cut, limit=500) == ask_shared(1, job, plain, limit=500)


@pytest.mark.parametrize("at_offset", [None, 251])
def test_audit_of_buckets_equals_that_of_the_whole(
    twice: Twice, monkeypatch: pytest.MonkeyPatch, at_offset: int | None
) -> None:
    plain, cut = twice
    expected = ask_shared(1, "audit", plain, limit=500, at_offset=at_offset)
    assert expected.total > 50
    monkeypatch.setattr(reading, "SLICE_ROWS", 19)
    for workers in (1, 2, 3, COUNT + 5):
        assert ask_shared(workers, "audit", cut, limit=500, at_offset=at_offset) == expected


@pytest.mark.parametrize(
    "asked", [{"job": "state"}, {"job": "history"}, {"job": "diff", "from_offset": 30}], ids=str
)
def test_query_for_one_topic_reads_only_its_buckets(
    twice: Twice, read: Counter[tuple[str, str]], asked: dict[str, Any]
) -> None:
    _, cut = twice
    answer(cut, 1, **asked, key=("topic", "topic-3"), from_the_beginning=True)
    files = {file for file, column in read if column == "group_id"}
    export = opened(cut)
    ids = selected_groups(export, Pool(0), select("topic", "topic-3")).wanted or ()
    buckets = {bucket_number(id_, COUNT) for _, id_ in ids}
    assert 0 < len(buckets) < COUNT // 2
    filed = {one.base_offset for one in export.manifest.buckets}
    own = {one.file for one in export.manifest.buckets if one.bucket in buckets}
    assert files == own | {one.file for one in export.segments if one.base_offset not in filed}


def test_workers_share_the_files(twice: Twice, read: Counter[tuple[str, str]]) -> None:
    _, cut = twice
    ask_shared(3, "audit", cut)
    manifest = opened(cut).manifest
    ranges = {one.base_offset for one in manifest.buckets}
    tail = [one.file for one in manifest.of_kind(RECORDS) if one.base_offset not in ranges]
    often = {one.file: 1 for one in manifest.buckets} | dict.fromkeys(tail, COUNT)
    assert {file: count for (file, column), count in read.items() if column == "isr"} == often


def test_exchanged_bucket_is_refused(twice: Twice, tmp_path: Path) -> None:
    """Its pages' checksums are right."""
    export = shutil.copytree(twice[1], tmp_path / "export")
    one = max(read_manifest(export).buckets, key=lambda each: each.records)
    path = export / one.file
    pq.write_table(pq.read_table(path).slice(1), path, write_page_checksum=True)
    with pytest.raises(CorruptExportError, match=f"{one.file}.*is corrupt"):
        ask_shared(2, "audit", export)


def test_all_buckets_are_shared_among_workers(twice: Twice) -> None:
    plain, cut = (partition_shuffle(opened(one), COLUMNS, types=PARTITION_TYPES) for one in twice)
    assert shares(plain, 2) == [Share((0,), 2), Share((1,), 2)]
    assert shares(cut, 1) == [Share()]
    for size in (2, 5, COUNT, 40):
        found = shares(cut, size)
        assert len(found) == min(size, COUNT)
        assert sorted(bucket for one in found for bucket in one.buckets) == list(range(COUNT))
        assert {(one.of, one.filed) for one in found} == {(COUNT, True)}
