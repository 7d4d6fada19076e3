"""The client's side of tokens: where the next one comes from, and the metadata that shows it."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from raftlog.access import TOKEN_MAX_CHARS
from raftlog.errors import RaftlogError

TokenSource = Callable[[], str | Awaitable[str]]
"""Gives the token for the next connection. It must not block; it may be a coroutine function.

It may raise NoTokenError: the connection is tried again later.
"""
Metadata = tuple[tuple[str, str], ...]
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class NoTokenError(RaftlogError):
    """There is no token to show. The message says why, and has nothing of a token."""


def token_file(path: Path) -> TokenSource:
    """The token in a file, as it is then: whoever renews it replaces the file."""

    def read() -> str:
        try:
            with path.open("rb") as file:
                # With room for the end of a line.
                content = file.read(TOKEN_MAX_CHARS + 3)
        except OSError as error:
            raise NoTokenError(f"no token: {error.strerror}: {path}") from error
        try:
            return content.decode("ascii").strip()
        except UnicodeDecodeError:
            raise NoTokenError(f"no token: {path} holds something else") from None

    return read


async def authorization(source: TokenSource | None, timeout_s: float) -> Metadata:
    """The metadata of a call. Raises NoTokenError."""
    if source is None:
        return ()
    try:
        async with asyncio.timeout(timeout_s):
            given = source()
            token = await given if inspect.isawaitable(given) else given
    except NoTokenError:
        raise
    except Exception as error:
        # What a stranger's error says may be the token.
        raise NoTokenError(f"no token: its source failed with {type(error).__name__}") from None
    # gRPC would tell the whole of a value that it cannot send.
    if not isinstance(token, str) or len(token) > TOKEN_MAX_CHARS or not _TOKEN.fullmatch(token):
        raise NoTokenError(
            f"no token: what its source gave is none, or longer than {TOKEN_MAX_CHARS} characters"
        )
    return (("authorization", f"Bearer {token}"),)
