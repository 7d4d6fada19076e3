"""Brokers with partitions for the checkers' tests: they do what a test says, on simulated disks."""

from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

from checks_harness import Trace, fencing, registered

from broker.partition import events as ev
from broker.partition.describe import ReplicaDescription
from raftlog import batch
from raftlog.client.consumer import Record
from raftlog.errors import ErrorCode
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.committed_data import CommittedData
from simulation.checks.data_clients import DataClients
from simulation.checks.data_serving import DataServing
from simulation.checks.replica_logs import ReplicaLogs
from simulation.twins.disk_hardware import Write
from simulation.twins.partition_disk import SimPartitionDisk

TOPIC = bytes(range(16))
KEY = (TOPIC, 0)


def chunk(base: int, epoch: int, *values: str) -> bytes:
    bodies = [data_pb2.DataRecord(value=value.encode()).SerializeToString() for value in values]
    return batch.encode(
        [(1, 0, body) for body in bodies], base_offset=base, epoch=epoch, timestamp_ms=1
    )


def _described(epochs: dict[PartitionKey, int], key: PartitionKey) -> ReplicaDescription:
    return ReplicaDescription(0, 0, epochs[key], -1, 1, "")


class DataTrace(Trace):
    """Brokers 1 to 3 lead and follow partition 0 of one topic; broker 1 leads in leader epoch 0,
    with all in its ISR.
    """

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 1) -> None:
        logs: list[ReplicaLogs] = []
        self.epochs: dict[int, int] = {}
        self.led_epochs: dict[int, dict[PartitionKey, int]] = {}
        """Leader epoch of each partition that a broker leads, by broker; -1: it does not lead."""

        def make_committed(ledger: Any) -> CommittedData:
            self.data = CommittedData(ledger, logs[0])
            return self.data

        def make_logs(_ledger: Any) -> ReplicaLogs:
            logs.append(ReplicaLogs())
            return logs[0]

        super().__init__(
            make_logs,
            make_committed,
            lambda ledger: DataServing(ledger, logs[0]),
            lambda ledger: DataClients(self.data),
            brokers=3,
        )
        self.begin()
        for broker in self.brokers:
            broker.disk = SimPartitionDisk(f"disk-{broker.id}", Random(1))
            broker.network = SimpleNamespace(loop=SimpleNamespace(time=self.now))
            self.register(broker.id)
            self.process(broker)
        topic = pb.TopicRecord(name="t", topic_id=TOPIC)
        config = pb.ConfigRecord(
            resource_type=2, resource_name="t", name="min.insync.replicas", value=str(min_isr)
        )
        partition = pb.PartitionRecord(topic_id=TOPIC, replicas=[1, 2, 3], isr=isr, leader=isr[0])
        self.show(self.committed(1, topic, partition, config))
        self.lead_data(1, 0)

    # --- controllers -----------------------------------------------------------------------------

    def register(self, broker_id: int, directory: str = "", *more: Any) -> int:
        """A broker is registered, and unfenced in the next batch; its epoch."""
        at = self.ledger.golden.end
        record = registered(broker_id, at)
        record.process.directory_id = directory or f"disk-{broker_id}"
        self.committed(1, record, *more)
        self.committed(1, fencing(broker_id, at, False))
        self.epochs[broker_id] = at
        return at

    def change(self, **fields: Any) -> None:
        if "isr" in fields:
            fields["isr"] = pb.IdList(ids=fields["isr"])
        self.show(
            self.committed(1, pb.PartitionChangeRecord(topic_id=TOPIC, partition_id=0, **fields))
        )

    def show(self, offset: int) -> None:
        """All brokers have applied the log up to there."""
        image = self.ledger.golden.image()
        for broker in self.brokers:
            if broker.service is not None and hasattr(broker.service, "data"):
                broker.service.image = SimpleNamespace(offset=offset, partitions=image.partitions)

    # --- brokers ---------------------------------------------------------------------------------

    def process(self, broker: Any) -> None:
        """A new process on a broker's disk."""
        broker.incarnation += 1
        epochs = self.led_epochs[broker.id] = {KEY: -1}
        broker.service = SimpleNamespace(
            lifecycle=SimpleNamespace(epoch=self.epochs[broker.id], heartbeats=True),
            settings=SimpleNamespace(lifecycle=SimpleNamespace(fencing_timeout_ms=9000)),
            data=SimpleNamespace(replicas=SimpleNamespace(describe=partial(_described, epochs))),
            image=SimpleNamespace(offset=self.ledger.golden.end - 1, partitions={}),
        )
        self.tell("broker_started", broker)
        self.tell("data_recovered", broker)
        self.beat(broker.id)

    def beat(self, broker_id: int) -> None:
        """A heartbeat is answered well."""
        beat = rpc.BrokerHeartbeatRequest(broker_id=broker_id)
        self.send(
            f"b{broker_id}", "c1", rpc.ControllerRequest(correlation_id=7, broker_heartbeat=beat)
        )
        reply = rpc.BrokerHeartbeatResponse()
        self.send(
            "c1", f"b{broker_id}", rpc.ControllerResponse(correlation_id=7, broker_heartbeat=reply)
        )

    def broker(self, broker_id: int) -> Any:
        return self.brokers[broker_id - 1]

    def does(self, broker_id: int, event: Any, *effects: Any) -> None:
        """One step, told to the checkers, then carried out on the disk; nothing is durable yet."""
        broker = self.broker(broker_id)
        self.tell("data_step", broker, event, list(effects), self.now())
        for effect in effects:
            if isinstance(effect, ev.Append):
                broker.disk.write(effect.key, Write(effect.base_offset, effect.chunk))
            elif isinstance(effect, ev.Truncate):
                broker.disk.write(effect.key, Write(effect.end_offset, None))
            elif isinstance(effect, ev.Delete):
                broker.disk.write(effect.key, Write(0, None))

    def lead_data(self, broker_id: int, epoch: int) -> None:
        for broker in self.brokers:
            self.led_epochs[broker.id][KEY] = epoch if broker.id == broker_id else -1
        fields = {
            "partition": TOPIC.hex(),
            "index": 0,
            "epoch": epoch,
            "isr": [],
            "start_offset": 0,
        }
        self.does(broker_id, ev.Tick(), ev.Note("leads", fields))

    def write(
        self, broker_id: int, base: int, epoch: int, *values: str, durable: bool = True
    ) -> None:
        """A batch at the end of a replica."""
        data = chunk(base, epoch, *values)
        self.does(broker_id, ev.Tick(), ev.Append(KEY, data, base, base + len(values)))
        if durable:
            self.flush(broker_id)

    def flush(self, broker_id: int) -> None:
        disk = self.broker(broker_id).disk
        disk.sync(len(disk.unflushed))

    def everywhere(
        self, base: int, epoch: int, *values: str, on: tuple[int, ...] = (1, 2, 3)
    ) -> None:
        for broker_id in on:
            self.write(broker_id, base, epoch, *values)

    def fetched(self, broker_id: int, high_watermark: int) -> None:
        """A consumer is told this high watermark."""
        result = data_pb2.FetchPartitionResult(
            topic_id=TOPIC, high_watermark=high_watermark, log_start_offset=0
        )
        self.does(
            broker_id,
            ev.Tick(),
            ev.AnswerFetch("consumer", data_pb2.FetchResponse(partitions=[result])),
        )

    def produced(self, broker_id: int, base: int, *values: str, acks: int = -1) -> None:
        """A producer is told that its records stand from ``base`` on."""
        asked = data_pb2.ProducePartition(
            topic_id=TOPIC, records=[value.encode() for value in values]
        )
        reply_to = object()
        event = ev.ProduceReceived(
            data_pb2.ProduceRequest(acks=acks, partitions=[asked]), 1, reply_to
        )
        result = data_pb2.ProducePartitionResult(topic_id=TOPIC, base_offset=base)
        answer = ev.AnswerProduce(reply_to, data_pb2.ProduceResponse(partitions=[result]))
        self.does(broker_id, event, answer)

    def replica_fetch(
        self,
        leader: int,
        follower: int,
        epoch: int,
        offset: int = 0,
        *,
        code: ErrorCode = ErrorCode.NONE,
    ) -> None:
        """A follower's fetch reaches its leader, and is taken, or refused."""
        state = data_pb2.ReplicaState(replica_id=follower, replica_epoch=epoch)
        named = data_pb2.ReplicaFetchPartition(topic_id=TOPIC, fetch_offset=offset)
        request = data_pb2.ReplicaFetchRequest(
            correlation_id=1, replica_state=state, partitions=[named]
        )
        effects = []
        if code:
            effects.append(
                ev.AnswerReplicaFetch(
                    1, data_pb2.ReplicaFetchResponse(correlation_id=1, error_code=code)
                )
            )
        self.does(leader, ev.ReplicaFetchReceived(1, request), *effects)

    def propose(self, broker_id: int, *members: tuple[int, int], leader_epoch: int = 0) -> None:
        data = rpc.AlterPartitionData(
            leader_epoch=leader_epoch,
            new_isr_with_epochs=[
                pb.BrokerState(broker_id=one, broker_epoch=epoch) for one, epoch in members
            ],
        )
        topic = rpc.AlterPartitionTopic(topic_id=TOPIC, partitions=[data])
        request = rpc.AlterPartitionRequest(
            broker_id=broker_id, broker_epoch=self.epochs[broker_id], topics=[topic]
        )
        self.does(broker_id, ev.Tick(), ev.SendAlterPartition(request))

    def cut(self, broker_id: int, end_offset: int) -> None:
        self.does(broker_id, ev.Tick(), ev.Truncate(KEY, end_offset))

    def delete(self, broker_id: int) -> None:
        self.does(broker_id, ev.Tick(), ev.Delete(KEY))

    def lost(self, broker_id: int, directory: str) -> None:
        """The disk of partitions is lost."""
        self.tell("broker_disk_lost", self.broker(broker_id), directory)

    # --- clients ---------------------------------------------------------------------------------

    def word(self, text: str) -> Any:
        return text if len(text) == 1 and text.isalpha() else super().word(text)

    def post(self, value: str, **fields: Any) -> Any:
        return self.invoke("produce", "t", value, acks=-1, **fields)

    def told(self, operation: Any, offset: int) -> None:
        self.give(operation, "ok", record_offset=offset, response=KEY)

    def consumed(self, offset: int, value: str, epoch: int = 0, client: str = "consumer") -> None:
        record = Record("t", 0, offset, epoch, 1, None, value.encode(), ())
        self.tell("consumed", client, TOPIC, record)

    def out_of_range(self) -> None:
        """A consumer is told so of its position."""
        self.tell("consumer_out_of_range", "consumer")
