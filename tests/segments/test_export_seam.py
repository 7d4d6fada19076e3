"""An export continues only with the log that it was made from."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from exports import publish, written
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog.errors import ApiError, ErrorCode
from raftlog.segments.compact import compact
from raftlog.segments.errors import (
    CorruptExportError,
    ExportError,
    ExportGapError,
    ExportMismatchError,
)
from raftlog.segments.export import PublishPolicy, export, follow
from raftlog.segments.files import TEMP_PREFIX
from raftlog.segments.manifest import (
    MANIFEST_NAME,
    RAW,
    RECORDS,
    Manifest,
    Retired,
    StateHash,
    read_manifest,
)
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter


class Cluster:
    """A running cluster: ``log`` may be replaced, which takes a new connection."""

    cluster_id, generation, start_offset, connections = CLUSTER_ID, 0, 0, 1

    def __init__(self, log: LogHistory) -> None:
        self.log = log

    @property
    def high_watermark(self) -> int:
        return self.log.end_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        if offset not in self.log.positions:
            if offset >= self.high_watermark:
                return b""
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, "no batch begins there")
        return self.log.read(offset, max_bytes)

    def poll(self, offset: int, max_bytes: int, wait_s: float) -> bytes:
        return self.read(offset, max_bytes) if offset < self.high_watermark else b""

    def replace(self, log: LogHistory) -> None:
        self.log, self.connections = log, self.connections + 1


class Directory(Cluster):
    connections = 0


def forked(seed: int, *, at: int = 100) -> tuple[LogHistory, LogHistory]:
    """Return two logs of one generation that are equal up to about an offset."""
    one, other = (LogHistory(seed).run(at) for _ in range(2))
    assert one.batches == other.batches
    other.rng.seed(seed + 1000)
    other.elect(3)
    return one.run(at + 50), other


@pytest.mark.parametrize("seed", range(5))
def test_export_refuses_log_that_was_replaced(seed: int, tmp_path: Path) -> None:
    exported, other = forked(seed)
    source = Cluster(exported)
    export(source, tmp_path)
    before = read_manifest(tmp_path)
    source.replace(other.run(exported.end_offset + 100))
    with pytest.raises(ExportMismatchError, match=r"is not the log that was exported"):
        export(source, tmp_path)
    assert read_manifest(tmp_path).segments == before.segments
    export(Cluster(exported.run(300)), tmp_path)
    verify_export(tmp_path)


def test_export_refuses_cluster_whose_log_ends_before_it(tmp_path: Path) -> None:
    exported, shorter = forked(7)
    export(Cluster(exported), tmp_path)
    with pytest.raises(ExportMismatchError, match="but the log ends before it"):
        export(Cluster(shorter), tmp_path)


def test_directory_may_lag_behind_the_export_but_not_differ(tmp_path: Path) -> None:
    exported, other = forked(0)
    export(exported, tmp_path)
    assert export(other, tmp_path).records == 0
    with pytest.raises(ExportMismatchError, match="has another batch there, of epoch"):
        export(Directory(other.run(exported.end_offset + 50)), tmp_path)


def test_export_continues_where_the_log_begins_at_its_end(tmp_path: Path) -> None:
    """The last batch of the export is not available for comparison."""
    history = LogHistory(9).run(100)
    export(history, tmp_path)
    history.start_offset = history.end_offset
    assert export(history.run(history.end_offset + 50), tmp_path).records >= 50
    history.start_offset = history.run(history.end_offset + 50).end_offset
    with pytest.raises(ExportGapError):
        export(history, tmp_path)


def test_follow_ends_when_the_log_is_replaced_between_two_polls(tmp_path: Path) -> None:
    """Also before the first publish, so that no manifest could show it."""
    exported, other = forked(10)
    source, polls = Cluster(exported), 0
    other.run(exported.end_offset + 100)

    def stop() -> bool:
        nonlocal polls
        polls += 1
        if polls == 3:
            source.replace(other)
        return polls > 10

    with pytest.raises(ExportMismatchError, match="is not the log that was exported"):
        follow(source, tmp_path, PublishPolicy(interval_s=1e9), stop=stop)
    assert polls == 3
    assert read_manifest(tmp_path).segments == ()


def test_follow_compares_again_after_a_controller_was_away(tmp_path: Path) -> None:
    source, polls = Cluster(LogHistory(11).run(100)), 0

    def stop() -> bool:
        nonlocal polls
        polls += 1
        source.replace(source.log.run(100 + 10 * polls))
        return polls > 5

    assert follow(source, tmp_path, PublishPolicy(), stop=stop).records >= 150
    verify_export(tmp_path)


def said(log: LogHistory, *, node_id: int = 1) -> StateHash:
    return log.said(log.end_offset - 1, node_id)


def test_export_refuses_log_whose_hash_no_node_names(tmp_path: Path) -> None:
    """The last batch is the same: only the log hash covers earlier ones."""
    exported, other = forked(12)
    export(exported, tmp_path)
    exported.run(300)
    with pytest.raises(ExportMismatchError, match=r"up to offset .* the log hash of"):
        export(exported, tmp_path, state_hashes=lambda: [_moved(said(other), exported)])
    assert read_manifest(tmp_path).end_offset < exported.end_offset
    # One node in three: its disk or its memory is damaged.
    hashes = [_moved(said(other), exported), said(exported, node_id=2)]
    assert export(exported, tmp_path, state_hashes=lambda: hashes).end_offset == exported.end_offset


def _moved(one: StateHash, log: LogHistory) -> StateHash:
    return replace(one, offset=log.end_offset - 1, epoch=log.epoch)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Two ranges, beside a directory with files of others."""
    return written(LogHistory(5).run(60), tmp_path / "exported", max_segment_records=30)


