"""Partitions and their ISRs (I21), from the committed records and not the fold under test.

* An AlterPartition is in the log only if its proposer led the partition under its broker epoch, and
  every member was registered under the named epoch, unfenced and not shutting down (KIP-903). Epoch
  -1 names none.
* Other records only remove ISR members, except an eligible leader, which is alone in the ISR, and
  an unclean leader, alone and RECOVERING: when no ISR member is live and the topic allows it, an
  administrator requested it, or the record describes a recovery that its strategy allows (KIP-966).
* Eligible leader replicas were in the ISR or eligible before, are outside the ISR, and registered.
* A replica added by a reassignment stays only if it is in the ISR at its end.
* After each batch an ISR is part of the replicas and has the leader; a fenced, stopping or
  unregistered broker is in no ISR and leads nothing.
* Epochs counted here equal the fold's, and so do leader, ISR and replicas.
* An answer to a leader is of a committed state that the log had.
* Topic Metadata names the replicas, leader and leader epoch at its offset; offline are replicas on
  fenced brokers, whatever the ISR. In BrokerMetadata the answering broker led in that leader epoch,
  and the ISR is of that partition epoch (KIP-24).
* A replaced incarnation is told so: a heartbeat that leaves after a newer registration was
  committed is not answered well by the controller of that epoch or later.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raftlog.metadata.records import Record, RecordType
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.data.v1 import data_pb2
from simulation.checks.api import BrokerView, Checker, ControllerView, Operation, fail
from simulation.checks.existence import Asked
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.checks.replica_logs import name_of


class Incarnations(Checker):
    """Checks heartbeats of broker incarnations that are not registered any more."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asked = Asked[tuple[int, int, float]]("broker_heartbeat")
        self.stale = 0

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if self._asked.kind_of(message):
            beat = message.broker_heartbeat
            sent = beat.broker_id, beat.broker_epoch, self._ledger.world.now()
            self._asked.note(host.name, peer, message.correlation_id, sent)
            return
        found = self._asked.answered(host.name, peer, message)
        if found is not None:
            self._answered(f"{host.name} accepts a heartbeat of {peer}", message, *found)

    def _answered(
        self, who: str, response: Any, broker_id: int, epoch: int, sent_at: float
    ) -> None:
        standings = self._ledger.golden.standings(broker_id)
        newer = next((one for one in standings if one.broker_epoch > epoch), None)
        if newer is None or newer.committed_at >= sent_at:
            return
        if response.controller_epoch >= newer.controller_epoch:
            self.stale += 1
            if not response.HasField("error"):
                fail(f"{who}, broker {broker_id} of epoch {epoch}, which was replaced: {newer}")


Key = tuple[bytes, int]


def said(change: Any, name: str, old: Any) -> Any:
    """Return a field of a change record, or ``old`` if the record does not set it."""
    if not change.HasField(name):
        return old
    value = getattr(change, name)
    return tuple(value.ids) if hasattr(value, "ids") else value


UNCLEAN = "unclean.leader.election.enable"
RECOVERED, RECOVERING = 0, 1
CORDONED, BROKER_CONFIG = "cordoned", 4


class State(NamedTuple):
    """A partition from the record at ``offset`` to the next one about it."""

    offset: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    recovery: int


@dataclass(slots=True)
class _Partition:
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()
    states: list[State] = field(default_factory=list)


class _Registration(NamedTuple):
    epoch: int
    fenced: bool
    stopping: bool

    @property
    def active(self) -> bool:
        return not self.fenced and not self.stopping


NOBODY = _Registration(-1, True, False)


