"""Channels that several calls to one address share: watches are many, and quiet.

[A program watches a thousand things: with a connection for each of them it takes all that a node
has for everybody.]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CALLS_A_CHANNEL = 100
"""Below what a server takes on one connection: gRPC would hold the next call back in silence."""


class SharedChannel:
    """A channel, and how many have it."""

    __slots__ = ("address", "calls", "channel")

    def __init__(self, address: str, channel: Any) -> None:
        self.address, self.channel = address, channel
        self.calls = 0


class SharedChannels:
    """Those of one transport. A channel whose connection has failed is given to nobody else: who
    dials again makes another attempt, without the pauses of gRPC's own.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[SharedChannel]] = {}

    def take(self, address: str, make: Callable[[], Any]) -> SharedChannel:
        """A channel with room for a call, or a new one."""
        channels = self._open.setdefault(address, [])
        shared = next((one for one in channels if one.calls < CALLS_A_CHANNEL), None)
        if shared is None:
            shared = SharedChannel(address, make())
            channels.append(shared)
        shared.calls += 1
        return shared

    async def give_back(self, shared: SharedChannel, *, failed: bool) -> None:
        """A call has ended. The last one closes the channel."""
        shared.calls -= 1
        channels = self._open.get(shared.address, [])
        if (failed or not shared.calls) and shared in channels:
            channels.remove(shared)
            if not channels:
                del self._open[shared.address]
        if not shared.calls:
            await shared.channel.close()
