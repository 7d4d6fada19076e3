"""One broker's replicas with a hand-made image."""

import itertools
from typing import Any

from broker.partition import events as ev
from broker.partition.host import PartitionSettings
from broker.partition.manager import Partitions
from raftlog import batch
from raftlog.metadata import versions
from raftlog.metadata.entities import Broker, Listener, Partition, Process, Topic
from raftlog.metadata.image import Image, ImageDraft
from raftlog.node.storage.partition_api import PartitionKey, RecoveredPartition
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.data.v1 import data_pb2 as pb

CLUSTER_ID = "test-cluster"
TOPIC_ID = b"T" * 16
TOPIC = "t"
KEY = (TOPIC_ID, 0)
ME = 1
EPOCHS = {1: 101, 2: 102, 3: 103}
"""Broker epochs, by id."""


def broker(
    broker_id: int, epoch: int, *, fenced: bool = False, stopping: bool = False, port: int = 0
) -> Broker:
    return Broker(
        id=broker_id,
        epoch=epoch,
        incarnation_id=f"{broker_id}-{epoch}",
        listeners=(Listener("PLAINTEXT", "localhost", port or 9000 + broker_id),),
        features=(),
        rack="",
        fenced=fenced,
        in_controlled_shutdown=stopping,
        log_dirs=(),
        registration_version=1,
        process=Process("", "", 0, 0),
        reason="",
    )


def partition(key: PartitionKey = KEY, **fields: Any) -> Partition:
    content: dict[str, Any] = {
        "topic_id": key[0],
        "index": key[1],
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "removing_replicas": (),
        "adding_replicas": (),
        "leader": ME,
        "leader_recovery_state": 0,
        "leader_epoch": 5,
        "partition_epoch": 7,
    }
    return Partition(**{**content, **fields})


def put(draft: ImageDraft, new: Partition) -> None:
    key = (new.topic_id, new.index)
    old = draft.partitions.get(key)
    draft.partitions[key] = new
    for broker_id in {*(old.replicas if old else ()), *new.replicas}:
        if broker_id in new.replicas:
            draft.replicas_of.add(broker_id, key)
        else:
            draft.replicas_of.remove(broker_id, key)


def first_image(*partitions: Partition, level: int = versions.LATEST_METADATA_VERSION) -> Image:
    draft = ImageDraft(Image())
    draft.features[versions.METADATA_VERSION] = level
    for broker_id, epoch in EPOCHS.items():
        draft.brokers[broker_id] = broker(broker_id, epoch)
    for new in partitions or (partition(),):
        count = draft.topics.get(new.topic_id)
        name = TOPIC if new.topic_id == TOPIC_ID else new.topic_id.hex()
        draft.topics[new.topic_id] = Topic(
            new.topic_id, name, (count.partition_count if count else 0) + 1
        )
        draft.topic_ids[name] = new.topic_id
        put(draft, new)
    return draft.snapshot()


def data(*values: str) -> list[bytes]:
    return [pb.DataRecord(value=value.encode()).SerializeToString() for value in values]


def chunk(base_offset: int, epoch: int, *values: str) -> bytes:
    return batch.encode(
        [(1, 0, body) for body in data(*values)],
        base_offset=base_offset,
        epoch=epoch,
        timestamp_ms=1,
    )


def recovered(end: int, *epochs: tuple[int, int], key: PartitionKey = KEY) -> RecoveredPartition:
    return RecoveredPartition(key, 0, end, epochs or (((1, 0),) if end else ()))


