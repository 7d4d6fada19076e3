"""Visibility: what reads at brokers may show, and when they must show a write.

* A response names the offset of its image, and has the value that the committed log has there.
* A *repeatable* read without a token shows nothing above the highest announced LAO.
* A read with a token comes from an image at the token's offset or later, so a client that sends its
  last token never sees older state.
* After a write was answered as ``acknowledged``, every later *latest* read at an unfenced broker
  shows it; after ``visible``, every later *repeatable* read, too.
* A write is answered with a lower level than requested only at its deadline.
* A write is in the log at the offset of its token (I12).

A fenced broker may lag until it knows that it is fenced; only the first two rules hold for it.
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
"""Share of a write's timeout after which its deadline may have passed, by a fast clock."""


class Sent(NamedTuple):
    """A response when its broker sent it. The client receives the same object."""

    response: Any
    broker: str
    unfenced: bool


class SentAnswers:
    """The latest responses of all brokers."""

    def __init__(self, golden: GoldenLog) -> None:
        self._golden = golden
        self._sent: deque[Sent] = deque(maxlen=SENT_MAX)

    def add(self, host: Any, response: Any) -> None:
        self._sent.append(Sent(response, host.name, self._golden.is_unfenced(host)))

    def of_unfenced(self, response: Any) -> Sent | None:
        """Return what is known of a response if its broker was unfenced, else None."""
        found = next((one for one in reversed(self._sent) if one.response is response), None)
        return found if found is not None and found.unfenced else None


class Visibility(Checker):
    """Checker of reads at brokers."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._acknowledged, self._visible = Floors(), Floors()
        self._clients: dict[str, Floors] = {}
        self._sent = SentAnswers(ledger.golden)
        self.reads = 0
        self.held_to = 0
        """Number of reads that had to show a write because of the write's level."""
        self.waited = 0

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if (
            type(message) is broker_pb2.BrokerResponse
            and message.HasField("token")
            and host.service is not None
        ):
            self._sent.add(host, message)

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind in READ_KINDS and operation.at_least < 0:
            # The client has dropped its token.
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
            and operation.offset > (lao := self._ledger.announced_lao)
        ):
            fail(f"{_name(operation)} shows {operation.offset}, LAO was {lao}")
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
            what = f"{_name(operation)}, {kind} at the unfenced broker {sent.broker}, shows"
            fail(f"{what} {operation.offset}; {floor} was answered as {level} before it began")


def _name(operation: Operation) -> str:
    value = f"={operation.value}" if operation.value else ""
    return (
        f"{operation.client}'s {operation.kind} {operation.key}{value} (number {operation.number})"
    )
