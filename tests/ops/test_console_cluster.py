"""The console of real nodes with TLS in a real browser, while the cluster fails."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tls_files
import trustme
from browser import find_browser
from chromium_kit import Page, browsing

from raftlog import Client
from raftlog.local.cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from cluster_kit import running

TOKEN = "a-token-of-some-length"
ENTER = (
    f"document.getElementById('token').value = '{TOKEN}';"
    "document.getElementById('signin').requestSubmit()"
)
PHONE = (390, 844)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_browser() is None, reason="NO BROWSER: there is none on this machine"),
]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[LocalCluster]:
    files = tls_files.issue(tmp_path, trustme.CA())
    token = tmp_path / "console.token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    settings = {
        "tls.certificate.file": str(files.certificate_path),
        "tls.key.file": str(files.private_key_path),
        "tls.ca.file": str(files.ca_path),
        "http.console.token.file": str(token),
    }
    cluster = LocalCluster(tmp_path / "c", controllers=3, brokers=3, settings=settings)
    cluster.tls = files
    with running(cluster):
        with _client(cluster, cluster.bootstrap_servers) as client:
            client.topics.create("orders", partitions=6, acks="visible")
            client.configs.alter("topic", "orders", set={"min.insync.replicas": 2})
        yield cluster


def _client(cluster: LocalCluster, addresses: str) -> Client:
    files = cluster.tls
    assert files is not None
    return Client(
        addresses,
        tls_ca_file=str(files.ca_path),
        tls_certificate_file=str(files.certificate_path),
        tls_key_file=str(files.private_key_path),
    )


def _text(page: Page, section: str) -> str:
    found: str = page.value(f"document.getElementById('{section}').innerText")
    return " ".join(found.split())


def _until_shown(page: Page, section: str, text: str) -> None:
    page.until(f"document.getElementById('{section}').innerText.includes({text!r})")


def _roles(page: Page) -> dict[str, int]:
    """Return the roles of the tables that a screen reader announces."""
    counts: dict[str, int] = {}
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value", "")
        counts[role] = counts.get(role, 0) + 1
    return {role: counts.get(role, 0) for role in ("table", "row", "cell", "columnheader")}


def test_signed_in_console_shows_the_failing_cluster(secured: LocalCluster, tmp_path: Path) -> None:
    watched, paused = secured.brokers[:2]
    with browsing(tmp_path / "browser") as page:
        page.size(*PHONE)
        page.call("Page.navigate", url=f"{watched.http}/console")
        page.until("document.getElementById('signin')?.hidden === false")
        assert "orders" not in page.value("document.body.innerText")
        page.value(ENTER)
        _until_shown(page, "topics", "orders")
        leader = secured.leader()
        assert leader is not None
        assert f"node {leader.node_id}" in _text(page, "figures")
        assert _text(page, "findings") == "Findings No problems."
        assert "min.insync.replicas" in _text(page, "changes")
        _until_shown(page, "incidents", "min.insync.replicas of topic orders was set to 2")
        narrow = _roles(page)
        page.size(*PHONE, dark=True)
        assert page.value("document.documentElement.scrollWidth") <= PHONE[0]
        page.size(1280, 900)
        wide = _roles(page)
        assert wide["table"] >= 6
        assert wide["columnheader"] > 20
        # A phone's screen reader hears tables, too; only cells that are empty are left out.
        assert narrow.pop("cell") <= wide.pop("cell")
        assert narrow == wide

        pid = secured.pid(paused.name)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            with _client(secured, secured.bootstrap_servers) as client:
                client.configs.alter("topic", "orders", set={"retention.ms": 3_600_000})
            _until_shown(page, "brokers", "holds back LAO")
            assert f"({paused.node_id})" in _text(page, "figures")
        finally:
            os.kill(pid, signal.SIGCONT)

        lost = [node for node in secured.controllers if node is not leader]
        for node in lost:
            secured.kill(node.name, signal.SIGKILL)
        _until_shown(page, "findings", "1 of 3 voters answers, but 2 are needed")
        assert page.value("document.getElementById('verdict').textContent") == "down"
        assert "Leader none" in _text(page, "figures")
        page.size(*PHONE)
