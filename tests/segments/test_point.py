"""The state at a point of an export."""

from pathlib import Path

import pytest
from exports import publish
from log_history import LogHistory
from msgspec.structs import replace

from raftlog.errors import ConfigError
from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.segments.errors import ExportMismatchError
from raftlog.segments.export import export
from raftlog.segments.files import open_place
from raftlog.segments.manifest import Manifest, StateHash, read_manifest
from raftlog.segments.point import PointState, exported_state, point_of, state_at
from raftlog.segments.writer import Beginning, ExportWriter
from raftlog.wire.records.v1 import records_pb2 as pb

EVERY = 40


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(3, generation=77).run(600)


def said(history: LogHistory, *offsets: int) -> tuple[StateHash, ...]:
    return tuple(map(history.said, offsets))


@pytest.fixture
def exported(history: LogHistory, tmp_path: Path) -> Path:
    export(history, tmp_path / "e", checkpoint_records=EVERY)
    return tmp_path / "e"


def with_reports(directory: Path, *reports: StateHash) -> Manifest:
    return publish(directory, state_hashes=reports)


def at(directory: Path, offset: int) -> PointState:
    return state_at(open_place(directory), read_manifest(directory), offset)


def test_state_at_every_offset_equals_the_logs(history: LogHistory, exported: Path) -> None:
    ends = sorted(history.hashes)
    recorded = ends[10::37]
    with_reports(exported, *said(history, *recorded))
    for offset in [*range(60), *range(60, ends[-1] + 1, 17)]:
        found = at(exported, offset)
        whole = max((end for end in ends if end <= offset), default=-1)
        assert found.image.offset == whole
        assert whole == -1 or found.image.state_hash == history.hashes[whole]
        later = [end for end in recorded if end >= offset]
        assert [one.offset for one in found.after] == later[:1]
        earlier = [end for end in recorded if end <= offset]
        assert [one.offset for one in found.before] == earlier[-1:]
        if found.begin is not None:
            assert found.begin.offset <= earlier[-1], "a recorded state follows the checkpoint"


def test_state_contradicting_a_controller_is_refused(history: LogHistory, exported: Path) -> None:
    ends = sorted(history.hashes)
    first, second = said(history, ends[100], ends[300])
    for wrong in (
        replace(second, state_hash=format_hash(1)),
        replace(second, log_hash="0" * 64),
        replace(first, state_hash=format_hash(1)),
        replace(first, log_hash="0" * 64),
    ):
        others = [one for one in (first, second) if one.offset != wrong.offset]
        with_reports(exported, *sorted([*others, wrong]))
        with pytest.raises(ExportMismatchError, match=f"offset {wrong.offset} the"):
            at(exported, ends[200])
    with_reports(exported, first, second)
    assert at(exported, ends[200]).image.state_hash == history.hashes[ends[200]]


def test_report_inside_a_batch_vouches_for_nothing(history: LogHistory, exported: Path) -> None:
    ends = sorted(history.hashes)
    inside = next(end + 1 for end in ends[250:] if end + 1 not in history.hashes)
    (report,) = said(history, ends[-1])
    for others in ((), said(history, ends[-1])):
        with_reports(exported, replace(report, offset=inside), *others)
        for offset in (inside - 1, inside, inside + 1):
            if others or offset <= inside:
                with pytest.raises(
                    ExportMismatchError, match=f"the state at offset {inside}, but no batch"
                ):
                    at(exported, offset)


def test_checkpoint_needs_a_recorded_state_after_it(history: LogHistory, exported: Path) -> None:
    ends = sorted(history.hashes)
    assert with_reports(exported, *said(history, ends[-1])).checkpoints
    assert at(exported, ends[-2]).begin is None


def test_point_outside_the_export_is_refused(history: LogHistory, exported: Path) -> None:
    end = history.end_offset
    with pytest.raises(ConfigError, match=f"contains offsets 0 to {end - 1}"):
        at(exported, end)
    assert at(exported, end - 1).after == ()


