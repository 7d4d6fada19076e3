"""ListKeyValues, answered from one image. Pure, and bounded: an answer that would be too large is
cut and says so; the client continues after its last key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest

from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.image import Image
from raftlog.wire.broker.v1 import broker_pb2

MAX_KEYS = 1_000
"""Largest number of keys in one answer."""
MAX_BYTES = 1 << 20
"""Size in bytes of the keys and values in one answer, unless a single one is larger."""


def check_request(request: broker_pb2.ListKeyValuesRequest) -> None:
    """Raise INVALID_REQUEST for a request that no image can answer."""
    if request.limit < 0:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"a limit of {request.limit} is negative", field="limit"
        )
    if request.keys and (request.prefix or request.after):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "either keys, or a prefix and where to go on", field="keys"
        )


def list_key_values(
    image: Image,
    request: broker_pb2.ListKeyValuesRequest,
    may_describe: Callable[[str], bool] | None = None,
) -> broker_pb2.ListKeyValuesResponse:
    """Return the requested keys, by name. ``may_describe``: whether a key may be shown; None: each
    may.

    Hidden keys leave no trace, not even of their existence. The request was checked.
    """
    most = min(request.limit or MAX_KEYS, MAX_KEYS)
    names = _names(image, request)
    if may_describe is not None:
        names = (key for key in names if may_describe(key))
    response = broker_pb2.ListKeyValuesResponse()
    size = 0
    # One more than fits, to detect that there are more.
    for key in nsmallest(most + 1, names):
        one = image.key_values[key]
        size += len(key) + (0 if request.keys_only else len(one.value))
        count = len(response.key_values)
        if count == most or (count and size > MAX_BYTES):
            response.more = True
            break
        response.key_values.add(
            key=key,
            value=b"" if request.keys_only else one.value,
            offset=one.offset,
            create_offset=one.create_offset,
            lease_id=one.lease_id,
        )
    return response


def _names(image: Image, request: broker_pb2.ListKeyValuesRequest) -> Iterable[str]:
    if request.keys:
        return (key for key in set(request.keys) if key in image.key_values)
    prefix, after = request.prefix, request.after
    return (key for key in image.key_values if key.startswith(prefix) and key > after)
