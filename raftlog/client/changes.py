"""Changes of the metadata as they come: ``client.watch``."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Self

from typing_extensions import override

from raftlog.client import watch
from raftlog.client.core import Core
from raftlog.client.streams import AsyncStream
from raftlog.outcome import Token

Since = Token | watch.Token | str
"""A token, or its text."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entity that one record has changed.

    ``before`` and ``after`` are None where it was not there, or is not there any more. ``initial``:
    it was there when the watch began.
    """

    kind: str
    """topic, partition, config, broker, feature, acl …"""
    key: str
    path: str
    """What selects just this entity: "configs/topic/orders/retention.ms"."""
    before: Any
    """As the JSON of the entity says: of a config its value, of others their fields."""
    after: Any
    offset: int
    timestamp_ms: int
    principal: str
    initial: bool
    token: Token
    """A watch since this one goes on behind the change."""


class AsyncChanges(AsyncStream[Change]):
    """What :meth:`AsyncClient.watch` returns, for ``async with`` and ``async for``."""

    what = "watch"

    def __init__(
        self,
        core: Core,
        selectors: tuple[str, ...],
        since: Since | None,
        idle_timeout_s: float | None,
        *,
        initial: bool,
        tip: bool,
    ) -> None:
        if initial and since is not None:
            raise ValueError("initial and since exclude each other")
        self.idle_timeout_s = idle_timeout_s
        self._watch = core.watch(
            selectors,
            since=None if since is None else watch.Token.parse(str(since)),
            initial=initial,
            tip=tip,
        )
        self._core = core
        super().__init__(core, self._watch)

    @property
    def token(self) -> Token | None:
        """Where a watch would go on behind what was read so far; None: not known yet."""
        token = self._watch.token
        return None if token is None else Token(*token)

    async def started(self) -> None:
        """Wait until a broker has said where the watch begins. Raises ApiError."""
        with self._core.until_closed():
            await self._watch.started()

    @override
    async def _next(self) -> Change:
        """Raises CompactedError, whose ``oldest`` says with what to begin anew."""
        if not self.closed:
            await self.started()
        try:
            async with asyncio.timeout(self.idle_timeout_s):
                return _change(await anext(self._watch))
        except TimeoutError:
            await self.close()
            raise StopAsyncIteration from None

    @override
    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self.started()
        except BaseException:
            await self.close()
            raise
        return self


def _change(change: watch.Change) -> Change:
    return Change(
        change.kind,
        change.key,
        change.path,
        None if change.before is None else json.loads(change.before),
        None if change.after is None else json.loads(change.after),
        change.offset,
        change.timestamp_ms,
        change.principal,
        change.initial,
        Token(*change.token),
    )
