from typing import Any

import pytest
from deciding import Cell

from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import KeyValue
from raftlog.wire.controller.v1 import controller_pb2 as rpc

PUT, DELETE, COMPARE = rpc.KEY_VALUE_PUT, rpc.KEY_VALUE_DELETE, rpc.KEY_VALUE_COMPARE


def alter(*alterations: dict[str, Any], **fields: Any) -> rpc.AlterKeyValuesRequest:
    made = [rpc.KeyValueAlteration(**one) for one in alterations]
    return rpc.AlterKeyValuesRequest(alterations=made, **fields)


def code(at: Cell, *alterations: dict[str, Any]) -> tuple[ErrorCode, str]:
    decided = at.decide(alter(*alterations))
    assert decided.error is not None
    assert decided.records == []
    return decided.error.code, decided.error.field


def test_key_is_put_overwritten_and_deleted() -> None:
    at = Cell()
    made = at.send(alter({"key": "a/b", "value": b"1"})).offsets[0]
    assert at.pending.key_values["a/b"] == KeyValue("a/b", b"1", made, made, 0)
    again = at.send(alter({"key": "a/b", "value": b"\x00\xff"})).offsets[0]
    assert again > made
    assert at.pending.key_values["a/b"] == KeyValue("a/b", b"\x00\xff", made, again, 0)
    # The same value is a change, too: the offset moves, and who compares with the old one sees it.
    assert at.send(alter({"key": "a/b", "value": b"\x00\xff"})).offsets[0] > again
    assert list(at.send(alter({"key": "a/b", "operation": DELETE})).offsets) == [-1]
    assert len(at.pending.key_values) == 0
    # It is another key from now on.
    anew = at.send(alter({"key": "a/b", "value": b"1"})).offsets[0]
    assert at.pending.key_values["a/b"].create_offset == anew > again


def test_several_keys_are_one_batch_with_one_offset_each() -> None:
    at = Cell()
    at.send(alter({"key": "old", "value": b"1"}))
    decided = at.propose(
        at.decide(
            alter(
                {"key": "new", "value": b"2", "expected_offset": -1},
                {"key": "old", "operation": DELETE},
                {"key": "absent", "operation": DELETE},
                {"key": "third", "value": b"3"},
            )
        )
    )
    assert len(decided.records) == 3
    new, old, absent, third = decided.body.offsets
    assert (old, absent, third) == (-1, -1, new + 2)
    assert at.pending.key_values["new"].offset == new
    assert at.pending.key_values["third"].offset == third


@pytest.mark.parametrize(
    ("expected", "field"),
    [
        ({"expected_offset": -1}, "expected_offset"),
        ({"expected_offset": 1}, "expected_offset"),
        ({"expected_create_offset": -1}, "expected_create_offset"),
        ({"expected_create_offset": 1}, "expected_create_offset"),
    ],
)
@pytest.mark.parametrize("operation", [PUT, DELETE, COMPARE])
def test_failed_condition_changes_nothing(
    expected: dict[str, int], field: str, operation: int
) -> None:
    at = Cell()
    at.send(alter({"key": "a", "value": b"1"}))
    broken = {"key": "a", "operation": operation, **expected}
    wanted = (ErrorCode.INVALID_UPDATE_VERSION, f"alterations[1].{field}")
    assert code(at, {"key": "other", "value": b"2"}, broken) == wanted


def test_second_of_two_equal_expectations_fails() -> None:
    at = Cell()
    at.hold_commits = True
    first = at.send(alter({"key": "a", "value": b"1", "expected_offset": -1})).offsets[0]
    assert code(at, {"key": "a", "value": b"2", "expected_offset": -1}) == (
        ErrorCode.INVALID_UPDATE_VERSION, "alterations[0].expected_offset",
    )  # fmt: skip
    at.send(alter({"key": "a", "value": b"2", "expected_offset": first}))
    assert code(at, {"key": "a", "operation": DELETE, "expected_offset": first})[0] == (
        ErrorCode.INVALID_UPDATE_VERSION
    )
    # Who made it is still the same.
    at.send(alter({"key": "a", "value": b"3", "expected_create_offset": first}))


