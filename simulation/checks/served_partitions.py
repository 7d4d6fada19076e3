"""Brokers' answers about partitions match the committed records (KIP-24).

* Topic Metadata: replicas, leader and leader epoch of its offset; offline are replicas on fenced
  brokers. It does not depend on the ISR.
* BrokerMetadata: the answering broker led in that leader epoch, and the ISR is of that partition
  epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

from typing_extensions import override

from raftlog.metadata.records import Record, RecordType
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2
from simulation.checks.api import BrokerView, Checker, ControllerView, Operation, fail
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.checks.partitions import Key, said


class _State(NamedTuple):
    """A partition from the record at ``offset`` on."""

    offset: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


class ServedPartitions(Checker):
    """Checker of brokers' answers about partitions (KIP-24)."""

    def __init__(self, ledger: Ledger) -> None:
        self._golden = ledger.golden
        self._states: dict[Key, list[_State]] = {}
        """One per partition epoch. Those of deleted topics stay: answers may be in flight."""
        self.partitions = self.led = 0
        """Numbers of checked partitions in Metadata, and in BrokerMetadata."""
        ledger.golden.listeners.append(self._committed)

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        for index, record in enumerate(records):
            if record.type == RecordType.PARTITION:
                self._created(record.message, logged.header.base_offset + index)
            elif record.type == RecordType.PARTITION_CHANGE:
                self._changed(record.message, logged.header.base_offset + index)

    def _created(self, new: Any, offset: int) -> None:
        replicas, epochs = tuple(new.replicas), (new.leader_epoch, new.partition_epoch)
        state = _State(offset, replicas, tuple(new.isr), new.leader, *epochs)
        self._states[new.topic_id, new.partition_id] = [state]

    def _changed(self, change: Any, offset: int) -> None:
        states = self._states[change.topic_id, change.partition_id]
        old = states[-1]
        # Named, or a replica gone: who was one must not go on under the epoch it knew.
        replicas = said(change, "replicas", old.replicas)
        again = change.HasField("leader") or not set(old.replicas) <= set(replicas)
        states.append(
            _State(
                offset,
                replicas,
                said(change, "isr", old.isr),
                said(change, "leader", old.leader),
                said(change, "leader_epoch", old.leader_epoch + again),
                old.partition_epoch + 1,
            )
        )

    # --- Metadata --------------------------------------------------------------------------------

    @override
    def client_returned(self, operation: Operation) -> None:
        response = operation.response
        if operation.kind != "read_topics" or operation.outcome != "ok" or response is None:
            return
        for topic in response.metadata.topics:
            for told in topic.partitions:
                self.partitions += 1
                self._check_metadata((topic.topic_id, told.partition_index), told, operation)

    def _check_metadata(self, key: Key, told: Any, operation: Operation) -> None:
        states, offset = self._states.get(key, []), operation.offset
        index = bisect_right(states, offset, key=lambda state: state.offset)
        if not index:
            fail(f"KIP-24: {operation.client} is told of {key} at {offset}, where it is not")
        state = states[index - 1]
        offline = [one for one in state.replicas if self._fenced(one, offset)]
        leader = -1 if self._fenced(state.leader, offset) else state.leader
        expected = (list(state.replicas), offline, leader, state.leader_epoch)
        nodes = list(told.replica_nodes), list(told.offline_replicas)
        found = (*nodes, told.leader_id, told.leader_epoch)
        if found != expected:
            fail(
                f"KIP-24: {operation.client} is told (replicas, offline, leader, leader epoch)"
                f" {found} of {key} at {offset}; the log says {expected}, and the ISR was"
                f" {list(state.isr)}"
            )

    def _fenced(self, broker_id: int, offset: int) -> bool:
        standings = self._golden.standings(broker_id)
        index = bisect_right(standings, offset, key=lambda standing: standing.offset)
        return not index or standings[index - 1].fenced

    # --- BrokerMetadata --------------------------------------------------------------------------

    @override
    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if isinstance(message, broker_pb2.BrokerResponse) and message.HasField("broker_metadata"):
            for told in message.broker_metadata.partitions:
                if not told.error_code:
                    self.led += 1
                    self._check_led(host, told)

    def _check_led(self, host: ControllerView | BrokerView, told: data_pb2.LedPartition) -> None:
        key, isr = (told.topic_id, told.partition_index), {one.broker_id for one in told.isr}
        for state in self._states.get(key, []):
            if state.partition_epoch == told.partition_epoch:
                expected = (host.id, state.leader_epoch, set(state.isr))
                if (state.leader, told.leader_epoch, isr) == expected:
                    return
                fail(
                    f"KIP-24: {host.name} says of {key} in partition epoch {told.partition_epoch}:"
                    f" leader {host.id}, leader epoch {told.leader_epoch}, ISR {sorted(isr)}; the"
                    f" log says {state}"
                )
        fail(
            f"KIP-24: {host.name} names partition epoch {told.partition_epoch} of {key}, which is"
            " not committed"
        )
