"""Dynamic configs: kept in the log, the same on every node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raftlog.library.enums import AcksLike, ReadModeLike, ResourceLike, resource_of
from raftlog.library.namespace import Namespace
from raftlog.library.values import ConfigEntry, ConfigValue, config_text
from raftlog.library.wire import config_from_wire, item_error
from raftlog.outcome import WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2


class AsyncConfigs(Namespace):
    """``client.configs``. ``name`` is the topic, broker id or group; empty for the cluster."""

    async def describe(
        self,
        kind: ResourceLike,
        name: str | int = "",
        *,
        keys: Iterable[str] = (),
        read: ReadModeLike | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, ConfigEntry]:
        """The configs of one resource by key: all of them, or those asked for.

        Raises UnknownTopicOrPartitionError, among others. A key that there is not is left out.
        """
        resource = broker_pb2.DescribeConfigsResource(
            resource_type=resource_of(kind), resource_name=str(name), configuration_keys=keys
        )
        body = broker_pb2.DescribeConfigsRequest(resources=[resource])
        response = await self._core.read(body, read, timeout_s)
        (result,) = response.describe_configs.results
        error = item_error(result.error_code, result.error_message, result.field)
        if error is not None:
            raise error
        return {one.name: config_from_wire(one) for one in result.configs}

    async def alter(
        self,
        kind: ResourceLike,
        name: str | int = "",
        *,
        set: Mapping[str, ConfigValue] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Change configs of one resource, all or none. Raises InvalidConfigError, among others.

        ``delete``: back to the default. ``append``, ``subtract``: items of keys that are lists.
        """
        operations = (
            (controller_pb2.SET, set or {}),
            (controller_pb2.DELETE, dict.fromkeys(delete, "")),
            (controller_pb2.APPEND, append or {}),
            (controller_pb2.SUBTRACT, subtract or {}),
        )
        resource = controller_pb2.AlterConfigsResource(
            resource_type=resource_of(kind),
            resource_name=str(name),
            configs=[
                controller_pb2.AlterableConfig(
                    name=key, config_operation=operation, value=config_text(value)
                )
                for operation, values in operations
                for key, value in values.items()
            ],
        )
        body = controller_pb2.IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=validate_only
        )
        result, _ = await self._core.write(body, acks, timeout_s)
        return result
