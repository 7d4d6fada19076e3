"""A command that can reach nobody says so at once, and does not wait where somebody may answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from command_lines import Raftlog

from raftlog.client.admission import require_listener
from raftlog.errors import ApiError, ErrorCode


@pytest.fixture
def dead() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_all_refuse(dead: str) -> None:
    with pytest.raises(ApiError, match=f"nobody listens at {dead} ") as caught:
        require_listener([dead])
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
    assert not caught.value.outcome_unknown
    with pytest.raises(ApiError, match=f"nobody listens at {dead} and {dead} "):
        require_listener([dead, dead])


def test_a_name_that_nobody_knows_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(error, "no")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = socket.EAI_NONAME
    with pytest.raises(ApiError, match="the host of brokr:9092 is not known"):
        require_listener(["brokr:9092"])
    # A name server that does not answer says nothing about the name.
    error = socket.EAI_AGAIN
    require_listener(["brokr:9092"])


def test_an_http_server_is_told_from_a_node(dead: str, silent: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(ApiError, match=f"{address} answers as an HTTP server") as caught:
            require_listener([address], plaintext=True)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        with pytest.raises(ApiError, match=f"nobody listens at {dead} .*; {address} answers"):
            require_listener([dead, address], plaintext=True)
        require_listener([address, silent], plaintext=True)
        require_listener([address])
    finally:
        server.shutdown()
        server.server_close()


def test_one_that_does_not_refuse_is_enough(dead: str, silent: str) -> None:
    require_listener([dead, silent])
    require_listener([silent, dead])


def test_a_host_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()

    def connect(address: object, timeout: float) -> socket.socket:
        said.wait(30)
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", connect)
    begun = time.monotonic()
    require_listener(["far.example:9092"])
    said.set()
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "list", "--bootstrap-server"),
        ("configs", "alter", "topic", "t", "--set", "a=b", "--bootstrap-controller"),
        ("produce", "t", "--value", "x", "--bootstrap-server"),
        ("consume", "t", "--bootstrap-server"),
        ("log", "dump", "--bootstrap-controller"),
    ],
    ids=" ".join,
)
def test_commands_say_it_long_before_their_timeout(
    raftlog: Raftlog, dead: str, command: tuple[str, ...]
) -> None:
    begun = time.monotonic()
    ran = raftlog(*command, dead)
    assert time.monotonic() - begun < 8, "the default timeout is 10 s, and consume has none"
    assert ran.code == 4
    assert "nobody listens at" in ran.err
    assert "nothing was sent" in ran.err
