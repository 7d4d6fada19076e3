"""IncrementalAlterConfigs: each resource succeeds or fails independently; the records of the
successful ones form one batch.

This is the hot path of writes: no copies, no objects beyond the records and the answer, and no
result list if all succeed.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.decision import (
    Reply,
    Write,
    check_item,
    check_item_count,
    check_record_count,
    refuse,
    wire_error,
    write_or_reply,
)
from controller.settings import ControllerSettings
from controller.state.state import ControllerState
from raftlog.config_writes import codec
from raftlog.config_writes.records import Change
from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import ConfigKey, ResourceType, config_keys, find, topic_config
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.node.security.authorization import NONE_REFUSED, Refused
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

RESOURCE_NAME_MAX_CHARS = 249
_TOPIC, _BROKER = int(ResourceType.TOPIC), int(ResourceType.BROKER)
_SET, _DELETE, _APPEND, _SUBTRACT = rpc.SET, rpc.DELETE, rpc.APPEND, rpc.SUBTRACT
_COMPARING = {rpc.COMPARE_AND_SET: _SET, rpc.COMPARE_AND_DELETE: _DELETE}
_UTF8_MAX_BYTES = 4
_ID_DIGITS = 10


def incremental_alter_configs(
    state: ControllerState,
    request: rpc.IncrementalAlterConfigsRequest,
    refused: Refused = NONE_REFUSED,
) -> Write | Reply:
    """Set and delete config keys.

    Raises POLICY_VIOLATION for more keys than fit into a batch.
    """
    view, settings, resources = state.log.pending, state.settings, request.resources
    if len(resources) > settings.max_records_per_request:
        check_item_count(len(resources), settings.max_records_per_request, "resources")
    records: list[Record] = []
    errors: dict[int, ApiError] = {}
    seen: set[tuple[int, str]] | None = set() if len(resources) > 1 else None
    for index, resource in enumerate(resources):
        before = len(records)
        try:
            if refused:
                check_item(refused, index)
            if seen is not None:
                key = (resource.resource_type, resource.resource_name)
                if key in seen:
                    raise refuse(
                        ErrorCode.INVALID_REQUEST,
                        f"resource {key[0]} {key[1][:80]!r} is given twice",
                        f"resources[{index}]",
                    )
                seen.add(key)
            _alter_resource(view, settings, resource, index, records)
        except ApiError as error:
            del records[before:]
            errors[index] = error
        # Counted for each resource, which can add no more records than there are keys.
        check_record_count(len(records), settings.max_records_per_request)
    if request.validate_only:
        records = []
    return write_or_reply(records, _response(resources, errors))


def accepted_writes(
    view: ImageView, settings: ControllerSettings, writes: ConfigWrites, begin: int
) -> int:
    """Return how many requests of a group, from ``begin`` onwards, ``incremental_alter_configs``
    would accept completely.

    The count may stop at a request that needs a full decision. No config write affects the decision
    on another, so all are decided before any is folded.
    """
    counts, changes = writes.counts, writes.changes
    most = settings.max_records_per_request
    end = sum(counts[:begin])
    plain = _plain(view, settings, changes, end, printable=writes.printable)
    for index in range(begin, len(counts)):
        count, position = counts[index], end
        end += count
        if end > plain:
            return index - begin
        if count > 1 and (count > most or _names_one_twice(changes[position:end])):
            return index - begin
    return len(counts) - begin


def _names_one_twice(changes: Sequence[Change]) -> bool:
    """Return whether a resource occurs twice."""
    count = len(changes)
    # Different names imply different resources, and nearly always are different.
    return len({change[1] for change in changes}) < count > len({change[:2] for change in changes})


def _plain(
    view: ImageView,
    settings: ControllerSettings,
    changes: list[Change],
    begin: int,
    *,
    printable: bool,
) -> int:
    """Return the index of the first change, from ``begin`` onwards, that needs a full decision, or
    the number of changes.

    ``printable``: all texts are known to be printable.
    """
    most_chars = settings.config_value_max_bytes // _UTF8_MAX_BYTES
    key, key_of = None, (-1, "")
    index, total = begin, len(changes)
    while index < total:
        resource_type, resource_name, name, value = changes[index]
        # Most changes set the same key.
        if key_of[1] is not name or key_of[0] != resource_type:
            key, key_of = find(resource_type, name), (resource_type, name)
        if key is None or value is None or len(value) > most_chars:
            return index
        if printable and key.check is None and resource_type not in (_TOPIC, _BROKER):
            # Only lengths remain to be checked.
            end = codec.run(changes, index, most_chars, RESOURCE_NAME_MAX_CHARS)
            if end == index:
                return index
            index = end
            continue
        if key.check is not None and key.check(value) is not None:
            return index
        if resource_type == _TOPIC:
            if resource_name not in view.topic_ids:
                return index
        elif resource_type == _BROKER:
            if not _is_broker(view, resource_name):
                return index
        elif not 0 < len(resource_name) <= RESOURCE_NAME_MAX_CHARS:
            return index
        if not printable and not (value.isprintable() and resource_name.isprintable()):
            return index
        index += 1
    return total


def _is_broker(view: ImageView, name: str) -> bool:
    """Return whether a resource name is the id of a registered broker, or "" for all brokers."""
    # Only one spelling of each id, or "07" would be another resource. The length is checked first:
    # converting a long text takes long, and Python refuses more than 4,300 digits.
    number = int(name) if name.isascii() and name.isdigit() and len(name) <= _ID_DIGITS else -1
    return not name or (str(number) == name and number in view.brokers)


def config_record(resource_type: int, resource_name: str, name: str, value: str | None) -> Record:
    """Return the record of a key's new value; None deletes the key."""
    return record(
        pb.ConfigRecord(
            resource_type=resource_type, resource_name=resource_name, name=name, value=value
        )
    )


