"""The console in a real browser, if installed: foreign text does not run."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from browser import find_browser
from chromium_kit import Page, browsing
from console_kit import OPEN, serving

from raftlog.metadata.image import Image
from raftlog.ops.console import Door
from raftlog.ops.console_page import document
from raftlog.ops.evidence import Survey

TOKEN = "a-token-of-some-length"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_browser() is None, reason="NO BROWSER: there is none on this machine"),
]


async def look() -> bytes:
    """Return a survey in which every text that others may choose is hostile and long."""
    made: dict[str, Any] = document(
        Survey((), None, HOSTILE, 5), Image(), [], None, {"role": "broker", "node_id": 4}
    )
    made["cluster_id"] = HOSTILE
    made["topics"] = {"total": 900, "shown": [{"name": HOSTILE, "partitions": 3}] * 3}
    config = {"resource": "topic " + "x" * 249, "key": HOSTILE, "value": HOSTILE + "y" * 400}
    made["configs"] = {"resources": 1, "more": True, "shown": [config]}
    key = {"key": "k" * 249, "value": HOSTILE, "bytes": 9, "offset": 1, "lease_id": None}
    made["keys"] = {"total": 900, "partial": True, "shown": [key]}
    lock = {"kind": "lock", "name": HOSTILE, "holder": HOSTILE, "lease_id": 7, "waiting": 1}
    made["locks"] = {"total": 1, "partial": False, "shown": [lock]}
    lease = {"id": 7, "name": HOSTILE, "ttl_ms": 10_000, "principal": HOSTILE}
    made["leases"] = {"total": 1, "partial": False, "shown": [lease]}
    made["findings"] = [
        {
            "severity": "down",
            "cause": HOSTILE,
            "consequence": HOSTILE,
            "remedy": HOSTILE,
            "command": HOSTILE,
        }
    ]
    change = {
        "offset": 1,
        "at_ms": 5,
        "by": HOSTILE,
        "who": HOSTILE,
        "type": "CONFIG",
        "sentence": HOSTILE,
        "partitions": 0,
        "times": 1,
    }
    made["changes"] = [change]
    line = {"at_ms": 5, "weight": "trouble", "text": HOSTILE, "lasted": "", "because": [HOSTILE]}
    made["incidents"] = {"summary": [HOSTILE], "missing": [HOSTILE], "shown": [line]}
    return json.dumps(made).encode()


def _hostile_page(page: Page, address: str) -> None:
    page.size(390, 844)
    page.call("Page.navigate", url=f"http://{address}/console")
    page.until("document.querySelector('#configs td') !== null")
    assert page.value("document.title") == "healthy · raftlog console"
    assert page.value("document.querySelectorAll('main script, main img').length") == 0
    assert page.value("document.querySelector('#topics td span').textContent") == HOSTILE
    # Nothing is wider than a phone.
    assert page.value("document.documentElement.scrollWidth") <= 390
    # Nor would markup run if some came in.
    page.value("document.getElementById('foot').innerHTML = " + json.dumps(HOSTILE))
    assert page.value("new Promise((done) => setTimeout(() => done(true), 200))") is True
    assert page.value("document.title") == "healthy · raftlog console"


async def test_console_shows_foreign_text_inert_at_phone_width(tmp_path: Path) -> None:
    def visit(address: str) -> None:
        with browsing(tmp_path) as page:
            _hostile_page(page, address)

    async with serving(look, OPEN) as (address, _):
        await asyncio.to_thread(visit, address)


async def test_page_of_a_hanging_node_is_marked_as_not_live(tmp_path: Path) -> None:
    """[A paused node keeps its connections: its last survey was shown as live.]"""
    looks = 0

    async def first_only() -> bytes:
        nonlocal looks
        looks += 1
        if looks > 1:
            await asyncio.Event().wait()
        return await look()

    def visit(address: str) -> None:
        with browsing(tmp_path) as page:
            page.call("Page.navigate", url=f"http://{address}/console")
            page.until("document.querySelector('#configs td') !== null")
            assert not page.value("document.getElementById('main').classList.contains('stale')")
            page.until("document.getElementById('problem').innerText.includes('sent nothing')")
            assert page.value("document.getElementById('main').classList.contains('stale')")
            assert page.value("document.getElementById('verdict').innerText") == "unknown"
            # Of the node's clock, not of the browser's.
            assert "as of 1970-01-01" in page.value("document.getElementById('live').innerText")

    async with serving(first_only, OPEN) as (address, _):
        await asyncio.to_thread(visit, address)


def _signs_in(page: Page, address: str) -> None:
    page.call("Page.navigate", url=f"http://{address}/console")
    page.until("document.getElementById('signin')?.hidden === false")
    enter = (
        "document.getElementById('token').value = '{}';"
        "document.getElementById('signin').requestSubmit()"
    )
    page.value(enter.format("not-it"))
    page.until("document.getElementById('why').textContent === 'the token is wrong'")
    assert page.value("document.getElementById('main').hidden")
    page.value(enter.format(TOKEN))
    page.until("document.querySelector('#configs td') !== null")
    assert TOKEN not in page.value("location.href + document.documentElement.outerHTML")
    assert page.value("localStorage.length + sessionStorage.length") == 0


async def test_secured_node_asks_for_its_token(tmp_path: Path) -> None:
    def visit(address: str) -> None:
        with browsing(tmp_path) as page:
            _signs_in(page, address)

    async with serving(look, Door(secured=True, token=TOKEN)) as (address, _):
        await asyncio.to_thread(visit, address)
