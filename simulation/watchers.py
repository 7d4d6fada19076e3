"""Clients that watch the metadata with various selections and levels; some share streams. Now and
then a watch ends and is resumed from its last token. ``checks/watches.py`` checks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from raftlog.client.watch import (
    LINK_TIMEOUT_S,
    SILENT,
    CompactedError,
    Watch,
    WatchCall,
    WatchStreams,
)
from raftlog.errors import ApiError, ErrorCode
from raftlog.outcome import Token
from raftlog.transport.api import Conversation, Link, LinkClosedError, Transport
from raftlog.wire.broker.v1 import broker_pb2 as pb
from simulation.checks.api import CheckFailedError, Operation
from simulation.swarm.identities import CALLERS
from simulation.swarm.wanted import PREFIX, wanted_by, watchers_on
from simulation.world import Actors, World

PROGRESS_MS = 400
LIFE_S = 1.5
INITIAL_SHARE = 0.2


class Watchers(Actors):
    """All watchers of a run."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._all = [watcher for host in self._watching() for watcher in _on(world, host)]

    def hosts(self) -> list[str]:
        # Those of callers are named by them.
        return [] if self._world.config.authorizer else self._watching()

    def _watching(self) -> list[str]:
        config = self._world.config
        if not self._world.members:
            return []
        if config.authorizer:
            return list(CALLERS)[: config.watchers]
        return [f"{PREFIX}{number}" for number in range(config.watchers)]

    def begin(self) -> None:
        for watcher in () if self._tasks else self._all:
            self._tasks.append(self._world.spawn(watcher.live(), watcher.name, watcher.host))

    def stop(self) -> None:
        super().stop()
        self._tasks = []
        for watcher in self._all:
            watcher.close()

    async def reach(self, written: Operation, within_s: float) -> None:
        config = self._world.config
        if not self._world.healed_brokers() or (config.authorizer and config.recovery):
            # Nobody checks what they may see in the log that continues.
            return
        self.begin()
        for watcher in self._all:

            def has_reached(watcher: Watcher = watcher) -> bool:
                return watcher.reached(written.generation) >= written.offset

            what = f"{watcher.name} is told what changed up to offset {written.offset}"
            await self._world.until(has_reached, within_s, what)
        self.stop()


def _on(world: World, host: str) -> list[Watcher]:
    transport, names = world.network.transport_for(host), watchers_on(host)
    streams = WatchStreams(transport) if len(names) > 1 else OwnCalls(transport)
    return [Watcher(world, host, name, transport, streams) for name in names]


class Watcher:
    """A client with a watch. ``streams``: makes its calls to brokers."""

    def __init__(
        self, world: World, host: str, name: str, transport: Transport, streams: WatchStreams
    ) -> None:
        self._world, self.host, self.name = world, host, name
        self._wanted = wanted_by(host)
        self._transport, self._streams = transport, streams
        self._rng = world.rng(name)
        self._watch: Watch | None = None
        self._token: Token | None = None

    def reached(self, generation: int) -> int:
        """Return the last offset received of this generation's log, or -1 if nothing was."""
        token = self._watch.token if self._watch is not None else None
        return -1 if token is None or token.generation != generation else token.offset

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    async def live(self) -> None:
        while True:
            initial = self._token is None or self._rng.random() < INITIAL_SHARE
            since = None if initial else self._token
            self._watch = watch = Watch(
                self._transport,
                [member.endpoint for member in self._world.members],
                self._wanted.selectors,
                rng=self._world.rng(f"{self.name} {self._world.now()}"),
                since=since,
                initial=initial and self._rng.random() < 0.5,
                tip=self._wanted.tip,
                start_timeout_s=1e9,
                progress_ms=PROGRESS_MS,
                calls=self._streams,
            )
            self._world.watch.tell("watch_begun", self.name, since)
            try:
                async with asyncio.timeout(self._rng.expovariate(1 / LIFE_S)):
                    await self._read(watch)
            except TimeoutError:
                pass
            except CompactedError:
                self._world.count("watch compacted")
                self._token = None
                continue
            except ApiError as error:
                if error.code is not ErrorCode.INCONSISTENT_GENERATION:
                    raise CheckFailedError(f"{self.name} was answered {error}") from error
                self._world.count("watch of a log that is over")
                self._token = None
                continue
            finally:
                watch.close()
            self._token = watch.token
            if self._token is not None:
                self._world.watch.tell("watch_ended", self.name, self._token)

    async def _read(self, watch: Watch) -> None:
        async for change in watch:
            self._world.watch.tell("watch_told", self.name, change)


class OwnCalls(WatchStreams):
    """A separate gRPC call, on its own link, for each watch, like those of generated stubs."""

    def begin(
        self, watch: Watch, address: str, request: pb.WatchRequest, silence_s: float
    ) -> WatchCall:
        return _OwnCall(self._transport, watch, address, request, silence_s)


class _OwnCall:
    def __init__(
        self,
        transport: Transport,
        watch: Watch,
        address: str,
        request: pb.WatchRequest,
        silence_s: float,
    ) -> None:
        self._watch, self._request, self._silence_s = watch, request, silence_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LINK_TIMEOUT_S, self._lost)
        self._dialer = transport.dial(address, Conversation.WATCH, self)

    def close(self) -> None:
        self._timer.cancel()
        self._dialer.close()

    def opened(self, link: Link) -> None:
        try:
            link.send(self._request)
        except LinkClosedError as error:
            self._lost(str(error))

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(self._silence_s, self._lost)
        for message in messages:
            self._watch.told(self, message)

    def attempt_failed(self, reason: str, error: ApiError | None) -> None:
        self._watch.lost(self, reason, error)

    def closed(self, link: Link, reason: str) -> None:
        self._lost(reason)

    def _lost(self, reason: str = SILENT) -> None:
        self._watch.lost(self, reason)
