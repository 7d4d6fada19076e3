"""Jobs that start from a checkpoint: the same answers, and nothing below it is read."""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from asking import ask, written
from exports import flip
from log_history import LogHistory
from msgspec.structs import replace
from spark_runs import Replay
from tiers import in_gate

from raftlog.metadata.entities import format_hash
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.manifest import RECORDS, read_manifest
from raftlog.segments.verify import verify_export
from replay.engine import pool, reading
from replay.errors import EXIT_FINDINGS
from replay.export import from_checkpoint, open_export
from replay.request import JobRequest
from replay.run import compute, run_job

RECORDS_OF_LOG = 900
EVERY = 60


def exported_to(directory: Path, history: LogHistory, segment_records: int) -> Path:
    return written(
        history, directory, max_segment_records=segment_records, checkpoint_records=EVERY
    )


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(21).run(RECORDS_OF_LOG)


@pytest.fixture(scope="module")
def exported(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be modified. A few files, each with a few row groups."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("raftlog.segments.writer.ROW_GROUP_RECORDS", 50)
        return exported_to(tmp_path_factory.mktemp("export"), history, 350)


def both(directory: Path, job: str, **asked: Any) -> Any:
    """Return the answer from a checkpoint, which equals that from the beginning."""
    request = JobRequest(job=job, export=str(directory), **asked)
    found, whole = compute(request), compute(replace(request, from_the_beginning=True))
    assert whole.checkpoint is None
    assert replace(found, checkpoint=None) == whole
    return found


def test_state_at_a_time_includes_records_before_a_setback_of_log_time(tmp_path: Path) -> None:
    """[Log time was years ahead for a while: the records of that time were missing from all
    states.]
    """
    history = LogHistory(23).run(200)
    before_ms, before = history.timestamp_ms, history.end_offset - 1
    history.timestamp_ms += 10 * 365 * 86_400_000
    history.run(330)
    history.timestamp_ms = before_ms
    history.run(500)
    exported_to(tmp_path, history, 90)
    verify_export(tmp_path)
    for time_ms, offset in ((before_ms, before), (history.timestamp_ms, history.end_offset - 1)):
        found = both(tmp_path, "state", at_time_ms=time_ms)
        assert found.point.offset == offset
        assert found.state_hash == format_hash(history.hashes[offset])


@pytest.mark.parametrize("seed", in_gate(range(4), {0, 1}))
def test_state_at_any_offset_equals_the_nodes(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    history = LogHistory(seed + 40, metadata_version=1 + seed % 2).run(500)
    exported_to(tmp_path, history, rng.choice([90, 200, 1000]))
    begins = set()
    for offset in [*sorted(rng.sample(sorted(history.hashes), 12)), history.end_offset - 1]:
        found = both(tmp_path, "state", at_offset=offset)
        assert found.point.offset == offset
        assert found.point.records == offset + 1
        assert found.state_hash == format_hash(history.hashes[offset])
        if found.checkpoint is not None:
            assert offset - found.checkpoint.offset < 3 * EVERY
            begins.add(found.checkpoint.offset)
    assert len(begins) >= 3


def test_time_and_offsets_inside_a_batch_select_the_same_state(exported: Path) -> None:
    rng = Random(5)
    points = rng.sample(range(RECORDS_OF_LOG), 6)
    some = read_manifest(exported).checkpoints[::3]
    points += [one.offset + more for one in some for more in (-1, 1)]
    for offset in points:
        found = both(exported, "state", at_offset=offset, limit=5)
        time_ms = found.point.timestamp_ms - rng.randrange(20)
        both(exported, "state", at_time_ms=time_ms, limit=5)


@pytest.mark.parametrize(
    "key",
    [("topic", ""), ("topic", "topic-9"), ("partition", "topic-3-0"), ("broker", "2"),
     ("config", ""), ("config", "topic:topic-3"), ("client", ""), ("client_result", ""), ("acl", ""), ("leader", ""), ("voters", "")],
)  # fmt: skip
def test_answers_about_one_entity_equal_the_fold(exported: Path, key: tuple[str, str]) -> None:
    if key == ("client", ""):
        clients = ask("state", exported, key=key).rows
        key = (key[0], clients[-1].key)
    for offset in (500, 880):
        found = both(exported, "state", at_offset=offset, key=key)
        assert found.checkpoint is not None
        found = both(exported, "history", from_offset=offset, key=key)
        assert found.checkpoint is not None
        assert all(one.offset >= offset for one in found.changes)
        both(exported, "diff", from_offset=offset - 130, at_offset=offset, key=key)


def test_differences_ignore_checkpoints(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SLICE_ROWS", 23)
    rng = Random(9)
    with_checkpoint = 0
    for _ in range(4):
        begin, end = sorted(rng.sample(range(20, RECORDS_OF_LOG), 2))
        found = both(exported, "diff", from_offset=begin, at_offset=end)
        with_checkpoint += found.checkpoint is not None
        both(exported, "diff", from_time_ms=found.begin.timestamp_ms, at_time_ms=None)
    assert with_checkpoint >= 3
    # From the empty log on there is no other beginning.
    assert both(exported, "diff", at_offset=500).checkpoint is None
    assert both(exported, "history", key=("broker", "1")).checkpoint is None


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", in_gate(range(8), {0}))
def test_answers_equal_the_plain_fold_when_topic_names_recur(
    seed: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five names belong to many topics in turn: one that is unused at one of the points is used in
    the state at the checkpoint.
    """
    monkeypatch.setattr(pool, "ALONE_RECORDS", 0)
    monkeypatch.setattr(pool, "workers", lambda: workers)
    history, rng, begins = LogHistory(seed, topic_names=5).run(RECORDS_OF_LOG), Random(seed), set()
    exported_to(tmp_path, history, 350)
    topic_id = next(iter(history.topics.values())).hex()
    # Each question to two workers starts two processes, for a second.
    count, step = (6, 1) if workers == 1 else (1, 3)
    for _ in range(count):
        begin, end = sorted(rng.sample(range(20, RECORDS_OF_LOG), 2))
        asked: list[tuple[str, dict[str, Any]]] = [
            ("diff", {"from_offset": begin}),
            ("diff", {"from_offset": begin, "key": ("topic", "topic-1")}),
            ("history", {"from_offset": begin, "key": ("partition", "")}),
            ("history", {"from_offset": begin, "key": ("topic", "topic-1")}),
            ("history", {"from_offset": begin, "key": ("topic", topic_id)}),
            ("state", {"key": ("topic", "topic-1")}),
            ("state", {}),
        ]
        for job, options in asked[::step]:
            found = both(tmp_path, job, at_offset=end, **options)
            begins.add(found.checkpoint and found.checkpoint.offset)
    assert len(begins) >= count


def test_history_starts_at_an_offset_or_a_time(exported: Path) -> None:
    key, limit = ("broker", ""), 10_000
    every = ask("history", exported, key=key, limit=limit).changes
    for one in every[2 :: len(every) // 6]:
        found = both(exported, "history", key=key, from_offset=one.offset, limit=limit)
        assert found.changes == [each for each in every if each.offset >= one.offset]
        found = both(exported, "history", key=key, since_ms=one.timestamp_ms, limit=limit)
        assert found.changes == [each for each in every if each.timestamp_ms >= one.timestamp_ms]


def test_history_that_starts_at_a_checkpoint_loses_nothing(exported: Path) -> None:
    """At the checkpoint's offset, or at its time: changes of the same millisecond may lie below it."""
    for one in read_manifest(exported).checkpoints[1::4]:
        for kind in ("config", "partition", "client"):
            for beginning in ({"from_offset": one.offset}, {"since_ms": one.timestamp_ms}):
                found = both(exported, "history", key=(kind, ""), **beginning)
                assert found.checkpoint.offset < one.offset


def test_summary_starts_late_and_audits_everything(exported: Path) -> None:
    found = both(exported, "summary")
    assert found.checkpoint is not None
    assert found.point.records == found.audit.checked >= RECORDS_OF_LOG


def test_spark_starts_from_a_checkpoint_at_the_end(replay: Replay, exported: Path) -> None:
    last = read_manifest(exported).checkpoints[-1]
    found = replay("state", exported, at_offset=last.offset)
    assert (found.point.offset, found.point.records) == (last.offset, last.offset + 1)
    assert found.state_hash == last.state_hash
    assert found == ask("state", exported, at_offset=last.offset)


def test_fold_from_a_checkpoint_reads_nothing_below_and_reports_it(
    exported: Path, history: LogHistory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    first = read_manifest(copy).of_kind(RECORDS)[0]
    (copy / first.file).unlink()
    request = JobRequest(job="state", export=str(copy))
    found = compute(request)
    assert found.state_hash == format_hash(history.hashes[history.end_offset - 1])
    assert run_job(request, spark=False) == 0
    shown = capsys.readouterr().out
    assert f"Started from the checkpoint at offset {found.checkpoint.offset}; nothing" in shown
    for job, key in (("diff", None), ("history", ("topic", ""))):
        other = JobRequest(job=job, export=str(copy), key=key, from_offset=880)
        assert run_job(other, spark=False) == 0
        assert "Started from the checkpoint at offset " in capsys.readouterr().out
    assert run_job(replace(request, from_the_beginning=True), spark=False) == EXIT_FINDINGS
    assert "it is missing" in capsys.readouterr().err


def test_only_row_groups_after_the_checkpoint_are_read(exported: Path) -> None:
    request = JobRequest(job="state", export=str(exported), at_offset=RECORDS_OF_LOG - 10)
    export = from_checkpoint(open_export(request), request)
    assert export.begin is not None
    assert export.record_count <= 3 * EVERY + 350
    read = sum(table.num_rows for each in export.segments
               for table in reading.read_file(export, each, ["offset"]))  # fmt: skip
    assert read <= RECORDS_OF_LOG - export.begin.offset + 2 * 50


def test_damaged_checkpoint_is_refused(exported: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    last = read_manifest(copy).checkpoints[-1]
    flip(copy / last.file)
    request = JobRequest(job="state", export=str(copy))
    with pytest.raises(CorruptExportError, match=f"{last.file}.* is corrupt: expected the SHA-256"):
        compute(request)
    assert run_job(request, spark=False) == EXIT_FINDINGS
    assert run_job(replace(request, from_the_beginning=True), spark=False) == 0
