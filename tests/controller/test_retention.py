"""Retention of the metadata log, and export cursors."""

from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from controller.decisions.clients.export_cursors import cursors_of
from controller.disk.retention import Held, Retention, Verdict, judge, next_start
from controller.settings import ControllerSettings
from raftlog.metadata import pmap
from raftlog.metadata.entities import ExportCursor
from raftlog.metadata.image import Image
from raftlog.node.storage.api import SnapshotId

SETTINGS = ControllerSettings(
    metadata_max_retention_bytes=5000,
    metadata_max_retention_ms=100_000,
    metadata_export_cursor_max_bytes=9000,
)


def held(*ends: int) -> list[Held]:
    return [Held(SnapshotId(end, 1), end) for end in ends]


def cursors(**ends: int) -> list[ExportCursor]:
    return [ExportCursor(name, end, "", 0, 0) for name, end in sorted(ends.items())]


@pytest.mark.parametrize(
    ("ends", "start", "used", "now_ms", "expected"),
    [
        ((), 0, 1 << 40, 1 << 40, None),
        ((10,), 0, 1 << 40, 1 << 40, None),
        ((10, 20), 0, 5000, 100_010, None),
        ((10, 20), 0, 5001, 0, 20),
        ((10, 20), 0, 0, 100_011, 20),
        ((10, 20, 30), 10, 5001, 0, 20),
        # Another snapshot was installed: those before it stand for a log that is gone.
        ((10, 20, 30), 30, 0, 0, 30),
        ((10, 20, 30), 15, 0, 0, 20),
    ],
)
def test_oldest_snapshot_is_deleted_and_the_newest_always_stays(
    ends: tuple[int, ...], start: int, used: int, now_ms: int, expected: int | None
) -> None:
    found = next_start(held(*ends), start, lambda: used, now_ms, SETTINGS)
    assert (found.end_offset if found else None) == expected


def test_snapshot_with_a_future_log_time_is_deleted_with_those_after_it() -> None:
    """[Log time was years ahead for a while: the snapshots of that time were kept for years.]"""
    ahead = [Held(SnapshotId(10, 1), 10**15), Held(SnapshotId(20, 1), 10**15)]
    assert next_start(ahead, 0, lambda: 0, 500_000, SETTINGS) is None
    found = next_start([*ahead, *held(30)], 0, lambda: 0, 100_031, SETTINGS)
    assert found == SnapshotId(20, 1)
    assert next_start([*ahead, *held(30)], 0, lambda: 0, 100_030, SETTINGS) is None


START = SnapshotId(20, 1)


@pytest.mark.parametrize(
    ("ends", "used", "expected"),
    [
        ({}, 9000, Verdict(START)),
        ({"a": 20}, 9000, Verdict(START)),
        ({"a": 19}, 9000, Verdict(None, held_by=("a",))),
        ({"a": 10}, 9000, Verdict(None, held_by=("a",))),
        ({"a": 9}, 9000, Verdict(START)),  # passed before: what it needs next is gone
        ({"a": 9, "b": 30, "c": 12, "d": 11}, 9000, Verdict(None, held_by=("c", "d"))),
        ({"a": 9, "b": 30, "c": 12, "d": 11}, 9001, Verdict(START, passed=("c", "d"))),
    ],
)
def test_cursor_holds_what_it_needs_up_to_the_bound(
    ends: dict[str, int], used: int, expected: Verdict
) -> None:
    assert judge(START, 10, cursors(**ends), lambda: used, SETTINGS) == expected


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=6, unique=True).map(sorted),
    st.lists(st.integers(0, 45), max_size=4),
    st.integers(0, 9000),
    st.integers(0, 200_000),
)
def test_log_start_never_passes_a_cursor_below_the_bound(
    ends: list[int], needed: list[int], used: int, now_ms: int
) -> None:
    """Delete whatever may be: an export's next offset stays if it was there before."""
    retention, start = Retention(SETTINGS), 0
    wanted = [ExportCursor(f"c{number}", end, "", 0, 0) for number, end in enumerate(needed)]
    snapshots = held(*ends)
    while (
        found := retention.decide(snapshots, start, lambda: used, now_ms, lambda: wanted).start
    ) is not None:
        assert found.end_offset > start
        start = found.end_offset
        snapshots = [one for one in snapshots if one.snapshot_id >= found]
    assert start <= min(needed, default=start)
    assert snapshots, "the newest snapshot always stays"
    if not needed:
        assert retention.held_by == ()


