"""``raftlog kv lease``: leases of the key-value store."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import print_json, print_line, print_table
from raftlog.cli.writes import AcksLevel, print_written, write, written
from raftlog.wire.controller.v1 import controller_pb2

app = typer.Typer(
    help="Leases: keys that name one are deleted when it ends.",
    epilog=EPILOG,
    no_args_is_help=True,
)
LeaseId = Annotated[int, typer.Argument(metavar="ID", min=1, help="The lease's id.")]
_SHARE = 4
"""It is kept alive so many times within its time."""


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="lease")


@app.callback()
def _group() -> None:
    """Leases: keys that name one are deleted when it ends."""


@app.command("list", epilog=EPILOG)
def list_(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the leases.

    LEFT is how long one still lives if nobody keeps it alive, KEYS how many keys go with it.

    \b
    Examples:
      raftlog kv lease list --bootstrap-controller 127.0.0.1:9093
    """
    from raftlog.cli.session import ask_controller

    body = controller_pb2.ListLeasesRequest()
    response = ask_controller(body, bootstrap_controller, timeout)
    leases = [
        {
            "id": one.lease_id,
            "ttl_ms": one.ttl_ms,
            "remaining_ms": one.remaining_ms,
            "keys": one.key_count,
            "name": one.name or None,
            "principal": one.principal or None,
        }
        for one in response.list_leases.leases
    ]
    if as_json:
        print_json({"offset": response.list_leases.offset, "leases": leases})
        return
    rows = [
        (one["id"], _seconds(one["ttl_ms"]), _seconds(one["remaining_ms"]), *list(one.values())[3:])
        for one in leases
    ]
    columns = ("ID", "TTL", "LEFT", "KEYS", "NAME", "PRINCIPAL")
    print_table(columns, rows, right=("ID", "TTL", "LEFT", "KEYS"), least=("PRINCIPAL",))


@app.command(epilog=EPILOG)
def grant(
    ttl: Annotated[
        float, typer.Argument(metavar="SECONDS", min=0.001, help="Its time, if nobody renews it.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="For people.")] = "",
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Grant a lease, and print its id. Nobody keeps it alive: see `raftlog kv lease keep-alive`.

    \b
    Examples:
      id=$(raftlog kv lease grant 60)
      raftlog kv put live/me here --lease "$id"
    """
    body = controller_pb2.GrantLeaseRequest(name=name, ttl_ms=round(ttl * 1000))
    response = write(body, AcksLevel.COMMITTED, bootstrap_server, bootstrap_controller, timeout)
    lease_id = response.write.token.offset
    if as_json:
        print_json({"id": lease_id, "ttl_ms": body.ttl_ms, "write": written(response)})
    else:
        print_line(str(lease_id))


@app.command("keep-alive", epilog=EPILOG)
def keep_alive(
    lease_id: LeaseId,
    once: Annotated[bool, typer.Option("--once", help="Once, and end.")] = False,
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Keep a lease alive until interrupted. Fails when it has ended.

    \b
    Examples:
      raftlog kv lease keep-alive 1042
    """
    from raftlog.cli.session import Session, run

    body = controller_pb2.KeepLeaseAliveRequest(lease_id=lease_id)

    async def keep(session: Session) -> None:
        client = session.brokers(bootstrap_server)
        while True:
            response = await client.write(body, timeout_s=timeout)
            ttl_s = response.keep_lease_alive.ttl_ms / 1000
            print_line(f"lease {lease_id} lives for {ttl_s:g} s")
            if once:
                return
            await asyncio.sleep(ttl_s / _SHARE)

    run(keep, timeout)


@app.command(epilog=EPILOG)
def revoke(
    lease_id: LeaseId,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """End a lease, and delete its keys.

    \b
    Examples:
      raftlog kv lease revoke 1042
    """
    body = controller_pb2.RevokeLeaseRequest(lease_id=lease_id)
    response = write(body, AcksLevel.COMMITTED, bootstrap_server, bootstrap_controller, timeout)
    if as_json:
        print_json({"id": lease_id, "write": written(response)})
        return
    print_line(f"lease {lease_id}: revoked")
    print_written(response)


def _seconds(ms: Any) -> str:
    return f"{ms / 1000:.1f}s"
