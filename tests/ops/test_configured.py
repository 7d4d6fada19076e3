"""The door of a node's console, and its looks, as its configuration wants them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from raftlog.config.load import load_config
from raftlog.config.node import NodeConfig
from raftlog.errors import ConfigError
from raftlog.metadata.image import Image
from raftlog.ops.console import Local, console_of, door_of

TOKEN = "a-token-of-some-length"
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
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "ca")}
    files["key"].touch(mode=0o600)
    made.cert_chain_pems[0].write_to_path(files["certificate"])
    made.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    return {f"tls.{name}.file": str(path) for name, path in files.items()}


def load(**more: str) -> NodeConfig:
    flags = [f"{key}={value}" for key, value in {**NODE, **more}.items()]
    return load_config(None, flags=flags, environment={})


def status(config: NodeConfig, **headers: str) -> int:
    refused = door_of(config).refusal({**HOST, **headers})
    return refused.status if refused else 200


def token_file(directory: Path, mode: int = 0o600) -> str:
    path = directory / "console.token"
    path.touch(mode=0o600)
    path.write_text(TOKEN)
    path.chmod(mode)
    return str(path)


def test_without_security_it_is_open_on_loopback() -> None:
    assert status(load()) == 200


def test_tls_of_the_listeners_closes_it_until_there_is_a_token(
    tls: dict[str, str], tmp_path: Path
) -> None:
    assert status(load(**tls)) == 403
    with_token = load(**tls, **{"http.console.token.file": token_file(tmp_path)})
    assert status(with_token) == 401
    assert status(with_token, authorization=f"Bearer {TOKEN}") == 200


def test_https_and_an_authorizer_close_it_too(tls: dict[str, str]) -> None:
    assert status(load(**tls, **{"http.listener": "https://127.0.0.1:9645"})) == 403
    # The rules of today want TLS beside an authorizer; the door does not rely on them.
    plain = load()
    settings = replace(plain.settings, authorizer_class_name="StandardAuthorizer")
    assert status(replace(plain, settings=settings)) == 403


def test_a_token_is_asked_for_where_nothing_else_is_secured(tmp_path: Path) -> None:
    config = load(**{"http.console.token.file": token_file(tmp_path)})
    assert status(config) == 401
    assert status(config, authorization=f"Bearer {TOKEN}") == 200


def test_a_token_that_others_can_read_keeps_the_node_from_starting(tmp_path: Path) -> None:
    config = load(**{"http.console.token.file": token_file(tmp_path, 0o644)})
    with pytest.raises(ConfigError, match="chmod 600"):
        door_of(config)


async def test_the_looker_is_imported_at_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
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
