"""ListKeyValues: which keys an image shows, in what order, and where an answer is cut."""

from __future__ import annotations

from typing import Any

import pytest

from broker.metadata import reads
from broker.metadata.reads import check_list_key_values, list_key_values
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.records.v1 import records_pb2 as rec

KEYS = ("b/2", "a", "b/10", "c", "b")


def image(size: int = 3) -> Image:
    builder = ImageBuilder(Image())
    records = [record(rec.KeyValueRecord(key=key, value=b"x" * size, lease_id=7)) for key in KEYS]
    builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=1)
    return builder.snapshot()


def keys(answer: pb.ListKeyValuesResponse) -> list[str]:
    return [one.key for one in answer.key_values]


def ask(**fields: Any) -> pb.ListKeyValuesResponse:
    return list_key_values(image(), pb.ListKeyValuesRequest(**fields))


def test_all_keys_by_name() -> None:
    answer = ask()
    assert keys(answer) == ["a", "b", "b/10", "b/2", "c"]
    assert not answer.more
    assert answer.key_values[3] == pb.KeyValue(
        key="b/2", value=b"xxx", offset=0, create_offset=0, lease_id=7
    )


def test_by_prefix_and_by_name() -> None:
    assert keys(ask(prefix="b/")) == ["b/10", "b/2"]
    assert keys(ask(prefix="d")) == []
    assert keys(ask(keys=["c", "a", "nothing", "a"])) == ["a", "c"]


def test_a_list_is_cut_and_gone_on_with() -> None:
    first = ask(limit=2, prefix="b")
    assert (keys(first), first.more) == (["b", "b/10"], True)
    rest = ask(limit=2, prefix="b", after="b/10")
    assert (keys(rest), rest.more) == (["b/2"], False)
    assert ask(limit=3, prefix="b").more is False


def test_an_answer_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_BYTES", 12)
    large = list_key_values(image(9), pb.ListKeyValuesRequest())
    assert (keys(large), large.more) == (["a"], True)
    # The first comes, however large it is.
    larger = list_key_values(image(20), pb.ListKeyValuesRequest(after="a"))
    assert (keys(larger), larger.more) == (["b"], True)


def test_values_can_be_left_out() -> None:
    assert {one.value for one in ask(keys_only=True).key_values} == {b""}


def test_what_may_not_be_described_is_not_there() -> None:
    answer = list_key_values(
        image(), pb.ListKeyValuesRequest(limit=2), lambda key: key.startswith("b/")
    )
    assert (keys(answer), answer.more) == (["b/10", "b/2"], False)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"limit": -1}, "limit"),
        ({"keys": ["a"], "prefix": "b"}, "keys"),
        ({"keys": ["a"], "after": "b"}, "keys"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as raised:
        check_list_key_values(pb.ListKeyValuesRequest(**fields))
    assert (raised.value.code, raised.value.field) == (ErrorCode.INVALID_REQUEST, field)
