"""Pending requests of hosts to controllers, as checkers keep them.

Each link counts its requests for itself, and two hosts may have several links. So a number alone
does not tell which request an answer is to: its body does. An error has none, and leaves what was
asked where it is: it may be the answer to something else.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from raftlog.wire.controller.v1 import controller_pb2 as pb

_MAX = 1000

What = TypeVar("What")


class Asked(Generic[What]):
    """Pending requests of the given ``kinds`` (fields of ControllerRequest's body), with the
    checker's note on each.
    """

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds
        self._open: dict[tuple[str, str, int], What] = {}

    def kind_of(self, message: Any) -> str:
        """Return the kind of a request that is to be noted; empty for everything else."""
        kind = message.WhichOneof("body") if type(message) is pb.ControllerRequest else None
        return kind if kind is not None and kind in self._kinds else ""

    def note(self, asker: str, controller: str, correlation_id: int, what: What) -> None:
        """Note a sent request.

        An older one of the same number was another link's, and is forgotten; so is the oldest of
        too many.
        """
        key = asker, controller, correlation_id
        self._open.pop(key, None)
        self._open[key] = what
        if len(self._open) > _MAX:
            del self._open[next(iter(self._open))]

    def answered(self, controller: str, asker: str, message: Any) -> What | None:
        """Return the note on the request that ``message`` answers, or may answer if it is an error;
        None: no note.
        """
        if type(message) is not pb.ControllerResponse:
            return None
        key = asker, controller, message.correlation_id
        if message.HasField("error"):
            return self._open.get(key)
        return self._open.pop(key, None) if message.WhichOneof("body") in self._kinds else None
