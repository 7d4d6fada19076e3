"""The key-value store: small values under keys, with conditional and atomic changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from typing_extensions import Unpack

from raftlog.client.arguments import bytes_of
from raftlog.client.core import Core, ItemsOf, ItemT, Namespace
from raftlog.client.values import (
    ABSENT,
    UNCONDITIONAL,
    Expected,
    Listing,
    OffsetResult,
    PlaceResult,
    ReadOptions,
    WaitOptions,
    WriteOptions,
    expected_offset,
)
from raftlog.client.wire import known
from raftlog.errors import ApiError, ErrorCode, UnknownOutcomeError
from raftlog.outcome import LogOffset, WriteResult, generation_of
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

_NEW_LEASE = -1
"""Lease id of a key that is put in the same request that grants the lease."""
_CONDITION = re.compile(r"alterations\[(\d+)\]\.expected_(create_offset|offset|generation)")


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as a broker shows it."""

    key: str
    value: bytes
    offset: LogOffset
    """Offset of the key's last put; ``expected`` is compared with it."""
    create_offset: LogOffset
    """Offset of the record that created the key: of two keys, the one with the lower offset is
    older.
    """
    lease_id: LogOffset | None
    """Id of the lease whose end deletes the key, or None if it has no lease."""

    @property
    def text(self) -> str:
        """The value as UTF-8. Raises UnicodeDecodeError."""
        return self.value.decode()


@dataclass(frozen=True, slots=True)
class Put:
    """A put: sets the key's value and lease."""

    key: str
    value: bytes | str = b""
    lease_id: int | None = None
    expected: Expected = UNCONDITIONAL
    """Required offset of the key, or ABSENT."""
    expected_create: Expected = UNCONDITIONAL
    """Required create offset of the key, or ABSENT."""
    generation: int | None = None
    """Generation of the log to which these offsets belong (``Token.generation``); in another
    generation, e.g. after an unsafe recovery, they may belong to other records. If None, the
    offsets' own generation is used (LogOffset).
    """


@dataclass(frozen=True, slots=True)
class Delete:
    """A deletion of a key. Deleting a missing key is not an error."""

    key: str
    expected: Expected = UNCONDITIONAL
    expected_create: Expected = UNCONDITIONAL
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Expect:
    """A condition on a key that is not changed: unless it holds, no other key is changed either."""

    key: str
    expected: Expected = UNCONDITIONAL
    expected_create: Expected = UNCONDITIONAL
    generation: int | None = None


KeyChange = Put | Delete | Expect


class AsyncKeyValues(Namespace):
    """Calls to the key-value store: ``client.kv``."""

    async def get(self, key: str, **how: Unpack[ReadOptions]) -> KeyValue | None:
        """Return a key, or None if it does not exist or may not be read."""
        body = broker_pb2.ListKeyValuesRequest(keys=[key])
        response = await self._core.read(body, **how)
        return next(iter(_from_wire(response)), None)

    async def list(
        self, prefix: str = "", *, keys_only: bool = False, **how: Unpack[ReadOptions]
    ) -> Listing[KeyValue]:
        """Return the keys that begin with ``prefix``, sorted by name.

        More than 1,000 keys or a megabyte take several requests, and each part may be newer than
        the one before it.
        """
        found: Listing[KeyValue] = Listing((), -1)
        after = ""
        while True:
            body = broker_pb2.ListKeyValuesRequest(prefix=prefix, after=after, keys_only=keys_only)
            response = await self._core.read(body, **how)
            found += _from_wire(response)
            found.offset = response.token.offset
            answer = response.list_key_values
            if not answer.more or not answer.key_values:
                return found
            after = answer.key_values[-1].key

    async def put(
        self,
        key: str,
        value: bytes | str,
        *,
        lease_id: int | None = None,
        expected: Expected = UNCONDITIONAL,
        generation: int | None = None,
        **how: Unpack[WaitOptions],
    ) -> WriteResult[OffsetResult]:
        """Put a key; the result's offset is the key's new offset.

        ``expected``: the key's required offset, or ABSENT if it must not exist. If it differs,
        nothing changes and InvalidUpdateVersionError is raised; after UnknownOutcomeError, the
        write may have happened. ``generation``: the log's generation for ``expected`` and
        ``lease_id``, if these are stored numbers: see :class:`raftlog.LogOffset`.
        """
        change = Put(key, value, lease_id, expected, generation=generation)
        return await self.alter(change, **how)

    async def delete(
        self,
        key: str,
        *,
        expected: Expected = UNCONDITIONAL,
        generation: int | None = None,
        **how: Unpack[WaitOptions],
    ) -> WriteResult[OffsetResult]:
        """Delete a key. The result has no token if the key did not exist. See ``put``."""
        change = Delete(key, expected, generation=generation)
        return await self.alter(change, **how)

    async def alter(
        self, *changes: KeyChange, **how: Unpack[WriteOptions]
    ) -> WriteResult[OffsetResult]:
        """Make several conditional changes to different keys in one write: all, or none.

        Without changes, no request is sent, and the result has no token. Raises
        InvalidUpdateVersionError for a condition that does not hold, which its ``field`` names;
        after UnknownOutcomeError, all changes may have happened, or none.
        """
        if not changes:
            return WriteResult(None, None)
        body = controller_pb2.AlterKeyValuesRequest(alterations=_to_wire(changes))
        return await _alter(
            self._core,
            body,
            changes,
            how,
            lambda answer: (
                OffsetResult(one.key, offset=known(offset))
                for one, offset in zip(changes, answer.alter_key_values.offsets, strict=False)
            ),
        )


