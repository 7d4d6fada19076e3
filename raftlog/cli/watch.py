"""``raftlog watch``: print metadata changes as they happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.command import command
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import JsonLines, arg, opt

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.watch import Change, Watch
    from raftlog.outcome import Token


@dataclass
class WatchedChange:
    """A change to one entity."""

    token: str
    """The token with which ``watch --since`` continues after this change."""
    offset: int
    epoch: int
    timestamp_ms: int
    principal: str | None
    kind: str
    key: str
    path: str
    initial: bool
    """Whether the entity already existed when the watch began."""
    before: Any
    """The entity as JSON; null if it does not exist."""
    after: Any


@command(shared=("bootstrap_server",), lines=WatchedChange)
async def watch(
    client: AsyncClient,
    selectors: Annotated[
        list[str] | None,
        arg(
            "[SELECTOR]...",
            "topics/orders, configs/topic/orders, partitions/orders/0, brokers/5, a kind (topics), "
            "or a prefix of paths (topics/ord*). Default: everything except internal book-keeping.",
        ),
    ] = None,
    since: Annotated[
        str, opt("--since TOKEN", "Continue after this token of an earlier watch.")
    ] = "",
    initial: Annotated[
        bool, opt("--initial --from-beginning", "Begin with the existing entities.")
    ] = False,
    tip: Annotated[
        bool,
        opt(
            "--tip",
            "Show each change once it is committed, before every unfenced broker has applied it.",
        ),
    ] = False,
    max_changes: Annotated[
        int, opt("--max-changes N", "Stop after N changes; 0: never.", min=0)
    ] = 0,
    idle_s: Annotated[
        float, opt("--timeout S", "Stop when no change arrives for S seconds; 0: never.", min=0.0)
    ] = 0.0,
    as_json: JsonLines = False,
) -> None:
    """Print each change to the metadata in order, until interrupted.

    Continues at another broker if one is lost; misses no change, and shows none twice. At the end
    it prints how to continue later.

    \b
    Examples:
      raftlog watch
      raftlog watch configs/topic/orders 'topics/ord*' --initial
      raftlog watch brokers --since 0-3-1742 --json
    """
    await follow(
        client, selectors or (), since=since, initial=initial, tip=tip, as_json=as_json,
        max_changes=max_changes, timeout_s=idle_s,
    )  # fmt: skip


async def follow(
    client: AsyncClient,
    selectors: Sequence[str],
    *,
    as_json: bool,
    since: str = "",
    initial: bool = False,
    tip: bool = False,
    max_changes: int = 0,
    timeout_s: float = 0.0,
) -> None:
    """Print the changes that the selectors match and, at the end, the token to continue with."""
    from raftlog.cli.output import print_error
    from raftlog.client.watch import CompactedError

    if since and initial:
        raise typer.BadParameter("give --since or --initial, not both")
    one = client.core.watch(
        selectors,
        since=_token(since) if since else None,
        initial=initial,
        tip=tip,
        waiting=lambda why: print_error(f"raftlog: waiting: {why}") if why else None,
    )
    unprinted: list[Token | None] = []
    try:
        await _show(one, max_changes, timeout_s, as_json, unprinted)
    except CompactedError as error:
        why = f"{error.message}. Start again with --initial, or with --since {error.oldest}"
        raise FailedError(why, Exit.REFUSED) from error
    finally:
        token = unprinted[0] if unprinted else one.token
        one.close()
        if token is not None:
            print_error(f"raftlog: to continue: --since {token}")


def _token(text: str) -> Token:
    from raftlog.outcome import Token

    try:
        return Token.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error


async def _show(
    watch: Watch,
    max_changes: int,
    timeout_s: float,
    as_json: bool,
    unprinted: list[Token | None],
) -> None:
    """Print changes until a limit is reached. ``unprinted``: called with the token before a change
    that could not be printed.
    """
    count = 0
    await watch.started()
    while not max_changes or count < max_changes:
        before = watch.token
        try:
            async with asyncio.timeout(timeout_s or None):
                change = await anext(watch)
        except TimeoutError:
            return
        try:
            _print(change, as_json)
        except OSError:
            unprinted.append(before)
            raise
        count += 1


def _print(change: Change, as_json: bool) -> None:
    from raftlog.cli.output import print_json_line, terminal_width
    from raftlog.metadata.record_text import one_line

    if as_json:
        from raftlog.client.wire import reader

        read = reader(WatchedChange, token=lambda one: str(one.token), epoch="token.epoch")
        print_json_line(vars(read(change)))
        return
    typer.echo(one_line(line(change), terminal_width()))


def line(change: Change) -> str:
    """Return a change as one line of text."""
    from raftlog.metadata.record_text import time_text
    from raftlog.metadata.words import author, field_changes, raw, words

    before, after = (
        None if value is None else json.dumps(value) for value in (change.before, change.after)
    )
    what = words(raw(before), raw(after), field_changes(before, after), change.kind).replace(
        "\n", "; "
    )
    if change.initial:
        what = what.replace("created: ", "is ", 1)
    by = f" by {author(change.principal)}" if change.principal else ""
    return f"{change.offset:>7} {time_text(change.timestamp_ms)[11:19]} {change.path} {what}{by}"
