"""Exactly-once writes (I14). Config writes have unique values, so the log shows each execution.

* one after a success, none after an error, at most one if the outcome is unknown;
* none without a request, and no two batches with the same client id and sequence number;
* a write that was answered before another one began precedes it.

Creations and deletions of topics are counted by name.
"""

from dataclasses import dataclass, field
from typing import Any

from raftlog.metadata.records import Record, RecordType
from simulation.checks.api import Checker, Operation, fail
from simulation.checks.ledger import Ledger
from simulation.checks.linearizability import CLIENT_METRICS, CONFIG_KEY, TOPIC_KINDS
from simulation.checks.node_log import Logged
from simulation.checks.strict import Floors


@dataclass(slots=True)
class _Count:
    """The requests to create, or to delete, one topic, and the number of such records."""

    calls: list[Operation] = field(default_factory=list)
    committed: int = 0


class ExactlyOnce(Checker):
    """Checker of I14."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._writes: dict[tuple[str, str], Operation] = {}
        self._committed: dict[tuple[str, str], int] = {}
        self._topics: dict[tuple[str, str], _Count] = {}
        self._topic_names: dict[bytes, str] = {}
        self._sequences: dict[tuple[int, int], int] = {}
        self._returned = Floors()
        """Highest offset of the writes that were answered, by time."""
        ledger.golden.listeners.append(self._batch_committed)
        ledger.golden.on(self._config, RecordType.CONFIG)
        ledger.golden.on(self._topic_created, RecordType.TOPIC)
        ledger.golden.on(self._topic_deleted, RecordType.REMOVE_TOPIC)

    def looked_at(self) -> dict[str, int]:
        return {
            "writes": len(self._committed),
            "sequences": len(self._sequences),
            "topics": len(self._topics),
        }

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind == "write_config":
            other = self._writes.setdefault((operation.key, operation.value), operation)
            if other is not operation:
                fail(f"{operation.key}={operation.value} is written twice: nothing can be said")
        elif operation.kind in TOPIC_KINDS:
            self._topics.setdefault((operation.kind, operation.key), _Count()).calls.append(
                operation
            )

    def client_returned(self, operation: Operation) -> None:
        if operation.kind != "write_config":
            return
        offset = self._committed.get((operation.key, operation.value))
        if operation.outcome == "failed" and offset is not None:
            fail(f"I14: {_name(operation)} has failed with {operation.error}, and is at {offset}")
        if operation.outcome != "ok":
            return
        if offset is None:
            fail(f"I14: {_name(operation)} is answered as written, and is not in the committed log")
        self._returned.raise_to(offset, operation.returned_at)

    def _batch_committed(self, logged: Logged, records: list[Record]) -> None:
        header = logged.header
        if header.sequence:
            at = self._sequences.setdefault((header.client_id, header.sequence), header.base_offset)
            if at != header.base_offset:
                fail(
                    f"I14: write {header.sequence} of client {header.client_id} is in the log"
                    f" twice, at {at} and {header.base_offset}"
                )

    def _config(self, message: Any, offset: int, epoch: int) -> None:
        is_client = (message.resource_type, message.name) == (CLIENT_METRICS, CONFIG_KEY)
        if is_client and message.HasField("value"):
            self._written(message.resource_name, message.value, offset)

    def _written(self, key: str, value: str, offset: int) -> None:
        operation = self._writes.get((key, value))
        if operation is None:
            fail(f"I14: {key}={value} is in the log at {offset}, and nobody has written it")
        at = self._committed.setdefault((key, value), offset)
        if at != offset:
            fail(f"I14: {_name(operation)} is in the log twice, at {at} and {offset}")
        if operation.outcome == "failed":
            fail(f"I14: {_name(operation)} has failed with {operation.error}, and is at {offset}")
        if (before := self._returned.at(operation.invoked_at)) > offset:
            fail(f"I14: {_name(operation)} is at {offset}, after {before} returned")

    def _topic_created(self, message: Any, offset: int, epoch: int) -> None:
        self._topic_names[message.topic_id] = message.name
        self._topic("create_topic", message.name, offset)

    def _topic_deleted(self, message: Any, offset: int, epoch: int) -> None:
        self._topic("delete_topic", self._topic_names[message.topic_id], offset)

    def _topic(self, kind: str, name: str, offset: int) -> None:
        count = self._topics.get((kind, name))
        if count is None:
            fail(f"I14: {kind} {name} is in the log at {offset}, and nobody has asked for it")
        count.committed += 1
        possible = sum(1 for call in count.calls if call.outcome != "failed")
        if count.committed > possible:
            fail(f"I14: {kind} {name} is in the log {count.committed} times, of {possible}")

    def end(self) -> None:
        for (kind, name), count in self._topics.items():
            done = sum(1 for call in count.calls if call.outcome == "ok")
            possible = sum(1 for call in count.calls if call.outcome != "failed")
            if not done <= count.committed <= possible:
                fail(f"I14: {kind} {name}: {done} to {possible} expected, {count.committed} found")


def _name(operation: Operation) -> str:
    return f"{operation.client}'s {operation.key}={operation.value} (number {operation.number})"
