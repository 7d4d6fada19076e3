"""``raftlog certs token``: tokens that nodes with the recommended settings accept."""

import json
import shlex
import time
import tomllib
from pathlib import Path

import pytest
from command_lines import Raftlog
from command_runs import Ran

from raftlog.identity import ANONYMOUS_PRINCIPAL, TokenRefusedError
from raftlog.node.config.token_rules import jwks_file
from raftlog.node.security.issuer_keys import KeySet
from raftlog.node.security.token_rules import TokenRules


@pytest.fixture
def pki(raftlog: Raftlog, tmp_path: Path) -> Path:
    """A new authority's directory."""
    raftlog.succeed("certs init", tmp_path / "pki")
    return tmp_path / "pki"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def nodes_settings(ran: Ran) -> dict[str, str]:
    assert ran.code == 0, ran
    lines = [line.removeprefix("#   ") for line in ran.out.splitlines() if line.startswith("#   ")]
    return tomllib.loads("\n".join(lines))


def principal(ran: Ran, token: Path, now_s: float) -> str:
    """Return the principal that a node with the recommended settings derives from the token."""
    found = nodes_settings(ran)
    file = jwks_file(found["sasl.oauthbearer.jwks.endpoint.url"])
    assert file is not None
    rules = TokenRules(
        found["sasl.oauthbearer.expected.issuer"],
        frozenset({found["sasl.oauthbearer.expected.audience"]}),
    )
    keys = KeySet.parse(file.read_bytes())
    return rules.prove(token.read_text().strip(), keys, now_s).principal


def test_nodes_accept_the_token_until_it_expires(
    raftlog: Raftlog, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pki.parent)
    ran = raftlog("certs token pki --client alice --minutes 5")
    token = pki / "client-alice.token"
    now_s = time.time()
    assert principal(ran, token, now_s) == "User:alice" != ANONYMOUS_PRINCIPAL
    with pytest.raises(TokenRefusedError, match="expired"):
        principal(ran, token, now_s + 331)
    assert shlex.split(ran.out, comments=True) == [
        "export", f"RAFTLOG_TOKEN_FILE={token}",
        "export", f"RAFTLOG_TLS_CA_FILE={pki}/ca.pem",
    ]  # fmt: skip


def test_token_files_are_private(raftlog: Raftlog, pki: Path) -> None:
    raftlog("certs token", pki, "--client", "alice")
    modes = {path.name: mode_of(path) for path in pki.iterdir() if "ca." not in path.name}
    assert modes == {"token.key": 0o600, "jwks.json": 0o644, "client-alice.token": 0o600}
    assert "d" not in json.loads((pki / "jwks.json").read_text())["keys"][0]


def test_issuer_stays_and_the_token_is_replaced(raftlog: Raftlog, pki: Path) -> None:
    for name in ("alice", "bob", "alice"):
        before = {path.name: path.read_bytes() for path in pki.iterdir()}
        ran = raftlog("certs token", pki, "--client", name, "--minutes", len(before))
        assert principal(ran, pki / f"client-{name}.token", time.time()) == f"User:{name}"
        after = {path.name: path.read_bytes() for path in pki.iterdir()}
        kept = before.keys() - {f"client-{name}.token"}
        assert {path: after[path] for path in kept} == {path: before[path] for path in kept}


@pytest.mark.parametrize("name", ["node-7", "../a"])
def test_invalid_token_name_creates_nothing(raftlog: Raftlog, pki: Path, name: str) -> None:
    before = set(pki.rglob("*"))
    assert raftlog("certs token", pki, f"--client={name}").refused(2, "--client").out == ""
    assert set(pki.rglob("*")) == before


def test_mismatched_key_is_refused(raftlog: Raftlog, pki: Path) -> None:
    key = pki / "token.key"
    raftlog("certs token", pki, "--client", "alice")
    token = (pki / "client-alice.token").read_bytes()
    sound = key.read_bytes()
    key.chmod(0o640)
    assert "chmod 600" in refused(raftlog, pki)
    for content, why in (
        (b"x", "is not a key"),
        ((pki / "ca.key").read_bytes(), "was not created by"),
    ):
        key.chmod(0o600)
        key.write_bytes(content)
        assert why in refused(raftlog, pki)
    assert (pki / "client-alice.token").read_bytes() == token
    # With the set alone, whose key is lost, nothing is overwritten.
    key.unlink()
    assert "jwks.json: already exists" in refused(raftlog, pki)
    key.write_bytes(sound)
    key.chmod(0o600)
    raftlog.succeed("certs token", pki, "--client", "alice")


def refused(raftlog: Raftlog, pki: Path) -> str:
    ran = raftlog("certs token", pki, "--client", "alice")
    assert (ran.code, ran.out) == (2, "")
    return ran.err


def test_missing_directory_is_reported(raftlog: Raftlog, tmp_path: Path) -> None:
    raftlog("certs token", tmp_path / "nothing", "--client", "alice").refused(
        2, "No such file or directory"
    )
