"""The end of a node that stops in good order: whoever asks it for something is sent elsewhere, and
it goes when nobody is left.

A link that breaks with a request on its way leaves that request's outcome unknown, although the
node would have refused it. So each link is told once, unasked (correlation id 0), that this node is
not the active controller, and who is. A client takes its further requests there and ends the link
when all it has sent is answered. Who does not know the notice is waited for until it is quiet.

Why: docs/decisions/023-leadership-transfer.md
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from controller.service.responses import send_quietly
from raftlog.transport.api import Link
from raftlog.wire.controller.v1 import controller_pb2 as pb

POLL_S = 0.005
QUIET_S = 0.5
"""So long after the last request there is none on its way any more: more than a round trip of any
link that works.
"""
BOUND_S = 2.0
"""The node goes after this, whoever still asks."""


class Farewell:
    """The links of those who send requests, and whether they may be cut."""

    def __init__(self) -> None:
        self._links: dict[int, Any] = {}
        self._heard_at = -math.inf
        self._begun_at = math.inf
        self.begun = False
        """Whether this node takes no requests any more. Each request asks."""

    def opened(self, link: Link) -> None:
        """A link that requests come on."""
        self._links[id(link)] = link

    def closed(self, link: Link) -> None:
        """A link has closed: nobody on it is left to answer."""
        self._links.pop(id(link), None)

    def heard(self, now: float) -> None:
        """A request has come."""
        self._heard_at = now

    def begin(self, now: float, notice: Callable[[Link], pb.ControllerResponse]) -> None:
        """Send ``notice`` on every link, once."""
        self._begun_at, self.begun = now, True
        self.tell(notice)

    def tell(self, notice: Callable[[Link], pb.ControllerResponse]) -> None:
        """Send ``notice`` on every link, and take requests as before."""
        for link in list(self._links.values()):
            send_quietly(link, notice(link))

    def is_over(self, now: float) -> bool:
        """Whether nothing can be on its way to this node, or the time is up."""
        quiet_since = max(self._heard_at, self._begun_at)
        return not self._links or now >= quiet_since + QUIET_S or now >= self._begun_at + BOUND_S
