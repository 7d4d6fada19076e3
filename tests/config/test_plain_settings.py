"""Plain values are read as pydantic reads them; whatever is not plain is left to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.node.config.checked import InvalidError, checked_settings
from raftlog.node.config.plain import NotPlainError, plain_settings
from raftlog.node.config.settings import FIELD_OF_KEY

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
def test_what_is_read_plainly_is_what_pydantic_reads(key: str, value: Any) -> None:
    _agree(key, value)


@pytest.mark.nightly
@pytest.mark.parametrize("key", _KEYS)
@settings(max_examples=200)
@given(value=_VALUES)
def test_many_more_values_are_read_alike(key: str, value: Any) -> None:
    _agree(key, value)


def test_a_usual_file_is_plain() -> None:
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
def test_what_must_be_read_or_is_wrong_is_not_plain(values: dict[str, Any]) -> None:
    with pytest.raises(NotPlainError):
        plain_settings(values)
