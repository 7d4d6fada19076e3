"""metadata.version: raised only when every registered broker and voter knows the level, no broker
without it registers (KIP-584), and a broker offers it once every unfenced broker has applied it
(KIP-778).
"""

from typing import Any

from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import LATEST_METADATA_VERSION, METADATA_VERSION
from raftlog.wire.broker.v1 import broker_pb2
from simulation.checks.api import BrokerView, Checker, ControllerView, fail
from simulation.checks.ledger import Ledger


class Levels(Checker):
    """Checker of levels. It reads the committed records, not the fold."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._level = 1
        self.lowered = 0
        self.raised = 0
        """Number of raises after registrations of builds that do not know the latest level."""
        self.older = 0
        self.offers = 0
        self._known: dict[int, int] = {}
        """Broker id -> the highest level that its registration says it knows."""
        ledger.golden.on(self._moved, RecordType.FEATURE_LEVEL)
        ledger.golden.on(self._registered, RecordType.REGISTER_BROKER)
        ledger.golden.on(self._unregistered, RecordType.UNREGISTER_BROKER)

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if type(message) is broker_pb2.BrokerResponse and message.HasField("api_versions"):
            offered = message.api_versions
            if offered.finalized_features_epoch >= 0:
                self._offers(host, offered)

    def _offers(
        self, host: ControllerView | BrokerView, offered: broker_pb2.ApiVersionsResponse
    ) -> None:
        self.offers += 1
        for other in self._ledger.world.brokers:
            service: Any = other.service
            if service is None or service.view.generation != offered.generation:
                continue
            standing = self._ledger.golden.standing(other.id)
            applied, epoch = service.image.offset, service.lifecycle.epoch
            # A broker that does not know yet that it is unfenced serves nobody.
            serves = applied >= standing.offset and epoch == standing.broker_epoch
            if serves and not standing.fenced and applied < offered.finalized_features_epoch:
                fail(
                    f"{host.name} offers the levels as of {offered.finalized_features_epoch}, and"
                    f" {other.name}, unfenced since {standing.offset}, has applied {applied}"
                )

    def _unregistered(self, message: Any, offset: int, epoch: int) -> None:
        self._known.pop(message.broker_id, None)

    def _registered(self, message: Any, offset: int, epoch: int) -> None:
        highest = max(
            (one.max_supported_version for one in message.features if one.name == METADATA_VERSION),
            default=0,
        )
        self.older += highest < LATEST_METADATA_VERSION
        self._known[message.broker_id] = highest
        if highest < self._level:
            fail(
                f"broker {message.broker_id} is registered at {offset}: it knows metadata.version"
                f" up to {highest}, the cluster is at {self._level}"
            )

    def _moved(self, message: Any, offset: int, epoch: int) -> None:
        if message.name != METADATA_VERSION:
            return
        level = message.feature_level
        behind = [
            f"broker {broker_id} ({known})"
            for broker_id, known in self._known.items()
            if known < level
        ]
        nodes = self._ledger.nodes.values()
        voters = {voter.node_id for node in nodes if node.leads >= 0 for voter in node.voters}
        for node in nodes:
            service = node.host.service
            # Who leads would have refused.
            if service is not None and node.host.id in voters and node.leads < 0:
                known = service.quorum.max_metadata_version
                behind += [f"{node.name} ({known})"] if known < level else []
        if behind:
            fail(f"metadata.version is {level} from {offset} on, unknown to {behind}")
        self.raised += level > self._level and self.older > 0
        self.lowered += level < self._level
        self._level = level
