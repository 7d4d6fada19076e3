"""A timeout is the client's, within bounds."""

import pytest

from raftlog.bounds import bounded_timeout_ms
from raftlog.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("named", "bounded"), [(0, 30), (1, 1), (99, 99), (100, 100), (101, 100), (2**31 - 1, 100)]
)
def test_a_timeout_is_the_clients_the_default_or_the_longest(named: int, bounded: int) -> None:
    assert bounded_timeout_ms(named, "timeout_ms", default_ms=30, max_ms=100) == bounded


@pytest.mark.parametrize("named", [-1, -(2**31)])
def test_a_negative_timeout_is_refused_and_the_field_named(named: int) -> None:
    with pytest.raises(ApiError) as error:
        bounded_timeout_ms(named, "read.timeout_ms", default_ms=30, max_ms=100)
    assert (error.value.code, error.value.field) == (ErrorCode.INVALID_REQUEST, "read.timeout_ms")
