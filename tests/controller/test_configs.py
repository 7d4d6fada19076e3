from typing import Any, cast

import pytest
from deciding import Cell

from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.config_keys import ResourceType, config_keys, find
from raftlog.wire.controller.v1 import controller_pb2 as rpc

TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
INVALID, CONFIG = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG
OPERATION, VALUE = "configs[0].config_operation", "configs[0].value"


def _resource(type_: int, name: str, *configs: tuple[str, str | None]) -> rpc.AlterConfigsResource:
    return rpc.AlterConfigsResource(
        resource_type=type_,
        resource_name=name,
        configs=[
            rpc.AlterableConfig(
                name=key, config_operation=rpc.DELETE if value is None else rpc.SET, value=value
            )
            for key, value in configs
        ],
    )


def _listed(
    type_: int, name: str, key: str, operation: rpc.ConfigOperation, value: str
) -> rpc.AlterConfigsResource:
    config = rpc.AlterableConfig(name=key, config_operation=operation, value=value)
    return rpc.AlterConfigsResource(resource_type=type_, resource_name=name, configs=[config])


def _alter(
    *resources: rpc.AlterConfigsResource, validate_only: bool = False
) -> rpc.IncrementalAlterConfigsRequest:
    return rpc.IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)


def test_config_of_each_kind_of_resource_is_set_and_deleted() -> None:
    cell = Cell(brokers=1)
    cell.create("t", replication_factor=1)
    body = cell.send(
        _alter(
            _resource(TOPIC, "t", ("retention.ms", "-1"), ("cleanup.policy", "compact,delete")),
            _resource(BROKER, "", ("log.retention.ms", "5")),
            _resource(BROKER, "1", ("num.io.threads", "9")),
            _resource(METRICS, "m", ("match", "client_id=" + "x" * 256), ("interval.ms", "100")),
            _resource(GROUP, "g", ("consumer.session.timeout.ms", "10000")),
        )
    )
    assert len(body.results) == 0, "no results when all is well"
    configs = cell.pending.configs
    assert configs[TOPIC, "t"] == {"retention.ms": "-1", "cleanup.policy": "compact,delete"}
    assert configs[BROKER, ""] == {"log.retention.ms": "5"}
    assert configs[BROKER, "1"] == {"num.io.threads": "9"}
    deleted = _resource(GROUP, "g", ("consumer.session.timeout.ms", None))
    cell.send(_alter(_resource(TOPIC, "t", ("retention.ms", None)), deleted))
    assert cell.pending.configs[TOPIC, "t"] == {"cleanup.policy": "compact,delete"}
    assert (GROUP, "g") not in cell.pending.configs


def test_writing_the_same_value_is_a_write() -> None:
    cell = Cell(brokers=0)
    request = _alter(_resource(GROUP, "g", ("consumer.session.timeout.ms", "1")))
    for _ in range(2):
        decision = cell.propose(cell.decide(request))
        assert decision.types == ["CONFIG"]
    deletion = _alter(_resource(GROUP, "none", ("consumer.session.timeout.ms", None)))
    assert len(cell.decide(deletion).records) == 1


