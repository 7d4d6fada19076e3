"""How many connections one address, and one principal, may use.

gRPC accepts connections by itself, up to ``max.connections``; a node learns of one with its first
call. So a connection counts as long as it has a call open, and beyond a bound its calls are
refused. One without calls costs little, and is closed when it has been idle for
``connections.max.idle.ms``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from raftlog.identity import PeerIdentity


def host_of(peer: str) -> str:
    """Return the host of an address with its port."""
    return peer.rpartition(":")[0]


class Connections:
    """Those of one node that have a call open. Pure."""

    def __init__(self, *, per_address: int, per_principal: int) -> None:
        self._bounds = {"address": per_address, "principal": per_principal}
        self._calls: Counter[tuple[str, str]] = Counter()
        """(Peer, whose) -> open calls: a connection may show several tokens."""
        self._of: Counter[tuple[str, str]] = Counter()
        """(Kind, holder) -> connections."""

    def of(self, kind: str, holder: str) -> int:
        """The connections of an "address", or a "principal", that have a call open."""
        return self._of[kind, holder]

    @contextmanager
    def counted(self, peer: str, identity: PeerIdentity) -> Iterator[str]:
        """Count a call as long as it is open; yields why it is refused, empty: it is not.

        A certificate's subject stands for its principal, whatever mapping rules make of it.
        """
        whose = identity.principal or identity.subject
        connection = (peer, whose)
        holders = [("address", host_of(peer))]
        if whose:
            holders.append(("principal", whose))
        fresh = connection not in self._calls
        if fresh:
            for kind, holder in holders:
                if self._of[kind, holder] >= self._bounds[kind]:
                    yield (
                        f"{holder} uses {self._bounds[kind]} connections already, the most of one"
                        f" {kind}"
                    )
                    return
            self._of.update(holders)
        self._calls[connection] += 1
        try:
            yield ""
        finally:
            self._calls[connection] -= 1
            if not self._calls[connection]:
                del self._calls[connection]
                for key in holders:
                    self._of[key] -= 1
                    if not self._of[key]:
                        del self._of[key]
