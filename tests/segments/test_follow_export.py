"""Exports that follow a growing log."""

from pathlib import Path
from typing import Any

import pytest
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import format_hash
from raftlog.segments.errors import ExportError
from raftlog.segments.export import PublishPolicy, export, follow
from raftlog.segments.manifest import (
    MAX_OFFSETS,
    Manifest,
    StateHash,
    encode,
    merged_state_hashes,
    read_manifest,
)
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter


class Growing:
    """A log that grows at each poll, after one second. ``failing``: exceptions of polls, by number."""

    generation = start_offset = 0
    connections = 1
    cluster_id = CLUSTER_ID

    def __init__(
        self, history: LogHistory, *, batches: int, failing: dict[int, ErrorCode] | None = None
    ) -> None:
        self.history, self.batches, self.failing = history, batches, failing or {}
        self.polls = self.there = 0
        self.ends = [*list(history.positions), history.end_offset]

    @property
    def high_watermark(self) -> int:
        return self.ends[self.there]

    def read(self, offset: int, max_bytes: int) -> bytes:
        return b"".join(self.history.batches[self.history.positions[offset] : self.there])

    def poll(self, offset: int, max_bytes: int, wait_s: float) -> bytes:
        self.polls += 1
        if code := self.failing.get(self.polls):
            raise ApiError(code, "no active controller answers")
        self.there = min(len(self.history.batches), self.there + self.batches)
        return b"" if offset == self.high_watermark else self.read(offset, max_bytes)

    def over(self) -> bool:
        return self.there == len(self.history.batches)

    def clock(self) -> float:
        return float(self.polls)


def run(source: Growing, target: Path, policy: PublishPolicy, **more: object) -> list[int]:
    """Follow to the end of the log; return the published ends."""
    ends: list[int] = []

    def published(manifest: Manifest) -> None:
        assert read_manifest(target) == manifest
        ends.append(manifest.end_offset)

    given: Any = {"stop": source.over, "published": published, "clock": source.clock, **more}
    follow(source, target, policy, **given)
    return ends


