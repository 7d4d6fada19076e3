"""Compare-and-set on configs and keys (I30).

* Right before a successful change, the log has the value that the client expected.
* A refused change is not in the log, and at some time between request and response the value
  differed from the expected one.
* Every committed change was requested, and is in the log once.
"""

from bisect import bisect_right
from typing import Any

from raftlog.metadata.records import RecordType
from simulation.checks.api import Checker, Operation, fail
from simulation.checks.ledger import Ledger

CLIENT_METRICS = 16
_UNDONE = "INVALID_UPDATE_VERSION"
_NOTHING = -1


class _History:
    """The states of one key, in order. A state is what clients compare: the offset of a key (-1 if
    it is deleted), or the value of a config.
    """

    def __init__(self, at_first: Any) -> None:
        self.offsets = [-1]
        self.states: list[Any] = [at_first]
        self.values: dict[str, int] = {}

    def before(self, offset: int) -> Any:
        return self.states[bisect_right(self.offsets, offset - 1) - 1]

    def between(self, first: int, last: int) -> list[Any]:
        """Return the states from offset ``first`` to ``last``, inclusive."""
        low, high = bisect_right(self.offsets, first) - 1, bisect_right(self.offsets, last)
        return self.states[low:high]


class Compared(Checker):
    """Checker of I30."""

    def __init__(self, ledger: Ledger) -> None:
        self._golden = ledger.golden
        self._histories: dict[str, _History] = {}
        self._begun: dict[int, int] = {}
        self._failed: list[Operation] = []
        self._asked: dict[str, set[str]] = {}
        self.done = self.undone = 0
        ledger.golden.on(self._key, RecordType.KEY_VALUE)
        ledger.golden.on(self._config, RecordType.CONFIG)

    def _key(self, message: Any, offset: int, epoch: int) -> None:
        if message.key.startswith("compared/"):
            value = message.value.decode() if message.HasField("value") else None
            state = _NOTHING if value is None else offset
            self._note(f"kv:{message.key}", offset, state, value)

    def _config(self, message: Any, offset: int, epoch: int) -> None:
        if message.resource_name.startswith("compared-"):
            value = message.value if message.HasField("value") else None
            self._note(f"config:{message.resource_name}", offset, value, value)

    def _of(self, key: str) -> _History:
        return self._histories.setdefault(key, _History(_NOTHING if key[:3] == "kv:" else None))

    def _note(self, key: str, offset: int, state: Any, value: str | None) -> None:
        history = self._of(key)
        history.offsets.append(offset)
        history.states.append(state)
        if value is None:
            return
        if value not in self._asked.get(key, ()):
            fail(f"I30: {key} is {value} at {offset}, which nobody has asked for")
        if value in history.values:
            fail(f"I30: {key} is {value} at {history.values[value]} and again at {offset}")
        history.values[value] = offset

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind == "compare":
            self._begun[operation.number] = self._golden.end - 1
            self._asked.setdefault(operation.key, set()).add(operation.value)

    def client_returned(self, operation: Operation) -> None:
        if operation.kind != "compare":
            return
        history = self._of(operation.key)
        if operation.outcome == "ok":
            self.done += 1
            self._check_done(history, operation)
        elif operation.outcome == "failed":
            self._failed.append(operation)
            if operation.error == _UNDONE:
                self.undone += 1
                self._check_undone(history, operation)

    def _check_done(self, history: _History, operation: Operation) -> None:
        offset = operation.offset
        if operation.value and history.values.get(operation.value) != offset:
            there = history.values.get(operation.value)
            fail(f"I30: {operation.key}={operation.value}, answered at {offset}, is at {there}")
        found = history.before(offset)
        if found != operation.expected:
            fail(f"I30: {operation.key}, expected {operation.expected}, was {found} at {offset}")

    def _check_undone(self, history: _History, operation: Operation) -> None:
        states = history.between(self._begun[operation.number], self._golden.end - 1)
        if all(state == operation.expected for state in states):
            fail(f"I30: {operation.client} was refused {operation.key}, as expected throughout")

    def end(self) -> None:
        for operation in self._failed:
            if operation.value and operation.value in self._of(operation.key).values:
                fail(f"I30: {operation.key}={operation.value}, refused, is in the log")
