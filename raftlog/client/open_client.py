"""The numbers of one exactly-once client: which are in flight, and below which all are done.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.metadata.clients import FIRST_SEQUENCE, WINDOW
from raftlog.wire.controller.v1 import controller_pb2


class OpenClient:
    """A client as the cluster knows it by ``id``, the offset of its OpenClient record in the log of
    ``generation``.
    """

    def __init__(self, client_id: int, generation: int) -> None:
        self.id = client_id
        self.generation = generation
        self._next = FIRST_SEQUENCE
        # In order of numbers: the first key is the oldest.
        self._in_flight: dict[int, None] = {}

    @property
    def all_below_done(self) -> int:
        """The oldest number whose outcome its writer does not know yet, or the next one."""
        return next(iter(self._in_flight), self._next)

    @property
    def room(self) -> int:
        """How many more numbers are within the window, however the ones before them end."""
        return self.all_below_done + WINDOW - self._next

    def begin(self) -> NumberedWrite:
        """Take the next number."""
        sequence, self._next = self._next, self._next + 1
        self._in_flight[sequence] = None
        return NumberedWrite(self, sequence)

    def finish(self, write: NumberedWrite) -> None:
        """Its writer knows the outcome, or that it will not be known: no attempt follows."""
        del self._in_flight[write.sequence]


@dataclass(frozen=True, slots=True)
class NumberedWrite:
    """One write, the same number in every attempt."""

    client: OpenClient
    sequence: int

    def number(self, request: controller_pb2.ControllerRequest) -> None:
        """Put the identity into a request."""
        identity = request.client
        identity.client_id, identity.sequence = self.client.id, self.sequence
        identity.all_below_done, identity.generation = (
            self.client.all_below_done,
            self.client.generation,
        )
