"""Injected network partitions, for development clusters.

The environment variable ``RAFTLOG_DEV_CUTS_FILE`` names a file with one ``host:port`` per line.
While an address is in the file, messages to and from it are dropped, in both directions, on the
links that this node has dialed. If the other node does the same, nothing passes between the two.
When the address is removed from the file, the links that have lost messages are closed, as a TCP
connection is after a partition; the dialer then creates new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from raftlog.logger import get_logger
from raftlog.transport.api import Conversation, Dialer, DialHandler, Link, Probe
from raftlog.transport.grpc_server import GrpcServerTransport

log = get_logger(__name__)

POLL_S = 0.02
UNREACHABLE = "no response: the network is partitioned"
HEALED = "the partition between the nodes has ended"


class Cuts:
    """The addresses in the file, re-read whenever the file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._addresses: frozenset[str] = frozenset()

    def contains(self, address: str) -> bool:
        """Return whether one of the endpoints in ``address`` is partitioned."""
        endpoints = (part.rpartition("//")[2] for part in address.split(","))
        return not self._addresses.isdisjoint(endpoints)

    def reread(self) -> bool:
        """Reread the file. Return whether the addresses have changed since the last call."""
        try:
            found = self._path.stat()
            seen = found.st_ino, found.st_mtime_ns
            if seen == self._seen:
                return False
            text = self._path.read_text()
        except FileNotFoundError:
            seen, text = None, ""
        before, self._seen, self._addresses = self._addresses, seen, frozenset(text.split())
        return self._addresses != before


class CuttableTransport(GrpcServerTransport):
    """A node's transport whose dialed links can be partitioned."""

    def __init__(self, *args: Any, cuts_file: Path, **named: Any) -> None:
        """``cuts_file``: the file with the addresses; it need not exist yet."""
        super().__init__(*args, **named)
        log.warning("network partitions can be injected here", file=str(cuts_file))
        self._cuts = Cuts(cuts_file)
        self._gates: list[_Gate] = []
        self._poll: asyncio.TimerHandle | None = None
        self._follow()

    @override
    def dial(self, address: str, conversation: Conversation, handler: DialHandler) -> Dialer:
        gate = _Gate(address, handler, self._cuts)
        self._gates = [one for one in self._gates if not one.ended]
        self._gates.append(gate)
        gate.inner = super().dial(address, conversation, gate)
        return gate

    @override
    async def probe(self, address: str, timeout_s: float) -> Probe:
        if not self._cuts.contains(address):
            return await super().probe(address, timeout_s)
        await asyncio.sleep(timeout_s)
        return Probe.SILENT

    @override
    async def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
        await super().close()

    def _follow(self) -> None:
        if self._cuts.reread():
            for gate in self._gates:
                gate.heal()
        self._poll = asyncio.get_running_loop().call_later(POLL_S, self._follow)


class _Gate:
    """The dialer and the handler for one address: it passes messages unless the address is
    partitioned.
    """

    def __init__(self, address: str, handler: DialHandler, cuts: Cuts) -> None:
        self._address, self._handler, self._cuts = address, handler, cuts
        self.inner: Dialer | None = None
        self.ended = False
        self._link: _CuttableLink | None = None
        self._lost = False

    @property
    def link(self) -> Link | None:
        return cast("Link | None", self._link)

    @property
    def last_failure(self) -> str:
        if self._cuts.contains(self._address):
            return UNREACHABLE
        return self.inner.last_failure if self.inner is not None else ""

    def close(self) -> None:
        self.ended = True
        if self.inner is not None:
            self.inner.close()

    def loses(self) -> bool:
        """Return whether the address is partitioned; a message is then lost."""
        cut = self._cuts.contains(self._address)
        self._lost = self._lost or cut
        return cut

    def heal(self) -> None:
        """Close the link if it has lost messages and the address is no longer partitioned."""
        if self._lost and not self._cuts.contains(self._address):
            self._lost = False
            if self._link is not None:
                self._link.close(HEALED)

    # --- the handler of the inner dialer ---------------------------------------------------------

    def opened(self, link: Link) -> None:
        if self._cuts.contains(self._address):
            link.close(UNREACHABLE)
            self.attempt_failed(UNREACHABLE, None)
            return
        self._link = _CuttableLink(link, self)
        self._handler.opened(cast("Link", self._link))

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        if not self.loses():
            self._handler.received(cast("Link", self._link), messages)

    def closed(self, link: Link, reason: str) -> None:
        closed, self._link = self._link, None
        if closed is not None:
            self._handler.closed(cast("Link", closed), reason)

    def attempt_failed(self, reason: str, error: object) -> None:
        failed = getattr(self._handler, "attempt_failed", None)
        if failed is not None:
            failed(reason, error)


class _CuttableLink:
    """A link that drops sent messages while its address is partitioned."""

    def __init__(self, link: Link, gate: _Gate) -> None:
        self._inner, self._gate = link, gate

    def send(self, message: Any) -> None:
        if not self._gate.loses():
            self._inner.send(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