def test_followed_export_publishes_at_intervals_and_when_stopped(tmp_path: Path) -> None:
    source = Growing(LogHistory(81).run(200), batches=2)
    count = len(source.history.batches)
    ends = run(source, tmp_path, PublishPolicy(interval_s=10.0))
    # Two batches a second: a publish for each eleven polls, and one at the end.
    assert ends == [
        *(source.ends[2 * polls] for polls in range(11, (count + 1) // 2, 11)),
        source.history.end_offset,
    ]
    assert verify_export(tmp_path).end_offset == source.history.end_offset
    assert sum(segment.batches for segment in read_manifest(tmp_path).segments) == 2 * count


def test_followed_export_publishes_at_a_size(tmp_path: Path) -> None:
    source = Growing(LogHistory(82).run(200), batches=1)
    assert len(run(source, tmp_path, PublishPolicy(interval_s=1e9, max_records=50))) >= 3
    assert all(50 <= segment.records < 100 for segment in read_manifest(tmp_path).segments[:-2])


def test_cluster_without_a_leader_is_waited_for(tmp_path: Path) -> None:
    source = Growing(
        LogHistory(83).run(60),
        batches=5,
        failing=dict.fromkeys((3, 4, 5), ErrorCode.REQUEST_TIMED_OUT),
    )
    told: list[str] = []
    ends = run(source, tmp_path, PublishPolicy(interval_s=1e9), waiting=told.append)
    assert ends == [source.history.end_offset]
    assert ["no active controller answers" in why for why in told] == [True, False]


def test_permanent_error_ends_the_export_and_keeps_published_files(tmp_path: Path) -> None:
    source = Growing(
        LogHistory(84).run(100), batches=3, failing={9: ErrorCode.INCONSISTENT_GENERATION}
    )
    with pytest.raises(ApiError, match="INCONSISTENT_GENERATION"):
        run(source, tmp_path, PublishPolicy(interval_s=4.0))
    assert verify_export(tmp_path).end_offset == source.ends[15]
    # The next one goes on from there.
    source.failing.clear()
    source.there = len(source.history.batches) - 1
    assert run(source, tmp_path, PublishPolicy()) == [source.history.end_offset]


def test_export_ends_where_a_node_has_reported_its_state(tmp_path: Path) -> None:
    history = LogHistory(85).run(120)
    ends = sorted(history.hashes)
    source = Growing(history, batches=0)
    # Meanwhile the log has grown, and the node that answers has applied more of it than was read.
    source.there = len(history.batches) - 10
    high_watermark = source.high_watermark

    def state_hashes() -> list[StateHash]:
        source.there = len(history.batches)
        return [history.said(ends[-4]), history.said(ends[20], node_id=2)]

    class Before(Growing):
        high_watermark = source.high_watermark
        read = staticmethod(source.read)

    summary = export(Before(history, batches=0), tmp_path, state_hashes=state_hashes)
    assert high_watermark < summary.end_offset == ends[-4] + 1
    manifest = verify_export(tmp_path)
    assert manifest.state_hashes == (history.said(ends[20], node_id=2), history.said(ends[-4]))
    # A manifest with more than a reader knows is no other format: that reader leaves out what it
    # does not know.
    assert replace(manifest, state_hashes=(), features=None).segments == manifest.segments


def test_reports_beyond_the_end_wait_for_their_records(tmp_path: Path) -> None:
    history = LogHistory(86).run(60)
    ends = sorted(history.hashes)
    with ExportWriter(tmp_path, CLUSTER_ID, 0) as writer:
        writer.append_chunk(b"".join(history.batches[:20]))
        writer.record([history.said(ends[5]), history.said(ends[30]), history.said(ends[5])])
        assert [one.offset for one in writer.commit(history.end_offset).state_hashes] == [ends[5]]
        writer.append_chunk(b"".join(history.batches[20:]))
        assert [one.offset for one in writer.commit(history.end_offset).state_hashes] == [
            ends[5],
            ends[30],
        ]


def test_node_that_reports_a_state_beyond_the_log_does_not_delay_the_export(tmp_path: Path) -> None:
    history = LogHistory(87).run(40)
    beyond = replace(history.said(max(history.hashes)), offset=history.end_offset + 7)
    source = Growing(history, batches=0)
    source.there = len(history.batches)
    source.history.positions[history.end_offset] = len(history.batches)
    assert export(source, tmp_path, state_hashes=lambda: [beyond]).end_offset == history.end_offset
    assert read_manifest(tmp_path).state_hashes == ()


@pytest.mark.nightly
def test_manifest_keeps_a_bounded_number_of_reports(tmp_path: Path) -> None:
    history = LogHistory(88).run(40)
    export(history, tmp_path)
    manifest = read_manifest(tmp_path)
    manifest = replace(manifest, segments=(replace(manifest.segments[0], last_offset=10**9),))
    one = history.said(max(history.hashes))
    known: tuple[StateHash, ...] = ()
    for offset in range(0, 20_000, 10):
        known = merged_state_hashes(
            known, [replace(one, offset=offset, node_id=node) for node in (1, 2)], manifest
        )
    offsets = sorted({each.offset for each in known})
    assert len(offsets) <= MAX_OFFSETS
    assert (offsets[0], offsets[-1]) == (0, 19_990)
    assert [each.node_id for each in known] == [1, 2] * len(offsets)
    assert len(encode(replace(manifest, state_hashes=known))) < 400_000
    different = replace(one, state_hash="0" * 32)
    assert len(merged_state_hashes((one,), [different, one], manifest)) == 2


def test_failing_callback_ends_the_export_and_the_publish_stays(tmp_path: Path) -> None:
    history = LogHistory(90).run(40)

    def refuse(manifest: Manifest) -> None:
        raise ExportError("the cursor was not moved")

    with pytest.raises(ExportError, match="the cursor was not moved"):
        export(history, tmp_path, published=refuse)
    assert verify_export(tmp_path).end_offset == history.end_offset
    assert export(history, tmp_path).records == 0


def test_checkpoints_are_published_while_following(tmp_path: Path) -> None:
    source = Growing(LogHistory(86).run(400), batches=2)
    seen: list[int] = []
    policy = PublishPolicy(interval_s=5.0, checkpoint_records=40)

    def published(manifest: Manifest) -> None:
        seen.append(len(manifest.checkpoints))

    run(source, tmp_path, policy, published=published)
    assert seen == sorted(seen)
    assert 1 <= seen[len(seen) // 2] < seen[-1]
    for one in verify_export(tmp_path).checkpoints:
        assert one.state_hash == format_hash(source.history.hashes[one.offset])