def check_config(settings: ControllerSettings, key: ConfigKey, value: str, field: str) -> None:
    """Raise INVALID_CONFIG if the value is invalid for the key."""
    limit = settings.config_value_max_bytes
    if len(value) * _UTF8_MAX_BYTES > limit and len(value.encode()) > limit:
        raise refuse(
            ErrorCode.INVALID_CONFIG, f"the value of {key.name} is larger than {limit} bytes", field
        )
    if not value.isprintable():
        raise refuse(
            ErrorCode.INVALID_CONFIG,
            f"the value of {key.name} must contain only printable characters",
            field,
        )
    wrong = key.check(value) if key.check is not None else None
    if wrong is not None:
        raise refuse(
            ErrorCode.INVALID_CONFIG, f"the value of {key.name}, {value[:80]!r}, {wrong}", field
        )


def _alter_resource(
    view: ImageView,
    settings: ControllerSettings,
    resource: rpc.AlterConfigsResource,
    index: int,
    records: list[Record],
) -> None:
    resource_type, resource_name, configs = (
        resource.resource_type,
        resource.resource_name,
        resource.configs,
    )
    keys = config_keys(resource_type)
    if keys is None:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource_type} has no configs",
            f"resources[{index}].resource_type",
        )
    _check_resource(view, resource_type, resource_name, index)
    if len(configs) > len(keys) or (
        len(configs) > 1 and len({config.name for config in configs}) < len(configs)
    ):
        raise refuse(
            ErrorCode.INVALID_REQUEST, "a config key is given twice", f"resources[{index}].configs"
        )
    for position, config in enumerate(configs):
        name = config.name
        key = keys.get(name)
        if key is None:
            raise refuse(
                ErrorCode.INVALID_CONFIG,
                f"there is no config key {name[:80]!r}",
                f"resources[{index}].configs[{position}].name",
            )
        operation = config.config_operation
        if operation in _COMPARING or config.HasField("expected"):
            _compare(view, settings, resource, config, f"resources[{index}].configs[{position}]")
            operation = _COMPARING[operation]
        if operation == _SET:
            value = config.value
            if (
                key.check is not None
                or len(value) * _UTF8_MAX_BYTES > settings.config_value_max_bytes
                or not value.isprintable()
            ):
                check_config(settings, key, value, f"resources[{index}].configs[{position}].value")
            records.append(config_record(resource_type, resource_name, name, value))
        elif operation == _DELETE:
            records.append(config_record(resource_type, resource_name, name, None))
        elif operation in (_APPEND, _SUBTRACT):
            value = _list_value(
                view, resource, key, config, f"resources[{index}].configs[{position}]"
            )
            check_config(settings, key, value, f"resources[{index}].configs[{position}].value")
            records.append(config_record(resource_type, resource_name, name, value))
        else:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"config_operation {operation} is unknown",
                f"resources[{index}].configs[{position}].config_operation",
            )


