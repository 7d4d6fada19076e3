"""Visibility: what reads at brokers may show, and when they must show a write.

* A reply names its image, and its value is the committed one there.
* A *repeatable* read without a token shows nothing above the highest announced LAO.
* *At least T* comes from an image at T or later, so a client that sends its last token never sees
  less.
* After an ``acknowledged`` write, every later *latest* read on an unfenced broker shows it; after
  ``visible`` every *repeatable* read, too.
* A write is not answered below its requested level before its deadline, whichever controller leads.
* An acknowledged write is at its token's offset (I12).

A fenced broker may lag until it learns of it, and must keep the first two rules only.
"""

from collections import deque
from typing import Any, NamedTuple

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from simulation.checks.api import BrokerView, Checker, ControllerView, Operation, fail
from simulation.checks.golden import GoldenLog
from simulation.checks.ledger import Ledger
from simulation.checks.linearizability import CLIENT_METRICS, CONFIG_KEY
from simulation.checks.strict import READ_KINDS, Floors

SENT_MAX = 10_000
DEADLINE_SHARE = 0.75
"""Share of the timeout that counts as the deadline, as a server's clock may be fast."""


class Sent(NamedTuple):
    """An answer as it left its broker; the client receives this very object."""

    response: Any
    broker: str
    unfenced: bool
    """True if that very incarnation was unfenced in the committed log."""


class SentAnswers:
    """The last answers of brokers."""

    def __init__(self, golden: GoldenLog) -> None:
        self._golden = golden
        self._sent: deque[Sent] = deque(maxlen=SENT_MAX)

    def add(self, host: Any, response: Any) -> None:
        self._sent.append(Sent(response, host.name, self._golden.is_unfenced(host)))

    def of_unfenced(self, response: Any) -> Sent | None:
        """Return a received answer, if it is known and its broker was unfenced."""
        # From the newest on: an answer is on its way for a short time.
        found = next((one for one in reversed(self._sent) if one.response is response), None)
        return found if found is not None and found.unfenced else None


class Visibility(Checker):
    """Checker of reads at brokers."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._acknowledged, self._visible = Floors(), Floors()
        self._clients: dict[str, Floors] = {}
        self._sent = SentAnswers(ledger.golden)
        self._announced = -1
        self.reads = 0
        self.held_to = 0
        """Reads that had to show some write, because of its level."""
        self.waited = 0
        """Writes that asked for more than ``committed``, and have reached it."""

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if (
            type(message) is broker_pb2.BrokerResponse
            and message.HasField("token")
            and host.service is not None
        ):
            self._sent.add(host, message)

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind in READ_KINDS and operation.at_least < 0:
            # It has forgotten what it had seen, and begins anew.
            self._clients.pop(operation.client, None)

    def client_returned(self, operation: Operation) -> None:
        if operation.outcome != "ok" or operation.offset < 0:
            return
        client = self._clients.setdefault(operation.client, Floors())
        if operation.kind in READ_KINDS:
            self.reads += 1
            self._check_answer(operation)
            self._check_order(operation, client)
            self._check_floor(operation)
        else:
            self._check_written(operation)
            self._check_wait(operation)
            if operation.reached >= common_pb2.ACKS_ACKNOWLEDGED:
                self._acknowledged.raise_to(operation.offset, operation.returned_at)
            if operation.reached >= common_pb2.ACKS_VISIBLE:
                self._visible.raise_to(operation.offset, operation.returned_at)
        client.raise_to(operation.offset, operation.returned_at)

    def lao_announced(self, host: ControllerView, controller_epoch: int, lao: int) -> None:
        self._announced = max(self._announced, lao)

    def _check_written(self, operation: Operation) -> None:
        golden = self._ledger.golden
        if operation.offset >= golden.end:
            fail(f"I12: {_name(operation)} is at {operation.offset}, above {golden.end}")
        if operation.kind == "write_config":
            there = golden.config(CLIENT_METRICS, operation.key, CONFIG_KEY, operation.offset)
            if there != operation.value:
                fail(f"I12: {_name(operation)} is answered as written; the log has {there!r}")

    def _check_wait(self, operation: Operation) -> None:
        if operation.reached >= operation.acks:
            self.waited += bool(operation.acks)
            return
        took_s = operation.returned_at - operation.invoked_at
        if took_s < DEADLINE_SHARE * operation.timeout_s:
            fail(
                f"{_name(operation)} is answered after {took_s:.3f} of {operation.timeout_s:g} s"
                f" with level {operation.reached}; it asked for {operation.acks}"
            )

    def _check_answer(self, operation: Operation) -> None:
        golden = self._ledger.golden
        expected: Any
        if operation.offset not in golden.hashes:
            fail(f"{_name(operation)} shows {operation.offset}, not the end of a committed batch")
        if operation.kind == "read_config":
            expected = golden.config(CLIENT_METRICS, operation.key, CONFIG_KEY, operation.offset)
        else:
            expected = golden.topics(operation.offset)
        if (
            operation.mode == broker_pb2.REPEATABLE
            and operation.at_least < 0
            and operation.offset > self._announced
        ):
            fail(f"{_name(operation)} shows {operation.offset}, LAO was {self._announced}")
        if operation.found != expected:
            fail(f"{_name(operation)} finds {operation.found!r}; the log has {expected!r}")

    def _check_order(self, operation: Operation, client: Floors) -> None:
        if operation.offset < operation.at_least:
            fail(f"{_name(operation)} wanted {operation.at_least} at least, got {operation.offset}")
        if operation.at_least >= 0 and operation.offset < client.at(operation.invoked_at):
            fail(f"{_name(operation)} shows {operation.offset}, less than its client has seen")

    def _check_floor(self, operation: Operation) -> None:
        if (sent := self._sent.of_unfenced(operation.response)) is None:
            return
        repeatable = operation.mode == broker_pb2.REPEATABLE
        floor = (self._visible if repeatable else self._acknowledged).at(operation.invoked_at)
        self.held_to += floor >= 0
        if operation.offset < floor:
            kind, level = ("repeatable", "visible") if repeatable else ("latest", "acknowledged")
            fail(
                f"{_name(operation)}, {kind} at {sent.broker}, shows {operation.offset}; a write at"
                f" {floor} was answered as {level} before it began, and the broker was unfenced"
                " when it answered"
            )


def _name(operation: Operation) -> str:
    value = f"={operation.value}" if operation.value else ""
    return (
        f"{operation.client}'s {operation.kind} {operation.key}{value} (number {operation.number})"
    )
