"""Keys of the key-value store, and what keys begin with."""

from __future__ import annotations

import pytest

from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import KEY_MAX_CHARS, check
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller

PERMITTED = "segments of ASCII letters, digits and . _ - : @ = + , with single slashes between them"


@pytest.mark.parametrize("key", ["a", "a/b", "A.b_c-d:e@f=g+h,i/0", "x" * KEY_MAX_CHARS])
def test_key_of_permitted_characters_is_accepted(key: str) -> None:
    check(broker.ListKeyValuesRequest(keys=[key]))
    for prefix in ("", key, "a/", "a/b"):
        check(broker.ListKeyValuesRequest(prefix=prefix))


@pytest.mark.parametrize("key", ["", "ключ", "a b", "a//b", "/a", "a/", "a\n", "a%2Fb", "é"])
def test_refusal_of_a_key_says_what_is_permitted(key: str) -> None:
    for request, field in (
        (broker.ListKeyValuesRequest(keys=[key]), "keys[0]"),
        (
            controller.AlterKeyValuesRequest(alterations=[controller.KeyValueAlteration(key=key)]),
            "alterations[0].key",
        ),
    ):
        with pytest.raises(ApiError) as refused:
            check(request)
        assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_REQUEST, field)
        assert refused.value.message == f"{key!r} is no key: {PERMITTED}"


@pytest.mark.parametrize("prefix", ["ключ", "a b", "a//b", "/a", "/", "a//"])
def test_prefix_of_no_key_is_refused(prefix: str) -> None:
    with pytest.raises(
        ApiError, match=f"is no beginning of a key: {PERMITTED}".replace("+", r"\+")
    ):
        check(broker.ListKeyValuesRequest(prefix=prefix))
