"""The job verify: a good export passes, and every defect is named at once. It folds an export from checkpoint to
checkpoint: the slice that leads to a forged state names it, and nothing else is accused.
"""

import hashlib
import shutil
from collections.abc import Callable
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from asking import ask, ask_shared, written
from exports import publish, rewrite
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace
from rich.console import Console
from spark_runs import Replay
from tiers import nightly

from raftlog import batch
from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder, change_configs
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.segments.checkpoints import load_checkpoint, log_hash_at
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.files import open_place
from raftlog.segments.manifest import RAW, RECORDS, Checkpoint, StateHash, read_manifest
from raftlog.segments.range_checks import Fault
from raftlog.segments.verify import fold_slice, plan_slices
from raftlog.segments.writer import ExportWriter
from replay.errors import EXIT_FINDINGS, ReplayError
from replay.jobs import verify
from replay.jobs.verify import VerifyResult
from replay.request import JobRequest
from replay.run import run_job


def said(log: LogHistory, offset: int, node_id: int = 1, **other: object) -> StateHash:
    """Return a node's report of its state, without the log hash."""
    fields = {"log_hash": "", "log_hash_begin_offset": -1, "epoch": epoch_at(log, offset)}
    return replace(log.said(offset, node_id), **fields | other)


def epoch_at(log: LogHistory, offset: int) -> int:
    headers = (next(batch.headers(data, verify=False)) for data in log.batches)
    return next(header.epoch for header in headers if header.last_offset == offset)


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(33).run(600)


