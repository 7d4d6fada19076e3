"""Verify folds an export from checkpoint to checkpoint: the slice that leads to a forged state
names it, and nothing else is accused.
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask, ask_shared
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace
from pyspark.sql import SparkSession
from spark_runs import Replay
from test_verify_job import only_fault, said

from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder, change_configs
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.segments.checkpoints import load_checkpoint, log_hash_at
from raftlog.segments.files import open_place
from raftlog.segments.manifest import MANIFEST_NAME, Checkpoint, Manifest, encode, read_manifest
from raftlog.segments.verify import fold_slice, plan_slices
from raftlog.segments.writer import ExportWriter
from replay.engine import pool
from replay.errors import EXIT_FINDINGS
from replay.export import open_export
from replay.jobs import verify
from replay.jobs.verify import VerifyResult
from replay.request import JobRequest
from replay.run import run_job
from replay.spark.pool import SparkPool

EVERY = 60
RECORDS_OF_LOG = 600


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(33).run(RECORDS_OF_LOG)


@pytest.fixture(scope="module")
def exported(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be modified: take a copy."""
    directory = tmp_path_factory.mktemp("export")
    with ExportWriter(
        directory, CLUSTER_ID, 0, max_segment_records=170, checkpoint_records=EVERY
    ) as writer:
        writer.append_chunk(b"".join(history.batches))
        offsets = sorted(history.hashes)
        writer.record([said(history, offset, 1) for offset in (*offsets[10::30], offsets[-1])])
        writer.commit(writer.next_offset)
    return directory


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def verified(directory: Path, workers: int = 4, **asked: Any) -> VerifyResult:
    """Verify in this process with the slices for this number of workers."""
    result: VerifyResult = ask_shared(workers, "verify", directory, **asked)
    return result


@pytest.mark.parametrize("workers", [1, 2, 5, 40])
def test_sound_export_passes(exported: Path, history: LogHistory, workers: int) -> None:
    result = verified(exported, workers)
    assert result.passed, result.faults
    checkpoints = read_manifest(exported).checkpoints
    assert result.checkpoints == len(checkpoints) >= 5
    assert 1 <= result.slices <= min(len(checkpoints) + 1, 2 * workers)
    assert (workers == 1) == (result.slices == 1)
    assert result.state_hash == format_hash(history.hashes[history.end_offset - 1])
    assert result.end_said_by == ["node 1"]
    assert result.states_total >= 10
    assert all(one.folded == one.state_hash for one in result.states)


def test_part_of_a_good_export_passes(exported: Path, history: LogHistory) -> None:
    for offset in sorted(history.hashes)[5::60]:
        result = verified(exported, at_offset=offset)
        assert result.passed, result.faults
        assert result.end is not None
        assert (result.end.offset, result.state_hash) == (
            offset, format_hash(history.hashes[offset]),
        )  # fmt: skip


def test_slices_cover_everything_once(exported: Path) -> None:
    manifest = read_manifest(exported)
    end = manifest.end_offset - 1
    for count in range(1, 12):
        slices = plan_slices(manifest.checkpoints, manifest, end, count)
        assert slices[0].begin is None
        assert slices[-1].last_offset == end
        assert [one.begin.offset for one in slices[1:] if one.begin] == [
            one.last_offset for one in slices[:-1]
        ]
        way = [each for one in slices for each in one.checkpoints]
        assert tuple(way) == manifest.checkpoints
    assert len(plan_slices((), manifest, end, 5)) == 1


