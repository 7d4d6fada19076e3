from __future__ import annotations

import pytest

from raftlog.metadata.config_keys import ResourceType, config_keys, find


def test_every_default_is_valid_and_every_key_is_explained() -> None:
    for resource_type in ResourceType:
        keys = config_keys(resource_type)
        assert keys is not None
        assert list(keys) == sorted(keys)
        for name, key in keys.items():
            assert key.name == name
            assert key.doc.endswith(".")
            assert key.type in {"BOOLEAN", "DOUBLE", "INT", "LIST", "LONG", "STRING"}
            assert key.check is None or key.check(key.default) is None, name


def test_other_resources_have_no_configs() -> None:
    assert config_keys(3) is None
    assert find(3, "retention.ms") is None
    assert find(ResourceType.GROUP, "retention.ms") is None


@pytest.mark.parametrize(
    ("resource_type", "name", "good", "bad"),
    [
        (
            2,
            "retention.ms",
            ["-1", "0", "9223372036854775807"],
            ["-2", "", "1.5", "1_000", " 1", "٣", "9" * 25, "--1"],
        ),
        (2, "segment.bytes", ["1048576", "+2147483647"], ["1048575", "2147483648"]),
        (2, "cleanup.policy", ["compact", "delete", "compact, delete"], ["", "both", "compact,"]),
        (2, "min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["-0.1", "1.1", "nan", "inf", "half"]),
        (2, "preallocate", ["true", "false"], ["True", "1", ""]),
        (2, "message.timestamp.type", ["CreateTime", "LogAppendTime"], ["createtime"]),
        (16, "interval.ms", ["100", "3600000"], ["99", "3600001"]),
        (
            32,
            "share.auto.offset.reset",
            ["earliest", "latest", "by_duration:PT1H"],
            ["", "by_duration:1h"],
        ),
    ],
)
def test_values_are_checked(resource_type: int, name: str, good: list[str], bad: list[str]) -> None:
    key = find(resource_type, name)
    assert key is not None
    assert key.check is not None
    assert [value for value in good if key.check(value) is not None] == []
    assert [value for value in bad if key.check(value) is None] == []


def test_match_is_free_text() -> None:
    key = find(ResourceType.CLIENT_METRICS, "match")
    assert key is not None
    assert key.check is None
