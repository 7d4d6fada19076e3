"""The console over HTTP: access, load and configuration."""

import asyncio
import json
import re
import ssl
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tls_files
import trustme
from console_kit import OPEN, Counted, Stream, serving
from structlog.testing import capture_logs

from raftlog.errors import ConfigError
from raftlog.metadata.image import Image
from raftlog.node.config.load import load_config
from raftlog.node.config.node import NodeConfig
from raftlog.node.observability.http_rules import HttpRules
from raftlog.ops import console as routes
from raftlog.ops.console import Door, Feed, Local, console_of, door_of

TOKEN = "a-token-of-some-length"


async def test_page_loads_only_what_the_node_serves_and_has_no_inline_script() -> None:
    async with serving(Counted().look) as (address, _):
        async with Stream(address, "/console") as page:
            assert page.status == 200
            assert "script-src 'self'" in page.head
            assert "default-src 'none'" in page.head
            text = await page.body()
        loaded = re.findall(r'(?:src|href)="([^"#]+)"', text)
        assert sorted(loaded) == [
            "/console/console.css",
            "/console/console.js",
            "/console/curves.js",
            "/console/icon.svg",
        ]
        assert not re.search(r"<script(?![^>]* src=)|<style| on\w+=| style=", text)
        for path in loaded:
            async with Stream(address, path) as asset:
                assert asset.status == 200
                assert "nosniff" in asset.head
                assert "http" not in re.sub("http://www.w3.org/2000/svg", "", await asset.body())


@pytest.mark.parametrize("script", ["console.js", "curves.js"])
async def test_script_inserts_no_markup_into_the_page(script: str) -> None:
    async with (
        serving(Counted().look) as (address, _),
        Stream(address, f"/console/{script}") as asset,
    ):
        text = await asset.body()
    assert "replaceChildren" in text
    for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Storage"):
        assert way not in text


async def test_console_collects_nothing_without_a_viewer() -> None:
    counted = Counted()
    async with serving(counted.look) as (address, console):
        await asyncio.sleep(0.1)
        assert counted.looks == 0
        async with Stream(address) as stream:
            assert stream.status == 200
            assert "text/event-stream" in stream.head
            first = (await stream.data())["look"]
            assert (await stream.data())["look"] > first
        while console.feed.subscribers:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        looks = counted.looks
        await asyncio.sleep(0.2)
        assert counted.looks == looks


async def test_console_collects_once_for_all_viewers() -> None:
    counted = Counted()
    async with serving(counted.look, pause_s=0.05) as (address, _):
        streams = [Stream(address) for _ in range(10)]
        for stream in streams:
            await stream.__aenter__()
        for _ in range(4):
            await asyncio.gather(*(stream.data() for stream in streams))
        assert counted.looks <= 8
        for stream in streams:
            await stream.__aexit__()


async def test_console_bounds_its_viewers_and_frees_slots() -> None:
    async with serving(Counted().look, max_subscribers=4) as (address, console):
        async with Stream(address), Stream(address), Stream(address) as third:
            assert third.status == 503
            assert "retry-after" in third.head
        while console.feed.subscribers:
            await asyncio.sleep(0.01)
        async with Stream(address) as again:
            assert again.status == 200


async def test_viewer_that_does_not_read_is_sent_nothing_more() -> None:
    looks = 0

    async def large() -> bytes:
        nonlocal looks
        looks += 1
        return b'"' + b"x" * 4_000_000 + b'"'

    async with serving(large, pause_s=0.01) as (address, _), Stream(address):
        await asyncio.sleep(0.3)
        seen = looks
        await asyncio.sleep(0.3)
        assert 0 < looks == seen


async def test_stalled_viewer_loses_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "STALLED_S", 0.1)

    async def large() -> bytes:
        return b'"' + b"x" * 4_000_000 + b'"'

    with capture_logs() as logs:
        async with serving(large, pause_s=0.01) as (address, console):
            async with Stream(address), Stream(address):
                async with asyncio.timeout(30):
                    while console.feed.subscribers:
                        await asyncio.sleep(0.01)
            async with Stream(address) as another:
                assert another.status == 200
    assert logs == []


async def test_viewer_slots_are_shared_by_address() -> None:
    feed = Feed(Counted().look, pause_s=1, max_subscribers=8)
    assert [feed.subscribe("10.0.0.6") for _ in range(5)] == [True] * 4 + [False]
    assert feed.subscribe("10.0.0.7")
    await feed.close()


async def test_new_viewer_receives_no_survey_from_before_a_pause() -> None:
    feed = Feed(Counted().look, pause_s=0.05, max_subscribers=8)
    first = await feed.after(0)
    assert await feed.after(0) == first, "that is new enough for another one"
    await asyncio.sleep(0.2)
    number, _ = await feed.after(0)
    assert number > first[0]
    await feed.close()


async def test_failed_survey_ends_nothing() -> None:
    counted = Counted()

    async def failing() -> bytes:
        made = await counted.look()
        if counted.looks < 3:
            raise ValueError("no luck")
        return made

    async with serving(failing) as (address, _), Stream(address) as stream:
        assert await stream.data() == {"look": 3}


async def test_stop_closes_streams_at_once() -> None:
    begun = asyncio.get_running_loop().time()
    async with serving(Counted().look, pause_s=60) as (address, _):
        stream = await Stream(address).__aenter__()
        await stream.data()
        begun = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - begun < 0.9
    with pytest.raises(EOFError):
        await stream.data()
    await stream.__aexit__()


