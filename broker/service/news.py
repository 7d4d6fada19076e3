"""The propagation of news from one part of a broker to its other parts."""

from __future__ import annotations

from collections.abc import Callable

from broker.metadata.follower import MetadataFollower
from broker.metadata.view import View
from broker.registration.lifecycle import Lifecycle
from broker.registration.registration_client import RegistrationClient
from broker.replication.data_plane import DataPlane
from broker.service.requests import RequestServer
from broker.service.watches import Watches
from raftlog.client.endpoints import KnownEndpoints
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Voters
from raftlog.metadata.image import Image


class News:
    """The callbacks by which the parts of a broker affect each other. The parts that are made with
    these methods as callbacks are passed to ``connect``, before any of them starts.

    ``now``: seconds of the loop's clock.
    """

    _follower: MetadataFollower
    _registration: RegistrationClient
    _requests: RequestServer
    _watches: Watches
    _data: DataPlane | None

    def __init__(
        self,
        view: View,
        lifecycle: Lifecycle,
        controllers: KnownEndpoints,
        now: Callable[[], float],
        bind_generation: Callable[[int], None],
    ) -> None:
        self._view, self._lifecycle, self._now = view, lifecycle, now
        self._bind_generation = bind_generation
        self._controllers = controllers
        self._voters: Voters | None = None
        """The voters last passed to ``controllers``."""
        self._shown: Image | None = None
        """The image last passed to the partition replicas."""
        self._seen = self._others_seen = -1
        """``moves`` and ``other_moves`` of the view, when its newest image was last processed."""

    def connect(
        self,
        follower: MetadataFollower,
        registration: RegistrationClient,
        requests: RequestServer,
        watches: Watches,
        data: DataPlane | None,
    ) -> None:
        """Connect the parts, once all are made."""
        self._follower, self._registration = follower, registration
        self._requests, self._watches, self._data = requests, watches, data

    def moved(self) -> None:
        """Handle a view that shows more, or received LAO and the controller epoch."""
        view = self._view
        if view.moves == self._seen:
            # Another LAO: the registration does not depend on it. Watches at LAO show more.
            self._requests.released()
            self._watches.moved()
            return
        self._seen = view.moves
        # Config values alone change nothing that the registration depends on.
        others = view.other_moves
        looks = others != self._others_seen or not self._lifecycle.passed(view.applied)
        if looks:
            self._others_seen = others
            self._learn_voters()
            self._lifecycle.metadata_applied(
                view.applied, view.registration, self._now(), heartbeats=view.heartbeats
            )
        self._requests.released()
        if looks:
            self._registration.pump()
        if self._data is not None and view.tip is not self._shown:
            self._show_image()
        self._watches.moved()

    def _learn_voters(self) -> None:
        """Learn the voters, to find the quorum when all configured controllers are gone."""
        voters = self._view.voters
        if voters is not None and voters is not self._voters:
            self._voters = voters
            self._controllers.learn(one.endpoint for one in voters.voters)

    def lease_wanted(self) -> None:
        """Send the next heartbeat at once: a strict read waits."""
        self._lifecycle.hasten(self._now())
        self._registration.pump()

    def heard(self) -> None:
        """Handle an answered heartbeat: it may have brought a lease, or a LAO that makes room."""
        self._requests.released()
        self._follower.resume()
        self._watches.moved()

    def generation_known(self) -> None:
        """Handle the first known generation of the log: its records are applied from now on."""
        self._bind_generation(self._view.generation)
        self._lifecycle.generation_seen(self._view.generation, self._now())
        self._registration.pump()

    def generation_changed(self) -> None:
        """Handle the replacement of the log by one that descends from it: the view is empty."""
        self._bind_generation(self._view.generation)
        self._lifecycle.generation_seen(self._view.generation, self._now())
        self._replaced(f"the log was replaced by generation {self._view.generation}")

    def log_diverged(self) -> None:
        """Handle a log that lacks what was applied here: the view is empty."""
        self._lifecycle.log_diverged(self._now())
        self._replaced("the log lost records that this broker had applied")

    def _replaced(self, message: str) -> None:
        self._requests.refuse_parked(ApiError(ErrorCode.INCONSISTENT_GENERATION, message))
        self._watches.log_replaced(message)
        # Before it registers again: the old log's image is as new as any, and says nothing about
        # this one.
        self._show_image()
        self._registration.pump()

    def _show_image(self) -> None:
        """Let partition replicas take their roles from the newest image."""
        if self._data is not None:
            self._shown = self._view.tip
            self._data.image_moved(self._shown, self._view.changes.take())