async def put_with_lease(
    core: Core, puts: Sequence[Put], lease: controller_pb2.GrantLeaseRequest, how: WaitOptions
) -> WriteResult[PlaceResult]:
    """Put keys in the same write that grants their lease: all, or none."""
    alterations = [*_to_wire(puts)]
    for one in alterations:
        one.lease_id = _NEW_LEASE

    def items(answer: controller_pb2.ControllerResponse) -> Iterable[PlaceResult]:
        body = answer.alter_key_values
        for put, offset, count in zip(puts, body.offsets, body.sibling_counts, strict=False):
            yield PlaceResult(put.key, offset=offset, siblings=count)

    body = controller_pb2.AlterKeyValuesRequest(alterations=alterations, lease=lease)
    return await _alter(core, body, puts, how, items)


async def _alter(
    core: Core,
    body: controller_pb2.AlterKeyValuesRequest,
    changes: Sequence[KeyChange],
    how: WaitOptions,
    items: ItemsOf[ItemT],
) -> WriteResult[ItemT]:
    try:
        return await core.write(body, how, items)
    except UnknownOutcomeError as error:
        if _never_holds(error, changes):
            raise ApiError(error.code, error.message, field=error.field) from error
        raise


def _never_holds(error: ApiError, changes: Sequence[KeyChange]) -> bool:
    """Return whether the refusal of a numbered write is final although an earlier attempt may be in
    flight.

    If that attempt had been executed, its result would have been found. If it is yet to be decided,
    it also fails if it expects an offset, as a key never has an earlier offset again. If it expects
    an absent key, it may succeed, as the key may become absent.
    """
    found = _CONDITION.fullmatch(error.field)
    if error.code is not ErrorCode.INVALID_UPDATE_VERSION or found is None:
        return False
    change = changes[int(found[1])]
    if found[2] == "generation":
        return True  # Offsets only grow.
    expected = change.expected_create if found[2] == "create_offset" else change.expected
    return expected not in {UNCONDITIONAL, ABSENT}


def _to_wire(changes: Iterable[KeyChange]) -> Iterable[controller_pb2.KeyValueAlteration]:
    for one in changes:
        alteration = controller_pb2.KeyValueAlteration(
            key=one.key,
            expected_offset=expected_offset(one.expected, "expected"),
            expected_create_offset=expected_offset(one.expected_create, "expected_create"),
            expected_generation=_generation(one),
        )
        if isinstance(one, Put):
            alteration.value = bytes_of(one.value, "value")
            alteration.lease_id = one.lease_id or 0
        else:
            alteration.operation = (
                controller_pb2.KEY_VALUE_DELETE
                if isinstance(one, Delete)
                else controller_pb2.KEY_VALUE_COMPARE
            )
        yield alteration


def _generation(one: KeyChange) -> int | None:
    if one.generation is not None:
        return one.generation
    lease_id = one.lease_id if isinstance(one, Put) else None
    return generation_of(one.expected, one.expected_create, lease_id)


def _from_wire(response: broker_pb2.BrokerResponse) -> list[KeyValue]:
    generation = response.token.generation
    return [
        KeyValue(
            one.key,
            one.value,
            LogOffset(one.offset, generation),
            LogOffset(one.create_offset, generation),
            LogOffset(one.lease_id, generation) if one.lease_id else None,
        )
        for one in response.list_key_values.key_values
    ]
