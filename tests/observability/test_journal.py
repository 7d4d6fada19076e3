"""A node's journal: events survive restarts, floods and a failing disk."""

from pathlib import Path
from typing import Any

import pytest

from raftlog.node.observability import journal
from raftlog.node.observability import journal as files
from raftlog.node.observability.journal import (
    BURST,
    KEPT_EVENTS,
    KINDS,
    SAME_MS,
    Kind,
    NodeEvent,
    NodeJournal,
    RecentEvents,
    as_text,
    checked_details,
    journal_file,
    read_journal,
    typed_details,
)


class Clock:
    """Milliseconds that a test sets."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def opened(directory: Path, clock: Clock | None = None) -> NodeJournal:
    return NodeJournal(directory, 3, "controller", wall_clock_ms=clock or Clock())


def led(to: NodeJournal | RecentEvents, epoch: int, **details: Any) -> None:
    to.note(Kind.LEADER_CHANGED, epoch=epoch, leader_id=1, **details)


def test_events_survive_a_restart_and_numbers_continue(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert first.after == "format"
    led(first, 1)
    first.note(Kind.STOPPED, reason="asked to stop", clean=True)
    first.close()
    second = opened(tmp_path)
    assert second.after == "stop"
    led(second, 2)
    second.close()
    events = read_journal(tmp_path)
    assert [(one.seq, one.kind) for one in events] == [
        (1, "leader_changed"),
        (2, "stopped"),
        (3, "leader_changed"),
    ]
    assert events[0] == NodeEvent(
        1, 1_000_000, 3, "controller", "leader_changed", {"epoch": 1, "leader_id": 1}
    )
    assert second.recent.since(0, 0, 10) == (events, False)


@pytest.mark.parametrize(("clean", "after"), [(True, "stop"), (False, "error"), (None, "crash")])
def test_next_process_knows_how_the_last_one_stopped(
    tmp_path: Path, clean: bool | None, after: str
) -> None:
    first = opened(tmp_path)
    led(first, 1)
    if clean is not None:
        first.note(Kind.STOPPED, reason="why", clean=clean)
    first.close()
    assert opened(tmp_path).after == after


def test_torn_line_and_garbage_lose_only_themselves(tmp_path: Path) -> None:
    first = opened(tmp_path)
    led(first, 1)
    first.close()
    with journal_file(tmp_path).open("ab") as file:
        file.write(
            b'{"x":'
            + b"[" * 3_000
            + b'\n\xff\xfe garbage\n{"seq":2}\n[]\n'
            + b"x" * 10_000
            + b'\n{"seq":9,"at_ms":'
        )
    second = opened(tmp_path)
    led(second, 2)
    second.close()
    assert [one.number("epoch") for one in read_journal(tmp_path)] == [1, 2]


def test_journal_files_form_a_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 2_000)
    monkeypatch.setattr(journal, "BURST", 10_000)
    one = opened(tmp_path)
    for epoch in range(200):
        led(one, epoch)
    one.close()
    there = sorted(journal_file(tmp_path).parent.iterdir())
    assert len(there) == 1 + files.MAX_BACKUPS
    assert all(path.stat().st_size <= 2_000 for path in there)
    events = read_journal(tmp_path)
    seqs = [event.seq for event in events]
    assert seqs == list(range(seqs[0], 201)), "the newest, without a gap"
    assert 20 < len(seqs) < 200


def test_repeated_event_is_counted_not_written() -> None:
    clock = Clock()
    recent = RecentEvents(1, "broker", wall_clock_ms=clock)
    for _ in range(5):
        led(recent, 7)
        clock.ms += 1_000
    clock.ms += SAME_MS
    led(recent, 7)
    led(recent, 8)
    events, _ = recent.since(0, 0, 10)
    assert [(one.number("epoch"), one.repeats) for one in events] == [(7, 0), (7, 4), (8, 0)]


def test_journal_keeps_each_transition_when_a_state_returns_within_a_minute() -> None:
    """[A controller was found, lost, and found again: the second finding was counted as a
    repetition, and the outage never seemed to end.]
    """
    clock = Clock()
    recent = RecentEvents(4, "broker", wall_clock_ms=clock)
    for _ in range(2):
        recent.note(Kind.CONTROLLER_FOUND, controller_id=1, epoch=3)
        recent.note(Kind.CONTROLLER_LOST, controller_id=1)
        clock.ms += 600
    events, _ = recent.since(0, 0, 10)
    assert [one.kind for one in events] == 2 * [Kind.CONTROLLER_FOUND, Kind.CONTROLLER_LOST]
    # Neither has details: they are not the same for that.
    recent.note(Kind.WRITES_RESUMED)
    recent.note(Kind.LEASE_GRANTED)
    assert len(recent.since(0, 0, 10)[0]) == 6


def test_flapping_node_does_not_displace_the_first_events() -> None:
    clock = Clock()
    recent = RecentEvents(1, "broker", wall_clock_ms=clock)
    for epoch in range(BURST + 50):
        led(recent, epoch)
    clock.ms += 10_000
    led(recent, 9_999)
    events, _ = recent.since(0, 0, 10_000)
    assert len(events) == BURST + 1
    assert (events[0].number("epoch"), events[-1].left_out) == (0, 50)


def test_memory_is_bounded_and_paging_continues() -> None:
    clock = Clock()
    recent = RecentEvents(1, "broker", wall_clock_ms=clock)
    for epoch in range(KEPT_EVENTS + 10):
        clock.ms += 1_000
        led(recent, epoch)
    page, more = recent.since(0, 0, 4)
    assert (page[0].number("epoch"), len(page), more) == (10, 4, True)
    page, more = recent.since(0, page[-1].seq, KEPT_EVENTS)
    assert (page[0].number("epoch"), len(page), more) == (14, KEPT_EVENTS - 4, False)
    page, more = recent.since(clock.ms, 0, 10)
    assert [one.number("epoch") for one in page] == [KEPT_EVENTS + 9]


def test_journal_continues_in_memory_when_the_disk_fails(tmp_path: Path, capfd: Any) -> None:
    one = opened(tmp_path)
    journal_file(tmp_path).mkdir()
    led(one, 1)
    led(one, 2)
    one.close()
    assert one.dropped == 2
    assert len(one.recent.since(0, 0, 10)[0]) == 2, "memory still has them"


def test_journal_counts_dropped_events_when_its_directory_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file")
    one = opened(tmp_path)
    led(one, 1)
    one.close()
    assert one.dropped == 1


def test_details_match_the_kind() -> None:
    with pytest.raises(TypeError, match="has the details"):
        checked_details(Kind.LEADER_CHANGED, {"epoch": 1})
    with pytest.raises(TypeError, match="epoch is not of type int"):
        checked_details(Kind.LEADER_CHANGED, {"epoch": "1", "leader_id": 2})
    assert set(KINDS) == set(Kind)
    for kind, about in KINDS.items():
        values = {"int": 5, "str": "text", "bool": True}
        details: Any = {name: values[type_.__name__] for name, type_ in about.details.items()}
        sent = {name: as_text(value) for name, value in details.items()}
        assert typed_details(kind.value, sent) == details
    assert typed_details("of a later build", {"x": "1"}) == {"x": "1"}


def test_long_reason_is_truncated() -> None:
    recent = RecentEvents(1, "broker", wall_clock_ms=Clock())
    recent.note(Kind.FENCED, reason="x" * 100_000)
    assert len(recent.since(0, 0, 1)[0][0].text("reason")) == journal.TEXT_MAX_CHARS