def test_large_export_uses_worker_processes(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ALONE_RECORDS", 0)
    monkeypatch.setattr(pool, "workers", lambda: 2)
    result = ask("verify", exported)
    assert result.passed
    assert result.slices == 4


# --- forgeries -------------------------------------------------------------------------------------


Edit = Callable[[ImageBuilder], None]


def _config_changed(draft: ImageBuilder) -> None:
    change_configs(draft, [(2, "topic-1", "retention.ms", "1")])


def _nothing(draft: ImageBuilder) -> None:
    """Keep the state."""


def _epoch_changed(draft: ImageBuilder) -> None:
    draft.epoch += 1


def _time_changed(draft: ImageBuilder) -> None:
    draft.timestamp_ms -= 1


def forged(directory: Path, one: Checkpoint, edit: Edit, **header: Any) -> Checkpoint:
    """A checkpoint with another state, whose file and entry are consistent."""
    manifest = read_manifest(directory)
    draft = ImageBuilder(load_checkpoint(open_place(directory), manifest.owner, one))
    log_hash = log_hash_at(one, draft)
    edit(draft)
    return written(directory, one, draft.snapshot(), log_hash if not header else None, **header)


def written(
    directory: Path, one: Checkpoint, image: Image, log_hash: Any, **header: Any
) -> Checkpoint:
    says = header_of(image, cluster_id=CLUSTER_ID, generations=())
    data = b"".join(pieces(image, says, log_hash))
    (directory / one.file).write_bytes(data)
    return replace(
        one,
        offset=image.offset,
        epoch=image.epoch,
        timestamp_ms=image.timestamp_ms,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        state_hash=format_hash(image.state_hash),
        log_hash="" if log_hash is None else log_hash.digest.hex(),
        log_hash_begin_offset=-1 if log_hash is None else log_hash.begin_offset,
    )


def rewrite(directory: Path, *changed: tuple[Checkpoint, Checkpoint | None]) -> Manifest:
    manifest = read_manifest(directory)
    instead = dict(changed)
    known = [instead.get(one, one) for one in manifest.checkpoints]
    forged = replace(manifest, checkpoints=tuple(one for one in known if one is not None))
    (directory / MANIFEST_NAME).write_bytes(encode(forged))
    return forged


@pytest.mark.parametrize("which", [0, 2, -1])
@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (_config_changed, "gives the state hash"),
        (_epoch_changed, "but the checkpoint has epoch"),
        (_time_changed, "but the checkpoint has epoch"),
    ],
)
@pytest.mark.parametrize("workers", [1, 5])
def test_forged_state_is_detected(
    copy: Path, which: int, edit: Edit, found: str, workers: int
) -> None:
    one = read_manifest(copy).checkpoints[which]
    made_up = forged(copy, one, edit)
    assert made_up != one
    rewrite(copy, (one, made_up))
    result = verified(copy, workers)
    faults = [fault for fault in result.faults if fault.first_offset == one.offset]
    assert [(fault.check, fault.file) for fault in faults] == [("CHECKPOINT", one.file)]
    assert found in faults[0].message
    # From a slice that begins with it, others look wrong, too; none before it does.
    assert all(fault.first_offset >= one.offset for fault in result.faults)
    if workers == 1:
        assert result.faults == faults
    assert run_job(JobRequest(job="verify", export=str(copy)), spark=False) == EXIT_FINDINGS


def test_forged_state_is_detected_with_matching_successors(copy: Path, history: LogHistory) -> None:
    """The forger folds on from the forged state, and makes every later checkpoint match."""
    known = read_manifest(copy).checkpoints
    first = forged(copy, known[1], _config_changed)
    manifest = read_manifest(copy)
    changed = [(known[1], first)]
    draft = ImageBuilder(load_checkpoint(open_place(copy), manifest.owner, first))
    for one in known[2:]:
        for data in history.batches[history.positions[draft.offset + 1] :]:
            if draft.offset == one.offset:
                break
            draft.apply_chunk(data)
        image = draft.snapshot()
        changed.append((one, written(copy, one, image, log_hash_at(one, draft))))
    rewrite(copy, *changed)
    # The nodes' words are where the forger can't leave them: he drops those.
    manifest = read_manifest(copy)
    (copy / MANIFEST_NAME).write_bytes(encode(replace(manifest, state_hashes=())))
    for workers in (1, 2, 5):
        result = verified(copy, workers)
        assert not result.passed
        assert (result.faults[0].check, result.faults[0].first_offset) == (
            "CHECKPOINT", known[1].offset,
        )  # fmt: skip


def test_forged_log_hash_is_detected(copy: Path) -> None:
    one = read_manifest(copy).checkpoints[1]
    manifest = read_manifest(copy)
    image = load_checkpoint(open_place(copy), manifest.owner, one)
    true = log_hash_at(one, ImageBuilder(image))
    made_up = written(copy, one, image, true._replace(digest=bytes(32)))
    rewrite(copy, (one, made_up))
    fault = only_fault(verified(copy, 1))
    assert (fault.check, fault.first_offset) == ("CHECKPOINT", one.offset)
    assert f"but the checkpoint has {'00' * 32}" in fault.message


