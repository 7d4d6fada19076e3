"""What a configuration of tokens must and must not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.errors import ConfigError
from raftlog.node.config.load import load_config
from raftlog.node.config.node import NodeConfig
from raftlog.node.config.token_rules import jwks_file, takes_tokens

NODE = {
    "process.roles": "controller",
    "node.id": "1",
    "cluster.id": "C",
    "log.dirs": "data",
    "controller.quorum.voters": "1@127.0.0.1:9093",
}
TLS = {f"tls.{name}.file": f"{name}.pem" for name in ("certificate", "key", "ca")}
RULE = {"node.principal.rule": "CN=node-{id}"}
URL, ISSUER, AUDIENCE = (
    f"sasl.oauthbearer.{name}"
    for name in ("jwks.endpoint.url", "expected.issuer", "expected.audience")
)
TOKENS = {URL: "https://i.example/jwks", ISSUER: "https://i.example", AUDIENCE: "raftlog"}
SOUND = {**NODE, **TLS, **RULE, **TOKENS}


def load(keys: dict[str, str]) -> NodeConfig:
    flags = [f"{key}={value}" for key, value in keys.items()]
    return load_config(None, flags=flags, environment={})


def mistakes(keys: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(keys)
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:]]


def test_sound_one() -> None:
    found = load({**SOUND, AUDIENCE: "raftlog, other"}).settings
    assert takes_tokens(found)
    assert found.sasl_oauthbearer_expected_audience == ("raftlog", "other")
    assert found.sasl_oauthbearer_jwks_endpoint_refresh_ms == 3_600_000
    assert found.sasl_oauthbearer_sub_claim_name == "sub"
    assert found.ssl_client_auth == "required"
    assert not takes_tokens(load({**NODE, **TLS, **RULE}).settings)


@pytest.mark.parametrize("key", [URL, ISSUER, AUDIENCE])
def test_all_three_or_none(key: str) -> None:
    (said,) = mistakes({name: value for name, value in SOUND.items() if name != key})
    assert said.startswith(f"{URL}: tokens need all three: {URL}, {ISSUER} and {AUDIENCE}")


def test_tokens_are_taken_over_tls_only() -> None:
    (said,) = mistakes({**NODE, **TOKENS})
    assert said.startswith(f"{URL}: tokens are taken over TLS only")


def test_tokens_require_a_node_principal_rule() -> None:
    (said,) = mistakes({**NODE, **TLS, **TOKENS})
    assert said.startswith(f"{URL}: tokens need node.principal.rule")


@pytest.mark.parametrize(
    "url",
    [
        "http://i.example/jwks",
        "http://127.0.0.1.i.example/jwks",
        "http://10.0.0.1/jwks",
        "ftp://127.0.0.1/jwks",
        "i.example/jwks",
        "https://",
        "https:///jwks",
        "https://user:hush@i.example/jwks",
        "https://user@i.example/jwks",
        "https://i.example:99999/jwks",
        "https://i.example/j\x1bwks",
        "https://i.example/j wks",
        "https://[::1/jwks",
        "file://elsewhere/jwks.json",
        "file:jwks.json",
    ],
)
def test_where_keys_must_not_come_from(url: str) -> None:
    (said,) = mistakes({**SOUND, URL: url})
    assert said.startswith(f"{URL}: ")
    assert "hush" not in said


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("https://i.example/jwks?x=1", None),
        ("https://i.example:8443/jwks", None),
        ("http://127.0.0.1:8080/jwks", None),
        ("http://[::1]/jwks", None),
        ("http://localhost/jwks", None),
        ("file:///etc/jwks.json", Path("/etc/jwks.json")),
        ("file:///etc/a%20b.json", Path("/etc/a b.json")),
        ("file://localhost/etc/jwks.json", Path("/etc/jwks.json")),
    ],
)
def test_where_keys_may_come_from(url: str, file: Path | None) -> None:
    assert jwks_file(load({**SOUND, URL: url}).settings.sasl_oauthbearer_jwks_endpoint_url) == file


@pytest.mark.parametrize("skew", ["-1", "3601"])
def test_skew_is_no_other_validity(skew: str) -> None:
    (said,) = mistakes({**SOUND, "sasl.oauthbearer.clock.skew.seconds": skew})
    assert said.startswith("sasl.oauthbearer.clock.skew.seconds")


@pytest.mark.parametrize("name", ["", "s\x00ub", "s" * 256])
def test_claim_has_a_name(name: str) -> None:
    (said,) = mistakes({**SOUND, "sasl.oauthbearer.sub.claim.name": name})
    assert said.startswith("sasl.oauthbearer.sub.claim.name")


def test_one_listener_of_a_node_needs_certificates() -> None:
    (said,) = mistakes({**SOUND, "ssl.client.auth": "none"})
    assert said.startswith("ssl.client.auth: none is for a listener of clients")


def test_without_tokens_certificates_are_needed() -> None:
    (said,) = mistakes({**NODE, **TLS, **RULE, "ssl.client.auth": "none"})
    assert said.startswith("ssl.client.auth: none needs tokens")


def test_unsupported_kafka_value_is_refused() -> None:
    (said,) = mistakes({**SOUND, "ssl.client.auth": "requested"})
    assert "'required' or 'none'" in said
