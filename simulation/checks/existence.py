"""Answers about a topic's existence were true in the committed log between question and answer
(I13).

An answer without a record must be true of an image whose offset lies between what was committed
when the client asked and when it has the answer: refusals of creations and deletions, and
questions.
"""

from typing import Any, Generic, TypeVar

from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import Checker, Operation, fail
from simulation.checks.ledger import Ledger
from simulation.checks.linearizability import REFUSALS


def said(operation: Operation) -> bool | None:
    """Return whether a response says that the topic exists; None if it says nothing about it."""
    if operation.kind == "ask_topic" and operation.outcome == "ok":
        return operation.found == (operation.key,)
    if operation.outcome == "failed" and operation.error == REFUSALS.get(operation.kind):
        return operation.kind == "create_topic"
    return None


class Existence(Checker):
    """Checker of I13, for answers without records."""

    def __init__(self, ledger: Ledger) -> None:
        self._golden = ledger.golden
        self._committed_at: dict[int, int] = {}
        self.answers = 0

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind == "ask_topic" or operation.kind in REFUSALS:
            self._committed_at[operation.number] = self._golden.end

    def client_returned(self, operation: Operation) -> None:
        since = self._committed_at.pop(operation.number, None)
        there = said(operation)
        if since is None or there is None:
            return
        self.answers += 1
        golden = self._golden
        if there not in golden.existence(operation.key, since - 1, golden.end - 1):
            fail(
                f"I13: {operation.client} is told by {operation.kind} that topic {operation.key} is"
                f" {'' if there else 'not '}there; in no image from {since - 1}, which was"
                f" committed when it asked, to {golden.end - 1} is that so"
            )


_MAX = 1000

What = TypeVar("What")


class Asked(Generic[What]):
    """Pending requests of these ``kinds`` (body fields), with the checker's note on each."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds
        self._open: dict[tuple[str, str, int], What] = {}

    def kind_of(self, message: Any) -> str:
        """Return the kind of a request of these kinds; empty for any other message."""
        kind = message.WhichOneof("body") if type(message) is pb.ControllerRequest else None
        return kind if kind is not None and kind in self._kinds else ""

    def note(self, asker: str, controller: str, correlation_id: int, what: What) -> None:
        """Note a sent request; too many pending requests drop the oldest note."""
        key = asker, controller, correlation_id
        self._open.pop(key, None)
        self._open[key] = what
        if len(self._open) > _MAX:
            del self._open[next(iter(self._open))]

    def answered(self, controller: str, asker: str, message: Any) -> What | None:
        """Return the note on the request that a response belongs to, or None. An error keeps the
        note.
        """
        if type(message) is not pb.ControllerResponse:
            return None
        key = asker, controller, message.correlation_id
        if message.HasField("error"):
            return self._open.get(key)
        return self._open.pop(key, None) if message.WhichOneof("body") in self._kinds else None
