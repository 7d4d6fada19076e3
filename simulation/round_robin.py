"""Clients whose routing differs from the shipped one: brokers in turn, or one controller alone."""

import random

from typing_extensions import override

from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.client.endpoints import Endpoints
from raftlog.client.router import ANSWER_MARGIN_S, Refusal, Route, RoutedCall
from raftlog.errors import ApiError
from raftlog.transport.api import Transport
from raftlog.wire.controller.v1 import controller_pb2

PASSED_OVER_S = 0.5
"""Seconds for which the round robin skips a server that refused or was lost, if others exist."""
SILENT_PASSED_OVER_S = 5.0
"""Seconds for which it skips a silent server: a retry may cost another call its deadline."""


class RoundRobinClient(BrokerClient):
    """A client that sends each call to the next connected broker."""

    def __init__(
        self,
        transport: Transport,
        endpoints: Endpoints,
        *,
        rng: random.Random,
        cluster_id: str = "",
    ) -> None:
        super().__init__(transport, endpoints, rng=rng, cluster_id=cluster_id)
        self._all = self.endpoints.given
        self._turn = rng.randrange(len(self._all))
        self._passed_over: dict[str, float] = {}

    @override
    def _dispatch(self, call: RoutedCall, deadline: float) -> None:
        route = self._next()
        if route is None:
            self._wait(call)
            return
        call.route = route
        call.attempts += 1
        route.start(call.request, deadline + ANSWER_MARGIN_S, call)

    def _next(self) -> Route | None:
        """Return the next connected route, without a recent failure if possible; or None."""
        if self._closed:
            return None
        self._connect()
        turn = self._all[self._turn :] + self._all[: self._turn]
        connected = [one for one in turn if self._routes[one].connected]
        if not connected:
            return None
        now = self._loop.time()
        good = (one for one in connected if self._passed_over.get(one, now) <= now)
        chosen = next(good, connected[0])
        self._turn = (self._all.index(chosen) + 1) % len(self._all)
        return self._routes[chosen]

    @override
    def _connect(self) -> None:
        for address in self._all:
            if address not in self._routes:
                self._dial(address)

    @override
    def _is_current(self, route: Route) -> bool:
        return False  # No call waits for one server.

    @override
    def refused(self, route: Route, refusal: Refusal) -> bool:
        self._passed_over[route.address] = self._loop.time() + PASSED_OVER_S
        return True

    @override
    def silent(self, route: Route) -> None:
        # A write may hang elsewhere: the server that does not forward it need not be silent itself.
        pause_s = SILENT_PASSED_OVER_S if route.silent else PASSED_OVER_S
        self._passed_over[route.address] = self._loop.time() + pause_s

    @override
    def route_opened(self, route: Route) -> None:
        self._failures.pop(route.address, None)
        self._send_waiting()

    @override
    def route_closed(self, route: Route) -> None:
        self._passed_over[route.address] = self._loop.time() + PASSED_OVER_S

    @override
    def route_turned_away(self, route: Route, error: ApiError) -> None:
        self._failures[route.address] = str(error)
        if not any(one.connected for one in self._routes.values()) and all(
            map(self._failure_of, self._all)
        ):
            for call in self._take_waiting():
                call.turned_away(error)


class PinnedClient(ControllerClient):
    """Client that asks the one controller it knows, and accepts NOT_CONTROLLER as an answer."""

    @override
    def refusal(self, response: controller_pb2.ControllerResponse) -> Refusal | None:
        return None