def test_held_log_and_deleted_log_are_logged_once() -> None:
    retention, wanted = Retention(SETTINGS), cursors(a=15, b=30)
    with capture_logs() as said:
        for _ in range(3):
            assert retention.decide(held(10, 20), 10, lambda: 6000, 0, lambda: wanted).start is None
    (line,) = said
    assert (line["log_level"], line["cursors"], line["used_bytes"]) == ("warning", ["a"], 6000)
    assert list(retention.held_by) == ["a"]
    with capture_logs() as said:
        verdict = retention.decide(held(10, 20), 10, lambda: 9001, 0, lambda: wanted)
        assert (verdict.start, retention.passed) == (START, 0), "it is not dropped yet"
        retention.advanced(verdict)
    (line,) = said
    assert (line["log_level"], line["cursors"], line["log_start_offset"]) == ("error", ["a"], 20)
    assert (retention.held_by, retention.passed) == ((), 1)


@pytest.mark.parametrize(
    ("fetched", "used", "start"),
    [
        ((), 9000, 20),
        ((10,), 9000, None),
        ((19,), 9000, None),
        # What begins where the log is to begin, or behind it, needs nothing below.
        ((20, 30), 9000, 20),
        # Its log is gone already.
        ((9,), 9000, 20),
        ((30, 10), 9000, None),
        # The bound.
        ((10,), 9001, 20),
    ],
)
def test_fetched_snapshot_is_kept_with_the_log_after_it(
    fetched: tuple[int, ...], used: int, start: int | None
) -> None:
    """Otherwise a snapshot that takes longer to fetch than the snapshot interval is never fetched."""
    ids = [SnapshotId(end, 1) for end in fetched]
    verdict = Retention(SETTINGS).decide(
        held(10, 20, 30), 10, lambda: used, 0, lambda: [], lambda: ids
    )
    assert (verdict.start.end_offset if verdict.start else None) == start


def test_log_is_deleted_when_its_readers_are_done() -> None:
    """If each snapshot held the log separately, everything written between them would stay."""
    retention = Retention(SETTINGS)

    def start(count: int, *fetched: int, used: int = 9000, now_ms: int = 1 << 40) -> int | None:
        ids = [SnapshotId(end, 1) for end in fetched]
        snapshots = held(*range(10, 10 * count + 10, 10))
        found = retention.decide(snapshots, 10, lambda: used, now_ms, lambda: [], lambda: ids)
        return found.start.end_offset if found.start else None

    assert start(3) == 20
    assert [start(count, 10) for count in (3, 4, 6)] == [None] * 3
    assert start(6, 40) == 40, "the next one needs less"
    assert start(6) == 50, "as many are left as if nobody had come"
    assert start(6) == 20
    assert [start(3, 10), start(6, used=5000)] == [None, 20], "of those too old one goes at a time"
    assert [start(6, 10, used=9001), start(6)] == [20, 20], "above the bound nothing was kept"
    assert [start(3, 10), start(6, used=0, now_ms=0), start(6)] == [None, None, 20]


def test_cursors_are_not_read_while_nothing_would_be_deleted() -> None:
    """Making a standby's image costs CPU."""

    def asked() -> NoReturn:
        raise AssertionError

    assert Retention(SETTINGS).decide(held(10, 20), 10, lambda: 0, 0, asked, asked) == Verdict(None)


def test_cursors_are_read_from_an_image() -> None:
    mutation = pmap.empty().mutate()
    for one in cursors(b=2, a=1):
        mutation[one.name] = one
    assert cursors_of(Image(export_cursors=mutation.finish())) == cursors(a=1, b=2)
