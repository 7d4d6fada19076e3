"""``raftlog lock``: run a command under a lock."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BootstrapServer, Timeout
from raftlog.cli.output import print_line

if TYPE_CHECKING:
    from raftlog.cli.session import Session
    from raftlog.library.async_client import AsyncClient
    from raftlog.recipes import AsyncLock

_GRACE_S = 5.0
"""Between asking the command to end and making it."""


def register(app_: typer.Typer) -> None:
    """Add the command."""
    app_.command("lock", epilog=EPILOG)(lock)


def lock(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]", help="What to run. Without: hold it until interrupted."
        ),
    ] = None,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl", metavar="S", min=1.0, help="How long the lock outlives this program's death."
        ),
    ] = 10.0,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=0.0, help="Give up after S; 0: never.")
    ] = 0.0,
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    r"""Take a lock, run a command, and let the lock go.

    The exit code is the command's. Its environment has the fencing token in LOCK_TOKEN and the key
    in LOCK_KEY. When the lock is lost, the command gets SIGTERM, and after 5 s SIGKILL: exit code
    4, as when the lock does not come in time.

    \b
    Examples:
      raftlog lock backup -- /usr/local/bin/backup --all
      raftlog lock backup --wait 60 -- sh -c 'echo "token $LOCK_TOKEN"'
    """
    from raftlog.cli.session import run

    async def locked(session: Session) -> int:
        from raftlog.errors import ApiError
        from raftlog.recipes import AsyncLock

        async with _client(session, bootstrap_server, timeout) as client:
            holder = f"{os.uname().nodename} {os.getpid()}"
            try:
                one = AsyncLock(client, name, ttl_s=ttl, value=holder)
            except ValueError as error:
                raise FailedError(str(error), Exit.USAGE) from None
            if not await one.acquire(wait or None):
                raise FailedError(f"somebody else has the lock {name}", Exit.UNREACHABLE)
            try:
                return await (_run(command, one) if command else _hold(one))
            finally:
                with contextlib.suppress(ApiError):  # It ends with its time.
                    await asyncio.shield(one.release())

    code = run(locked, timeout)
    if code:
        raise typer.Exit(code)


def _client(session: Session, bootstrap: str, timeout_s: float) -> AsyncClient:
    """A client of the library over the session's connections."""
    from raftlog.library.async_client import AsyncClient

    return AsyncClient.over(
        lambda: session.transport, session.broker_addresses(bootstrap), timeout_s=timeout_s
    )


async def _hold(one: AsyncLock) -> int:
    print_line(f"{one.key} with token {one.token}")
    await one.wait_lost()
    raise FailedError("the lock was lost", Exit.UNREACHABLE)


async def _run(command: list[str], one: AsyncLock) -> int:
    environment = {**os.environ, "LOCK_KEY": one.key, "LOCK_TOKEN": str(one.token)}
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment)
    except OSError as error:
        raise FailedError(f"{command[0]}: {error.strerror}", Exit.USAGE) from error
    ended = asyncio.ensure_future(process.wait())
    lost = asyncio.ensure_future(one.wait_lost())
    try:
        await asyncio.wait({ended, lost}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            code = ended.result()
            return code if code >= 0 else 128 - code
        raise FailedError("the lock was lost: the command was ended", Exit.UNREACHABLE)
    finally:
        lost.cancel()
        await asyncio.shield(_end(process, ended))


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
    """Nothing of it may go on without the lock."""
    for end in (process.terminate, process.kill):
        if ended.done():
            return
        with contextlib.suppress(ProcessLookupError):
            end()
        await asyncio.wait({ended}, timeout=_GRACE_S)