def _compare(
    view: ImageView,
    settings: ControllerSettings,
    resource: rpc.AlterConfigsResource,
    config: rpc.AlterableConfig,
    field: str,
) -> None:
    """Raise INVALID_UPDATE_VERSION unless the key has the expected value.

    The view is the end of the log: of two requests that expect the same value, the second sees the
    first.
    """
    if config.config_operation not in _COMPARING:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            "expected is allowed only with COMPARE_AND_SET and COMPARE_AND_DELETE",
            f"{field}.expected",
        )
    expected = config.expected if config.HasField("expected") else None
    if expected is not None and len(expected) > settings.config_value_max_bytes:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"expected must not be larger than {settings.config_value_max_bytes} bytes",
            f"{field}.expected",
        )
    own = view.configs.get((resource.resource_type, resource.resource_name)) or {}
    present = own.get(config.name)
    if present != expected:
        how = (
            "is set"
            if expected is None
            else "is not set"
            if present is None
            else "has another value"
        )
        raise refuse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{config.name} {how}: it was changed since it was read",
            f"{field}.expected",
        )


def _list_value(
    view: ImageView,
    resource: rpc.AlterConfigsResource,
    key: ConfigKey,
    config: rpc.AlterableConfig,
    field: str,
) -> str:
    """Return the list after adding or removing items.

    A key that is not set begins with its effective value.
    """
    if key.type != "LIST":
        raise refuse(
            ErrorCode.INVALID_CONFIG,
            f"{key.name} is not a list: use SET instead of APPEND or SUBTRACT",
            f"{field}.config_operation",
        )
    own = view.configs.get((resource.resource_type, resource.resource_name)) or {}
    present = own.get(key.name)
    if present is None:
        is_topic = resource.resource_type == _TOPIC
        present = topic_config(view, resource.resource_name, key.name) if is_topic else key.default
    items = [item.strip() for item in present.split(",") if item.strip()]
    given = [item.strip() for item in config.value.split(",") if item.strip()]
    if config.config_operation == _SUBTRACT:
        return ",".join(item for item in items if item not in given)
    return ",".join(dict.fromkeys([*items, *given]))


def _check_resource(view: ImageView, resource_type: int, name: str, index: int) -> None:
    if resource_type == _TOPIC:
        if name in view.topic_ids:
            return
        code, wrong = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:249]!r}"
    elif resource_type == _BROKER:
        if _is_broker(view, name):
            return
        code, wrong = (
            ErrorCode.INVALID_REQUEST,
            f"{name[:80]!r} is not the id of a registered broker",
        )
    elif 0 < len(name) <= RESOURCE_NAME_MAX_CHARS and name.isprintable():
        return
    else:
        code, wrong = (
            ErrorCode.INVALID_REQUEST,
            (
                f"resource_name must be 1 to {RESOURCE_NAME_MAX_CHARS} printable characters;"
                f" {name[:80]!r} has {len(name)}"
            ),
        )
    raise refuse(code, wrong, f"resources[{index}].resource_name")


def _response(
    resources: Sequence[rpc.AlterConfigsResource], errors: dict[int, ApiError]
) -> rpc.IncrementalAlterConfigsResponse:
    if not errors:
        return rpc.IncrementalAlterConfigsResponse()
    return rpc.IncrementalAlterConfigsResponse(
        results=[
            rpc.AlterConfigsResourceResult(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error=wire_error(errors[index]) if index in errors else None,
            )
            for index, resource in enumerate(resources)
        ]
    )