class Stand:
    """Broker 1, registered and unfenced, with its replicas. ``do`` steps and returns the effects;
    ``got`` keeps all of them. A flush completes right after the step unless ``hold_flushes``.
    """

    def __init__(
        self,
        *found: RecoveredPartition,
        image: Image | None = None,
        now: float = 1000.0,
        hold_flushes: bool = False,
        serve: bool = True,
        **settings: Any,
    ) -> None:
        self.now = now
        self.hold_flushes = hold_flushes
        self.flushes: list[int] = []
        self.image = image or first_image()
        settings = {"log_segment_delete_delay_ms": 0, **settings}
        self.core = Partitions(PartitionSettings(ME, CLUSTER_ID, **settings), found, now)
        self.got: list[ev.Effect] = []
        self._numbers = itertools.count(1)
        self.partitions = {(p.topic_id, p.index): p for p in self.image.partitions.values()}
        if serve:
            self.do(ev.BrokerStatusChanged(EPOCHS[ME], self.now + 1e6))
            self.do(ev.ImageMoved(self.image))

    def do(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.core.step(event, self.now)
        self.got.extend(effects)
        tokens = [effect.token for effect in effects if isinstance(effect, ev.Flush)]
        self.flushes.extend(tokens)
        if tokens and not self.hold_flushes:
            effects = effects + self.flush()
        return effects

    def flush(self) -> list[ev.Effect]:
        token, self.flushes = self.flushes[-1], []
        return self.do(ev.Flushed(token))

    def after(self, seconds: float) -> list[ev.Effect]:
        """Let time pass, ticking whenever something is due."""
        until, effects = self.now + seconds, []
        for _ in range(10_000):
            if self.core.next_deadline() > until:
                break
            self.now = max(self.now, self.core.next_deadline())
            effects.extend(self.do(ev.Tick()))
        else:
            raise AssertionError("something is due for ever")
        self.now = until
        return effects + self.do(ev.Tick())

    # --- metadata --------------------------------------------------------------------------------

    def change(self, key: PartitionKey = KEY, **fields: Any) -> list[ev.Effect]:
        """Change a partition in the image; its partition epoch grows unless given."""
        old = self.image.partitions[key]
        fields.setdefault("partition_epoch", old.partition_epoch + 1)
        draft = ImageDraft(self.image)
        put(
            draft,
            partition(
                key,
                **{name: fields.get(name, getattr(old, name)) for name in old.__struct_fields__},
            ),
        )
        self.image = draft.snapshot()
        return self.do(ev.ImageMoved(self.image, ev.Changes(partitions=(key,))))

    def broker(self, broker_id: int, **fields: Any) -> list[ev.Effect]:
        """Change a registration in the image."""
        draft = ImageDraft(self.image)
        fields.setdefault("epoch", self.image.brokers[broker_id].epoch)
        draft.brokers[broker_id] = broker(broker_id, **fields)
        self.image = draft.snapshot()
        return self.do(ev.ImageMoved(self.image, ev.Changes(brokers=(broker_id,))))

    def config(self, resource_type: int, name: str, **values: str) -> list[ev.Effect]:
        draft = ImageDraft(self.image)
        draft.configs[resource_type, name] = {
            key.replace("_", "."): value for key, value in values.items()
        }
        self.image = draft.snapshot()
        return self.do(ev.ImageMoved(self.image, ev.Changes(configs=((resource_type, name),))))

    def remove_topic(self, topic_id: bytes = TOPIC_ID) -> list[ev.Effect]:
        draft = ImageDraft(self.image)
        for key in [key for key in self.image.partitions if key[0] == topic_id]:
            gone = draft.partitions[key]
            del draft.partitions[key]
            for broker_id in gone.replicas:
                draft.replicas_of.remove(broker_id, key)
        del draft.topics[topic_id]
        self.image = draft.snapshot()
        return self.do(ev.ImageMoved(self.image, ev.Changes(removed_topics=(topic_id,))))

    # --- clients ---------------------------------------------------------------------------------

    def produce(
        self, *values: str, acks: int = -1, key: PartitionKey = KEY, epoch: int = -1, **fields: Any
    ) -> int:
        """Send records; return the number under which ``produced`` finds the response."""
        number = next(self._numbers)
        one = pb.ProducePartition(
            topic_id=key[0],
            partition_index=key[1],
            current_leader_epoch=epoch,
            records=data(*values),
        )
        request = pb.ProduceRequest(
            acks=acks, timeout_ms=fields.get("timeout_ms", 30_000), partitions=[one]
        )
        self.do(ev.ProduceReceived(request, 1_000_000, number, fields.get("client")))
        return number

    def produced(self, number: int) -> pb.ProducePartitionResult | None:
        answers = [
            e.response for e in self.got if isinstance(e, ev.AnswerProduce) and e.reply_to == number
        ]
        assert len(answers) <= 1
        return answers[0].partitions[0] if answers else None

    def outcome(self, number: int) -> pb.ProducePartitionResult:
        """Return the response to a produce, which must not wait any more."""
        result = self.produced(number)
        assert result is not None
        return result

    def consume(
        self,
        offset: int,
        *,
        wait_ms: int = 0,
        key: PartitionKey = KEY,
        epoch: int = -1,
        client: ev.Client | None = None,
    ) -> int:
        number = next(self._numbers)
        one = pb.FetchPartition(
            topic_id=key[0], partition_index=key[1], current_leader_epoch=epoch, fetch_offset=offset
        )
        request = pb.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, partitions=[one])
        self.do(ev.FetchReceived(request, number, client))
        return number

    def consumed(self, number: int) -> ev.AnswerFetch | None:
        answers = [e for e in self.got if isinstance(e, ev.AnswerFetch) and e.reply_to == number]
        assert len(answers) <= 1
        return answers[0] if answers else None

    def answer_of(self, number: int) -> ev.AnswerFetch:
        """Return the response to a fetch, which must not wait any more."""
        answer = self.consumed(number)
        assert answer is not None
        return answer

    # --- followers -------------------------------------------------------------------------------

    def followers_fetch(self, offset: int, last_epoch: int | None = None) -> None:
        """Let brokers 2 and 3 fetch: they have all below ``offset``."""
        for follower in (2, 3):
            self.fetch(follower, offset, last_epoch)

    def fetch(
        self,
        replica_id: int,
        offset: int,
        last_epoch: int | None = None,
        *,
        epoch: int | None = None,
        leader_epoch: int | None = None,
        key: PartitionKey = KEY,
        session: Any = None,
        wait_ms: int = 500,
        **fields: Any,
    ) -> list[ev.Effect]:
        if last_epoch is None:
            last_epoch = -1 if offset == 0 else self.image.partitions[key].leader_epoch
        if leader_epoch is None:
            leader_epoch = self.image.partitions[key].leader_epoch
        (named,) = positions(key, offset=offset, last_epoch=last_epoch, leader_epoch=leader_epoch)
        return self.fetch_of(
            replica_id, [named], epoch=epoch, session=session, wait_ms=wait_ms, **fields
        )

    def fetch_of(
        self,
        replica_id: int,
        named: list[pb.ReplicaFetchPartition],
        *,
        epoch: int | None = None,
        session: Any = None,
        wait_ms: int = 500,
        **fields: Any,
    ) -> list[ev.Effect]:
        content: dict[str, Any] = {
            "correlation_id": next(self._numbers),
            "cluster_id": CLUSTER_ID,
            "replica_state": pb.ReplicaState(
                replica_id=replica_id, replica_epoch=EPOCHS[replica_id] if epoch is None else epoch
            ),
            "leader_id": ME,
            "max_wait_ms": wait_ms,
            "partitions": named,
        }
        request = pb.ReplicaFetchRequest(**{**content, **fields})
        return self.do(ev.ReplicaFetchReceived(session or f"link of {replica_id}", request))

    def proposals(self) -> list[rpc.AlterPartitionData]:
        return [
            data
            for effect in self.got
            if isinstance(effect, ev.SendAlterPartition)
            for topic in effect.request.topics
            for data in topic.partitions
        ]

    def answer_isr(
        self,
        error: int = 0,
        *,
        isr: tuple[int, ...] = (),
        elr: tuple[int, ...] = (),
        partition_epoch: int | None = None,
    ) -> list[ev.Effect]:
        proposal = self.proposals()[-1]
        result = rpc.AlterPartitionResult(partition_index=0, error_code=error, leader_id=-1)
        if not error:
            result.leader_id, result.leader_epoch = ME, proposal.leader_epoch
            result.partition_epoch = (
                proposal.partition_epoch + 1 if partition_epoch is None else partition_epoch
            )
            result.eligible_leader_replicas.extend(elr)
            result.isr.extend(isr or [member.broker_id for member in proposal.new_isr_with_epochs])
        topic = rpc.AlterPartitionTopicResult(topic_id=TOPIC_ID, partitions=[result])
        return self.do(ev.AlterPartitionAnswered(rpc.AlterPartitionResponse(topics=[topic])))

    def described(self, key: PartitionKey = KEY) -> pb.LedPartition:
        request = pb.BrokerMetadataRequest(
            partitions=[pb.PartitionKey(topic_id=key[0], partition_index=key[1])]
        )
        return self.core.describe_led(request, self.now).partitions[0]

    @property
    def high_watermark(self) -> int:
        return self.described().high_watermark

    @property
    def isr(self) -> list[int]:
        return [member.broker_id for member in self.described().isr]


def positions(
    *keys: PartitionKey, offset: int = 0, last_epoch: int = -1, leader_epoch: int = 5
) -> list[pb.ReplicaFetchPartition]:
    """Return the partitions as a follower's fetch names them."""
    return [
        pb.ReplicaFetchPartition(
            topic_id=key[0],
            partition_index=key[1],
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
        )
        for key in keys
    ]


def of_kind(effects: list[ev.Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def results(effects: list[ev.Effect]) -> list[pb.ReplicaFetchPartitionResult]:
    """Return the results of all responses to followers among the effects."""
    return [
        result
        for answer in of_kind(effects, ev.AnswerReplicaFetch)
        for result in answer.response.partitions
    ]
