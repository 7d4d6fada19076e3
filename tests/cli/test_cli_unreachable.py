"""Commands against a cluster that is down say so within their timeout."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from command_lines import Raftlog

TIMEOUT_S = 0.5
GENEROUS_S = 20

COMMANDS = [
    (("quorum", "describe"), "controller"),
    (("brokers", "list"), "controller"),
    (("topics", "create", "t"), "controller"),
    (("topics", "create", "t"), "server"),
    (("topics", "delete", "t"), "server"),
    (("topics", "list"), "server"),
    (("topics", "describe", "t"), "server"),
    (("configs", "alter", "topic", "t", "--set", "a=b"), "controller"),
    (("configs", "describe", "topic", "t"), "server"),
    (("produce", "t", "--value", "x"), "server"),
    (("consume", "t"), "server"),
    (("partitions", "isr", "t"), "server"),
    (("log", "dump"), "controller"),
    (("log", "image"), "controller"),
    (("export", "out"), "controller"),
]


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(scope="module")
def dead() -> Iterator[str]:
    """A port that nobody listens on, and that nobody gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["dead", "silent"])
@pytest.mark.parametrize(
    ("command", "option"),
    COMMANDS,
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_unreachable_is_code_4_within_the_timeout(
    raftlog: Raftlog,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: tuple[str, ...],
    option: str,
    kind: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    address = request.getfixturevalue(kind)
    began = time.monotonic()
    ran = raftlog(*command, f"--bootstrap-{option}", address, "--timeout", TIMEOUT_S)
    assert time.monotonic() - began < GENEROUS_S
    assert ran.code == 4, ran
    assert address in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    ("command", "option"),
    COMMANDS,
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_no_address_is_code_2_and_says_how_to_give_one(
    raftlog: Raftlog, command: tuple[str, ...], option: str
) -> None:
    if option == "server" and command[:2] in {("topics", "create"), ("topics", "delete")}:
        option = "controller"  # without either, a write goes to the controller
    ran = raftlog(*command)
    assert ran.code == 2
    assert f"--bootstrap-{option}" in ran.err
    assert f"RAFTLOG_BOOTSTRAP_{option.upper()}" in ran.err


def test_a_malformed_address_is_named(raftlog: Raftlog) -> None:
    ran = raftlog("brokers", "list", "--bootstrap-controller", "127.0.0.1")
    assert ran.code == 2
    assert "--bootstrap-controller: '127.0.0.1' is not host:port" in ran.err


def test_addresses_from_the_environment(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, dead: str
) -> None:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP_CONTROLLER", dead)
    monkeypatch.setenv("RAFTLOG_TIMEOUT", "0.3")
    ran = raftlog("brokers", "list")
    assert ran.code == 4
    assert dead in ran.err


def test_incomplete_tls_names_what_is_missing(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, dead: str
) -> None:
    monkeypatch.setenv("RAFTLOG_TLS_CA_FILE", "ca.pem")
    ran = raftlog("brokers", "list", "--bootstrap-controller", dead)
    assert ran.code == 2
    assert "missing: RAFTLOG_TLS_CERTIFICATE_FILE, RAFTLOG_TLS_KEY_FILE" in ran.err


def test_a_token_goes_over_tls_only(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, dead: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(tmp_path / "token"))
    for command in (("brokers", "list"), ("quorum", "describe")):
        ran = raftlog(*command, "--bootstrap-controller", dead)
        assert ran.code == 2
        assert "RAFTLOG_TOKEN_FILE needs RAFTLOG_TLS_CA_FILE" in ran.err


def test_a_token_that_is_not_there_is_said_at_once(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, dead: str, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("RAFTLOG_TLS_CA_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(tmp_path / "token"))
    for command in (("brokers", "list"), ("quorum", "describe")):
        ran = raftlog(*command, "--bootstrap-controller", dead)
        assert ran.code == 2
        assert f"RAFTLOG_TOKEN_FILE: no token: No such file or directory: {tmp_path}" in ran.err
