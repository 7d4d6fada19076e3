"""Topics and their partitions: replicas, leaders, and the in-sync replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import Unpack

from raftlog.client.arguments import config_text
from raftlog.client.core import Namespace
from raftlog.client.requests import item_error
from raftlog.client.values import (
    ConfigValue,
    ItemResult,
    Listing,
    NewTopic,
    Partition,
    ReadOptions,
    Topic,
    TopicResult,
    TopicsPage,
    WriteOptions,
)
from raftlog.client.wire import known, named_items, reader
from raftlog.endpoint import address_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.outcome import WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.records.v1 import records_pb2


class TopicListing(Listing[Topic]):
    """Topics, and the names of those that do not exist."""

    missing: tuple[str, ...]


class AsyncTopics(Namespace):
    """Calls about topics: ``client.topics``."""

    async def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, ConfigValue] | None = None,
        assignments: Sequence[Sequence[int]] = (),
        **how: Unpack[WriteOptions],
    ) -> WriteResult[TopicResult]:
        """Create one topic. Raises TopicAlreadyExistsError, among others.

        A number of -1 stands for the cluster's default. ``assignments``: the replicas of each
        partition, preferred leader first, instead of the two numbers.
        """
        configs = {} if configs is None else configs
        topic = NewTopic(name, partitions, replication_factor, configs, assignments)
        return await self.create_all([topic], **how)

    async def create_all(
        self, topics: Iterable[NewTopic], **how: Unpack[WriteOptions]
    ) -> WriteResult[TopicResult]:
        """Create several topics. Each succeeds or fails by itself; see ItemsRefusedError."""
        body = controller_pb2.CreateTopicsRequest(topics=map(_new_topic, topics))
        return await self._core.write(
            body, how, lambda answer: _results(answer.create_topics.topics)
        )

    async def delete(self, *names: str, **how: Unpack[WriteOptions]) -> WriteResult[TopicResult]:
        """Delete topics with their partitions and configs. Each succeeds or fails by itself."""
        body = controller_pb2.DeleteTopicsRequest(names=names)
        return await self._core.write(
            body, how, lambda answer: _results(answer.delete_topics.topics)
        )

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        **how: Unpack[WriteOptions],
    ) -> WriteResult:
        """Raise the number of a topic's partitions to ``count``.

        ``assignments``: the replicas of each new partition, preferred leader first.
        """
        topic = controller_pb2.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=[
                controller_pb2.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments
            ],
        )
        body = controller_pb2.CreatePartitionsRequest(topics=[topic])
        return await self._core.write(
            body, how, lambda answer: named_items(answer.create_partitions.results)
        )

    async def list(self, **how: Unpack[ReadOptions]) -> Listing[Topic]:
        """Return all topics that this client may read, sorted by name."""
        response = await self._core.read(broker_pb2.MetadataRequest(), **how)
        topics = map(_topic, response.metadata.topics)
        return Listing(sorted(topics, key=lambda topic: topic.name), response.token.offset)

    async def page(
        self, cursor: str = "", *, partitions: int = 2_000, **how: Unpack[ReadOptions]
    ) -> TopicsPage:
        """Return a page of the topics, sorted by name: at least one, and about as many as together
        have this number of partitions.

        For clusters whose list is too long for one answer. Continue with the page's ``next``. Each
        page shows the broker's current image.
        """
        body = broker_pb2.MetadataRequest(response_partition_limit=partitions, cursor=cursor)
        response = await self._core.read(body, **how)
        topics = tuple(map(_topic, response.metadata.topics))
        return TopicsPage(topics, response.metadata.next_cursor)

    async def describe(self, name: str, **how: Unpack[ReadOptions]) -> Topic:
        """Return one topic with its partitions. Raises UnknownTopicOrPartitionError."""
        found = await self.describe_all(name, **how)
        if found.missing:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {name!r}",
                field="topics[0]",
            )
        return found[0]

    async def describe_all(self, *names: str, **how: Unpack[ReadOptions]) -> TopicListing:
        """Return topics in the given order; ``missing`` has the unknown names."""
        response = await self._core.read(broker_pb2.MetadataRequest(topics=names), **how)
        metadata = response.metadata
        return TopicListing(
            (_topic(one) for one in metadata.topics if not one.error_code),
            response.token.offset,
            missing=tuple(one.name for one in metadata.topics if one.error_code),
        )


def _new_topic(topic: NewTopic) -> controller_pb2.CreatableTopic:
    return controller_pb2.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            controller_pb2.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in enumerate(topic.assignments)
        ],
        configs=[
            controller_pb2.ConfigEntry(name=name, value=config_text(name, value))
            for name, value in topic.configs.items()
        ],
    )


_partition = reader(
    Partition,
    index="partition_index",
    leader="leader_id",
    replicas="replica_nodes",
    elr="eligible_leader_replicas",
)
_topic = reader(
    Topic,
    id=lambda topic: topic.topic_id.hex(),
    partitions=lambda topic: tuple(map(_partition, topic.partitions)),
)


def _results(results: Iterable[Any]) -> Iterator[TopicResult]:
    for one in results:
        yield TopicResult(one.name, item_error(one), one.topic_id.hex())


ROUNDS_MAX = 1_000
"""Maximum number of requests for an election of all partitions: one request is limited to the
elections that fit into a batch.
"""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A move of replicas in progress. It is done when all added replicas are in sync."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """Future replicas, preferred leader first, followed by those to be removed."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    in_sync: tuple[int, ...]
    waiting_for: tuple[int, ...]
    """The added replicas that are not in sync yet."""