def test_moved_checkpoint_is_detected(copy: Path) -> None:
    """The true state of one offset under another, in file and manifest."""
    one = read_manifest(copy).checkpoints[2]

    def moved(draft: ImageBuilder) -> None:
        draft.offset += 1

    rewrite(copy, (one, forged(copy, one, moved, moved=True)))
    result = verified(copy, 1)
    assert {fault.check for fault in result.faults} == {"CHECKPOINT"}
    assert result.faults[0].first_offset == one.offset + 1
    assert not verified(copy, 5).passed


def test_dropped_checkpoint_does_not_change_the_state(copy: Path, exported: Path) -> None:
    one = read_manifest(copy).checkpoints[2]
    rewrite(copy, (one, None))
    fault = only_fault(verified(copy))
    assert (fault.check, fault.file) == ("CHECKPOINT", one.file)
    (copy / one.file).unlink()
    assert verified(copy).passed
    at = one.offset + 5
    found, true = (ask("state", where, at_offset=at) for where in (copy, exported))
    assert found.state_hash == true.state_hash
    assert found.checkpoint.offset < one.offset == true.checkpoint.offset


def test_missing_file_is_reported_and_the_rest_is_folded(copy: Path) -> None:
    one = read_manifest(copy).checkpoints[3]
    (copy / one.file).unlink()
    result = verified(copy)
    fault = only_fault(result)
    assert (fault.check, fault.file) == ("CHECKPOINT", one.file)
    assert "it is missing" in fault.message
    assert result.state_hash is not None
    assert all(state.folded == state.state_hash for state in result.states)


def test_node_with_a_different_report_is_reported(copy: Path) -> None:
    manifest = read_manifest(copy)
    wrong = replace(manifest.state_hashes[4], state_hash=format_hash(7))
    known = (*manifest.state_hashes[:4], wrong, *manifest.state_hashes[5:])
    (copy / MANIFEST_NAME).write_bytes(encode(replace(manifest, state_hashes=known)))
    fault = only_fault(verified(copy))
    assert (fault.check, fault.first_offset) == ("STATE", wrong.offset)


def test_unfoldable_log_is_a_finding(tmp_path: Path) -> None:
    history = LogHistory(1).run(100)
    with ExportWriter(tmp_path, CLUSTER_ID, 0, checkpoint_records=30) as writer:
        writer.append_chunk(b"".join(history.batches) + history.unfoldable())
        writer.commit(writer.next_offset)
    fault = only_fault(verified(tmp_path))
    assert (fault.check, fault.first_offset) == ("STATE", history.end_offset)
    assert "does not fold" in fault.message
    assert run_job(JobRequest(job="verify", export=str(tmp_path)), spark=False) == EXIT_FINDINGS


def test_slice_trusts_only_its_starting_checkpoint(exported: Path, history: LogHistory) -> None:
    manifest = read_manifest(exported)
    end = manifest.end_offset - 1
    for one in plan_slices(manifest.checkpoints, manifest, end, 6):
        low = -1 if one.begin is None else one.begin.offset
        folded = fold_slice(open_place(exported), manifest, one, range(end + 1), {})
        assert folded.end_offset == one.last_offset + 1
        assert sorted(folded.hashes) == list(range(low + 1, one.last_offset + 1))
        for offset, state_hash in folded.hashes.items():
            before = max(each for each in (*history.hashes, -1) if each <= offset)
            if before > low:
                assert state_hash == format_hash(history.hashes[before])
        assert folded.faults == []


def test_spark_verification_equals_the_local_one(
    spark: SparkSession, replay: Replay, exported: Path, copy: Path
) -> None:
    request = JobRequest(job="verify", export=str(exported))
    tasks = SparkPool(spark, 0)
    tasks.size = 3
    result = verify.run(open_export(request), request, tasks)
    assert result.slices > 1
    assert replace(result, slices=0) == replace(verified(exported), slices=0)
    one = read_manifest(copy).checkpoints[2]
    rewrite(copy, (one, forged(copy, one, _config_changed)))
    result = replay("verify", copy)
    assert not result.passed
    assert (result.faults[0].check, result.faults[0].file) == ("CHECKPOINT", one.file)
