"""Sources of keys, bounded in bytes, time and number of fetches."""

import asyncio
import os
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import trustme
from jwks_endpoint import serving
from structlog.testing import capture_logs
from token_issuer import Issuer

from raftlog.errors import ConfigError
from raftlog.node.security import issuer_keys
from raftlog.node.security.issuer_keys import (
    JWKS_MAX_BYTES,
    EndpointKeys,
    FetchError,
    FileKeys,
    KeySet,
    fetch_keys,
)
from raftlog.transport import certificates

US = Issuer()
URL = "https://issuer.example/jwks"


# --- the endpoint --------------------------------------------------------------------------------


class Fetches:
    """A network on which each fetch waits until the test releases it."""

    def __init__(self) -> None:
        self.count = 0
        self.result: Issuer | Exception = US
        self._go = threading.Semaphore(0)

    def __call__(self, url: str) -> KeySet:
        assert url == URL
        assert threading.current_thread() is not threading.main_thread()
        self.count += 1
        assert self._go.acquire(timeout=30)
        if isinstance(self.result, Exception):
            raise self.result
        # Another object each time.
        return KeySet.parse(self.result.jwks())

    def let_go(self, count: int = 1) -> None:
        self._go.release(count)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


def endpoint(fetches: Fetches, backoff_s: float = 100.0, refresh_s: float = 1000.0) -> EndpointKeys:
    return EndpointKeys(URL, fetches, refresh_s, backoff_s)


async def test_key_set_is_fetched_once_for_all_waiters() -> None:
    fetches = Fetches()
    keys = endpoint(fetches)
    assert keys.current() is None
    waiting = [asyncio.create_task(keys.newer()) for _ in range(50)]
    await asyncio.sleep(0)
    fetches.let_go()
    await asyncio.gather(*waiting)
    assert keys.current() == KeySet.parse(US.jwks())
    # Too soon for another: nobody waits, and nothing is asked.
    await asyncio.gather(*(keys.newer() for _ in range(50)))
    assert fetches.count == 1
    keys.close()


async def test_unknown_key_triggers_one_fetch_after_the_backoff() -> None:
    fetches = Fetches()
    fetches.let_go(3)
    keys = endpoint(fetches, backoff_s=0.05)
    await keys.newer()
    assert fetches.count == 1
    first = keys.current()
    await asyncio.sleep(0.06)
    await asyncio.gather(*(keys.newer() for _ in range(50)))
    assert fetches.count == 2
    assert keys.current() is first, "the same keys are the same object: verdicts stay"
    fetches.result = other = Issuer("k2")
    await asyncio.sleep(0.06)
    await keys.newer()
    assert keys.current() == KeySet.parse(other.jwks())
    keys.close()


async def test_endpoint_is_fetched_again_every_refresh_and_every_backoff_after_a_failure() -> None:
    fetches = Fetches()
    fetches.let_go(100)
    keys = endpoint(fetches, backoff_s=1000.0, refresh_s=0.01)
    await until(lambda: fetches.count > 3)
    keys.close()
    fetches = Fetches()
    fetches.let_go(100)
    fetches.result = FetchError("x")
    keys = endpoint(fetches, backoff_s=0.01)
    await until(lambda: fetches.count > 3)
    keys.close()


async def test_unknown_keys_fetch_once_a_backoff() -> None:
    fetches = Fetches()
    fetches.let_go(100)
    keys = endpoint(fetches, backoff_s=0.2)
    begun = asyncio.get_running_loop().time()
    while fetches.count < 4:
        await keys.newer()
        await asyncio.sleep(0.001)
    assert asyncio.get_running_loop().time() - begun >= 3 * 0.2
    keys.close()


async def test_early_key_fetch_delays_no_request() -> None:
    fetches = Fetches()
    fetches.let_go(100)
    keys = endpoint(fetches, backoff_s=0.2)
    await keys.newer()
    await asyncio.sleep(0.3)
    await keys.newer()
    assert fetches.count == 2
    async with asyncio.timeout(issuer_keys.FETCH_MAX_S / 2):
        await keys.newer()
    keys.close()


