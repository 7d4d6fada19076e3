"""The bounds that a node of the quorum puts on its links."""

from raftlog.transport.api import TransportLimits


def test_links_of_the_quorum_are_tried_again_before_a_peer_seems_silent() -> None:
    for fetch_timeout_ms in (100, 1_000, 60_000):
        limits = TransportLimits().within(fetch_timeout_ms)
        assert limits.connect_timeout_ms <= fetch_timeout_ms / 2
        assert limits.connect_timeout_ms + limits.reconnect_backoff_max_ms < fetch_timeout_ms
        assert limits.reconnect_backoff_max_ms >= limits.reconnect_backoff_min_ms
    default = TransportLimits()
    assert TransportLimits().within(60_000) == default, "never longer than without"
