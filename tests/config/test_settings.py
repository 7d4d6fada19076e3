"""The table of keys is complete; plain values are read as pydantic reads them, and others are left
to it.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_pages.tables import configuration_keys

from raftlog.node.config.checked import InvalidError, checked_settings
from raftlog.node.config.plain import NotPlainError, plain_settings
from raftlog.node.config.reference import reference
from raftlog.node.config.settings import FIELD_OF_KEY, KEYS, Settings


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


def test_no_key_is_a_table_of_another() -> None:
    """Else TOML could not hold both in nested form."""
    keys = list(FIELD_OF_KEY)
    assert not [(a, b) for a in keys for b in keys if b.startswith(a + ".")]


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_role_reads_only_keys_that_say_so(role: str) -> None:
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
def test_many_more_values_are_read_alike(key: str, value: Any) -> None:
    _agree(key, value)


def test_usual_file_is_plain() -> None:
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