async def test_closed_feed_accepts_no_viewer() -> None:
    feed = Feed(Counted().look, pause_s=1, max_subscribers=2)
    await feed.close()
    assert not feed.subscribe("10.0.0.1")
    assert await feed.after(0) == (0, b"")


async def test_only_the_token_opens_the_console() -> None:
    door = Door(secured=True, token=TOKEN)
    counted = Counted()
    async with serving(counted.look, door) as (address, _):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            async with Stream(address, **headers) as refused:
                assert refused.status == 401
                assert "token" in await refused.body()
        async with Stream(address, f"/console/events?token={TOKEN}") as in_url:
            assert in_url.status == 401
        assert counted.looks == 0
        async with Stream(address, Authorization=f"Bearer {TOKEN}") as stream:
            assert "look" in await stream.data()


async def test_secured_node_without_a_token_shows_nothing() -> None:
    counted = Counted()
    async with (
        serving(counted.look, Door(secured=True)) as (address, _),
        Stream(address, Authorization="Bearer x") as refused,
    ):
        assert refused.status == 403
        assert "http.console.token.file" in await refused.body()
    assert counted.looks == 0


async def test_cross_origin_pages_read_nothing() -> None:
    async with serving(Counted().look, OPEN) as (address, _):
        for headers, status in (
            ({"Host": "evil.example:9645"}, 421),
            ({"Host": ""}, 421),
            ({"Sec_Fetch_Site": "cross-site"}, 403),
            ({"Sec_Fetch_Site": "same-site"}, 403),
            ({"Sec_Fetch_Site": "same-origin"}, 200),
            ({"Host": "localhost:9645"}, 200),
            ({"Host": "[::1]:9645"}, 200),
        ):
            async with Stream(address, **headers) as stream:
                assert stream.status == status, headers


async def test_tls_console_requires_a_certificate_too(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = tls_files.issue(tmp_path, authority)
    door = Door(secured=True, token=TOKEN)
    contexts = tls.rereading_server_contexts()
    async with serving(Counted().look, door, rules=HttpRules(contexts)) as (address, _):
        for certified, status in ((False, b"403"), (True, b"200")):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            if certified:
                authority.issue_cert("client@example.org").configure_cert(context)
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            request = (
                f"GET /console/events HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}"
            )
            writer.write(f"{request}\r\n\r\n".encode())
            assert (await asyncio.wait_for(reader.readline(), 30)).split()[1] == status
            writer.close()


def _written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (TOKEN, 0o644, "chmod 600"),
        ("short", 0o600, "at least 16"),
        ("two words of some length", 0o600, "one word"),
        ("", 0o600, "at least 16"),
        (None, 0, "No such file"),
    ],
)
def test_unusable_token_file_prevents_the_start(
    tmp_path: Path, text: str | None, mode: int, why: str
) -> None:
    path = tmp_path / "token"
    if text is not None:
        _written(path, text, mode)
    with pytest.raises(ConfigError, match=why):
        door_of(load(**{"http.console.token.file": str(path)}))


HOST = {"host": "127.0.0.1:9645"}
NODE = {
    "process.roles": "controller",
    "node.id": "1",
    "cluster.id": "c",
    "log.dirs": "data",
    "listeners": "127.0.0.1:9093",
    "http.listener": "127.0.0.1:9645",
    "controller.quorum.voters": "1@127.0.0.1:9093",
}


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    files = tls_files.issue(tmp_path, trustme.CA()).paths
    return {
        f"tls.{name}.file": str(path)
        for name, path in zip(("certificate", "key", "ca"), files, strict=True)
    }


def load(**more: str) -> NodeConfig:
    flags = [f"{key}={value}" for key, value in {**NODE, **more}.items()]
    return load_config(None, flags=flags, environment={})


def status(config: NodeConfig, **headers: str) -> int:
    refused = door_of(config).refusal({**HOST, **headers})
    return refused.status if refused else 200


def token_file(directory: Path) -> str:
    return str(_written(directory / "console.token", TOKEN + "\n"))


def test_tls_listeners_close_the_console_without_token(tls: dict[str, str], tmp_path: Path) -> None:
    assert status(load(**tls)) == 403
    with_token = load(**tls, **{"http.console.token.file": token_file(tmp_path)})
    assert status(with_token) == 401
    assert status(with_token, authorization=f"Bearer {TOKEN}") == 200


def test_https_or_an_authorizer_closes_the_console_too(tls: dict[str, str]) -> None:
    assert status(load(**tls, **{"http.listener": "https://127.0.0.1:9645"})) == 403
    # The rules of today want TLS beside an authorizer; the door does not rely on them.
    plain = load()
    assert status(plain) == 200
    settings = replace(plain.settings, authorizer_class_name="StandardAuthorizer")
    assert status(replace(plain, settings=settings)) == 403


def test_token_is_required_even_if_nothing_else_is_secured(tmp_path: Path) -> None:
    config = load(**{"http.console.token.file": token_file(tmp_path)})
    assert (status(config), status(config, authorization=f"Bearer {TOKEN}")) == (401, 200)


async def test_survey_module_is_imported_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "raftlog.ops.console_page", raising=False)
    local = Local("controller", 1, Image, lambda most: [], lambda: 0, lambda: ["127.0.0.1:1"])
    console = console_of(load(), local)
    assert "raftlog.ops.console_page" not in sys.modules
    assert console.feed.subscribe("10.0.0.1")
    number, newest = await console.feed.after(0)
    await console.close()
    assert number == 1
    assert "raftlog.ops.console_page" in sys.modules
    seen = json.loads(newest)
    assert seen["node"] == {"role": "controller", "node_id": 1}
    assert seen["findings"][0]["code"] == "NOBODY_ANSWERS"
