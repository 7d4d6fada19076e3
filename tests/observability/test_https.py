"""HTTP of a node over TLS: health for everyone, the rest with a certificate."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest
import tls_files
import trustme
import uvloop
from http_kit import connected, get, hold, serving

from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.node.observability.http_rules import HttpRules
from raftlog.transport import certificates
from raftlog.transport.tls import TlsConfig
from raftlog.transport.unary import Caller

NEEDED = "a client certificate is required\n"


def put(directory: Path, authority: trustme.CA) -> TlsConfig:
    """Write a certificate and its authority in place of existing ones."""
    return tls_files.issue(directory, authority)


def client(trusted: trustme.CA, shown: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    if shown is not None:
        shown.issue_cert("client@example.org").configure_cert(context)
    return context


def https(
    tls: TlsConfig, may_see: Callable[[Caller], None] | None = None
) -> AbstractAsyncContextManager[str]:
    return serving(HttpRules(tls.rereading_server_contexts(), may_see=may_see))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_https_serves_health_to_all_the_rest_with_a_certificate(tmp_path: Path, loop: str) -> None:
    authority = trustme.CA()
    tls = put(tmp_path, authority)

    async def ask() -> None:
        nobody, somebody = client(authority), client(authority, authority)
        async with https(tls) as address:
            for path, answer in (("/livez", "ok\n"), ("/readyz", "fine\n")):
                assert (await get(address, path, nobody))[::2] == (200, answer)
                assert (await get(address, path, somebody))[::2] == (200, answer)
            for path in ("/metrics", "/"):
                assert (await get(address, path, nobody))[::2] == (403, NEEDED)
                status, _, body = await get(address, path, somebody)
                assert status == 200
                assert "fine" in body or path == "/metrics"
            assert (await get(address, "/nope", nobody))[0] == 404

    (asyncio if loop == "asyncio" else uvloop).run(ask())


async def test_metrics_and_page_require_permission(tmp_path: Path) -> None:
    authority, seen = trustme.CA(), list[Caller]()

    def may_see(caller: Caller) -> None:
        seen.append(caller)
        if not caller.identity.subject.startswith("CN=operator,"):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "User:x may not DESCRIBE")

    tls = put(tmp_path, authority)
    async with https(tls, may_see) as address:
        for name, status in (("operator", 200), ("x", 403)):
            context = client(authority)
            authority.issue_cert("c@example.org", common_name=name).configure_cert(context)
            for path in ("/metrics", "/"):
                got = await get(address, path, context)
                assert got[0] == status
                assert status == 200 or got[2] == "User:x may not DESCRIBE\n"
            assert (await get(address, "/readyz", context))[0] == 200
    assert all(one.address.startswith("127.0.0.1:") for one in seen)
    assert all(len(one.identity.fingerprint) == 64 for one in seen)


async def test_certificate_of_another_authority_is_refused_even_for_health(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    async with https(put(tmp_path, authority)) as address:
        with pytest.raises((OSError, asyncio.IncompleteReadError, IndexError)):
            await get(address, "/livez", client(authority, other))
        assert (await get(address, "/livez", client(authority)))[0] == 200


async def test_plain_http_is_not_answered_on_the_https_port(tmp_path: Path) -> None:
    authority = trustme.CA()
    async with https(put(tmp_path, authority)) as address:
        with pytest.raises((OSError, IndexError)):
            await get(address, "/livez")


async def test_renewed_files_are_used_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_AGAIN_S", 0.0)
    old, new = trustme.CA(), trustme.CA()
    async with https(put(tmp_path, old)) as address:
        assert (await get(address, "/metrics", client(old, old)))[0] == 200
        put(tmp_path, new)
        assert (await get(address, "/metrics", client(new, new)))[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await get(address, "/livez", client(old))
        with pytest.raises((OSError, asyncio.IncompleteReadError, IndexError)):
            await get(address, "/metrics", client(new, old))


@pytest.mark.parametrize(
    ("newest", "refusal"),
    [(ssl.TLSVersion.TLSv1_1, "UNSUPPORTED_PROTOCOL"), (ssl.TLSVersion.TLSv1_2, "")],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_is_1_2_or_later(tmp_path: Path, newest: ssl.TLSVersion, refusal: str) -> None:
    authority = trustme.CA()
    tls = put(tmp_path, authority)
    context = client(authority)
    # Without it OpenSSL does not offer the old ones at all.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = newest
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = context.wrap_bio(down, up, server_hostname="127.0.0.1")
    served = tls.rereading_server_contexts()().wrap_bio(up, down, server_side=True)
    said = ""
    with suppress(ssl.SSLWantReadError):
        asking.do_handshake()
    try:
        served.do_handshake()
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLError as error:
        said = error.reason
    assert said == refusal


async def test_tls_session_is_not_resumed(tmp_path: Path) -> None:
    """It may have been verified against an earlier authority."""
    authority = trustme.CA()
    context = client(authority)
    async with https(put(tmp_path, authority)) as address:
        reader, writer = await connected(address, context)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await reader.read()
        session = writer.get_extra_info("ssl_object").session
        writer.close()
    assert session is None or not session.has_ticket


async def test_silent_handshakes_do_not_block_health_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.node.observability.http_server.HTTP_REQUEST_TIMEOUT_MS", 60_000)
    authority = trustme.CA()
    async with https(put(tmp_path, authority)) as address:

        async def answered() -> None:
            assert (await get(address, "/livez", client(authority)))[::2] == (200, "ok\n")

        await hold(address, 20, answered)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_slow_handshake_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setattr("raftlog.node.observability.http_server.HTTP_REQUEST_TIMEOUT_MS", 200)
    authority = trustme.CA()
    tls = put(tmp_path, authority)

    async def ask() -> None:
        async with https(tls) as address:
            reader, writer = await connected(address)
            writer.write(b"\x16\x03\x01")
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    (asyncio if loop == "asyncio" else uvloop).run(ask())


def test_unusable_tls_files_fail_at_startup(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = put(tmp_path, authority)
    tls.ca_path.write_text("nothing")
    with pytest.raises(ConfigError, match=r"tls\.ca\.file"):
        tls.rereading_server_contexts()