async def test_known_keys_are_used_during_failures_which_are_logged_once_per_reason() -> None:
    fetches = Fetches()
    fetches.let_go()
    with capture_logs() as logs:
        keys = endpoint(fetches, backoff_s=0.005, refresh_s=0.01)
        await keys.newer()
        first = keys.current()
        assert first is not None
        for failure in (
            FetchError("the endpoint answered with HTTP status 500"),
            ZeroDivisionError("x"),
        ):
            fetches.result = failure
            for _ in range(3):
                count = fetches.count
                fetches.let_go()
                await until(lambda: fetches.count > count)  # noqa: B023
        assert keys.current() is first
        fetches.result = US
        fetches.let_go()
        await until(lambda: any("again" in one["event"] for one in logs))
        keys.close()
        fetches.let_go()
    assert [one.get("error") for one in logs if one["log_level"] == "warning"] == [
        "the endpoint answered with HTTP status 500",
        "ZeroDivisionError: x",
    ]


async def test_waiters_give_up_on_a_slow_key_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "FETCH_MAX_S", 0.01)
    fetches = Fetches()
    keys = endpoint(fetches)
    await keys.newer()
    assert keys.current() is None
    await keys.newer()
    assert fetches.count == 1, "one that hangs is the only one"
    keys.close()
    fetches.let_go()


async def test_closed_key_source_releases_waiters_and_ignores_answers() -> None:
    fetches = Fetches()
    keys = endpoint(fetches, backoff_s=0.001, refresh_s=0.001)
    await until(lambda: fetches.count == 1)
    waiting = asyncio.create_task(keys.newer())
    await asyncio.sleep(0)
    keys.close()
    await waiting
    fetches.let_go()
    await asyncio.sleep(0.02)
    await keys.newer()
    assert (keys.current(), fetches.count) == (None, 1)


# --- the network ---------------------------------------------------------------------------------


def test_keys_are_fetched_from_a_url() -> None:
    with serving(US.jwks()) as found:
        assert fetch_keys(found.url) == KeySet.parse(US.jwks())


def test_proxy_is_not_used_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(US.jwks()) as found:
        assert fetch_keys(found.url).ids == {"k1"}


def test_https_uses_system_authorities(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(US.jwks(), context) as found:
        with pytest.raises(FetchError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch_keys(found.url)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert fetch_keys(found.url).ids == {"k1"}


def redirect(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "/elsewhere")
    handler.end_headers()


def fail(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(503)
    handler.end_headers()


def flood(handler: BaseHTTPRequestHandler) -> None:
    """Send as long as the client reads."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100_000):
        handler.wfile.write(b" " * 65_536)


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then, forever."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(10_000):
        handler.wfile.write(b" ")
        threading.Event().wait(0.005)


def silence(handler: BaseHTTPRequestHandler) -> None:
    threading.Event().wait(1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (redirect, "the endpoint answered with HTTP status 302"),
        (fail, "the endpoint answered with HTTP status 503"),
        (flood, f"more than {JWKS_MAX_BYTES} bytes"),
        (trickle, "took longer than"),
        (silence, "timed out"),
    ],
)
def test_invalid_key_response_is_reported(
    answer: Callable[[BaseHTTPRequestHandler], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "FETCH_MAX_S", 0.1)
    monkeypatch.setattr(issuer_keys, "_WAIT_MAX_S", 0.1)
    with serving() as found:
        found.answer = answer
        with pytest.raises(FetchError, match=why):
            fetch_keys(found.url)
        assert found.asked == 1


def test_key_fetch_fails_without_a_server_or_with_other_content() -> None:
    with serving(b"<html>") as found:
        with pytest.raises(FetchError, match="not JSON"):
            fetch_keys(found.url)
        url = found.url
    with pytest.raises(FetchError, match="refused"):
        fetch_keys(url)


# --- a file --------------------------------------------------------------------------------------


def write(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


async def test_changed_key_file_is_reread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_AGAIN_S", 0.0)
    path, other = tmp_path / "jwks.json", Issuer("k2")
    write(path, US.jwks())
    keys = FileKeys(path)
    assert keys.current() is keys.current()
    write(path, other.jwks())
    await keys.newer()
    assert keys.current() == KeySet.parse(other.jwks())
    with capture_logs() as logs:
        for content in (b"{", b" " * (JWKS_MAX_BYTES + 1)):
            write(path, content)
            assert keys.current() == KeySet.parse(other.jwks())
        path.unlink()
        assert keys.current() == KeySet.parse(other.jwks())
    assert [one["event"] for one in logs] == [
        "changed JWKS files are invalid: the previous ones stay in use"
    ] * 3
    keys.close()


def test_key_file_without_keys_fails_at_startup(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url: No such file"):
        FileKeys(tmp_path / "nothing")
    write(tmp_path / "jwks.json", b"[]")
    with pytest.raises(ConfigError, match="is not a JWK set: the content has no list"):
        FileKeys(tmp_path / "jwks.json")
