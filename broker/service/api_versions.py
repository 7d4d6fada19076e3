"""ApiVersions: the requests that clients may send to this broker, by the feature levels that the
cluster has finalized.

A broker *offers* what its image at the received LAO allows, and *accepts* what its newest image
allows. So when it offers a request that needs a new level, every unfenced broker has applied that
level and accepts the request. (Otherwise broker A could offer it to a client whose next request
goes to broker B, which has not applied the level and refuses.) When the levels at LAO change, the
broker announces that on each connection and closes it after a while; clients reconnect (KIP-778).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from broker.metadata.view import View
from raftlog.metadata.versions import METADATA_VERSION, MIN_METADATA_VERSION, REPLICA_EPOCHS
from raftlog.wire.broker.v1 import broker_pb2 as pb


class Api(NamedTuple):
    """A request that clients or other brokers send.

    ``levels``: for each version of the request, from 0 on, the level of metadata.version that it
    needs.
    """

    key: int
    name: str
    levels: tuple[int, ...]


FETCH_KEY = 1
APIS = (
    # 1: a follower names its broker epoch (KIP-903).
    Api(FETCH_KEY, "Fetch", (MIN_METADATA_VERSION, REPLICA_EPOCHS)),
    Api(3, "Metadata", (MIN_METADATA_VERSION,)),
    Api(18, "ApiVersions", (MIN_METADATA_VERSION,)),
    Api(32, "DescribeConfigs", (MIN_METADATA_VERSION,)),
    Api(60, "DescribeCluster", (MIN_METADATA_VERSION,)),
)


class ApiVersions:
    """The offer of one broker. Pure.

    ``supported``: (name, lowest, highest level) of its build.
    """

    def __init__(self, view: View, supported: tuple[tuple[str, int, int], ...]) -> None:
        self._view = view
        self._supported = supported
        self._generation = -1
        self._seen: Any = None
        self._levels: Mapping[str, int] = {}
        self._epoch = -1
        self._guessed = False
        """Whether a client was answered before the levels were known."""

    def moved(self) -> bool:
        """Return whether the moved view offers other levels, so that clients must ask again."""
        view = self._view
        if view.features is self._seen:
            # No level has changed since.
            return False
        image = view.repeatable
        if image is None or image.features is self._seen:
            return False
        self._seen = image.features
        levels = {name: image.features[name] for name in sorted(image.features)}
        if self._generation == self._view.generation and levels == self._levels:
            return False
        known = self._epoch >= 0 or self._guessed
        self._generation, self._levels, self._epoch = self._view.generation, levels, image.offset
        return known

    def response(self) -> pb.ApiVersionsResponse:
        """Return the offer; before LAO is known, only the requests that need no level."""
        self._guessed = self._guessed or self._epoch < 0
        level = min(self._levels.get(METADATA_VERSION, MIN_METADATA_VERSION), self._highest())
        offered = pb.ApiVersionsResponse(
            finalized_features_epoch=self._epoch, generation=self._generation
        )
        for api in APIS:
            highest = sum(1 for needed in api.levels if needed <= level) - 1
            offered.api_keys.add(api_key=api.key, name=api.name, min_version=0, max_version=highest)
        for name, low, high in self._supported:
            offered.supported_features.add(name=name, min_version=low, max_version=high)
        for name, finalized in self._levels.items():
            offered.finalized_features.add(name=name, level=finalized)
        return offered

    def _highest(self) -> int:
        return next(
            (high for name, _, high in self._supported if name == METADATA_VERSION),
            MIN_METADATA_VERSION,
        )
