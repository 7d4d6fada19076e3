from __future__ import annotations

import pytest

from raftlog.endpoint import endpoint_error, endpoints_error, host_error

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


@pytest.mark.parametrize(
    "endpoints",
    ["h:1", "A://h:1", "A://h:1,B_2://[::1]:2", ",".join(f"L{i}://h:{i}" for i in range(1, 9))],
)
def test_where_a_node_is_reached(endpoints: str) -> None:
    assert not endpoints_error(endpoints)


@pytest.mark.parametrize(
    "endpoints",
    [
        "",
        "h",
        "h:1,h:2",
        "A://h:1,h:2",
        "h:1,A://h:2",
        "A://h:1,A://h:2",
        "A://h:1,",
        "A://h:0",
        "a://h:1",
        "A B://h:1",
        "://h:1",
        "A://://h:1",
        "A" * 65 + "://h:1",
        "A://h:1\n",
        ",".join(f"L{i}://h:{i}" for i in range(1, 10)),
        "A://" + "h" * 100_000 + ":1",
    ],
)
def test_where_no_node_is_reached(endpoints: str) -> None:
    error = endpoints_error(endpoints)
    assert error.isprintable()
    assert 0 < len(error) < 500
