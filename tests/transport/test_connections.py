"""Bounds of connections and their descriptors, and retries."""

import resource
from contextlib import ExitStack

import pytest

from raftlog.bounds import RESERVED_DESCRIPTORS, TransportLimits
from raftlog.identity import ANONYMOUS, PeerIdentity
from raftlog.node.transport import connections_allowed, lanes_allowed
from raftlog.transport.bounds import Connections

ALICE = PeerIdentity("CN=alice", frozenset({"CN=alice"}), "ab")
BOB = PeerIdentity("CN=alice", frozenset({"CN=alice"}), "ab", "User:bob")


def entered(connections: Connections, stack: ExitStack, peer: str, identity: PeerIdentity) -> str:
    return stack.enter_context(connections.counted(peer, identity))


def test_connections_of_a_principal_are_bounded_over_all_addresses() -> None:
    connections = Connections(per_address=100, per_principal=2)
    with ExitStack() as stack:
        assert not entered(connections, stack, "10.0.0.1:1", ALICE)
        assert not entered(connections, stack, "10.0.0.2:1", ALICE)
        why = entered(connections, stack, "10.0.0.3:1", ALICE)
        assert why == "CN=alice already has 2 connections, the limit for one principal"
        # Another call of a connection is no other connection.
        assert not entered(connections, stack, "10.0.0.2:1", ALICE)
        # A token's principal is another one, with or without a certificate.
        assert not entered(connections, stack, "10.0.0.3:1", BOB)
        assert not entered(connections, stack, "10.0.0.4:1", ANONYMOUS)
    assert connections.of("principal", "CN=alice") == 0
    with ExitStack() as stack:
        assert not entered(connections, stack, "10.0.0.3:1", ALICE)


def test_connections_of_an_address_are_bounded_over_all_principals() -> None:
    connections = Connections(per_address=2, per_principal=100)
    with ExitStack() as stack:
        assert not entered(connections, stack, "[::1]:1", ALICE)
        assert not entered(connections, stack, "[::1]:2", ANONYMOUS)
        why = entered(connections, stack, "[::1]:3", BOB)
        assert why == "[::1] already has 2 connections, the limit for one address"
        assert connections.of("address", "[::1]") == 2
    assert connections.of("address", "[::1]") == 0


def test_connection_with_calls_counts_until_the_last_has_ended() -> None:
    connections = Connections(per_address=1, per_principal=1)
    with ExitStack() as later:
        with ExitStack() as first:
            assert not entered(connections, first, "a:1", ALICE)
            assert not entered(connections, later, "a:1", ALICE)
        with ExitStack() as stack:
            assert entered(connections, stack, "a:2", ALICE)
    with ExitStack() as stack:
        assert not entered(connections, stack, "a:2", ALICE)


# --- How many descriptors connections and lanes may take -----------------------------------------


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
def test_lanes_get_the_descriptors_that_connections_leave(
    monkeypatch: pytest.MonkeyPatch, open_files: int, connections: int, lanes: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, open_files))
    defaults = TransportLimits()
    allowed = connections_allowed(defaults.max_connections)
    assert allowed == connections
    assert lanes_allowed(defaults.max_observer_lanes, allowed, "brokers") == lanes


# --- How soon a link is tried again --------------------------------------------------------------


def test_quorum_links_are_retried_before_a_peer_seems_silent() -> None:
    for fetch_timeout_ms in (100, 1_000, 60_000):
        limits = TransportLimits().within(fetch_timeout_ms)
        assert limits.connect_timeout_ms <= fetch_timeout_ms / 2
        assert limits.connect_timeout_ms + limits.reconnect_backoff_max_ms < fetch_timeout_ms
        assert limits.reconnect_backoff_max_ms >= limits.reconnect_backoff_min_ms
    default = TransportLimits()
    assert TransportLimits().within(60_000) == default, "never longer than without"