def test_comparison_guards_another_key_and_changes_nothing_itself() -> None:
    at = Cell()
    lock = at.send(alter({"key": "lock", "value": b"me"})).offsets[0]
    guard = {"key": "lock", "operation": COMPARE, "expected_create_offset": lock}
    decided = at.propose(at.decide(alter(guard, {"key": "data", "value": b"1"})))
    assert len(decided.records) == 1
    assert list(decided.body.offsets) == [lock, lock + 1]
    at.send(alter({"key": "lock", "operation": DELETE}))
    assert code(at, guard, {"key": "data", "value": b"2"})[0] == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("alteration", "field"),
    [
        ({"key": ""}, "alterations[0].key"),
        ({"key": "/a"}, "alterations[0].key"),
        ({"key": "a/"}, "alterations[0].key"),
        ({"key": "a//b"}, "alterations[0].key"),
        ({"key": "a b"}, "alterations[0].key"),
        ({"key": "a\n"}, "alterations[0].key"),
        ({"key": "a*"}, "alterations[0].key"),
        ({"key": "ä"}, "alterations[0].key"),
        ({"key": "a", "value": bytes((16 << 10) + 1)}, "alterations[0].value"),
        ({"key": "a", "operation": 3}, "alterations[0].operation"),
        ({"key": "a", "operation": DELETE, "value": b"1"}, "alterations[0].value"),
        ({"key": "a", "operation": COMPARE, "lease_id": 1}, "alterations[0].lease_id"),
    ],
)
def test_invalid_alteration_is_refused(alteration: dict[str, Any], field: str) -> None:
    assert code(Cell(), alteration) == (ErrorCode.INVALID_REQUEST, field)


def test_empty_request_and_repeated_key_are_refused() -> None:
    at = Cell()
    assert code(at) == (ErrorCode.INVALID_REQUEST, "alterations")
    assert code(at, {"key": "a"}, {"key": "a"}) == (
        ErrorCode.INVALID_REQUEST, "alterations[1].key",
    )  # fmt: skip


def test_number_and_total_size_of_keys_are_bounded() -> None:
    at = Cell(settings=ControllerSettings(kv_max_keys=2))
    at.send(alter({"key": "a"}, {"key": "b"}))
    assert code(at, {"key": "c"})[0] == ErrorCode.POLICY_VIOLATION
    # What is there may change, and one may take the place of another.
    at.send(alter({"key": "a", "value": b"2"}))
    at.send(alter({"key": "c"}, {"key": "a", "operation": DELETE}))
    assert sorted(at.pending.snapshot().key_values) == ["b", "c"]
    at = Cell(settings=ControllerSettings(kv_max_bytes=10))
    at.send(alter({"key": "a", "value": b"123456789"}))
    for above in ({"key": "b"}, {"key": "a", "value": b"1234567890"}):
        assert code(at, above)[0] == ErrorCode.POLICY_VIOLATION
    at.send(alter({"key": "a", "value": b"1"}, {"key": "b", "value": b"1234567"}))
    assert at.pending.key_value_bytes == 10


def test_deletions_are_allowed_above_a_lowered_bound() -> None:
    at = Cell(settings=ControllerSettings(kv_max_keys=3, kv_max_bytes=30))
    at.send(alter(*({"key": one, "value": b"123"} for one in "abc")))
    image = at.pending.snapshot()
    lower = Cell(image=image, epoch=9, settings=ControllerSettings(kv_max_keys=1, kv_max_bytes=3))
    lower.send(alter({"key": "a", "value": b"1"}))
    lower.send(alter({"key": "b", "operation": DELETE}))
    assert code(lower, {"key": "d"})[0] == ErrorCode.POLICY_VIOLATION


def test_validation_and_the_delete_of_an_absent_key_write_no_record() -> None:
    at = Cell()
    decided = at.decide(alter({"key": "a", "value": b"1"}, validate_only=True))
    assert (decided.error, decided.records) == (None, [])
    decided = at.decide(alter({"key": "a", "operation": DELETE}))
    assert (decided.error, decided.records, list(decided.body.offsets)) == (None, [], [-1])


def test_expected_offset_of_another_generation_is_refused() -> None:
    at = Cell(generation=1)
    made = at.send(alter({"key": "lock", "value": b"1"})).offsets[0]
    guard = {"key": "lock", "operation": COMPARE, "expected_create_offset": made}
    write = {"key": "guarded", "value": b"2"}
    for generation in (0, 2):
        refused = code(at, {**guard, "expected_generation": generation}, write)
        field = "alterations[0].expected_generation"
        assert refused == (ErrorCode.INVALID_UPDATE_VERSION, field)
    assert "guarded" not in at.pending.key_values
    at.send(alter({**guard, "expected_generation": 1}, write))
    assert at.pending.key_values["guarded"].value == b"2"