def test_time_selects_the_last_batch_that_is_not_later(history: LogHistory, exported: Path) -> None:
    place, manifest = open_place(exported), read_manifest(exported)
    first, last = (manifest.segments[0].min_timestamp_ms, manifest.segments[-1].max_timestamp_ms)
    assert point_of(place, manifest, offset=None, time_ms=last) == history.end_offset - 1
    assert point_of(place, manifest, offset=5, time_ms=last) == 5
    with pytest.raises(ConfigError, match=r"no record from .*Z or before: it begins at"):
        point_of(place, manifest, offset=None, time_ms=first - 1)
    with pytest.raises(ConfigError, match="lacks the records committed"):
        point_of(place, manifest, offset=None, time_ms=1 << 42)


def test_offset_beyond_the_end_is_refused(history: LogHistory, exported: Path) -> None:
    with pytest.raises(ConfigError, match=f"offsets 0 to {history.end_offset - 1}"):
        exported_state(str(exported), offset=history.end_offset)
    with pytest.raises(ConfigError, match="give --at-offset or --at-time, not both"):
        exported_state(str(exported), offset=1, time_ms=1)


def test_manifest_names_every_generation_of_the_log(tmp_path: Path) -> None:
    history = LogHistory(4, generation=9)
    history.epoch += 1
    history.append(pb.LeaderChangeRecord(leader_id=1, voters=[1], generation=8), control=True)
    history.append(pb.RecoveryRecord(kind="unsafe recovery", previous_generation=8), control=True)
    history.append(pb.LeaderChangeRecord(leader_id=1, voters=[1], generation=9), control=True)
    export(history, tmp_path / "e")
    assert read_manifest(tmp_path / "e").generations == (8, 9)


@pytest.mark.parametrize("seed", range(4))
def test_export_with_a_late_start_has_a_state_at_once(seed: int, tmp_path: Path) -> None:
    history = LogHistory(seed, generation=77).run(300)
    ends = sorted(history.hashes)
    start = ends[100] + 1
    held = ends[130]
    builder = ImageBuilder(Image())
    builder.apply_chunk(b"".join(history.batches), until=held + 1)
    base = builder.snapshot()
    assert base.offset == held

    def more(count: int) -> Manifest:
        """Another run, as one process would make it."""
        with ExportWriter(
            tmp_path / "e", history.cluster_id, 77, start_offset=start, checkpoint_records=EVERY,
            beginning=Beginning((5, 77), lambda: base),
        ) as writer:  # fmt: skip
            writer.make_checkpoints()
            first = history.positions[writer.next_offset]
            writer.append_chunk(b"".join(history.batches[first : first + count]))
            return writer.commit(writer.next_offset)

    assert not more(10).checkpoints, "the state is a later one"
    assert more(60).checkpoints[0].offset == ends[131]
    assert more(1_000).generations == (5, 77)
    with_reports(tmp_path / "e", *said(history, ends[131], ends[-1]))
    for offset in range(ends[131], history.end_offset, 7):
        found = at(tmp_path / "e", offset)
        assert found.image.state_hash == history.hashes[found.image.offset]
        assert found.begin is not None
    with pytest.raises(ConfigError, match=f"its first known state is at offset {ends[131]}"):
        at(tmp_path / "e", ends[120])


def test_export_with_a_late_start_is_not_folded_without_checkpoints(tmp_path: Path) -> None:
    directory = tmp_path / "e"
    history = LogHistory(5, generation=77)
    for number in range(200):
        history.append(pb.KeyValueRecord(key=f"k{number % 9}", value=b"v"))
    start, middle = 20, 100
    builder = ImageBuilder(Image())
    builder.apply_chunk(b"".join(history.batches), until=start)

    def more(end: int) -> Manifest:
        with ExportWriter(
            directory, history.cluster_id, 77, start_offset=start, checkpoint_records=10,
            beginning=Beginning((77,), builder.snapshot),
        ) as writer:  # fmt: skip
            writer.make_checkpoints()
            begin = history.positions[writer.next_offset]
            writer.append_chunk(b"".join(history.batches[begin : history.positions[end]]))
            return writer.commit(writer.next_offset)

    made = more(middle).checkpoints
    for one in made:
        (directory / one.file).write_bytes(b"damaged")
    assert made
    assert more(190).checkpoints == made
