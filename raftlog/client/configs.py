"""Dynamic configs, stored in the log and equal on every node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import Unpack

from raftlog.client.arguments import config_text
from raftlog.client.core import Namespace
from raftlog.client.requests import item_error
from raftlog.client.values import (
    UNCONDITIONAL,
    ConfigEntry,
    ConfigSource,
    ConfigValue,
    ItemResult,
    ReadOptions,
    ResourceLike,
    Unconditional,
    WriteOptions,
    expected_values,
    resource_of,
)
from raftlog.metadata.config_keys import ResourceType, without_effect
from raftlog.outcome import WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2


class AsyncConfigs(Namespace):
    """Calls about dynamic configs: ``client.configs``. ``name``: the topic, broker id or group;
    empty for the whole cluster.
    """

    async def describe(
        self,
        kind: ResourceLike,
        name: str | int = "",
        *,
        keys: Iterable[str] = (),
        **how: Unpack[ReadOptions],
    ) -> dict[str, ConfigEntry]:
        """Return the configs of one resource by key, all or some. Unknown keys are omitted. Raises
        UnknownTopicOrPartitionError, among others.
        """
        resource = broker_pb2.DescribeConfigsResource(
            resource_type=resource_of(kind), resource_name=str(name), configuration_keys=keys
        )
        body = broker_pb2.DescribeConfigsRequest(resources=[resource])
        response = await self._core.read(body, **how)
        (result,) = response.describe_configs.results
        error = item_error(result, field=result.field)
        if error is not None:
            raise error
        return {one.name: _entry(resource.resource_type, one) for one in result.configs}

    async def alter(
        self,
        kind: ResourceLike,
        name: str | int = "",
        *,
        set: Mapping[str, ConfigValue] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str | Sequence[str]] | None = None,
        subtract: Mapping[str, str | Sequence[str]] | None = None,
        expected: Mapping[str, ConfigValue | None] | Unconditional = UNCONDITIONAL,
        **how: Unpack[WriteOptions],
    ) -> WriteResult:
        """Change configs of one resource, all or none. Raises InvalidConfigError, among others.

        ``delete``: keys to reset to their defaults. ``append``, ``subtract``: items to add to or
        remove from keys that are lists. ``expected``: current values that keys being set or deleted
        must have on the resource itself (None: no value). If one differs, nothing changes and
        InvalidUpdateVersionError is raised; after UnknownOutcomeError, the change may have been
        made.
        """
        operations = (
            (controller_pb2.SET, set or {}),
            (controller_pb2.DELETE, dict.fromkeys(delete, "")),
            (controller_pb2.APPEND, append or {}),
            (controller_pb2.SUBTRACT, subtract or {}),
        )
        present = expected_values(expected)
        resource = controller_pb2.AlterConfigsResource(
            resource_type=resource_of(kind),
            resource_name=str(name),
            configs=[
                _change(key, operation, config_text(key, value), present)
                for operation, values in operations
                for key, value in values.items()
            ],
        )
        stray = present.keys() - {config.name for config in resource.configs}
        if stray:
            raise ValueError(
                f"expected names keys that are neither set nor deleted: {', '.join(sorted(stray))}"
            )
        body = controller_pb2.IncrementalAlterConfigsRequest(resources=[resource])
        item = f"{ResourceType(resource.resource_type).name.lower().replace('_', '-')}"
        item = f"{item} {name}" if name != "" else f"{item} (default)"
        return await self._core.write(
            body,
            how,
            lambda answer: (
                ItemResult(
                    item, next(map(item_error, answer.incremental_alter_configs.results), None)
                ),
            ),
        )


_COMPARING = {
    controller_pb2.SET: controller_pb2.COMPARE_AND_SET,
    controller_pb2.DELETE: controller_pb2.COMPARE_AND_DELETE,
}


def _entry(kind: int, config: broker_pb2.DescribedConfig) -> ConfigEntry:
    source, idle = (
        ConfigSource(config.config_source),
        without_effect(
            kind,
            config.name,
            config.value,
            of_one_broker=config.config_source == ConfigSource.DYNAMIC_BROKER_CONFIG,
        ),
    )
    return ConfigEntry(config.name, config.value, source, config.is_default, idle)


def _change(
    key: str,
    operation: controller_pb2.ConfigOperation,
    value: str,
    expected: Mapping[str, ConfigValue | None],
) -> controller_pb2.AlterableConfig:
    """Return the change to a key, conditional if the key is in ``expected``. Raises ValueError."""
    if key not in expected:
        return controller_pb2.AlterableConfig(name=key, config_operation=operation, value=value)
    if operation not in _COMPARING:
        raise ValueError(f"expected names a key that is neither set nor deleted: {key}")
    present = expected[key]
    return controller_pb2.AlterableConfig(
        name=key,
        config_operation=_COMPARING[operation],
        value=value,
        expected=None if present is None else config_text(key, present),
    )