class Partitions(Checker):
    """Checker of I21."""

    def __init__(self, ledger: Ledger) -> None:
        self._golden = ledger.golden
        self._brokers: dict[int, _Registration] = {}
        self._partitions: dict[Key, _Partition] = {}
        self._gone: dict[Key, _Partition] = {}
        self._in_isr: dict[int, dict[Key, None]] = {}
        """Broker id -> the partitions that have it in their ISR."""
        self._touched: dict[Key, None] = {}
        self._asked_for_unclean = False
        self._unregistering: set[int] = set()
        self.proposals = self.with_epochs = self.answers = self.reassigned = self.unclean = 0
        self.from_elr = self.recovered = 0
        self._notes = {
            RecordType.REGISTER_BROKER: self._registered,
            RecordType.BROKER_REGISTRATION_CHANGE: self._registration_changed,
            RecordType.UNREGISTER_BROKER: self._unregistered,
            RecordType.PARTITION: self._created,
            RecordType.PARTITION_CHANGE: self._changed,
            RecordType.REMOVE_TOPIC: self._removed,
            RecordType.CONFIG: self._configured,
        }
        self._cordoned: set[int] = set()
        self.cordons = 0
        ledger.golden.listeners.append(self._committed)

    def states_of(self, key: Key) -> list[State]:
        """Return the state at each partition epoch, in order, even of a deleted partition."""
        partition = self._partitions.get(key) or self._gone.get(key)
        return partition.states if partition is not None else []

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        # A batch takes a broker out of the ISRs before it unregisters it; no image lies between the
        # two.
        self._unregistering = {
            r.message.broker_id for r in records if r.type == RecordType.UNREGISTER_BROKER
        }
        for index, record in enumerate(records):
            note = self._notes.get(record.type)  # type: ignore[call-overload]
            if note is not None:
                note(record.message, logged.header.base_offset + index)
        if self._touched:
            where = f"after the batch at {logged.header.base_offset}"
            for key in self._touched:
                if key in self._partitions:
                    self._check(key, where)
            self._touched.clear()

    def _registered(self, message: Any, offset: int) -> None:
        self._stand(
            message.broker_id,
            _Registration(message.broker_epoch, message.fenced, message.in_controlled_shutdown),
        )

    def _registration_changed(self, message: Any, offset: int) -> None:
        old = self._brokers.get(message.broker_id, NOBODY)
        fenced = said(message, "fenced", old.fenced)
        stopping = said(message, "in_controlled_shutdown", old.stopping)
        self._stand(message.broker_id, _Registration(message.broker_epoch, fenced, stopping))

    def _unregistered(self, message: Any, offset: int) -> None:
        self._stand(message.broker_id, NOBODY)

    def _stand(self, broker_id: int, registration: _Registration) -> None:
        self._brokers[broker_id] = registration
        self._touched.update(self._in_isr.get(broker_id, {}))

    def _configured(self, message: Any, offset: int) -> None:
        if (message.resource_type, message.name) == (BROKER_CONFIG, CORDONED):
            broker_id = int(message.resource_name)
            self._cordoned.discard(broker_id)
            if message.value == "true":
                self._cordoned.add(broker_id)
                self.cordons += 1

    def _placed(self, key: Key, new: Iterable[int], offset: int) -> None:
        cordoned = self._cordoned.intersection(new)
        if cordoned:
            fail(f"I21: {name_of(key)} gets replicas on cordoned {sorted(cordoned)} at {offset}")

    def _created(self, message: Any, offset: int) -> None:
        key = message.topic_id, message.partition_id
        self._placed(key, message.replicas, offset)
        replicas = tuple(message.replicas)
        partition = self._partitions[key] = _Partition(replicas)
        epochs = message.leader_epoch, message.partition_epoch
        isr = tuple(message.isr)
        state = State(offset, replicas, isr, message.leader, *epochs, RECOVERED)
        partition.states.append(state)
        self._moved(key, (), state.isr)

    def _changed(self, message: Any, offset: int) -> None:
        key = message.topic_id, message.partition_id
        partition = self._partitions.get(key)
        if partition is None:
            fail(f"I21: {name_of(key)} is changed at {offset}, and does not exist")
        before = partition.states[-1]
        old = partition.replicas
        original = frozenset(old) - frozenset(partition.adding)
        partition.replicas = said(message, "replicas", old)
        self._placed(key, set(partition.replicas).difference(old), offset)
        partition.adding = said(message, "adding_replicas", partition.adding)
        partition.removing = said(message, "removing_replicas", partition.removing)
        gone = frozenset(old) - frozenset(partition.replicas)
        isr = said(message, "isr", before.isr)
        least = before.leader_epoch + (message.HasField("leader") or bool(gone))
        led = said(message, "leader", before.leader), said(message, "leader_epoch", least)
        recovery = said(message, "leader_recovery_state", before.recovery)
        epoch = before.partition_epoch + 1
        after = State(offset, partition.replicas, isr, *led, epoch, recovery)
        if after.leader_epoch < least:
            fail(f"I21: {name_of(key)} is led in {after.leader_epoch} at {offset}, after {before}")
        if message.isr_with_epochs:
            self._proposed(key, before, message, offset, gone)
        else:
            self._decided(key, before, after, message, offset)
        self._eligible(key, partition, before, message, offset)
        self._reassigned(key, partition, original, after, offset)
        partition.states.append(after)
        self._moved(key, before.isr, isr)

    def _removed(self, message: Any, offset: int) -> None:
        index = 0
        while (partition := self._partitions.pop((message.topic_id, index), None)) is not None:
            key = message.topic_id, index
            self._gone[key] = partition
            self._moved(key, partition.states[-1].isr, ())
            index += 1

    def _moved(self, key: Key, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        for member in before:
            self._in_isr[member].pop(key, None)
        for member in after:
            self._in_isr.setdefault(member, {})[key] = None
        self._touched[key] = None

    def _proposed(
        self, key: Key, before: State, message: Any, offset: int, gone: frozenset[int]
    ) -> None:
        """Check an accepted ISR proposal against the state before. ``gone``: replicas that it
        removes.
        """
        self.proposals += 1
        what = (
            f"I21: the ISR of {name_of(key)} at {offset}, proposed by broker {message.proposer_id}"
        )
        proposer = self._brokers.get(message.proposer_id, NOBODY)
        if before.leader != message.proposer_id:
            fail(f"{what}: the leader is broker {before.leader}")
        if proposer.epoch != message.proposer_epoch:
            fail(f"{what} of epoch {message.proposer_epoch}: registered under {proposer.epoch}")
        proposed = [member.broker_id for member in message.isr_with_epochs]
        if list(message.isr.ids) != [member for member in proposed if member not in gone]:
            fail(f"{what}: {list(message.isr.ids)} is not what was proposed")
        for member in message.isr_with_epochs:
            registration = self._brokers.get(member.broker_id, NOBODY)
            self.with_epochs += member.broker_epoch >= 0
            if member.broker_epoch not in (-1, registration.epoch):
                fail(
                    f"{what}, has broker {member.broker_id} by epoch {member.broker_epoch}: it is"
                    f" registered under {registration.epoch}"
                )
            if not registration.active:
                fail(f"{what}, has broker {member.broker_id}: it is {registration}")

    def _eligible(
        self, key: Key, partition: _Partition, before: State, message: Any, offset: int
    ) -> None:
        """Apply a change of the ELR, whose members must have been in the ISR or the ELR."""
        old = {*before.isr, *partition.elr}
        if message.HasField("eligible_leader_replicas"):
            partition.elr = tuple(message.eligible_leader_replicas.ids)
        if message.HasField("last_known_elr"):
            partition.last_known = tuple(message.last_known_elr.ids)
        if not set(partition.elr) <= old:
            fail(f"I21: {partition.elr} may lead {name_of(key)} at {offset}, of {sorted(old)}")

    def _recovered(self, key: Key, recovery: Any, leader: int, what: str) -> None:
        partition = self._partitions[key]
        ends = {
            log.broker_id: (log.last_epoch, log.log_end_offset)
            for log in recovery.logs
            if log.broker_epoch == self._brokers.get(log.broker_id, NOBODY).epoch
        }
        if len(ends) < len(recovery.logs) or leader not in ends:
            fail(f"{what}: {recovery} has reports of other registrations")
        if recovery.strategy != "balanced":
            return
        original = set(partition.replicas) - set(partition.adding)
        silent = {id_ for id_ in original - set(ends) if self._is_registered(id_)}
        whole = any(ends.get(id_, (-1, 0))[0] >= 0 for id_ in partition.last_known)
        if partition.elr or (silent and not whole) or ends[leader] < max(ends.values()):
            fail(
                f"{what}: {recovery} is not enough to elect {leader}: eligible {partition.elr},"
                f" last known {partition.last_known}, silent {sorted(silent)}"
            )

    def _is_registered(self, broker_id: int) -> bool:
        return self._brokers.get(broker_id, NOBODY) is not NOBODY

    def _decided(self, key: Key, before: State, after: State, message: Any, offset: int) -> None:
        what = f"I21: {name_of(key)} is changed at {offset} from {before} to {after}"
        if after.recovery == before.recovery and set(after.isr) <= set(before.isr):
            return
        stay = (member for member in before.isr if member not in self._unregistering)
        alive = [member for member in stay if self._brokers.get(member, NOBODY).active]
        elr = self._partitions[key].elr
        recovers = message.HasField("recovery")
        if after.isr == (after.leader,) and after.leader in elr and not recovers:
            self.from_elr += 1
            if alive and set(alive) & set(self._partitions[key].replicas):
                fail(f"{what}, of the ELR {elr}: {alive} of its ISR are live")
            return
        if after.recovery == RECOVERED or after.isr != (after.leader,):
            fail(f"{what}: nobody proposed that, and it is not an unclean leader")
        self.unclean += 1
        if alive and set(alive) & set(self._partitions[key].replicas):
            fail(f"{what}, an unclean leader: {alive} of its ISR are live")
        if recovers and message.recovery.strategy != "requested":
            self.recovered += 1
            self._recovered(key, message.recovery, after.leader, what)
            return
        topic = self._golden.topic_name(key[0])
        allowed = self._golden.config(2, topic, UNCLEAN, offset) or self._golden.config(
            4, "", UNCLEAN, offset
        )
        if allowed != "true" and not self._asked_for_unclean:
            fail(f"{what}, an unclean leader: nobody has asked for it")

    def _reassigned(
        self, key: Key, partition: _Partition, original: frozenset[int], after: State, offset: int
    ) -> None:
        what = f"I21: {name_of(key)} at {offset}, replicas {partition.replicas}, ISR {after.isr}"
        adding, removing = frozenset(partition.adding), frozenset(partition.removing)
        replicas = frozenset(partition.replicas)
        if adding & removing or not adding | removing <= replicas:
            fail(f"{what}: adds {partition.adding} and removes {partition.removing}")
        if adding or removing:
            if replicas - adding != original:
                fail(f"{what}: adds {partition.adding}, but its replicas were {sorted(original)}")
        elif replicas != original:
            self.reassigned += 1
            if not replicas - original <= set(after.isr):
                fail(f"{what}: complete, and {sorted(replicas - original)} not in sync")

    def _check(self, key: Key, where: str) -> None:
        partition = self._partitions[key]
        state = partition.states[-1]
        what = f"I21: {name_of(key)} {where}"
        if len(set(state.isr)) < len(state.isr) or not set(state.isr) <= set(partition.replicas):
            fail(f"{what}: the ISR {state.isr} is not a part of the replicas {partition.replicas}")
        if state.leader >= 0 and state.leader not in state.isr:
            fail(f"{what}: the leader {state.leader} is not in the ISR {state.isr}")
        for member in state.isr:
            registration = self._brokers.get(member, NOBODY)
            if not registration.active and state.leader >= 0:
                fail(f"{what}: broker {member} is {registration}, and in ISR {state.isr}")
        if set(partition.elr) & set(state.isr) or not set(partition.elr) <= set(partition.replicas):
            fail(f"{what}: {partition.elr} beside ISR {state.isr} of {partition.replicas}")
        for member in partition.elr:
            if not self._is_registered(member):
                fail(f"{what}: broker {member} is eligible, and not registered")
        folded = self._golden.partition(key)
        derived = (*state[1:], partition.elr, partition.last_known)
        if folded is None or derived != (
            folded.replicas, folded.isr, folded.leader, folded.leader_epoch, folded.partition_epoch,
            folded.leader_recovery_state, folded.elr, folded.last_known_elr,
        ):  # fmt: skip
            fail(f"{what}: the records say {derived}, the fold {folded}")

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if (
            type(message) is pb.ControllerResponse
            and message.WhichOneof("body") == "alter_partition"
        ):
            self._told(message, f"{peer} by {host.name}")

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind == "admin" and operation.key.startswith("elect unclean"):
            self._asked_for_unclean = True

    def client_returned(self, operation: Operation) -> None:
        if operation.kind != "alter_partition" or operation.outcome != "ok":
            return
        self._told(operation.response, f"{operation.client} (number {operation.number})")

    def _told(self, response: Any, who: str) -> None:
        for topic in response.alter_partition.topics:
            for result in topic.partitions:
                if not result.error_code:
                    self._answered((topic.topic_id, result.partition_index), result, who)

    def _answered(self, key: Key, result: Any, who: str) -> None:
        self.answers += 1
        states = self.states_of(key)
        index = result.partition_epoch - states[0].partition_epoch if states else -1
        epochs = result.leader_epoch, result.partition_epoch
        told = (tuple(result.isr), result.leader_id, *epochs, result.leader_recovery_state)
        if not 0 <= index < len(states) or states[index][2:] != told:
            fail(
                f"I21: {who} was told {told} of {name_of(key)}; committed is"
                f" {states[-1] if states else 'nothing'}"
            )


class ServedPartitions(Checker):
    """Checker of brokers' answers about partitions (KIP-24)."""

    def __init__(self, ledger: Ledger, partitions: Partitions) -> None:
        self._golden, self._partitions = ledger.golden, partitions
        self.partitions = self.led = 0
        """Numbers of checked partitions in Metadata, and in BrokerMetadata."""

    def client_returned(self, operation: Operation) -> None:
        response = operation.response
        if operation.kind != "read_topics" or operation.outcome != "ok" or response is None:
            return
        for topic in response.metadata.topics:
            for told in topic.partitions:
                self.partitions += 1
                self._check_metadata((topic.topic_id, told.partition_index), told, operation)

    def _check_metadata(self, key: Key, told: Any, operation: Operation) -> None:
        states, offset = self._partitions.states_of(key), operation.offset
        index = bisect_right(states, offset, key=lambda state: state.offset)
        if not index:
            fail(f"KIP-24: {operation.client} is told of {key} at {offset}, where it is not")
        state, standing_at = states[index - 1], self._golden.standing_at
        offline = [one for one in state.replicas if standing_at(one, offset).fenced]
        leader = -1 if standing_at(state.leader, offset).fenced else state.leader
        expected = (list(state.replicas), offline, leader, state.leader_epoch)
        nodes = list(told.replica_nodes), list(told.offline_replicas)
        if (*nodes, told.leader_id, told.leader_epoch) != expected:
            fail(f"KIP-24: {operation.client} is told {told} of {key} at {offset}, not {expected}")

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if isinstance(message, broker_pb2.BrokerResponse) and message.HasField("broker_metadata"):
            for told in message.broker_metadata.partitions:
                if not told.error_code:
                    self.led += 1
                    self._check_led(host, told)

    def _check_led(self, host: ControllerView | BrokerView, told: data_pb2.LedPartition) -> None:
        key, isr = (told.topic_id, told.partition_index), {one.broker_id for one in told.isr}
        led = host.id, told.leader_epoch, isr, told.partition_epoch
        if led not in [
            (one.leader, one.leader_epoch, set(one.isr), one.partition_epoch)
            for one in self._partitions.states_of(key)
        ]:
            fail(f"KIP-24: {host.name} leads {name_of(key)} as {led}, which was never committed")
