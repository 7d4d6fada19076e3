"""Serving of partitions (I25).

* In one leader epoch one process serves a partition, of the broker that the controllers made
  leader.
* A broker serves nothing that is fenced or replaced in its own applied image, or whose last well
  answered heartbeat was sent longer ago than its timeout.
* A fetch of a former incarnation is refused if the leader's image or an earlier fetch shows a later
  one (KIP-903).
* A leader proposes a follower only by a broker epoch that it fetched with in this leader epoch, and
  itself by its own.
"""

from typing import Any

from broker.partition import events as ev
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import BrokerView, Checker, ControllerView, fail, present
from simulation.checks.committed_data import leader_epoch
from simulation.checks.existence import Asked
from simulation.checks.ledger import Ledger
from simulation.checks.replica_logs import ReplicaLogs, name_of

Process = tuple[str, int]


class DataServing(Checker):
    """Checker of I25."""

    def __init__(self, ledger: Ledger, logs: ReplicaLogs) -> None:
        self._golden, self._logs = ledger.golden, logs
        self._serving: dict[tuple[PartitionKey, int], Process] = {}
        self._beats = Asked[tuple[Process, float]]("broker_heartbeat", "register_broker")
        """Pending heartbeats and registrations: the sending process, and the time by its clock."""
        self._heard: dict[Process, float] = {}
        """Process -> sending time of its last heartbeat that was answered without an error."""
        self._fetched: dict[Process, dict[int, int]] = {}
        """Leader's process -> highest broker epoch with which each replica has fetched from it."""
        self._vouched: dict[Process, dict[tuple[PartitionKey, int, int], set[int]]] = {}
        """Leader's process -> (partition, leader epoch, replica) -> broker epochs of its
        fetches.
        """
        self.served = self.refused = self.proposals = 0

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if self._beats.kind_of(message):
            # In the host's context: by its own clock.
            sent = (host.name, host.incarnation), host.network.loop.time()  # type: ignore[union-attr]
            self._beats.note(host.name, peer, message.correlation_id, sent)
            return
        found = self._beats.answered(host.name, peer, message)
        if found is not None and not message.HasField("error"):
            process, sent_at = found
            self._heard[process] = max(sent_at, self._heard.get(process, sent_at))

    def broker_moved(self, host: BrokerView) -> None:
        # Where no heartbeats are asked for silence says nothing; from when they are on it counts.
        if host.service is not None and not host.service.lifecycle.heartbeats:
            self._heard[host.name, host.incarnation] = host.network.loop.time()  # type: ignore[attr-defined]

    def broker_started(self, host: BrokerView) -> None:
        process = host.name, host.incarnation
        self._fetched[process], self._vouched[process] = {}, {}

    def data_step(self, host: BrokerView, event: ev.Event, effects: Any, now: float) -> None:
        kind = type(event)
        if kind is ev.ReplicaFetchReceived:
            self._replica_fetch(host, event, effects, now)  # type: ignore[arg-type]
        elif kind is ev.ProduceReceived or kind is ev.FetchReceived:
            self._client(host, event, effects, now)
        for effect in effects:
            if type(effect) is ev.SendAlterPartition:
                self._proposed(host, effect.request)
            elif type(effect) is ev.AnswerProduce or type(effect) is ev.AnswerFetch:
                for result in effect.response.partitions:
                    if not result.error_code:
                        key = result.topic_id, result.partition_index
                        written = getattr(result, "base_offset", -1)
                        # A leader that has just resigned: the log has its epoch.
                        epoch = self._logs.epoch_at(host, key, written)
                        self._served(host, key, epoch if written >= 0 else leader_epoch(host, key))

    def _served(self, host: BrokerView, key: PartitionKey, epoch: int) -> None:
        if epoch < 0:
            return
        self.served += 1
        process = host.name, host.incarnation
        if self._serving.setdefault((key, epoch), process) != process:
            fail(
                f"I25: {host.name} (process {host.incarnation}) serves {name_of(key)} in leader"
                f" epoch {epoch}; {self._serving[key, epoch]} has done so"
            )

    def _client(self, host: BrokerView, event: Any, effects: Any, now: float) -> None:
        if not (why := self._why_not(host, now)):
            return
        self.refused += 1
        for effect in effects:
            if type(effect) is ev.Append or (
                type(effect) is ev.AnswerFetch
                and effect.reply_to is event.reply_to
                and effect.reads
            ):
                fail(f"I25: {host.name} serves {type(event).__name__}, and {why}")

    def _replica_fetch(
        self, host: BrokerView, event: ev.ReplicaFetchReceived, effects: Any, now: float
    ) -> None:
        request, process = event.request, (host.name, host.incarnation)
        replica_id, epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
        answers = [
            effect.response
            for effect in effects
            if type(effect) is ev.AnswerReplicaFetch and effect.session == event.session
        ]
        own = (one for one in answers if one.correlation_id == request.correlation_id)
        if any(one.error_code for one in own):
            return
        if why := self._why_not(host, now):
            fail(f"I25: {host.name} takes a fetch of broker {replica_id}, and {why}")
        standing = self._golden.standing_at(replica_id, present(host.service).image.offset)
        known = max(self._fetched[process].get(replica_id, -1), standing.broker_epoch)
        if 0 <= epoch < known:
            fail(f"I25: {host.name} accepts {replica_id} of epoch {epoch}, knowing {known}")
        self._fetched[process][replica_id] = max(epoch, known)
        for named in request.partitions:
            key = named.topic_id, named.partition_index
            place = key, named.current_leader_epoch, replica_id
            self._vouched[process].setdefault(place, set()).add(epoch)

    def _proposed(self, host: BrokerView, request: pb.AlterPartitionRequest) -> None:
        vouched = self._vouched[host.name, host.incarnation]
        for topic in request.topics:
            for data in topic.partitions:
                self.proposals += 1
                key = topic.topic_id, data.partition_index
                partition = self._golden.partition(key)
                present = partition.isr if partition is not None else ()
                for member in data.new_isr_with_epochs:
                    if member.broker_id == host.id:
                        right = {request.broker_epoch}
                    elif member.broker_id in present:
                        continue
                    else:
                        right = vouched.get((key, data.leader_epoch, member.broker_id), set())
                    if member.broker_epoch not in right:
                        fail(
                            f"I25: {host.name} proposes broker {member.broker_id} by epoch"
                            f" {member.broker_epoch} for the ISR of {name_of(key)}; it has shown"
                            f" {sorted(right)}"
                        )

    def _why_not(self, host: BrokerView, now: float) -> str:
        service = present(host.service)
        standing = self._golden.standing_at(host.id, service.image.offset)
        if standing.fenced or standing.broker_epoch != service.lifecycle.epoch:
            return f"has broker epoch {service.lifecycle.epoch}; its image has {standing}"
        timeout_s = service.settings.lifecycle.fencing_timeout_ms / 1000
        heard = self._heard.get((host.name, host.incarnation), -1.0)
        if service.lifecycle.heartbeats and now - heard > timeout_s + 1e-6:
            return f"its last answered heartbeat is {now - heard:.3f} of {timeout_s:g} s old"
        return ""
