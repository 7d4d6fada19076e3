"""What is known of a period: what each node told of itself, and what the log says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from raftlog.journal.event import Kind, NodeEvent
from raftlog.metadata.changes import Changed


@dataclass(frozen=True)
class NodeTold:
    """One node. ``failure``: why it told nothing, or not all; empty: it told all that it knows."""

    name: str
    role: str
    node_id: int
    events: tuple[NodeEvent, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class LogTold:
    """The part of the log. ``writes_ms``: when clients' writes were appended, ascending;
    ``failure``: why it could not be read; ``late``: what is missing at its beginning.
    """

    changes: tuple[Changed, ...] = ()
    writes_ms: tuple[int, ...] = ()
    failure: str = ""
    late: str = ""


@dataclass(frozen=True)
class Evidence:
    """All of it. Times are milliseconds since 1970: of events by the cluster's clock, as far as it
    is known how their node's differs, of changes by that of the leader of then.
    """

    from_ms: int
    to_ms: int
    nodes: tuple[NodeTold, ...] = ()
    log: LogTold = LogTold()

    @classmethod
    def until_now(
        cls, from_ms: int, now_ms: int, nodes: tuple[NodeTold, ...], log: LogTold | None = None
    ) -> Evidence:
        """All from then on: up to now, and beyond where a clock is ahead."""
        log = log or LogTold()
        newest = [event.at_ms for node in nodes for event in node.events]
        newest += [one.timestamp_ms for one in log.changes]
        return cls(from_ms, max([now_ms, *newest]), nodes, log)

    def events(self, *kinds: Kind) -> Iterator[NodeEvent]:
        """Of all nodes, in the order of time; without kinds: all."""
        return (one for one in self._events if not kinds or one.kind in kinds)

    def of_node(self, node_id: int, *kinds: Kind) -> list[NodeEvent]:
        """Of one node."""
        return [one for one in self.events(*kinds) if one.node_id == node_id]

    @cached_property
    def _events(self) -> list[NodeEvent]:
        found = [
            event
            for node in self.nodes
            for event in node.events
            if self.from_ms <= event.at_ms <= self.to_ms
        ]
        return sorted(found, key=lambda one: (one.at_ms, one.node_id, one.seq))

    def changes(self, kind: str) -> list[Changed]:
        """Of one kind of entity, in the order of the log."""
        return [one for one in self.log.changes if one.kind == kind]


def decoded(value: str | None) -> dict[str, Any]:
    """A value of a change as an object; empty: there is none."""
    found = msgspec.json.decode(value) if value else {}
    return found if isinstance(found, dict) else {}