@pytest.mark.parametrize(
    ("resource", "code", "field"),
    [
        (_resource(3, "x"), INVALID, "resource_type"),
        (_resource(TOPIC, "none"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "resource_name"),
        (_resource(TOPIC, ""), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "resource_name"),
        (_resource(BROKER, "x"), INVALID, "resource_name"),
        (_resource(BROKER, "-1"), INVALID, "resource_name"),
        (_resource(BROKER, "01"), INVALID, "resource_name"),
        (_resource(BROKER, "²"), INVALID, "resource_name"),
        (_resource(BROKER, "7"), INVALID, "resource_name"),
        (_resource(METRICS, ""), INVALID, "resource_name"),
        (_resource(GROUP, "g" * 250), INVALID, "resource_name"),
        (_resource(GROUP, "g", ("retention.ms", "1")), CONFIG, "configs[0].name"),
        (_resource(GROUP, "g", ("no.such", None)), CONFIG, "configs[0].name"),
        (_resource(METRICS, "m", ("match", ""), ("interval.ms", "99")), CONFIG, "configs[1].value"),
        (_resource(METRICS, "m", ("match", "x" * 1001)), CONFIG, "configs[0].value"),
        (_resource(METRICS, "m", ("match", "ä" * 501)), CONFIG, "configs[0].value"),
        (_resource(GROUP, "g", *[("streams.num.standby.replicas", "1")] * 2), INVALID, "configs"),
        (_listed(METRICS, "m", "match", cast(Any, 9), ""), INVALID, OPERATION),
        (_listed(TOPIC, "listed", "retention.ms", rpc.APPEND, "1"), CONFIG, OPERATION),
        (_listed(TOPIC, "listed", "cleanup.policy", rpc.APPEND, "x"), CONFIG, VALUE),
        (_listed(TOPIC, "listed", "cleanup.policy", rpc.SUBTRACT, "delete"), CONFIG, VALUE),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_invalid_alteration_is_refused(
    resource: rpc.AlterConfigsResource, code: ErrorCode, field: str, *, validate_only: bool
) -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(config_value_max_bytes=1000))
    if resource.resource_name == "listed":
        cell.create("listed", replication_factor=1)
    cell.refused_part(_alter(resource, validate_only=validate_only), code, f"resources[0].{field}")


def test_size_limit_counts_utf_8_bytes() -> None:
    cell = Cell(brokers=0, settings=ControllerSettings(config_value_max_bytes=1000))
    largest = (("m", "ä" * 500), ("n", "x" * 1000))
    cell.send(_alter(*(_resource(METRICS, name, ("match", v)) for name, v in largest)))
    assert len(cell.pending.configs[METRICS, "m"]["match"]) == 500


def test_resource_fails_as_a_whole_and_alone() -> None:
    cell = Cell(brokers=0)
    timeout = ("consumer.session.timeout.ms", "1")
    body = cell.send(
        _alter(
            _resource(GROUP, "a", timeout),
            _resource(GROUP, "b", timeout, ("no.such", "1")),
            _resource(GROUP, "c", timeout),
            _resource(GROUP, "a", ("consumer.heartbeat.interval.ms", "1")),
        )
    )
    assert [
        (one.resource_name, one.error.field if one.HasField("error") else None)
        for one in body.results
    ] == [("a", None), ("b", "resources[1].configs[1].name"), ("c", None), ("a", "resources[3]")]
    assert sorted(cell.pending.snapshot().configs) == [(GROUP, "a"), (GROUP, "c")]
    assert cell.pending.configs[GROUP, "a"] == {"consumer.session.timeout.ms": "1"}


def test_empty_or_validated_alteration_writes_nothing_without_an_error() -> None:
    cell = Cell(brokers=0)
    valid = _resource(GROUP, "g", ("consumer.session.timeout.ms", "1"))
    for request in (_alter(), _alter(_resource(GROUP, "g")), _alter(valid, validate_only=True)):
        decision = cell.decide(request)
        assert (decision.error, decision.records) == (None, [])
        assert len(decision.body.results) == 0


def test_request_with_more_keys_than_a_batch_holds_is_refused_whole() -> None:
    cell = Cell(brokers=0, settings=ControllerSettings(max_records_per_request=2))
    resources: list[Any] = [
        _resource(GROUP, f"g{index}", ("consumer.session.timeout.ms", "1")) for index in range(3)
    ]
    cell.refused(_alter(*resources), ErrorCode.POLICY_VIOLATION, "resources")
    two = _resource(
        GROUP, "g", ("consumer.session.timeout.ms", "1"), ("consumer.heartbeat.interval.ms", "1")
    )
    cell.refused(_alter(resources[0], two), ErrorCode.POLICY_VIOLATION, "")
    assert len(cell.decide(_alter(*resources[:2])).records) == 2


def test_configs_of_a_pending_topic_can_be_set() -> None:
    cell = Cell(brokers=1)
    cell.hold_commits = True
    request = _alter(_resource(TOPIC, "t", ("retention.ms", "1")))
    cell.refused_part(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "resources[0].resource_name")
    cell.create("t", replication_factor=1)
    assert len(cell.decide(request).records) == 1
    cell.propose(cell.decide(rpc.DeleteTopicsRequest(names=["t"])))
    cell.refused_part(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "resources[0].resource_name")


def test_list_items_are_appended_and_subtracted() -> None:
    cell = Cell(brokers=1)
    cell.create("t", replication_factor=1)
    policy = ("cleanup.policy",)

    def value(operation: rpc.ConfigOperation, items: str) -> str | None:
        assert not cell.send(_alter(_listed(TOPIC, "t", *policy, operation, items))).results
        return cell.pending.configs[TOPIC, "t"]["cleanup.policy"]

    assert value(rpc.APPEND, "compact") == "delete,compact", "to the default"
    assert value(rpc.APPEND, "delete, compact") == "delete,compact", "nothing twice"
    assert value(rpc.SUBTRACT, "delete") == "compact"
    cell.send(_alter(_resource(TOPIC, "t", ("cleanup.policy", None))))
    cell.send(_alter(_resource(BROKER, "", ("log.cleanup.policy", "compact"))))
    assert value(rpc.APPEND, "delete") == "compact,delete", "to what is inherited"


def _compared(name: str, value: str | None, expected: str | None) -> rpc.AlterConfigsResource:
    operation = rpc.COMPARE_AND_DELETE if value is None else rpc.COMPARE_AND_SET
    config = rpc.AlterableConfig(
        name="match", config_operation=operation, value=value or "", expected=expected
    )
    return rpc.AlterConfigsResource(resource_type=METRICS, resource_name=name, configs=[config])


def test_compare_and_set_changes_only_the_expected_value() -> None:
    cell = Cell(brokers=0)
    steps: list[tuple[str | None, str | None, bool]] = [
        # value, expected, whether it happens
        ("", "", False),  # Not set is not the empty value...
        ("", None, True),
        ("b", None, False),  # ...nor the other way round.
        ("b", "a", False),
        ("b", "", True),
        ("c", "", False),
        (None, "c", False),
        (None, "b", True),
        (None, "b", False),
        (None, None, True),
        ("c", None, True),
    ]
    present: str | None = None
    for value, expected, happens in steps:
        body = cell.send(_alter(_compared("m", value, expected)))
        if happens:
            assert not body.results, (value, expected)
            present = value
        else:
            error = body.results[0].error
            told = "has another value" if expected is not None else "is set"
            told = "is not set" if present is None else told
            assert error.error_message.startswith(f"match {told}"), (value, expected)
            assert error.error_code == ErrorCode.INVALID_UPDATE_VERSION, (value, expected)
            assert error.field == "resources[0].configs[0].expected"
        own = cell.pending.configs.get((METRICS, "m"), {}).get("match")
        assert own == present


def test_expected_value_must_be_valid_for_a_comparison() -> None:
    cell = Cell(brokers=0)
    for operation in (rpc.SET, rpc.DELETE, rpc.APPEND, rpc.SUBTRACT):
        resource = _compared("m", "b", "a")
        resource.configs[0].config_operation = operation
        error = cell.send(_alter(resource)).results[0].error
        assert error.error_code == ErrorCode.INVALID_REQUEST
        assert error.field == "resources[0].configs[0].expected"
    too_long = "x" * (ControllerSettings().config_value_max_bytes + 1)
    error = cell.send(_alter(_compared("m", "b", too_long))).results[0].error
    assert error.error_code == ErrorCode.INVALID_REQUEST
    assert (METRICS, "m") not in cell.pending.configs


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
def test_config_values_are_checked(
    resource_type: int, name: str, good: list[str], bad: list[str]
) -> None:
    key = find(resource_type, name)
    assert key is not None
    assert key.check is not None
    assert [value for value in good if key.check(value) is not None] == []
    assert [value for value in bad if key.check(value) is None] == []
