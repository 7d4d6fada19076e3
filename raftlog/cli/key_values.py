"""``raftlog kv``: the key-value store and its leases."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.command import (
    ASK,
    READ,
    WRITE,
    Answer,
    command,
    condition,
    expected_offset,
    group,
    show_written,
    written,
)
from raftlog.cli.exits import Exit, FailedError, standard_input
from raftlog.cli.options import JsonLines, arg, opt
from raftlog.cli.output import print_line, print_table
from raftlog.cli.watch import WatchedChange, follow
from raftlog.errors import ConfigError
from raftlog.outcome import WriteResult
from raftlog.text import printable

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.key_values import KeyValue
    from raftlog.client.leases import LeaseInfo
    from raftlog.client.values import ItemResult, Listing, OffsetResult

app, leases = group(), group()
Key = Annotated[str, arg("KEY", "The key, such as locks/orders/1.")]
Expected = Annotated[int | None, expected_offset("key", "OFFSET")]
Prefix = Annotated[str, arg("[PREFIX]", "Only keys that begin with this.")]
_SHOWN_CHARS = 60


@dataclass
class ShownKeyValue:
    """A key of the key-value store, as a watch shows it."""

    key: str
    value: str | None
    """The value, or None if it is not UTF-8."""
    value_base64: str | None
    """The value in base64, or None if it is UTF-8."""
    offset: int
    """Offset of the record that last put the key; compared with --expected-offset."""
    create_offset: int
    lease_id: int | None


@dataclass
class KeyValueFound:
    """One key."""

    offset: int
    key_value: ShownKeyValue | None
    """None if the key does not exist; the exit code is then 1."""


@dataclass
class KeyValueList:
    """Keys sorted by name. ``offset``: the offset of the last page; no page is newer."""

    offset: int
    items: Sequence[ShownKeyValue]


def _shown(one: KeyValue) -> Any:
    from raftlog.metadata.words import key_value

    return key_value(one.key, one.value, one.offset, one.create_offset, one.lease_id or 0)


@command(app, shared=READ)
async def get(client: AsyncClient, key: Key) -> Answer[KeyValueFound]:
    """Print the value of a key.

    Prints the raw bytes unless standard output is a terminal. Exit code 1 if the key does not
    exist.

    \b
    Examples:
      raftlog kv get settings/limit
      raftlog kv get settings/limit --read strict --json
    """
    found = await client.kv.get(key)
    offset = client.token.offset if client.token is not None else -1
    if found is None:
        why = FailedError(f"there is no key {key}", Exit.REFUSED)
        return Answer(KeyValueFound(offset, None), lambda: None, [why])
    return Answer(KeyValueFound(offset, _shown(found)), lambda: _print_value(found.value))


def _print_value(value: bytes) -> None:
    if sys.stdout.isatty():
        # A terminal must not interpret control characters in the value.
        typer.echo(printable(value.decode(errors="backslashreplace"), keep="\n"))
    else:
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()


@command(app, "list", shared=READ)
async def list_(client: AsyncClient, prefix: Prefix = "") -> Answer[KeyValueList]:
    """List the keys, sorted by name.

    OFFSET is the offset of the key's last put; --expected-offset is compared with it. CREATED is
    the offset at which the key was created; it orders keys by age. LEASE is the lease with which
    the key is deleted.

    \b
    Examples:
      raftlog kv list
      raftlog kv list locks/ --json
    """
    found = await client.kv.list(prefix)

    def show() -> None:
        rows = (
            (one.key, one.offset, one.create_offset, one.lease_id, _short(one.value))
            for one in found
        )
        columns = ("KEY", "OFFSET", "CREATED", "LEASE", "VALUE")
        numbers = ("OFFSET", "CREATED", "LEASE")
        print_table(columns, rows, right=numbers, least=("CREATED", "LEASE", "OFFSET"))

    return Answer(KeyValueList(found.offset, [_shown(one) for one in found]), show)


def _short(value: bytes) -> str:
    from raftlog.metadata.record_text import shortened, value_text

    text = value_text(value)
    return text if len(text) <= _SHOWN_CHARS else shortened(text, value, _SHOWN_CHARS)


@command(app, shared=("bootstrap_server",), lines=WatchedChange)
async def watch(
    client: AsyncClient,
    prefix: Prefix = "",
    initial: Annotated[bool, opt("--initial", "Begin with the existing keys.")] = False,
    as_json: JsonLines = False,
) -> None:
    """Print each change to the keys, until interrupted.

    Short for `raftlog watch kv/PREFIX*`.

    \b
    Examples:
      raftlog kv watch locks/ --initial
    """
    await follow(client, [f"kv/{prefix}*"], initial=initial, as_json=as_json)


@command(app, shared=WRITE)
async def put(
    client: AsyncClient,
    key: Key,
    value: Annotated[str, arg("VALUE", "The value as text, or - to read it from standard input.")],
    lease: Annotated[
        int, opt("--lease ID", "The lease: when it ends, the key is deleted.", min=0)
    ] = 0,
    expected: Expected = None,
) -> Answer[WriteResult[OffsetResult]]:
    """Put a key.

    \b
    Examples:
      raftlog kv put settings/limit 10
      raftlog kv put settings/limit 20 --expected-offset 1042
      raftlog kv put settings/limit 10 --expected-offset -1   # only if it does not exist
      raftlog kv put settings/limit -- -5   # a value that begins with a dash
    """
    content = _input() if value == "-" else os.fsencode(value)
    change = client.kv.put(key, content, lease_id=lease or None, expected=condition(expected))
    return await written(change, "put")


def _input() -> bytes:
    with standard_input() as stream:
        return stream.buffer.read()


@command(app, shared=WRITE)
async def delete(
    client: AsyncClient,
    keys: Annotated[list[str] | None, arg("[KEY]...", "The keys.")] = None,
    prefix: Annotated[
        str | None, opt("--prefix PREFIX", "All keys that begin with this; '' for all keys.")
    ] = None,
    expected: Expected = None,
) -> Answer[WriteResult[OffsetResult]]:
    """Delete keys, all or none. A missing key is not an error.

    --prefix lists the keys first, through a broker, and deletes them only if they are still as
    listed: if one of them is put meanwhile, nothing is deleted.

    \b
    Examples:
      raftlog kv delete settings/limit
      raftlog kv delete settings/limit --expected-offset 1042
      raftlog kv delete --prefix settings/
    """
    from raftlog.client.key_values import Delete

    if bool(keys) == (prefix is not None):
        raise ConfigError("give at least one key, or --prefix")
    if expected is not None and len(keys or ()) != 1:
        raise ConfigError("--expected-offset needs exactly one key")
    changes = [Delete(key, condition(expected)) for key in keys or ()]
    if prefix is not None:
        found = await client.kv.list(prefix, keys_only=True, read="latest")
        changes = [Delete(one.key, one.offset) for one in found]
        if not changes:
            return Answer(WriteResult(None, None), lambda: print_line("no matching keys"))
    answer = await written(client.kv.alter(*changes), "deleted")
    if answer.document.token is None and not answer.errors:
        return replace(answer, show=lambda: show_written(answer.document, "did not exist"))
    return answer


LeaseId = Annotated[int, arg("ID", "The lease's id.", min=1)]
_SHARE = 4
"""Number of renewals within one time to live."""


@dataclass
class LeaseGranted:
    """A new lease."""

    id: int
    ttl_s: float


@command(leases, "list", shared=ASK)
async def list_leases(client: AsyncClient) -> Answer[Listing[LeaseInfo]]:
    """List the leases.

    LEFT is the time until the lease expires unless it is kept alive, KEYS the number of keys that
    it deletes when it ends.

    \b
    Examples:
      raftlog kv lease list --bootstrap-controller 127.0.0.1:9093
    """
    found = await client.leases.list()

    def show() -> None:
        rows = (
            (one.id, f"{one.ttl_s:.1f}s", f"{one.remaining_s:.1f}s", one.key_count,
             one.name or None, one.principal or None)
            for one in found
        )  # fmt: skip
        columns = ("ID", "TTL", "LEFT", "KEYS", "NAME", "PRINCIPAL")
        print_table(columns, rows, right=("ID", "TTL", "LEFT", "KEYS"), least=("PRINCIPAL",))

    return Answer(found, show)


@command(leases, shared=WRITE)
async def grant(
    client: AsyncClient,
    ttl: Annotated[float, arg("SECONDS", "Time to live without renewal, in seconds.", min=0.001)],
    name: Annotated[str, opt("--name NAME", "A description, shown in lists.")] = "",
) -> Answer[LeaseGranted]:
    """Grant a lease, and print its id. The command does not keep the lease alive: see `raftlog kv
    lease keep-alive`.

    \b
    Examples:
      id=$(raftlog kv lease grant 60)
      raftlog kv put live/me here --lease "$id"
    """
    lease = await client.leases.grant(ttl, name=name)
    lease.abandon()
    return Answer(LeaseGranted(lease.id, lease.ttl_s), lambda: print_line(str(lease.id)))


@command(leases, "keep-alive", shared=("bootstrap_server", "timeout"))
async def keep_alive(
    client: AsyncClient,
    lease_id: LeaseId,
    once: Annotated[bool, opt("--once", "Renew once, and exit.")] = False,
) -> None:
    """Keep a lease alive until interrupted. Fails once the lease has ended.

    \b
    Examples:
      raftlog kv lease keep-alive 1042
    """
    while True:
        ttl_s = await client.leases.keep_alive(lease_id)
        print_line(f"lease {lease_id} lives for {ttl_s:g} s")
        if once:
            return
        await asyncio.sleep(ttl_s / _SHARE)


@command(leases, shared=WRITE)
async def revoke(client: AsyncClient, lease_id: LeaseId) -> Answer[WriteResult[ItemResult]]:
    """End a lease, and delete its keys.

    \b
    Examples:
      raftlog kv lease revoke 1042
    """
    return await written(client.leases.revoke(lease_id), "revoked")
