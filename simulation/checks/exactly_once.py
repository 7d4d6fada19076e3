"""Exactly-once writes: no duplicates, no phantoms, and their order (I14).

Each config write has a unique value, so the log shows how often it was executed. *ok*: once;
failed: never; unknown: at most once, whatever the retries. A record without a request is a phantom.
Topic creations and deletions are counted by name. Two batches of one (client id, sequence) are one
write executed twice. A write that returned before another was invoked precedes it.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from raftlog.metadata.records import Record, RecordType
from simulation.checks.api import Checker, Operation, fail
from simulation.checks.ledger import Ledger
from simulation.checks.linearizability import CLIENT_METRICS, CONFIG_KEY, TOPIC_KINDS
from simulation.checks.node_log import Logged


@dataclass(slots=True)
class _Count:
    """Calls of one kind on one topic, and the number of their records in the log."""

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
        self._returned: tuple[list[float], list[int]] = [], []
        """Times at which the highest answered offset rose, and its values."""
        ledger.golden.listeners.append(self._batch_committed)

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
        times, offsets = self._returned
        if not offsets or offset > offsets[-1]:
            times.append(operation.returned_at)
            offsets.append(offset)

    def _batch_committed(self, logged: Logged, records: list[Record]) -> None:
        header = logged.header
        if header.sequence:
            at = self._sequences.setdefault((header.client_id, header.sequence), header.base_offset)
            if at != header.base_offset:
                fail(
                    f"I14: write {header.sequence} of client {header.client_id} is in the log"
                    f" twice, at {at} and {header.base_offset}"
                )
        for index, record in enumerate(records):
            message = record.message
            if record.type == RecordType.CONFIG:
                if (
                    message.resource_type == CLIENT_METRICS
                    and message.name == CONFIG_KEY
                    and message.HasField("value")
                ):
                    self._written(message.resource_name, message.value, header.base_offset + index)
            elif record.type == RecordType.TOPIC:
                self._topic_names[message.topic_id] = message.name
                self._topic("create_topic", message.name, header.base_offset)
            elif record.type == RecordType.REMOVE_TOPIC:
                self._topic("delete_topic", self._topic_names[message.topic_id], header.base_offset)

    def _written(self, key: str, value: str, offset: int) -> None:
        operation = self._writes.get((key, value))
        if operation is None:
            fail(f"I14: {key}={value} is in the log at {offset}, and nobody has written it")
        at = self._committed.setdefault((key, value), offset)
        if at != offset:
            fail(f"I14: {_name(operation)} is in the log twice, at {at} and {offset}")
        if operation.outcome == "failed":
            fail(f"I14: {_name(operation)} has failed with {operation.error}, and is at {offset}")
        times, offsets = self._returned
        before = bisect_left(times, operation.invoked_at)
        if before and offsets[before - 1] > offset:
            fail(f"I14: {_name(operation)} is at {offset}, after {offsets[before - 1]} returned")

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
