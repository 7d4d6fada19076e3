"""How many descriptors connections and lanes may take."""

from __future__ import annotations

import resource

import pytest

from raftlog.bounds import RESERVED_DESCRIPTORS, TransportLimits
from raftlog.node.transport import connections_allowed, lanes_allowed


@pytest.mark.parametrize(
    ("open_files", "connections", "lanes"),
    [
        (resource.RLIM_INFINITY, 1_000, 1_024),
        (1_048_576, 1_000, 1_024),
        (2_000, 1_000, 2_000 - 1_000 - RESERVED_DESCRIPTORS),
        (1_024, 1_024 - RESERVED_DESCRIPTORS, 0),
        (300, 150, 0),
    ],
)
def test_lanes_take_what_connections_leave(
    monkeypatch: pytest.MonkeyPatch, open_files: int, connections: int, lanes: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, open_files))
    defaults = TransportLimits()
    allowed = connections_allowed(defaults.max_connections)
    assert allowed == connections
    assert lanes_allowed(defaults.max_observer_lanes, allowed, "brokers") == lanes
