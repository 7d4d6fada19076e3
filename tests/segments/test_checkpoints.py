"""Checkpoints of an export."""

import hashlib
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from exports import flipped, publish
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog import batch
from raftlog.metadata.entities import format_hash
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.segments import checkpoints
from raftlog.segments.checkpoints import last_at, load_checkpoint
from raftlog.segments.compact import compact
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.export import export
from raftlog.segments.files import open_place
from raftlog.segments.manifest import CHECKPOINTS, RAW, Checkpoint, Manifest, read_manifest
from raftlog.segments.verify import checkpoint_faults, verify_export
from raftlog.segments.writer import ExportWriter
from raftlog.wire.records.v1 import records_pb2 as pb

EVERY = 40


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(3).run(600)


@pytest.fixture(scope="module")
def exported(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be modified: take a copy."""
    directory = tmp_path_factory.mktemp("export")
    export(history, directory, checkpoint_records=EVERY)
    return directory


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def faults(directory: Path) -> list[str]:
    manifest = read_manifest(directory)
    found = checkpoint_faults(open_place(directory), manifest, manifest.end_offset - 1)
    return [one.message for one in found]


def require_true(directory: Path, history: LogHistory) -> tuple[Checkpoint, ...]:
    place, manifest = open_place(directory), read_manifest(directory)
    for one in manifest.checkpoints:
        image = load_checkpoint(place, manifest.owner, one)
        assert format_hash(image.state_hash) == format_hash(history.hashes[one.offset])
        assert (image.offset, one.state_hash) == (one.offset, format_hash(image.state_hash))
        said = history.log_hashes[one.offset]
        if said.is_known:
            assert (one.log_hash, one.log_hash_begin_offset) == (said.digest.hex(), 0)
    there = {path.name for path in (directory / CHECKPOINTS).iterdir()}
    retired = {one.file for one in manifest.retired if one.file.startswith(CHECKPOINTS)}
    assert {f"{CHECKPOINTS}/{name}" for name in there} == retired | {
        one.file for one in manifest.checkpoints
    }
    return manifest.checkpoints


@pytest.mark.parametrize("seed", range(4))
def test_each_checkpoint_is_the_state_at_its_offset(seed: int, tmp_path: Path) -> None:
    history = LogHistory(seed, metadata_version=1 + seed % 2).run(500)
    export(history, tmp_path, checkpoint_records=EVERY)
    made = require_true(tmp_path, history)
    assert len(made) >= 4
    offsets = [-1, *(one.offset for one in made)]
    assert all(right - left >= EVERY for left, right in pairwise(offsets))
    assert verify_export(tmp_path).checkpoints == made
    assert faults(tmp_path) == []


@pytest.mark.parametrize("seed", range(3))
def test_export_made_in_pieces_has_the_same_checkpoints(
    seed: int, history: LogHistory, exported: Path, tmp_path: Path
) -> None:
    rng = Random(seed)
    batches = list(history.batches)
    while batches:
        count = rng.randrange(1, 60)
        with ExportWriter(
            tmp_path, CLUSTER_ID, 0, max_segment_records=70, checkpoint_records=EVERY
        ) as writer:
            writer.append_chunk(b"".join(batches[:count]))
            writer.commit(writer.next_offset)
            if rng.random() < 0.3:
                compact(writer)
        batches = batches[count:]
    assert require_true(tmp_path, history) == read_manifest(exported).checkpoints


def test_older_export_gets_checkpoints(history: LogHistory, exported: Path, tmp_path: Path) -> None:
    export(history, tmp_path, checkpoint_records=0)
    assert read_manifest(tmp_path).checkpoints == ()
    assert not (tmp_path / CHECKPOINTS).exists()
    assert export(history, tmp_path, checkpoint_records=EVERY).checkpoints
    assert require_true(tmp_path, history) == read_manifest(exported).checkpoints


def test_export_of_unknown_start_has_no_checkpoints(history: LogHistory, tmp_path: Path) -> None:
    start = next(iter(offset for offset in history.positions if offset > 50))
    with ExportWriter(
        tmp_path, CLUSTER_ID, 0, start_offset=start, checkpoint_records=EVERY
    ) as writer:
        writer.append_chunk(b"".join(history.batches[history.positions[start] :]))
        manifest = writer.commit(writer.next_offset)
    assert manifest.checkpoints == ()


def test_unfoldable_log_is_exported_and_reported(tmp_path: Path) -> None:
    history = LogHistory(1).run(100)
    with ExportWriter(tmp_path, CLUSTER_ID, 0, checkpoint_records=EVERY) as writer:
        writer.append_chunk(b"".join(history.batches) + history.unfoldable())
        for _ in range(100):
            writer.append_chunk(no_op(writer.next_offset, history))
        manifest = writer.commit(writer.next_offset)
        assert "which does not exist" in writer.not_folded
    assert manifest.end_offset == history.end_offset + 101
    assert 1 <= len(manifest.checkpoints) <= 3
    with ExportWriter(tmp_path, CLUSTER_ID, 0, checkpoint_records=EVERY) as writer:
        writer.append_chunk(no_op(writer.next_offset, history))
        assert "which does not exist" in writer.not_folded


def no_op(offset: int, history: LogHistory) -> bytes:
    return batch.encode(
        [record(pb.NoOpRecord()).data],
        base_offset=offset,
        epoch=history.epoch,
        timestamp_ms=history.timestamp_ms,
    )


def test_number_of_checkpoints_is_bounded(
    history: LogHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_CHECKPOINTS", 6)
    for count in range(100, len(history.batches) + 100, 100):
        with ExportWriter(tmp_path, CLUSTER_ID, 0, checkpoint_records=20) as writer:
            batches = history.batches[:count]
            known = len(history.batches) if writer.next_offset == history.end_offset else None
            at = history.positions.get(writer.next_offset, known)
            writer.append_chunk(b"".join(batches[at:]))
            writer.commit(writer.next_offset)
    assert 3 <= len(require_true(tmp_path, history)) <= 6
    assert read_manifest(tmp_path).retired


def test_newest_checkpoints_are_kept(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MAX_CHECKPOINTS", 8)
    like = read_manifest(exported).checkpoints[0]
    known = tuple(replace(like, offset=offset) for offset in range(40))
    assert checkpoints.thinned(known[:8]) == known[:8]
    kept = checkpoints.thinned(known[:9])
    assert [one.offset for one in kept] == [1, 3, 4, 5, 6, 7, 8]
    # Many may come at once: an older export gets all of its own.
    kept = checkpoints.thinned(known)
    assert len(kept) <= 8
    assert kept[-3:] == known[-3:]


def test_state_larger_than_the_log_since_the_last_checkpoint_waits(tmp_path: Path) -> None:
    history = LogHistory(2).run(50)
    for number in range(30):
        history.alter_config("orders", f"key-{number}", "x" * 500)
    history.run(300)
    export(history, tmp_path, checkpoint_records=10)
    made = require_true(tmp_path, history)
    raw = sum(one.bytes for one in read_manifest(tmp_path).of_kind(RAW))
    assert 0 < sum(one.bytes for one in made) < raw


def test_leftovers_of_a_crashed_writer_are_removed(copy: Path, history: LogHistory) -> None:
    left = copy / CHECKPOINTS / f"{history.end_offset + 7:020d}-{1:010d}.checkpoint"
    below = copy / CHECKPOINTS / f"{33:020d}-{1:010d}.checkpoint"
    temporary = copy / CHECKPOINTS / f".tmp-{below.name}"
    for path in (left, below, temporary):
        path.write_bytes(b"half")
    # What lies beyond the end may be of a writer that is about to publish it.
    (fault,) = faults(copy)
    assert below.name in fault
    export(history, copy, checkpoint_records=EVERY)
    assert require_true(copy, history)


def test_damaged_checkpoint_does_not_stop_the_export(copy: Path, tmp_path: Path) -> None:
    history = LogHistory(3).run(600)
    last = read_manifest(copy).checkpoints[-1]
    (copy / last.file).write_bytes(b"")
    export(history.run(900), copy, checkpoint_records=EVERY)
    manifest = read_manifest(copy)
    assert [one for one in manifest.checkpoints if one.offset > last.offset]
    (fault,) = faults(copy)
    assert last.file in fault
    (copy / last.file).unlink()
    for one in manifest.checkpoints:
        if one != last:
            image = load_checkpoint(open_place(copy), manifest.owner, one)
            assert format_hash(image.state_hash) == format_hash(history.hashes[one.offset])


def test_last_checkpoint_before_a_point_is_found(exported: Path) -> None:
    known = read_manifest(exported).checkpoints
    first, second = known[:2]
    assert last_at(known) == known[-1]
    assert last_at(known, offset=first.offset - 1) is None
    assert last_at(known, offset=first.offset) == first
    assert last_at(known, offset=second.offset - 1) == first
    assert last_at(known, timestamp_ms=first.timestamp_ms - 1) is None
    assert last_at(known, timestamp_ms=second.timestamp_ms) == second
    assert last_at(known, offset=first.offset, timestamp_ms=second.timestamp_ms) == first
    assert last_at((), offset=4) is None


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(which=st.integers(0, 3), position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_byte_is_reported(
    exported: Path, which: int, position: float, bit: int
) -> None:
    one = read_manifest(exported).checkpoints[which]
    with flipped(exported / one.file, position, bit):
        (fault,) = faults(exported)
    assert one.describe() in fault


def test_export_is_verified_with_its_checkpoints(copy: Path) -> None:
    one = read_manifest(copy).checkpoints[1]
    (copy / one.file).write_bytes(b"RAFTLOG")
    why = f"{one.file}.*is corrupt: expected .* bytes, found 7"
    with pytest.raises(CorruptExportError, match=why):
        verify_export(copy)


Plant = Callable[[Path, Manifest, Checkpoint], Checkpoint | None]


def rehashed(path: Path, data: bytes, one: Checkpoint) -> Checkpoint:
    """Make everything in the manifest match the file, as a forger would."""
    path.write_bytes(data)
    return replace(one, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def missing(directory: Path, _: Manifest, one: Checkpoint) -> Checkpoint:
    (directory / one.file).unlink()
    return one


def edited(edit: Callable[[bytes], bytes]) -> Plant:
    def plant(directory: Path, _: Manifest, one: Checkpoint) -> Checkpoint:
        path = directory / one.file
        return rehashed(path, edit(path.read_bytes()), one)

    return plant


def owned_by(cluster_id: str, *generations: int) -> Plant:
    def plant(directory: Path, manifest: Manifest, one: Checkpoint) -> Checkpoint:
        image = load_checkpoint(open_place(directory), manifest.owner, one)
        header = header_of(image, cluster_id=cluster_id, generations=generations)
        return rehashed(directory / one.file, b"".join(pieces(image, header)), one)

    return plant


def claimed(**fields: Any) -> Plant:
    """Change fields of the entry; numbers are added."""

    def plant(_: Path, __: Manifest, one: Checkpoint) -> Checkpoint:
        values = {
            name: getattr(one, name) + value if isinstance(value, int) else value
            for name, value in fields.items()
        }
        return replace(one, **values)

    return plant


def another(directory: Path, manifest: Manifest, one: Checkpoint) -> Checkpoint:
    data = (directory / manifest.checkpoints[0].file).read_bytes()
    return rehashed(directory / one.file, data, one)


PLANTS: dict[str, tuple[Plant, str]] = {
    "missing": (missing, "it is missing"),
    "cut": (edited(lambda data: data[:-1]), "it has no footer"),
    "a value changed": (edited(lambda data: data.replace(b"topic-1", b"topic-x", 1)), "is corrupt"),
    "another cluster's": (owned_by("another"), "belongs to cluster another generation 0"),
    "another generation's": (owned_by(CLUSTER_ID, 1), f"to cluster {CLUSTER_ID} generation 1"),
    "offset moved": (claimed(offset=1), "it contains the state at offset"),
    "epoch moved": (claimed(epoch=1), "is corrupt: expected epoch"),
    "time moved": (claimed(timestamp_ms=-1), "is corrupt: expected epoch"),
    "state hash changed": (
        claimed(state_hash=format_hash(1)),
        "is corrupt: expected the state hash",
    ),
    "log hash changed": (claimed(log_hash="00" * 32), "its log hash differs"),
    "another one": (another, "it contains the state at offset"),
    "not listed": (lambda *_: None, "does not list it"),
}


@pytest.mark.parametrize("planted", PLANTS)
def test_damaged_checkpoint_is_detected(copy: Path, planted: str) -> None:
    plant, found = PLANTS[planted]
    manifest = read_manifest(copy)
    one = manifest.checkpoints[2]
    changed = plant(copy, manifest, one)
    known = [changed if each == one else each for each in manifest.checkpoints]
    publish(copy, checkpoints=tuple(each for each in known if each is not None))
    (fault,) = faults(copy)
    assert found in fault
    assert one.file in fault


@pytest.mark.parametrize(
    "disorder",
    [
        lambda known: (known[1], known[0]),
        lambda known: (known[0], known[0]),
        lambda known: (replace(known[0], offset=10_000),),
        lambda known: (replace(known[0], file="../elsewhere"),),
    ],
    ids=["swapped", "twice", "beyond-the-end", "outside"],
)
def test_manifest_with_wrong_checkpoints_is_refused(
    copy: Path, disorder: Callable[[tuple[Checkpoint, ...]], tuple[Checkpoint, ...]]
) -> None:
    publish(copy, checkpoints=disorder(read_manifest(copy).checkpoints))
    with pytest.raises(CorruptExportError, match="lists"):
        read_manifest(copy)