@dataclass(frozen=True, slots=True)
class PartitionResult(ItemResult):
    """The result of moving a partition."""

    topic: str = ""
    partition: int = -1


@dataclass(frozen=True, slots=True)
class Election(PartitionResult):
    """The result of electing a partition's leader."""

    leader: int | None = None
    needed: bool = True
    """False if the partition already had the right leader."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as its leader knows it; the leader learns changes first (KIP-24).

    ``leader`` is None if there is no leader; nothing else is known then.
    """

    index: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int | None
    in_sync: tuple[int, ...]
    high_watermark: int | None
    """High watermark, exclusive: every record below it is on all in-sync replicas."""
    log_end_offset: int | None


class AsyncPartitions(Namespace):
    """Calls about partitions, their replicas and leaders: ``client.partitions``. To add partitions
    to a topic, see ``client.topics.create_partitions``.
    """

    async def reassign(
        self,
        topic: str,
        replicas: Mapping[int, Sequence[int]],
        *,
        keep_replication_factor: bool = False,
        **how: Unpack[WriteOptions],
    ) -> WriteResult[PartitionResult]:
        """Move partitions to other brokers; the first broker becomes the preferred leader.

        Returns when the moves have started; ``reassignments`` lists them until they are done.
        ``keep_replication_factor``: refuse to change the number of replicas (KIP-860).
        """
        return await self.reassign_all(
            {topic: replicas}, keep_replication_factor=keep_replication_factor, **how
        )

    async def reassign_all(
        self,
        replicas: Mapping[str, Mapping[int, Sequence[int] | None]],
        *,
        keep_replication_factor: bool = False,
        **how: Unpack[WriteOptions],
    ) -> WriteResult[PartitionResult]:
        """Move partitions of several topics, or cancel their moves (None). Each partition succeeds
        or fails by itself; see ItemsRefusedError.
        """
        body = controller_pb2.AlterPartitionReassignmentsRequest(
            topics=[
                controller_pb2.ReassignableTopic(
                    name=topic,
                    partitions=[
                        controller_pb2.ReassignablePartition(
                            partition_index=index,
                            replicas=None if ids is None else records_pb2.IdList(ids=ids),
                        )
                        for index, ids in partitions.items()
                    ],
                )
                for topic, partitions in replicas.items()
            ]
        )
        if keep_replication_factor:
            body.allow_replication_factor_change = False
        return await self._core.write(
            body,
            how,
            lambda answer: (
                PartitionResult(*_named(topic.name, one))
                for topic in answer.alter_partition_reassignments.topics
                for one in topic.partitions
            ),
        )

    async def cancel_reassignment(
        self, topic: str, *partitions: int, **how: Unpack[WriteOptions]
    ) -> WriteResult[PartitionResult]:
        """Remove the replicas that are being added, and keep the old ones. Raises
        NoReassignmentInProgressError.
        """
        cancelled: Mapping[int, Sequence[int] | None] = dict.fromkeys(partitions)
        return await self.reassign_all({topic: cancelled}, **how)

    async def reassignments(
        self, *topics: str, timeout_s: float | None = None
    ) -> Listing[Reassignment]:
        """Return the moves in progress, for these topics or for all, from the controller."""
        asked = [controller_pb2.ListReassignmentsTopic(name=name) for name in topics]
        body = controller_pb2.ListPartitionReassignmentsRequest(topics=asked)
        response = await self._core.ask_controller(body, timeout_s)
        answer = response.list_partition_reassignments
        return Listing(
            (
                Reassignment(
                    topic.name,
                    one.partition_index,
                    tuple(one.replicas),
                    tuple(one.adding_replicas),
                    tuple(one.removing_replicas),
                    tuple(one.isr),
                    tuple(added for added in one.adding_replicas if added not in one.isr),
                )
                for topic in answer.topics
                for one in topic.partitions
            ),
            answer.offset,
        )

    async def elect_leaders(
        self,
        topic: str | None = None,
        *partitions: int,
        unclean: bool = False,
        **how: Unpack[WriteOptions],
    ) -> WriteResult[Election]:
        """Make the preferred replicas leaders: for these partitions, for the whole topic, or,
        without a topic, for all partitions that need it.

        ``unclean``: for partitions without a leader, elect any live replica; acknowledged records
        that it lacks are lost. A partition that needs no election is not an error.
        """
        if topic is None and partitions:
            raise ValueError("partitions are given without a topic")
        return await self.elect_all(
            {} if topic is None else {topic: partitions}, unclean=unclean, **how
        )

    async def elect_all(
        self,
        partitions: Mapping[str, Iterable[int]],
        *,
        unclean: bool = False,
        **how: Unpack[WriteOptions],
    ) -> WriteResult[Election]:
        """Make the preferred replicas leaders in several topics: of all partitions of a topic given
        without partitions; without topics, of all partitions that need it.

        See ``elect_leaders``. If it took several requests, the result is the last one's, with the
        elections of all.
        """
        body = controller_pb2.ElectLeadersRequest(
            election_type=controller_pb2.UNCLEAN if unclean else controller_pb2.PREFERRED,
            topics=[
                controller_pb2.ElectableTopic(name=name, partition_indexes=indexes)
                for name, indexes in partitions.items()
            ],
        )
        found: list[Election] = []

        def elections(answer: controller_pb2.ControllerResponse) -> Iterable[Election]:
            found.extend(
                _election(topic.name, one)
                for topic in answer.elect_leaders.topics
                for one in topic.partitions
            )
            return found

        for _ in range(ROUNDS_MAX):
            result, response = await self._core.write_and_answer(body, how, elections)
            if how.get("validate_only") or not response.elect_leaders.remaining:
                break
        return result

    async def describe(self, topic: str, *, timeout_s: float | None = None) -> list[PartitionState]:
        """Query the leaders of a topic's partitions for the in-sync replicas and the replicas'
        progress. Raises UnknownTopicOrPartitionError, and the error of a leader that does not
        answer.
        """
        from raftlog.client.leaders import ask_leaders

        core = self._core
        response = await core.read(broker_pb2.MetadataRequest(topics=[topic]), "latest", timeout_s)
        (found,) = response.metadata.topics
        error = item_error(found, f"there is no topic {topic!r}", field="topics[0]")
        if error is not None:
            raise error
        led_by: dict[int, list[int]] = {}
        for one in found.partitions:
            led_by.setdefault(one.leader_id, []).append(one.partition_index)
        endpoints = {
            one.node_id: address_of(one.host, one.port)
            for one in response.metadata.brokers
            if one.node_id in led_by
        }
        answers = await ask_leaders(
            core.transport,
            endpoints,
            timeout_s=core.timeout_s(timeout_s),
            keys=[(found.topic_id, one.partition_index) for one in found.partitions],
            cluster_id=core.options.cluster_id,
        )
        for answer in answers.values():
            if answer.failure:
                message = f"broker {answer.broker_id} did not answer the query: {answer.failure}"
                raise ApiError(ErrorCode.NETWORK_EXCEPTION, message)
        told = {
            one.partition_index: PartitionState(
                one.partition_index,
                answer.broker_id,
                one.leader_epoch,
                one.partition_epoch,
                tuple(each.broker_id for each in one.isr),
                known(one.high_watermark),
                one.log_end_offset,
            )
            for answer in answers.values()
            for one in answer.led
        }
        return [
            told.get(
                one.partition_index,
                PartitionState(one.partition_index, None, one.leader_epoch, None, (), None, None),
            )
            for one in found.partitions
        ]


def _named(topic: str, one: Any) -> tuple[str, ApiError | None, str, int]:
    """Return the partition's name, its refusal, and the parts of the name. The refusal's message
    begins with the name.
    """
    name, error = f"{topic}:{one.partition_index}", item_error(one)
    if error is not None:
        error = error.saying(f"{name}: {error.message}")
    return name, error, topic, one.partition_index


def _election(topic: str, one: Any) -> Election:
    name, error, _, index = _named(topic, one)
    needed = one.error.error_code != ErrorCode.ELECTION_NOT_NEEDED
    return Election(name, error if needed else None, topic, index, known(one.leader_id), needed)