@pytest.fixture(scope="module")
def exported(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of a node every 30 batches, of two at the end, and of a snapshot. Not to be modified:
    take a copy.
    """
    offsets = sorted(history.hashes)
    words = [said(history, offset) for offset in (*offsets[10::30], offsets[-1])]
    words += [said(history, offsets[-1], 2), said(history, offsets[90], 3, source="snapshot")]
    sizes = {"max_segment_records": 170, "checkpoint_records": 60}
    return written(history, tmp_path_factory.mktemp("export"), said=words, **sizes)


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def only_fault(result: verify.VerifyResult) -> Fault:
    assert not result.passed
    (fault,) = result.faults
    assert result.total == 1
    return fault


def test_state_that_no_node_had_is_reported(history: LogHistory, copy: Path) -> None:
    ends = sorted(history.hashes)
    other = said(history, ends[50], 2, state_hash="0" * 32)
    publish(copy, state_hashes=(said(history, ends[50]), other))
    result = ask_shared(2, "verify", copy)
    fault = only_fault(result)
    assert (fault.check, fault.first_offset) == ("STATE", ends[50])
    right = format_hash(history.hashes[ends[50]])
    assert f"the fold gives the state hash {right}, but node 2 had {'0' * 32}" in fault.message
    assert [state.agrees for state in result.states] == [False, True]
    assert result.end_said_by == []


def test_state_reported_after_another_record_is_reported(history: LogHistory, copy: Path) -> None:
    """By a node that followed another leader at that offset; and at an offset inside a batch."""
    ends = sorted(history.hashes)
    inside = next(end for before, end in pairwise(ends) if end - before > 1) - 1
    forked = said(history, ends[60], 3, epoch=epoch_at(history, ends[60]) + 1)
    publish(copy, state_hashes=(forked, replace(forked, offset=inside)))
    faults = ask_shared(2, "verify", copy).faults
    texts = {fault.first_offset: fault.message for fault in faults if fault.check == "CHAIN"}
    assert f"but a batch of epoch {forked.epoch - 1} ends there" in texts[ends[60]]
    assert "but no batch ends there" in texts[inside]


def test_damaged_files_are_all_reported(copy: Path) -> None:
    raw, records = read_manifest(copy).of_kind(RAW), read_manifest(copy).of_kind(RECORDS)
    (copy / raw[0].file).unlink()
    path = copy / records[2].file
    path.write_bytes(path.read_bytes()[:-1])
    result = ask("verify", copy)
    found = [(fault.check, fault.file) for fault in result.faults]
    assert found == [("FILE", raw[0].file), ("FILE", records[2].file)]
    assert (result.end, result.not_folded) == (None, "files are damaged")
    assert {state.folded for state in result.states} == {None}


def test_altered_value_in_parquet_is_reported(copy: Path) -> None:
    """No checksum can detect it: the file was written so."""
    rows: list[int] = []

    def alter(table: pa.Table) -> pa.Table:
        rows.append(table["type_name"].to_pylist().index("PARTITION_CHANGE"))
        isrs = table["isr"].to_pylist()
        isrs[rows[0]] = [99]
        index = table.schema.get_field_index("isr")
        return table.set_column(index, "isr", pa.array(isrs, table.schema.field(index).type))

    segment = rewrite(copy, alter)
    fault = only_fault(ask("verify", copy))
    offset = segment.base_offset + rows[0]
    assert (fault.check, fault.file, fault.first_offset) == ("FORMS", segment.file, offset)
    assert f"column isr has [99] at offset {offset}, but raw/" in fault.message


def test_files_of_two_logs_in_one_export_are_reported(copy: Path) -> None:
    """Each is sound by itself, and every offset exists once."""
    *others, last, records = read_manifest(copy).segments
    publish(copy, segments=(*others, replace(last, first_epoch=0), records))
    told = [fault.message for fault in ask("verify", copy).faults if fault.check == "CHAIN"]
    assert any("one of the two is from another log" in message for message in told)


def test_history_with_a_late_start_is_checked_and_not_folded(tmp_path: Path) -> None:
    log = LogHistory(92).run(100)
    begin = sorted(log.positions)[5]
    with ExportWriter(tmp_path, CLUSTER_ID, 0, start_offset=begin) as writer:
        writer.append_chunk(b"".join(log.batches[5:]))
        writer.commit(log.end_offset)
    result = ask("verify", tmp_path)
    assert result.passed
    assert result.not_folded == f"history begins at offset {begin}"
    assert result.records == log.end_offset - begin


@pytest.mark.nightly
def test_verify_reads_an_export_at_a_uri(
    replay: Replay, history: LogHistory, exported: Path, copy: Path
) -> None:
    """A file system that only fsspec knows: the workers read it themselves."""
    uri = f"simplecache::file://{exported}"
    (rows,) = replay("sql", uri, query="SELECT count(*) FROM records").rows
    assert rows == [history.end_offset]
    end = format_hash(history.hashes[history.end_offset - 1])
    assert replay("summary", uri, from_the_beginning=True).state_hash == end
    assert replay("verify", uri).passed
    segment = read_manifest(copy).of_kind(RECORDS)[0]
    (copy / segment.file).write_bytes(b"x")
    with pytest.raises(CorruptExportError, match="is corrupt") as caught:
        replay("state", f"simplecache::file://{copy}", from_the_beginning=True)
    assert f"{segment.file} (offsets 0 to" in str(caught.value)


def test_unknown_level_is_refused(copy: Path) -> None:
    publish(copy, metadata_version=99)
    told = r"exported at metadata\.version 99, but this build supports at most"
    with pytest.raises(ReplayError, match=told):
        ask("verify", copy)


def verified(directory: Path, workers: int = 4, **asked: Any) -> VerifyResult:
    """Verify in this process with the slices for this number of workers."""
    result: VerifyResult = ask_shared(workers, "verify", directory, **asked)
    return result


@pytest.mark.parametrize("workers", [None, 1, 2, 5, nightly(40)])
def test_sound_export_passes_in_any_number_of_tasks(
    replay: Replay, exported: Path, history: LogHistory, workers: int | None
) -> None:
    """Without a number: in Spark."""
    result = replay("verify", exported) if workers is None else verified(exported, workers)
    assert result.passed, result.faults
    manifest = read_manifest(exported)
    files = len(manifest.segments) + len(manifest.checkpoints)
    sizes = (files, history.end_offset, len(history.batches))
    assert (result.files, result.records, result.batches) == sizes
    assert result.checkpoints == len(manifest.checkpoints) >= 5
    if workers:
        assert 1 <= result.slices <= min(len(manifest.checkpoints) + 1, 2 * workers)
        assert (workers == 1) == (result.slices == 1)
    assert result.state_hash == format_hash(history.hashes[history.end_offset - 1])
    assert result.end_said_by == ["node 1", "node 2"]
    assert result.states_total >= 10
    assert all(one.agrees and one.folded == one.state_hash for one in result.states)
    assert ["a snapshot of node 3"] in [one.said_by for one in result.states]
    out = StringIO()
    verify.render(result, Console(file=out, width=200))
    assert f"{result.states_total} recorded states agree with the fold" in out.getvalue()


def test_part_of_a_good_export_passes(exported: Path, history: LogHistory) -> None:
    for offset in sorted(history.hashes)[5::60]:
        result = verified(exported, at_offset=offset)
        assert result.passed, result.faults
        assert result.end is not None
        assert result.end.offset == offset
        assert result.state_hash == format_hash(history.hashes[offset])
    every = read_manifest(exported)
    early = verified(exported, at_offset=sorted(history.hashes)[5])
    assert early.files < len(every.segments)
    assert early.states_total < len(every.state_hashes)


def test_slices_cover_everything_once(exported: Path) -> None:
    manifest = read_manifest(exported)
    end = manifest.end_offset - 1
    for count in range(1, 12):
        slices = plan_slices(manifest.checkpoints, manifest, end, count)
        assert slices[0].begin is None
        assert slices[-1].last_offset == end
        begins = [one.begin.offset for one in slices[1:] if one.begin]
        assert begins == [one.last_offset for one in slices[:-1]]
        way = [each for one in slices for each in one.checkpoints]
        assert tuple(way) == manifest.checkpoints
    assert len(plan_slices((), manifest, end, 5)) == 1


# --- forgeries -------------------------------------------------------------------------------------


Edit = Callable[[ImageBuilder], None]


def _config_changed(draft: ImageBuilder) -> None:
    change_configs(draft, [(2, "topic-1", "retention.ms", "1")])


def _epoch_changed(draft: ImageBuilder) -> None:
    draft.epoch += 1


def _time_changed(draft: ImageBuilder) -> None:
    draft.timestamp_ms -= 1


def forged(directory: Path, one: Checkpoint, edit: Edit, *, header: bool = False) -> Checkpoint:
    """A checkpoint with another state, whose file and entry are consistent."""
    manifest = read_manifest(directory)
    draft = ImageBuilder(load_checkpoint(open_place(directory), manifest.owner, one))
    log_hash = log_hash_at(one, draft)
    edit(draft)
    return rewritten(directory, one, draft.snapshot(), log_hash if not header else None)


def rewritten(directory: Path, one: Checkpoint, image: Image, log_hash: Any) -> Checkpoint:
    """Write another state into a checkpoint's file; return its entry."""
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


def exchange(directory: Path, *changed: tuple[Checkpoint, Checkpoint | None]) -> None:
    """Exchange entries of the manifest, or drop them."""
    instead = dict(changed)
    known = (instead.get(one, one) for one in read_manifest(directory).checkpoints)
    publish(directory, checkpoints=tuple(one for one in known if one is not None))


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
    exchange(copy, (one, made_up))
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
    second = forged(copy, known[1], _config_changed)
    manifest = read_manifest(copy)
    changed = [(known[1], second)]
    draft = ImageBuilder(load_checkpoint(open_place(copy), manifest.owner, second))
    for one in known[2:]:
        for data in history.batches[history.positions[draft.offset + 1] :]:
            if draft.offset == one.offset:
                break
            draft.apply_chunk(data)
        changed.append((one, rewritten(copy, one, draft.snapshot(), log_hash_at(one, draft))))
    exchange(copy, *changed)
    # The nodes' words are where the forger can't leave them: he drops those.
    publish(copy, state_hashes=())
    for workers in (1, 2, 5):
        result = verified(copy, workers)
        assert not result.passed
        first = result.faults[0]
        assert (first.check, first.first_offset) == ("CHECKPOINT", known[1].offset)


def test_forged_log_hash_is_detected(copy: Path) -> None:
    one = read_manifest(copy).checkpoints[1]
    image = load_checkpoint(open_place(copy), read_manifest(copy).owner, one)
    true = log_hash_at(one, ImageBuilder(image))
    exchange(copy, (one, rewritten(copy, one, image, true._replace(digest=bytes(32)))))
    fault = only_fault(verified(copy, 1))
    assert (fault.check, fault.first_offset) == ("CHECKPOINT", one.offset)
    assert f"but the checkpoint has {'00' * 32}" in fault.message


def test_moved_checkpoint_is_detected(copy: Path) -> None:
    """The true state of one offset under another, in file and manifest."""
    one = read_manifest(copy).checkpoints[2]

    def moved(draft: ImageBuilder) -> None:
        draft.offset += 1

    exchange(copy, (one, forged(copy, one, moved, header=True)))
    result = verified(copy, 1)
    assert {fault.check for fault in result.faults} == {"CHECKPOINT"}
    assert result.faults[0].first_offset == one.offset + 1
    assert not verified(copy, 5).passed


def test_dropped_or_missing_checkpoint_does_not_change_the_state(
    copy: Path, exported: Path
) -> None:
    _, _, one, other, *_ = read_manifest(copy).checkpoints
    exchange(copy, (one, None))
    fault = only_fault(verified(copy))
    assert (fault.check, fault.file) == ("CHECKPOINT", one.file)
    (copy / one.file).unlink()
    assert verified(copy).passed
    at = one.offset + 5
    found, true = (ask("state", where, at_offset=at) for where in (copy, exported))
    assert found.state_hash == true.state_hash
    assert found.checkpoint.offset < one.offset == true.checkpoint.offset
    (copy / other.file).unlink()
    result = verified(copy)
    fault = only_fault(result)
    assert (fault.check, fault.file) == ("CHECKPOINT", other.file)
    assert "it is missing" in fault.message
    assert result.state_hash is not None
    assert all(state.folded == state.state_hash for state in result.states)


def test_unfoldable_log_is_a_finding(tmp_path: Path) -> None:
    history = LogHistory(1).run(100)
    history.batches.append(history.unfoldable())
    written(history, tmp_path, checkpoint_records=30)
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


def test_spark_detects_a_forged_state(replay: Replay, copy: Path) -> None:
    one = read_manifest(copy).checkpoints[2]
    exchange(copy, (one, forged(copy, one, _config_changed)))
    result = replay("verify", copy)
    assert not result.passed
    assert (result.faults[0].check, result.faults[0].file) == ("CHECKPOINT", one.file)
