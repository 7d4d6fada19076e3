"""Errors of failed TLS connections."""

import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from tls_files import issue

from raftlog.client import admission
from raftlog.client.admission import require_listener
from raftlog.errors import ApiError
from raftlog.transport.certificates import TlsFiles, first_end
from raftlog.transport.probe import TlsSeen, TlsTrouble, speaks_tls, tls_trouble

import grpc  # isort: skip

HOST = "127.0.0.1"
PATIENCE_S = 5.0
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
VALID = (NOW - DAY, NOW + 9 * DAY)
PAST = (NOW - 9 * DAY, NOW - DAY)
FUTURE = (NOW + DAY, NOW + 9 * DAY)


def said(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handshakes have seconds: on a busy machine a tenth of a second is too short."""
    monkeypatch.setattr(admission, "PATIENCE_S", PATIENCE_S)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def files(
    authority: trustme.CA, directory: Path, validity: tuple[datetime, datetime] = VALID
) -> TlsFiles:
    certificate, key, ca = issue(
        directory, authority, host="client.example", validity=validity
    ).paths
    return TlsFiles(ca, certificate, key)


@contextmanager
def grpc_server(
    authority: trustme.CA, name: str = HOST, validity: tuple[datetime, datetime] = VALID
) -> Iterator[int]:
    """A server that requires a certificate of the authority."""
    made = authority.issue_cert(name, not_before=validity[0], not_after=validity[1])
    pair = (made.private_key_pem.bytes(), made.cert_chain_pems[0].bytes())
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([pair], authority.cert_pem.bytes(), True)
    port = server.add_secure_port(f"{HOST}:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(0)


@contextmanager
def http_server(context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer((HOST, 0), BaseHTTPRequestHandler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def look(port: int, mine: TlsFiles) -> TlsSeen:
    return tls_trouble(HOST, port, mine, PATIENCE_S)


def refused(port: int, mine: TlsFiles) -> str:
    """Return the error of a command; empty if it continues."""
    try:
        require_listener([f"{HOST}:{port}"], files=mine)
    except ApiError as error:
        return str(error)
    return ""


def test_accepted_client_has_no_error(authority: trustme.CA, tmp_path: Path) -> None:
    mine = files(authority, tmp_path / "mine")
    with grpc_server(authority) as port:
        assert look(port, mine).trouble is TlsTrouble.NONE
        assert refused(port, mine) == ""
        assert speaks_tls(HOST, port, PATIENCE_S)
        with pytest.raises(ApiError, match="requires TLS: set RAFTLOG_TLS_CA_FILE"):
            require_listener([f"{HOST}:{port}"], plaintext=True)


def test_problem_of_the_server_certificate_is_reported(
    authority: trustme.CA, tmp_path: Path
) -> None:
    mine = files(authority, tmp_path / "mine")
    for validity, trouble, text in [
        (PAST, TlsTrouble.EXPIRED, f"that expired {said(PAST[1])}"),
        (FUTURE, TlsTrouble.NOT_YET_VALID, f"that is not valid until {said(FUTURE[0])}"),
    ]:
        with grpc_server(authority, validity=validity) as port:
            seen = look(port, mine)
            assert seen.trouble is trouble
            assert seen.text == f"presents a certificate {text}"
            assert seen.text in refused(port, mine)
    with grpc_server(trustme.CA()) as port:
        assert look(port, mine).trouble is TlsTrouble.OTHER_AUTHORITY
        assert "of another authority" in refused(port, mine)
    with grpc_server(authority, "other.example") as port:
        assert look(port, mine).trouble is TlsTrouble.OTHER_NAME
        assert f"does not name {HOST}" in refused(port, mine)


def test_problem_of_the_client_certificate_is_reported(
    authority: trustme.CA, tmp_path: Path
) -> None:
    past = files(authority, tmp_path / "past", PAST)
    future = files(authority, tmp_path / "future", FUTURE)
    stranger = files(trustme.CA(), tmp_path / "stranger")
    with grpc_server(authority) as port:
        for mine, text in [
            (past, f"which expired {said(PAST[1])}"),
            (future, f"which is not valid until {said(FUTURE[0])}"),
        ]:
            seen = look(port, mine)
            assert seen == TlsSeen(TlsTrouble.OWN_EXPIRED, f"rejects {mine.certificate}, {text}")
            assert text in refused(port, mine)
        trusting = TlsFiles(past.ca, stranger.certificate, stranger.key)
        assert look(port, trusting).trouble is TlsTrouble.OWN_REFUSED
        assert look(port, TlsFiles(past.ca)).trouble is TlsTrouble.OWN_REFUSED
        assert refused(port, trusting) == "", "one that stops hangs up, too"


def test_handshake_names_servers_of_other_protocols(authority: trustme.CA, tmp_path: Path) -> None:
    mine = files(authority, tmp_path / "mine")
    with http_server() as port:
        assert look(port, mine).trouble is TlsTrouble.PLAINTEXT
        assert "answers as an HTTP server" in refused(port, mine)
        assert not speaks_tls(HOST, port, PATIENCE_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    with http_server(context) as port:
        assert look(port, mine).trouble is TlsTrouble.NOT_H2
        assert "answers as an HTTP server" in refused(port, mine)
    plain = grpc.server(ThreadPoolExecutor(1))
    port = plain.add_insecure_port(f"{HOST}:0")
    plain.start()
    try:
        assert look(port, mine).trouble is TlsTrouble.PLAINTEXT
        assert "does not use TLS" in refused(port, mine)
        require_listener([f"{HOST}:{port}"], plaintext=True)
    finally:
        plain.stop(0)


def test_unreadable_files_are_left_to_the_connection(tmp_path: Path) -> None:
    with http_server() as port:
        assert look(port, TlsFiles(tmp_path / "none")).trouble is TlsTrouble.NONE


def test_first_end_is_that_of_the_first_certificate_to_expire(
    authority: trustme.CA, tmp_path: Path
) -> None:
    paths = [
        files(authority, tmp_path / name, validity).certificate
        for name, validity in (("valid", VALID), ("past", PAST))
    ]
    (tmp_path / "other").write_text("no certificate")
    found = first_end([path for path in paths if path] + [tmp_path / "other", tmp_path / "none"])
    assert found is not None
    assert said(found) == said(PAST[1])
    assert first_end([tmp_path / "none"]) is None