@pytest.fixture
def others(tmp_path: Path, exported: Path) -> Path:
    """Return other files of a user: those of another export, and a thesis."""
    directory = tmp_path / "others"
    directory.mkdir()
    for name in (f"{1000:020d}.rls", f"{TEMP_PREFIX}{7:020d}.rls", "thesis.txt"):
        (directory / name).write_text(name)
    return directory


def claim(exported: Path, file: str) -> None:
    """Let the manifest name a file for removal."""
    publish(exported, retired=(Retired(file=file, since_ms=0),))


@pytest.mark.parametrize(
    "file",
    [MANIFEST_NAME, ".lock", "raw", "raw/thesis.txt", "mine/thesis.txt", "/etc/passwd", "../x", "raw/../raw/0.rls",
     f"raw/{0:020d}.rls/../../x", "raw/.lock", f"{RECORDS}/{TEMP_PREFIX}{0:020d}.parquet", "raw/" + "٠" * 20 + ".rls"],
)  # fmt: skip
def test_manifest_names_only_files_of_an_export(exported: Path, file: str) -> None:
    claim(exported, file)
    with pytest.raises(CorruptExportError, match="it lists "):
        read_manifest(exported)


def behind_link(exported: Path, others: Path) -> None:
    (exported / RAW).rename(exported.parent / "away")
    for path in (exported.parent / "away").iterdir():
        path.rename(others / path.name)
    (exported / RAW).symlink_to(others)


def test_writer_removes_nothing_through_a_link(exported: Path, others: Path) -> None:
    """Neither files that look like its leftovers, nor files that the manifest calls retired."""
    behind_link(exported, others)
    before = sorted(path.name for path in others.iterdir())
    verify_export(exported)
    with pytest.raises(ExportError, match="is a symbolic link, or below one"):
        ExportWriter(exported, CLUSTER_ID, 0)
    claim(exported, f"{RAW}/{1000:020d}.rls")
    with pytest.raises(ExportError, match="is a symbolic link, or below one"):
        ExportWriter(exported, CLUSTER_ID, 0)
    assert sorted(path.name for path in others.iterdir()) == before


def append(exported: Path) -> None:
    export(LogHistory(5).run(90), exported)


def merge(exported: Path) -> None:
    with ExportWriter(exported, CLUSTER_ID, 0) as writer:
        compact(writer)


@pytest.mark.parametrize("work", [append, merge])
def test_writer_follows_no_link(exported: Path, others: Path, work: Callable[[Path], None]) -> None:
    for path in others.iterdir():
        path.unlink()
    behind_link(exported, others)
    before = sorted(path.name for path in others.iterdir())
    with pytest.raises(ExportError, match="is a symbolic link, or below one"):
        work(exported)
    assert sorted(path.name for path in others.iterdir()) == before


@pytest.mark.parametrize(
    "name", [f"{TEMP_PREFIX}{MANIFEST_NAME}", f"{RECORDS}/{TEMP_PREFIX}{60:020d}.parquet"]
)
def test_writer_does_not_write_through_a_link_at_a_temporary_name(
    exported: Path, others: Path, name: str
) -> None:
    end = read_manifest(exported).end_offset
    (exported / name.replace(f"{60:020d}", f"{end:020d}")).symlink_to(others / "thesis.txt")
    append(exported)
    assert (others / "thesis.txt").read_text() == "thesis.txt"
    assert verify_export(exported).end_offset > end


def test_lock_is_not_created_through_a_link(exported: Path, others: Path) -> None:
    (exported / ".lock").unlink()
    (exported / ".lock").symlink_to(others / "new")
    with pytest.raises(ExportError, match=r"cannot write to"):
        ExportWriter(exported, CLUSTER_ID, 0)
    assert not (others / "new").exists()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses larger files, as on a full disk, also when a file is closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def go_on(target: Path, batches: list[bytes]) -> Manifest:
    with ExportWriter(target, CLUSTER_ID, 0) as writer:
        writer.append_chunk(b"".join(batches))
        return writer.commit(writer.next_offset)


@pytest.mark.parametrize("size", [100, 6_000, 30_000])
def test_export_is_unchanged_and_continues_after_a_full_disk(tmp_path: Path, size: int) -> None:
    history = LogHistory(31).run(1500)
    published = go_on(tmp_path, history.batches[:20])
    more = history.batches[20 : len(history.batches) // 2]
    full = pytest.raises(ExportError, match=r"cannot write to .*: File too large")
    with full, files_of_at_most(size):
        go_on(tmp_path, more)
    assert verify_export(tmp_path) == published
    go_on(tmp_path, history.batches[20:])
    assert verify_export(tmp_path).end_offset == history.end_offset
