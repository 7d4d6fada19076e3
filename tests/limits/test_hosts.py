from __future__ import annotations

import pytest

from raftlog.limits.hosts import endpoint_error, host_error

HOSTS = [
    "a",
    "host-1",
    "raft_node_1",
    "kafka-7.example.com",
    "kafka.example.",
    "A" * 255,
    "10.0.0.1",
    "::1",
    "[::1]",
    "fe80::1%eth0",
]
NO_HOSTS = [
    "", ".", "..", "a..b", ".a", " ", "a b", "a\n", "\na", "a\tb", "a\x1b[31m", "a" * 256, "ä.example", "a/b", "a:b", "[a]",
    "a\u202eb", "a,b", "a@b", "[::1", "%", "::1%", "::1%\n", "a.." + "b" * 70_000,
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_hosts(host: str) -> None:
    assert not host_error(host)
    assert bool(endpoint_error(f"{host}:9092")) == (":" in host and not host.startswith("["))


@pytest.mark.parametrize("host", NO_HOSTS)
def test_no_hosts(host: str) -> None:
    error = host_error(host)
    assert error.isprintable()
    assert 0 < len(error) < 500
    assert endpoint_error(f"{host}:9092")


@pytest.mark.parametrize(
    "endpoint",
    ["a", "a:", "a:0", "a:65536", "a:-1", "a:9092\n", ":9092", "a:9٢", "a:" + "9" * 5000],
)
def test_no_endpoints(endpoint: str) -> None:
    assert endpoint_error(endpoint)
