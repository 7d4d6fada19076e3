"""``raftlog kv lock``: run a command under a lock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Set
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BootstrapServer, Timeout
from raftlog.cli.output import print_error, print_line
from raftlog.cli.process import adopt_orphans, descendants
from raftlog.text import listed

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.recipes import AsyncLock

_GRACE_S = 5.0
"""Longest time between SIGTERM and SIGKILL, in seconds."""
_KILL_SHARE = 0.125
"""Share of the lease's time to live that is left when a command that ignores SIGTERM is killed."""
_LOOK_S = 0.05


def register(app_: typer.Typer) -> None:
    """Add the command."""
    app_.command("lock", epilog=EPILOG)(lock)


def lock(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]",
            help="The command to run. Default: hold the lock until interrupted.",
        ),
    ] = None,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl",
            metavar="S",
            min=1.0,
            help="Seconds for which the lock outlives this program's death.",
        ),
    ] = 10.0,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="S",
            min=0.0,
            help="Give up after S seconds; 0: try once. Default: never.",
        ),
    ] = None,
    nonblock: Annotated[
        bool, typer.Option("--nonblock", "-n", help="Try once: the same as --wait 0.")
    ] = False,
    fence: Annotated[
        str,
        typer.Option("--fence", metavar="NAME", help="Environment variable for the fencing token."),
    ] = "LOCK_TOKEN",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Take a lock, run a command, and release the lock.

    The exit code is the command's. Its environment contains the fencing token in LOCK_TOKEN (see
    --fence), the generation of the token's log in LOCK_GENERATION, and the key in LOCK_KEY. When
    the lock is lost, the command and all its descendants get SIGTERM, then SIGKILL when an eighth
    of the lease's time to live is left, before any other client can have the lock. The exit code is
    then 4, as it is if the lock is not acquired in time.

    \b
    Examples:
      raftlog kv lock backup -- /usr/local/bin/backup --all
      raftlog kv lock backup --wait 60 -- sh -c 'echo "token $LOCK_TOKEN"'
      raftlog kv lock backup -n -- backup || echo "another host makes it"
    """
    from raftlog.cli.command import call

    async def locked(client: AsyncClient) -> int:
        from raftlog.errors import ApiError
        from raftlog.recipes import AsyncLock

        holder = f"{os.uname().nodename} {os.getpid()}"
        try:
            one = AsyncLock(client, name, ttl_s=ttl, value=holder)
        except ValueError as error:
            raise FailedError(str(error), Exit.USAGE) from None
        if not await one.acquire(0 if nonblock else wait):
            raise FailedError(f"another client holds the lock {name}", Exit.UNREACHABLE)
        try:
            return await (_run(command, one, ttl, fence) if command else _hold(one))
        finally:
            if one.is_held:
                with contextlib.suppress(ApiError):  # The lock is released when its lease ends.
                    await asyncio.shield(one.release())

    # Numbered, because a write of unknown outcome would be a lock without a known holder.
    options = {"bootstrap_server": bootstrap_server, "timeout": timeout, "exactly_once": None}
    code = call(locked, options)
    if code:
        raise typer.Exit(code)


async def _hold(one: AsyncLock) -> int:
    print_line(f"{one.key} with token {one.token}")
    await one.wait_lost()
    raise FailedError("the lock was lost", Exit.UNREACHABLE)


async def _run(command: list[str], one: AsyncLock, ttl_s: float, fence: str) -> int:
    token = {"LOCK_KEY": one.key, "LOCK_GENERATION": str(one.generation), fence: str(one.token)}
    adopt_orphans()
    others = descendants()
    try:
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **token})
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise FailedError(f"{command[0]}: {why}", Exit.USAGE) from error
    ended = asyncio.ensure_future(process.wait())
    lost = asyncio.ensure_future(one.wait_lost())
    try:
        await asyncio.wait({ended, lost}, return_when=asyncio.FIRST_COMPLETED)
        is_lost = not ended.done()
    finally:
        lost.cancel()
        if not ended.done():
            await asyncio.shield(_end(process.pid, ended, others, one, ttl_s * _KILL_SHARE))
    if is_lost:
        raise FailedError("the lock was lost: the command was killed", Exit.UNREACHABLE)
    code = ended.result()
    return code if code >= 0 else 128 - code


async def _end(
    command: int, ended: asyncio.Future[int], others: Set[int], one: AsyncLock, kill_s: float
) -> None:
    """End the command and all its descendants before another client can have the lock: at the
    latest when ``kill_s`` seconds of the lease are left.

    ``others``: processes that are not the command's.
    """
    loop = asyncio.get_running_loop()
    kill_at = loop.time() + _GRACE_S
    asked: set[int] = set()
    while pids := descendants(but=others) | (set() if ended.done() else {command}):
        kill = loop.time() >= kill_at or one.remaining_s <= kill_s
        for pid in pids if kill else pids - asked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # A stopped process does not react to SIGTERM.
        asked |= pids
        if loop.time() >= kill_at + _GRACE_S:
            print_error(f"raftlog: these processes cannot be killed: {listed(pids)}")
            return
        await asyncio.sleep(_LOOK_S)
