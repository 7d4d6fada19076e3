"""Topics: create, delete, list, describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from raftlog.client.enums import AcksLike, ReadModeLike
from raftlog.client.namespace import Namespace
from raftlog.client.values import (
    ConfigValue,
    Listing,
    NewTopic,
    Topic,
    TopicResult,
    TopicsPage,
)
from raftlog.client.wire import named_items, new_topic, refusal, topic_from_wire
from raftlog.errors import ApiError, ErrorCode
from raftlog.outcome import WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2


class TopicListing(Listing[Topic]):
    """Topics, and the names of those that there are not."""

    missing: tuple[str, ...]


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
    ) -> WriteResult[TopicResult]:
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
    ) -> WriteResult[TopicResult]:
        """Create several topics in one write. Each succeeds or fails by itself; see
        ItemsRefusedError.
        """
        body = controller_pb2.CreateTopicsRequest(
            topics=map(new_topic, topics), validate_only=validate_only
        )
        return await self._core.write(
            body, acks, timeout_s, lambda answer: _results(answer.create_topics.topics)
        )

    async def delete(
        self,
        *names: str,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[TopicResult]:
        """Delete topics with their partitions and configs. Each succeeds or fails by itself."""
        body = controller_pb2.DeleteTopicsRequest(names=names, validate_only=validate_only)
        return await self._core.write(
            body, acks, timeout_s, lambda answer: _results(answer.delete_topics.topics)
        )

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
        return await self._core.write(
            body, acks, timeout_s, lambda answer: named_items(answer.create_partitions.results)
        )

    async def list(
        self, *, read: ReadModeLike | None = None, timeout_s: float | None = None
    ) -> Listing[Topic]:
        """All topics that this client may see, by name."""
        response = await self._core.read(broker_pb2.MetadataRequest(), read, timeout_s)
        topics = map(topic_from_wire, response.metadata.topics)
        return Listing(sorted(topics, key=lambda topic: topic.name), response.token.offset)

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
        found = await self.describe_all(name, read=read, timeout_s=timeout_s)
        if found.missing:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {name!r}",
                field="topics[0]",
            )
        return found[0]

    async def describe_all(
        self,
        *names: str,
        read: ReadModeLike | None = None,
        timeout_s: float | None = None,
    ) -> TopicListing:
        """Topics with their partitions, in the order given; ``missing`` are those that there are
        not.
        """
        response = await self._core.read(broker_pb2.MetadataRequest(topics=names), read, timeout_s)
        metadata = response.metadata
        return TopicListing(
            (topic_from_wire(one) for one in metadata.topics if not one.error_code),
            response.token.offset,
            missing=tuple(one.name for one in metadata.topics if one.error_code),
        )


def _results(results: Iterable[Any]) -> Iterator[TopicResult]:
    for one in results:
        yield TopicResult(one.name, refusal(one), one.topic_id.hex())
