"""``raftlog watch``: the changes of the metadata as they come."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import BootstrapServer, JsonLines

if TYPE_CHECKING:
    from raftlog.client.watch import Change, Watch
    from raftlog.outcome import Token

_START_TIMEOUT_S = 10.0


def register(app_: typer.Typer) -> None:
    """Add the command."""
    app_.command("watch", epilog=EPILOG)(watch)


def watch(
    selectors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SELECTOR]...",
            help=(
                "topics/orders, configs/topic/orders, partitions/orders/0, brokers/5, a kind"
                " (topics), or the beginning of paths (topics/ord*). Default: everything but"
                " book-keeping."
            ),
        ),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TOKEN", help="Go on behind this token of a watch.")
    ] = "",
    initial: Annotated[
        bool,
        typer.Option("--initial", "--from-beginning", help="Begin with what there is."),
    ] = False,
    tip: Annotated[
        bool,
        typer.Option(
            "--tip", help="Show a change once it is committed, not once every broker can show it."
        ),
    ] = False,
    max_changes: Annotated[
        int, typer.Option("--max-changes", metavar="N", min=0, help="End after N; 0: never.")
    ] = 0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="S",
            min=0.0,
            help="End when nothing comes for S seconds; 0: never.",
        ),
    ] = 0.0,
    bootstrap_server: BootstrapServer = "",
    as_json: JsonLines = False,
) -> None:
    """Print each change of the metadata in order, until interrupted.

    It goes on at another broker when one is lost; no change is missed, and none comes twice. At the
    end it says how to go on later.

    \b
    Examples:
      raftlog watch
      raftlog watch configs/topic/orders 'topics/ord*' --initial
      raftlog watch brokers --since 0-3-1742 --json
    """
    from raftlog.cli.output import print_error
    from raftlog.cli.session import Session, run
    from raftlog.client.watch import CompactedError, Watch

    if since and initial:
        raise typer.BadParameter("give --since or --initial, not both")
    begin = _token(since) if since else None
    reached: list[Token] = []
    unprinted: list[Token | None] = []

    async def follow(session: Session) -> None:
        brokers = session.brokers(bootstrap_server)
        learning = asyncio.create_task(brokers.keep_learning())
        one = Watch(
            session.transport,
            brokers.endpoints,
            selectors or (),
            rng=random.Random(),
            since=begin,
            initial=initial,
            tip=tip,
            start_timeout_s=_START_TIMEOUT_S,
            waiting=lambda why: print_error(f"raftlog: waiting: {why}") if why else None,
        )
        try:
            await _show(one, max_changes, timeout, as_json, unprinted)
        finally:
            learning.cancel()
            token = unprinted[0] if unprinted else one.token
            if token is not None:
                reached.append(token)
            one.close()

    try:
        run(follow, _START_TIMEOUT_S)
    except CompactedError as error:
        why = f"{error.message}. Begin anew with --initial, or --since {error.oldest}"
        raise FailedError(why, Exit.REFUSED) from error
    finally:
        if reached:
            print_error(f"raftlog: to go on: --since {reached[0]}")


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
    """``unprinted``: gets the token before a change that could not be printed."""
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
    from raftlog.cli.render import one_line

    if as_json:
        print_json_line(_document(change))
        return
    typer.echo(one_line(line(change), terminal_width()))


def line(change: Change) -> str:
    """A change for people, in one line."""
    from raftlog.cli.render import time_text
    from raftlog.metadata.authors import author
    from raftlog.metadata.differences import field_changes, raw, words

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


def _document(change: Change) -> dict[str, object]:
    return {
        "token": str(change.token),
        "offset": change.offset,
        "epoch": change.token.epoch,
        "timestamp_ms": change.timestamp_ms,
        "principal": change.principal or None,
        "kind": change.kind,
        "key": change.key,
        "path": change.path,
        "initial": change.initial,
        "before": change.before,
        "after": change.after,
    }
