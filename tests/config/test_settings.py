"""The table of keys, and parsing of plain values, which agrees with pydantic's."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from config_kit import listed
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_pages.tables import configuration_keys

from raftlog.errors import ConfigError
from raftlog.node.config.checked import InvalidError, checked_settings
from raftlog.node.config.load import load_config
from raftlog.node.config.node import NodeConfig
from raftlog.node.config.plain import NotPlainError, plain_settings
from raftlog.node.config.reference import reference
from raftlog.node.config.settings import FIELD_OF_KEY, KEYS, Settings
from raftlog.node.config.token_rules import jwks_file, takes_tokens


def test_every_key_is_documented_with_roles_and_units() -> None:
    rows = reference()
    assert len(rows) == len(fields(Settings)) == len(FIELD_OF_KEY)
    for row in rows:
        assert row.doc.rstrip().endswith((".", ")")), row.key
        assert row.roles
        if row.key.endswith(".ms"):
            assert row.unit == "ms", row.key
        if row.key.endswith(".bytes"):
            assert row.unit == "bytes", row.key
        assert row.environment == "RAFTLOG_" + row.key.upper().replace(".", "_")


def test_no_key_is_a_prefix_of_another() -> None:
    """Otherwise TOML could not hold both in nested form."""
    keys = list(FIELD_OF_KEY)
    assert not [(a, b) for a in keys for b in keys if b.startswith(a + ".")]


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_role_reads_only_its_declared_keys(role: str) -> None:
    others = {name for name, info in KEYS.items() if role not in info.roles}
    sources = [path.read_text() for path in (Path(__file__).parents[2] / role).rglob("*.py")]
    read = {
        name for source in sources for name in re.findall(r"settings\.(\w+)", source, re.IGNORECASE)
    }
    assert read & KEYS.keys()
    assert read & others == set()


def test_generated_list_has_exactly_these_keys_with_their_descriptions() -> None:
    listed = configuration_keys()
    rows = reference()
    assert re.findall(r"^\* \*\*`([a-z.]+)`\*\*", listed, re.MULTILINE) == [row.key for row in rows]
    flat = " ".join(listed.split())
    for row in rows:
        assert " ".join(row.doc.split()) in flat, row.key


_KEYS = sorted(FIELD_OF_KEY)
_TEXTS = st.sampled_from(
    (
        "",
        "a,b",
        "info",
        "none",
        "INTERNAL",
        "127.0.0.1:9093",
        "A://h:1",
        "1@127.0.0.1:9093",
        "A:SSL",
        "5",
        "true",
        "controller",
        "/x/y",
        "h:0",
    )
)
_VALUES = (
    st.booleans()
    | st.integers(-2, 5)
    | st.integers()
    | st.floats()
    | st.none()
    | _TEXTS
    | st.text(max_size=4)
    | st.lists(_TEXTS | st.integers(0, 3), max_size=3)
)


def _repr(call: Any, values: dict[str, Any]) -> str | None:
    try:
        return repr(call(values))
    except (InvalidError, NotPlainError):
        return None


def _agree(key: str, value: Any) -> None:
    plain = _repr(plain_settings, {key: value})
    assert plain is None or plain == _repr(checked_settings, {key: value})


@pytest.mark.parametrize("key", _KEYS)
@settings(max_examples=25)
@given(value=_VALUES)
def test_plain_settings_agree_with_pydantic(key: str, value: Any) -> None:
    _agree(key, value)


@pytest.mark.nightly
@pytest.mark.parametrize("key", _KEYS)
@settings(max_examples=200)
@given(value=_VALUES)
def test_random_values_are_parsed_as_by_pydantic(key: str, value: Any) -> None:
    _agree(key, value)


def test_usual_file_is_parsed_without_pydantic() -> None:
    values = {
        "process.roles": ["controller"],
        "node.id": 1,
        "cluster.id": "c",
        "log.dirs": ["data"],
        "listeners": ["127.0.0.1:9093"],
        "http.listener": "127.0.0.1:9094",
        "controller.quorum.voters": ["1@127.0.0.1:9093", "2@127.0.0.1:9095"],
        "request.timeout.ms": 500,
        "log.level": "debug",
    }
    assert repr(plain_settings(values)) == repr(checked_settings(values)), json.dumps(values)


@pytest.mark.parametrize(
    "values",
    [{"node.id": "1"}, {"node.id": True}, {"node.id": -1}, {"log.level": "loud"}, {"no.key": 1}],
)
def test_invalid_or_complex_settings_are_not_plain(values: dict[str, Any]) -> None:
    with pytest.raises(NotPlainError):
        plain_settings(values)


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
    return listed(caught.value)


def test_valid_token_settings_are_accepted() -> None:
    found = load({**SOUND, AUDIENCE: "raftlog, other"}).settings
    assert takes_tokens(found)
    assert found.sasl_oauthbearer_expected_audience == ("raftlog", "other")
    assert found.sasl_oauthbearer_jwks_endpoint_refresh_ms == 3_600_000
    assert (found.sasl_oauthbearer_sub_claim_name, found.ssl_client_auth) == ("sub", "required")
    assert not takes_tokens(load({**NODE, **TLS, **RULE}).settings)


@pytest.mark.parametrize("key", [URL, ISSUER, AUDIENCE])
def test_token_settings_must_all_be_set_or_none(key: str) -> None:
    (said,) = mistakes({name: value for name, value in SOUND.items() if name != key})
    assert said.startswith(f"{URL}: tokens need all three: {URL}, {ISSUER} and {AUDIENCE}")


def test_tokens_are_taken_over_tls_only() -> None:
    (said,) = mistakes({**NODE, **TOKENS})
    assert said.startswith(f"{URL}: tokens need TLS")


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
def test_unsafe_jwks_urls_are_refused(url: str) -> None:
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
def test_safe_jwks_urls_are_accepted(url: str, file: Path | None) -> None:
    assert jwks_file(load({**SOUND, URL: url}).settings.sasl_oauthbearer_jwks_endpoint_url) == file


@pytest.mark.parametrize("skew", ["-1", "3601"])
def test_clock_skew_does_not_count_as_another_validity(skew: str) -> None:
    (said,) = mistakes({**SOUND, "sasl.oauthbearer.clock.skew.seconds": skew})
    assert said.startswith("sasl.oauthbearer.clock.skew.seconds")


@pytest.mark.parametrize("name", ["", "s\x00ub", "s" * 256])
def test_principal_claim_must_have_a_name(name: str) -> None:
    (said,) = mistakes({**SOUND, "sasl.oauthbearer.sub.claim.name": name})
    assert said.startswith("sasl.oauthbearer.sub.claim.name")


def test_node_listener_needs_certificates() -> None:
    (said,) = mistakes({**SOUND, "ssl.client.auth": "none"})
    assert said.startswith("ssl.client.auth: none is only for listeners of clients")


def test_listener_needs_certificates_without_tokens() -> None:
    (said,) = mistakes({**NODE, **TLS, **RULE, "ssl.client.auth": "none"})
    assert said.startswith("ssl.client.auth: none needs tokens")


def test_unsupported_kafka_value_is_refused() -> None:
    (said,) = mistakes({**SOUND, "ssl.client.auth": "requested"})
    assert "'required' or 'none'" in said
