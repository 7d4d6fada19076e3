"""A command that reaches no node says so at once, and waits where one may answer."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from command_lines import Raftlog

from raftlog.client.admission import require_listener
from raftlog.client.quorum_queries import cluster_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

TIMEOUT_S = 0.2

COMMANDS = [
    ("quorum describe", "controller"),
    ("brokers list", "controller"),
    ("topics create t", "controller"),
    ("topics create t", "server"),
    ("topics delete t", "server"),
    ("topics list", "server"),
    ("topics describe t", "server"),
    ("configs alter topic t --set a=b", "controller"),
    ("configs describe topic t", "server"),
    ("produce t --value x", "server"),
    ("consume t", "server"),
    ("partitions isr t", "server"),
    ("log dump", "controller"),
    ("log image", "controller"),
    ("export out", "controller"),
]


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(scope="module")
def dead() -> Iterator[str]:
    """A port without a listener, reserved until the context ends."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(("command", "option"), COMMANDS)
def test_unreachable_cluster_exits_with_4_at_its_timeout_or_at_once(
    raftlog: Raftlog,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    silent: str,
    dead: str,
    command: str,
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for address, timeout in ((silent, ("--timeout", TIMEOUT_S)), (dead, ())):
        began = time.monotonic()
        ran = raftlog(command, f"--bootstrap-{option}", address, *timeout).refused(4, address)
        assert ran.out == ""
        assert time.monotonic() - began < 8, "the default timeout is 10 s, and consume has none"
    refused = (
        "no node of the quorum answers" if command == "quorum describe" else "nothing was sent"
    )
    assert refused in ran.err


@pytest.mark.parametrize(("command", "option"), COMMANDS)
def test_missing_address_exits_with_2_and_help(raftlog: Raftlog, command: str, option: str) -> None:
    if option == "server" and command.startswith(("topics create", "topics delete")):
        option = "controller"  # without either, a write goes to the controller
    raftlog(command).refused(2, f"--bootstrap-{option}", f"RAFTLOG_BOOTSTRAP_{option.upper()}")


def test_malformed_address_is_reported(raftlog: Raftlog) -> None:
    raftlog("brokers list --bootstrap-controller 127.0.0.1").refused(
        2, "--bootstrap-controller: '127.0.0.1' is not host:port"
    )
    raftlog("kv list --bootstrap-server :9092").refused(
        2, "--bootstrap-server: ':9092' has no host"
    )


def test_addresses_are_read_from_the_environment(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, dead: str
) -> None:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP_CONTROLLER", dead)
    monkeypatch.setenv("RAFTLOG_TIMEOUT", "0.3")
    raftlog("brokers list").refused(4, dead)


def test_incomplete_tls_names_what_is_missing(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, dead: str
) -> None:
    monkeypatch.setenv("RAFTLOG_TLS_CA_FILE", "ca.pem")
    raftlog("brokers list --bootstrap-controller", dead).refused(
        2, "missing: RAFTLOG_TLS_CERTIFICATE_FILE, RAFTLOG_TLS_KEY_FILE"
    )


def test_token_is_sent_over_tls_only(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, dead: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(tmp_path / "token"))
    for command in (("brokers", "list"), ("quorum", "describe")):
        raftlog(*command, "--bootstrap-controller", dead).refused(
            2, "RAFTLOG_TOKEN_FILE needs RAFTLOG_TLS_CA_FILE"
        )


def test_missing_token_is_reported_at_once(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, dead: str, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("RAFTLOG_TLS_CA_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(tmp_path / "token"))
    for command in (("brokers", "list"), ("quorum", "describe")):
        raftlog(*command, "--bootstrap-controller", dead).refused(
            2, f"RAFTLOG_TOKEN_FILE: no token: No such file or directory: {tmp_path}"
        )


def test_missing_listener_is_reported_when_all_addresses_refuse(dead: str) -> None:
    with pytest.raises(ApiError, match=f"nothing listens at {dead} ") as caught:
        require_listener([dead])
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
    assert not caught.value.outcome_unknown
    with pytest.raises(ApiError, match=f"nothing listens at {dead} and {dead} "):
        require_listener([dead, dead])


def test_unresolvable_host_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(error, "no")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = socket.EAI_NONAME
    with pytest.raises(ApiError, match="the host name in brokr:9092 cannot be resolved"):
        require_listener(["brokr:9092"])
    # A name server that does not answer says nothing about the name.
    error = socket.EAI_AGAIN
    require_listener(["brokr:9092"])


def test_http_server_is_distinguished_from_a_node(dead: str, silent: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(ApiError, match=f"{address} answers as an HTTP server") as caught:
            require_listener([address], plaintext=True)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        with pytest.raises(ApiError, match=f"nothing listens at {dead} .*; {address} answers"):
            require_listener([dead, address], plaintext=True)
        require_listener([address, silent], plaintext=True)
        require_listener([address])
    finally:
        server.shutdown()
        server.server_close()


def test_missing_listener_is_not_reported_if_one_address_may_listen(dead: str, silent: str) -> None:
    require_listener([dead, silent])
    require_listener([silent, dead])


def test_silent_host_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()

    def connect(address: object, timeout: float) -> socket.socket:
        said.wait(30)
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", connect)
    begun = time.monotonic()
    require_listener(["far.example:9092"])
    said.set()
    assert time.monotonic() - begun < 10


def one(cluster_id: str, role: str = "prospective") -> pb.DescribeQuorumResponse:
    return pb.DescribeQuorumResponse(cluster_id=cluster_id, role=role)


@pytest.mark.parametrize(
    ("answers", "cluster_id"),
    [
        ([], ""),
        ([one("a")], "a"),
        ([one("b"), one("a"), one("a")], "a"),
        ([one("b"), one("b"), one("a", "leader")], "a"),
        ([one("a"), one("b")], ""),
    ],
)
def test_cluster_id_comes_from_the_leader_or_from_most_responses(
    answers: list[pb.DescribeQuorumResponse], cluster_id: str
) -> None:
    """[a voter that was formatted with another cluster id made an outage of this cluster]"""
    assert cluster_of(answers) == cluster_id
