"""Topics: create, delete, list, describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raftlog.client.enums import AcksLike, ReadModeLike
from raftlog.client.namespace import Namespace
from raftlog.client.values import ConfigValue, NewTopic, Topic, TopicsPage
from raftlog.client.wire import item_error, new_topic, topic_from_wire
from raftlog.outcome import WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

Topics = list[Topic]
"""By its own name: a method is called ``list``."""


class AsyncTopics(Namespace):
    """``client.topics``."""

    async def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, ConfigValue] | None = None,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Create one topic. Raises TopicAlreadyExistsError, among others.

        -1: the cluster's default. ``assignments``: the replicas of each partition, the preferred
        leader first, instead of the two numbers.
        """
        configs = {} if configs is None else configs
        topic = NewTopic(name, partitions, replication_factor, configs, assignments)
        return await self.create_all(
            [topic], validate_only=validate_only, acks=acks, timeout_s=timeout_s
        )

    async def create_all(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Create several topics in one write. Each succeeds or fails by itself; see
        ItemsRefusedError.
        """
        body = controller_pb2.CreateTopicsRequest(
            topics=map(new_topic, topics), validate_only=validate_only
        )
        result, _ = await self._core.write(body, acks, timeout_s)
        return result

    async def delete(
        self,
        *names: str,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Delete topics with their partitions and configs. Each succeeds or fails by itself."""
        body = controller_pb2.DeleteTopicsRequest(names=names, validate_only=validate_only)
        result, _ = await self._core.write(body, acks, timeout_s)
        return result

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Raise the number of a topic's partitions to ``count``. ``assignments``: the replicas of
        each new one, the preferred leader first.
        """
        topic = controller_pb2.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=[
                controller_pb2.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments
            ],
        )
        body = controller_pb2.CreatePartitionsRequest(topics=[topic], validate_only=validate_only)
        result, _ = await self._core.write(body, acks, timeout_s)
        return result

    async def list(
        self, *, read: ReadModeLike | None = None, timeout_s: float | None = None
    ) -> Topics:
        """All topics that this client may see, by name."""
        response = await self._core.read(broker_pb2.MetadataRequest(), read, timeout_s)
        topics = map(topic_from_wire, response.metadata.topics)
        return sorted(topics, key=lambda topic: topic.name)

    async def page(
        self,
        cursor: str = "",
        *,
        partitions: int = 2_000,
        read: ReadModeLike | None = None,
        timeout_s: float | None = None,
    ) -> TopicsPage:
        """Some of the topics by name, about as many as have so many partitions, at least one: for
        clusters whose list is too long for one answer. Go on with the page's ``next``.

        Each page is of the image that the broker has then.
        """
        body = broker_pb2.MetadataRequest(response_partition_limit=partitions, cursor=cursor)
        response = await self._core.read(body, read, timeout_s)
        topics = tuple(map(topic_from_wire, response.metadata.topics))
        return TopicsPage(topics, response.metadata.next_cursor)

    async def describe(
        self, name: str, *, read: ReadModeLike | None = None, timeout_s: float | None = None
    ) -> Topic:
        """One topic with its partitions. Raises UnknownTopicOrPartitionError."""
        response = await self._core.read(broker_pb2.MetadataRequest(topics=[name]), read, timeout_s)
        (topic,) = response.metadata.topics
        error = item_error(topic.error_code, f"there is no topic {name!r}", "topics[0]")
        if error is not None:
            raise error
        return topic_from_wire(topic)
