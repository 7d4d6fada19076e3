"""The judge of scripts/chaos."""

from collections.abc import Sequence
from typing import Any

import pytest

from raftlog import batch
from raftlog.client.consumer import Record
from raftlog.metadata.records import record
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.records.v1 import records_pb2
from simulation.chaos.clients import History
from simulation.chaos.judge import judge
from simulation.checks.api import Operation
from simulation.checks.linearizability import CLIENT_METRICS, CONFIG_KEY


def logged(offset: int, value: str, *, epoch: int = 1, sequence: int = 0) -> bytes:
    written = records_pb2.ConfigRecord(
        resource_type=CLIENT_METRICS, resource_name="key", name=CONFIG_KEY, value=value
    )
    return batch.encode(
        [record(written).data],
        base_offset=offset,
        epoch=epoch,
        timestamp_ms=1,
        client_id=7 if sequence else 0,
        sequence=sequence,
    )


class Told:
    """A history recorded step by step."""

    def __init__(self) -> None:
        self.history = History()
        self.consumed: list[Record] = []
        self._clock = 0.0

    def _now(self) -> float:
        self._clock += 1.0
        return self._clock

    def begin(self, kind: Any, **fields: Any) -> Operation:
        number = len(self.history.events) + 1
        operation = Operation(
            number=number, client="c", kind=kind, invoked_at=self._now(), **fields
        )
        self.history.events.append((False, operation))
        if kind == "produce":
            self.history.produced.append(operation)
        return operation

    def end(self, operation: Operation, outcome: Any, **fields: Any) -> Operation:
        for name, value in {"outcome": outcome, "returned_at": self._now(), **fields}.items():
            setattr(operation, name, value)
        self.history.events.append((True, operation))
        return operation

    def write(
        self, value: str, offset: int, outcome: Any = "ok", *, acks: int = common_pb2.ACKS_VISIBLE
    ) -> Operation:
        begun = self.begin("write_config", key="key", value=value, acks=acks)
        return self.end(
            begun,
            outcome,
            offset=offset if outcome == "ok" else -1,
            reached=acks if outcome == "ok" else 0,
        )

    def read(self, found: str | None, offset: int, mode: int = broker_pb2.STRICT) -> Operation:
        return self.end(
            self.begin("read_config", key="key", mode=mode), "ok", found=found, offset=offset
        )

    def produce(self, value: str, offset: int, outcome: Any = "ok") -> Operation:
        return self.end(
            self.begin("produce", key="t-0", value=value), outcome, record_offset=offset
        )

    def consume(self, value: str, offset: int) -> None:
        self.consumed.append(Record("t", 0, offset, 1, 1, None, value.encode(), ()))

    def violations(self, log: list[bytes], node_log: list[bytes] | None = None) -> list[str]:
        logs: dict[str, tuple[int, Sequence[bytes]]] = {
            "controller-1": (0, log if node_log is None else node_log)
        }
        return judge(self.history, log, logs, self.consumed).violations


LOG = [logged(0, "a"), logged(1, "b"), logged(2, "c")]


def true_history() -> Told:
    told = Told()
    told.write("a", 0)
    told.read("a", 0)
    told.write("b", 1)
    told.write("c", -1, "unknown")
    told.read("c", 2)
    told.produce("r1", 0)
    told.produce("r2", 1)
    told.produce("r3", -1, "failed")
    told.produce("r4", -1, "unknown")
    told.consume("r1", 0)
    told.consume("r2", 1)
    return told


def test_true_history_passes() -> None:
    told = true_history()
    assert told.violations(LOG) == []
    # A node may lag behind, or hold a tail that was never committed.
    assert told.violations(LOG, LOG[:1]) == []
    assert told.violations(LOG, [*LOG, logged(3, "never committed", epoch=2)]) == []


def test_judge_counts_what_it_has_checked() -> None:
    told = true_history()
    seen = judge(told.history, LOG, {"controller-1": (0, LOG)}, told.consumed).seen
    assert seen["write_config ok"] == 2
    assert seen["committed records"] == 3
    assert seen["strict reads held to a floor"] == 2
    assert seen["records consumed"] == 2


def refused_write_is_there(told: Told) -> None:
    told.history.events[-1][1].outcome = "ok"
    for _, operation in told.history.events:
        if operation.value == "c":
            operation.outcome = "failed"


def record_elsewhere(told: Told) -> None:
    told.produce("r5", 2)
    told.consume("r5", 3)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda told: told.write("lost", 2), "not in the committed log"),
        (refused_write_is_there, "has failed"),
        (lambda told: told.read("a", 0), "I22"),
        (lambda told: told.read("b", 2), "finds 'b'"),
        (lambda told: told.produce("r5", 2), "no place"),
        (record_elsewhere, "was acknowledged at"),
        (lambda told: told.consume("r2", 2), "was sent once"),
        (lambda told: told.consume("r3", 2), "was refused"),
        (lambda told: told.consume("phantom", 2), "nobody has sent it"),
    ],
)
def test_false_history_is_detected(spoil: Any, words: str) -> None:
    told = true_history()
    spoil(told)
    found = told.violations(LOG)
    assert any(words in one for one in found), found


@pytest.mark.parametrize(
    ("log", "node_log", "words"),
    [
        ([*LOG, logged(3, "phantom")], None, "nobody has written it"),
        ([*LOG[:2], logged(2, "c"), logged(3, "a")], None, "in the log twice"),
        (LOG, [LOG[0], logged(1, "other"), LOG[2]], "I4 log matching"),
        (LOG, [LOG[0], logged(1, "b", epoch=2), logged(2, "c", epoch=2)], "I6"),
    ],
)
def test_false_log_is_detected(log: list[bytes], node_log: list[bytes] | None, words: str) -> None:
    found = true_history().violations(log, node_log)
    assert any(words in one for one in found), found


def test_write_ordered_before_one_that_had_returned_is_detected() -> None:
    told = Told()
    told.write("b", 1)
    told.write("a", 0)
    found = told.violations(LOG[:2])
    assert any("had returned before it was invoked" in one for one in found), found
