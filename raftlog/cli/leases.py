"""``raftlog kv lease``: leases of the key-value store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from raftlog.cli.command import ASK, WRITE, Answer, command, group, written
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_line, print_table

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.leases import LeaseInfo
    from raftlog.client.values import ItemResult, Listing
    from raftlog.outcome import WriteResult

app = group()
LeaseId = Annotated[int, arg("ID", "The lease's id.", min=1)]
_SHARE = 4
"""It is kept alive so many times within its time."""


@dataclass
class LeaseGranted:
    """A new lease."""

    id: int
    ttl_s: float


@command(app, "list", shared=ASK)
async def list_(client: AsyncClient) -> Answer[Listing[LeaseInfo]]:
    """List the leases.

    LEFT is how long one still lives if nobody keeps it alive, KEYS how many keys go with it.

    \b
    Examples:
      raftlog kv lease list --bootstrap-controller 127.0.0.1:9093
    """
    leases = await client.leases.list()

    def show() -> None:
        rows = (
            (one.id, f"{one.ttl_s:.1f}s", f"{one.remaining_s:.1f}s", one.key_count,
             one.name or None, one.principal or None)
            for one in leases
        )  # fmt: skip
        columns = ("ID", "TTL", "LEFT", "KEYS", "NAME", "PRINCIPAL")
        print_table(columns, rows, right=("ID", "TTL", "LEFT", "KEYS"), least=("PRINCIPAL",))

    return Answer(leases, show)


@command(app, shared=WRITE)
async def grant(
    client: AsyncClient,
    ttl: Annotated[float, arg("SECONDS", "Its time, if nobody renews it.", min=0.001)],
    name: Annotated[str, opt("--name NAME", "For people.")] = "",
) -> Answer[LeaseGranted]:
    """Grant a lease, and print its id. Nobody keeps it alive: see `raftlog kv lease keep-alive`.

    \b
    Examples:
      id=$(raftlog kv lease grant 60)
      raftlog kv put live/me here --lease "$id"
    """
    lease = await client.leases.grant(ttl, name=name)
    lease.abandon()
    return Answer(LeaseGranted(lease.id, lease.ttl_s), lambda: print_line(str(lease.id)))


@command(app, "keep-alive", shared=("bootstrap_server", "timeout"))
async def keep_alive(
    client: AsyncClient,
    lease_id: LeaseId,
    once: Annotated[bool, opt("--once", "Once, and end.")] = False,
) -> None:
    """Keep a lease alive until interrupted. Fails when it has ended.

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


@command(app, shared=WRITE)
async def revoke(client: AsyncClient, lease_id: LeaseId) -> Answer[WriteResult[ItemResult]]:
    """End a lease, and delete its keys.

    \b
    Examples:
      raftlog kv lease revoke 1042
    """
    return await written(client.leases.revoke(lease_id), "revoked")
