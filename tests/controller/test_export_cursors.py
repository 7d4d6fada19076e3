from dataclasses import replace
from typing import Any

import pytest
from deciding import Cell
from request_fields import quorum

from controller.decisions.clients import export_cursors
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import ExportCursor
from raftlog.wire.controller.v1 import controller_pb2 as rpc


def alter(*alterations: dict[str, Any], **fields: Any) -> rpc.AlterExportCursorsRequest:
    made = [rpc.ExportCursorAlteration(**one) for one in alterations]
    return rpc.AlterExportCursorsRequest(alterations=made, **fields)


def cell(log_start_offset: int = 0) -> Cell:
    """A controller with a few records in its log."""
    return Cell(quorum=lambda now: replace(quorum(now), log_start_offset=log_start_offset))


def ends(at: Cell) -> dict[str, int]:
    return {
        name: one.end_offset for name, one in sorted(at.pending.snapshot().export_cursors.items())
    }


def test_cursor_is_set_moved_and_removed() -> None:
    at = cell()
    decision = at.propose(at.decide(alter({"name": "nightly", "end_offset": 3, "target": "a"})))
    assert decision.types == ["EXPORT_CURSOR"]
    result = decision.body.results[0]
    assert at.pending.export_cursors["nightly"] == ExportCursor("nightly", 3, "a", result.offset, 0)
    moved = at.send(alter({"name": "nightly", "end_offset": 5})).results[0]
    assert at.pending.export_cursors["nightly"] == ExportCursor("nightly", 5, "a", moved.offset, 0)
    # Back, for an export that begins anew: more is kept, which harms nobody.
    at.send(alter({"name": "nightly", "end_offset": 0, "target": "a"}))
    assert ends(at) == {"nightly": 0}
    assert at.send(alter({"name": "nightly"})).results[0].offset == -1
    assert ends(at) == {}


def test_committed_cursors_are_listed_by_name_with_the_bytes_that_they_hold() -> None:
    at = cell(1)
    at.send(alter({"name": "b", "end_offset": 3}, {"name": "a", "end_offset": 2, "target": "t"}))
    at.hold_commits = True
    at.send(alter({"name": "c", "end_offset": 3}))
    listed = at.send(rpc.ListExportCursorsRequest())
    cursors = at.pending.export_cursors
    assert [(one.name, one.end_offset, one.target, one.offset) for one in listed.cursors] == [
        ("a", 2, "t", cursors["a"].offset),
        ("b", 3, "", cursors["b"].offset),
    ]
    assert (listed.log_start_offset, listed.high_watermark) == (1, at.pending.offset)


def test_unchanged_or_validated_cursor_writes_no_record() -> None:
    at = cell()
    assert not at.decide(alter({"name": "a", "end_offset": 3}, validate_only=True)).records
    offset = at.send(alter({"name": "a", "end_offset": 3, "target": "t"})).results[0].offset
    for change in ({"end_offset": 3}, {"end_offset": 3, "target": "t"}):
        decision = at.decide(alter({"name": "a", **change}))
        assert not decision.records
        assert decision.body.results[0].offset == offset


def test_cursor_of_another_export_is_moved_only_with_its_expected_value() -> None:
    at = cell()
    offset = at.send(alter({"name": "a", "end_offset": 3, "target": "one"})).results[0].offset
    other = {"name": "a", "end_offset": 4, "target": "two"}
    moved, field = ErrorCode.INVALID_UPDATE_VERSION, "alterations[0].expected_offset"
    at.refused_part(alter(other), moved, "alterations[0].target")
    for seen in (-1, offset + 1):
        at.refused_part(alter({**other, "expected_offset": seen}), moved, field)
    at.send(alter({**other, "expected_offset": offset}))
    assert at.pending.export_cursors["a"].target == "two"
    at.refused_part(alter({"name": "a", "expected_offset": offset}), moved, field)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"name": "", "end_offset": 3}, ErrorCode.INVALID_REQUEST, "name"),
        ({"name": "a b", "end_offset": 3}, ErrorCode.INVALID_REQUEST, "name"),
        ({"name": "a\n", "end_offset": 3}, ErrorCode.INVALID_REQUEST, "name"),
        ({"name": "a", "end_offset": 1}, ErrorCode.OFFSET_OUT_OF_RANGE, "end_offset"),
        ({"name": "a", "end_offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE, "end_offset"),
        ({"name": "a", "end_offset": 1000}, ErrorCode.OFFSET_OUT_OF_RANGE, "end_offset"),
        ({"name": "a"}, ErrorCode.RESOURCE_NOT_FOUND, "name"),
    ],
)
def test_invalid_alteration_is_refused(change: dict[str, Any], code: ErrorCode, field: str) -> None:
    cell(2).refused_part(alter(change), code, f"alterations[0].{field}")


def test_cursor_at_either_end_of_the_log_is_accepted() -> None:
    at = cell(2)
    end = at.pending.offset + 1
    at.send(alter({"name": "first", "end_offset": 2}, {"name": "last", "end_offset": end}))
    assert ends(at) == {"first": 2, "last": end}


def test_each_alteration_is_decided_separately() -> None:
    at = cell()
    set_a, set_c = {"name": "a", "end_offset": 1}, {"name": "c", "end_offset": 2}
    first, *failed, last = at.send(alter(set_a, {"name": "b"}, {"name": "a"}, set_c)).results
    assert [one.HasField("error") for one in (first, *failed, last)] == [False, True, True, False]
    assert ends(at) == {"a": 1, "c": 2}
    cursors = at.pending.export_cursors
    assert (first.offset, last.offset) == (cursors["a"].offset, cursors["c"].offset)


def test_number_of_cursors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_cursors, "MAX_CURSORS", 2)
    at = cell()
    results = at.send(alter(*({"name": name, "end_offset": 1} for name in "abc"))).results
    assert [one.error.error_code for one in results] == [0, 0, ErrorCode.POLICY_VIOLATION]
    at.send(alter({"name": "b", "end_offset": 2}))  # moving one makes it no more
    results = at.send(alter({"name": "b"}, {"name": "c", "end_offset": 1})).results
    assert not any(one.HasField("error") for one in results)
    assert ends(at) == {"a": 1, "c": 1}
