"""Permissions of readers (I28).

* A broker's answer shows only what the entries of its newest applied image allow, and refuses only
  what they do not.
* After an entry change was answered ``acknowledged`` or ``visible``, an unfenced broker's answer to
  a later read shows nothing disallowed by all states since.
* A controller's listing shows only what was allowed in some committed image during the call.
* The log is shown to no client that was never allowed to read it.
* A client that poses as a node is refused for exactly that.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from raftlog.errors import ErrorCode
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2
from simulation.checks.acl_history import (
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    EXPORT_CURSOR,
    HOSTNAME,
    OF_CLUSTER,
    READ,
    TOPIC,
    AclHistory,
    Right,
)
from simulation.checks.api import BrokerView, Checker, ControllerView, Operation, fail
from simulation.checks.ledger import Ledger
from simulation.checks.rights import right_of_config
from simulation.checks.strict import Floors
from simulation.checks.visibility import SentAnswers
from simulation.swarm.identities import CALLERS, FORGER

REFUSALS = frozenset(
    ErrorCode[f"{one}_AUTHORIZATION_FAILED"] for one in ("TOPIC", "GROUP", "CLUSTER")
)
DESCRIBE_CLUSTER: Right = (DESCRIBE, CLUSTER, OF_CLUSTER)
OF_CLUSTER_LISTS = frozenset({"describe_brokers", "list_partition_reassignments", "describe_acls"})


class Shown(Checker):
    """Checker of I28."""

    def __init__(self, ledger: Ledger, history: AclHistory) -> None:
        self._golden, self._history = ledger.golden, history
        self._floor = Floors()
        self._began: dict[int, int] = {}
        self._sent = SentAnswers(ledger.golden)
        self.shown = 0
        self.refused = 0
        self.held_to = 0
        """Number of entities shown to reads that began after an acknowledged change of an entry."""
        self.listed = 0
        self.log_reads = 0
        """Number of checked responses to fetches of the log."""
        self.posed = 0

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if peer == FORGER:
            self._check_posed(host, message)
        elif peer in CALLERS and type(message) is broker_pb2.BrokerResponse:
            self._check_answer(host, peer, message)
        elif peer in CALLERS and type(message) is pb.MetadataFetchResponse:
            self._check_log(host, peer, message)

    def _check_answer(self, host: Any, peer: str, response: broker_pb2.BrokerResponse) -> None:
        if host.service is None:
            return
        self._sent.add(host, response)
        site, newest = CALLERS[peer], host.service.view.tip.offset
        for right, refused in self._judged(response):
            allowed = self._history.allows(site.principal, (site.address,), right, newest)
            self.refused += refused
            self.shown += not refused
            if allowed is refused:
                fail(
                    f"I28: {host.name} {'refuses' if refused else 'shows'} {site.principal} at"
                    f" {site.address} {right} (operation, type, name), which the entries at"
                    f" {newest}, the newest that it has applied,"
                    f" {'allow' if allowed else 'do not allow'}"
                )

    def _check_log(
        self, host: ControllerView | BrokerView, peer: str, response: pb.MetadataFetchResponse
    ) -> None:
        # By the image of a controller that may be behind, or has just begun: no more is promised.
        self.log_reads += 1
        site, last = CALLERS[peer], self._golden.end - 1
        if not response.HasField("error") and not self._history.ever_allows(
            site.principal, site.address, (CLUSTER_ACTION, CLUSTER, OF_CLUSTER), -1, last
        ):
            fail(f"I28: {host.name} shows the log to {site.principal} at {site.address}")

    def _check_posed(self, host: ControllerView | BrokerView, message: Any) -> None:
        if isinstance(message, broker_pb2.BrokerResponse | pb.ControllerResponse) and (
            not message.correlation_id and not message.HasField("error")
        ):
            return  # News for all.
        self.posed += 1
        if _code(message) != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            fail(f"I28: {host.name} answers a client that poses as a node: {str(message)[:200]}")

    def client_invoked(self, operation: Operation) -> None:
        if operation.client in CALLERS:
            self._began[operation.number] = self._golden.end - 1

    def client_returned(self, operation: Operation) -> None:
        if (
            operation.outcome == "ok"
            and operation.offset >= 0
            and operation.reached >= common_pb2.ACKS_ACKNOWLEDGED
        ):
            self._floor.raise_to(operation.offset, operation.returned_at)
        began = self._began.pop(operation.number, None)
        if began is None or operation.outcome != "ok":
            return
        if isinstance(operation.response, broker_pb2.BrokerResponse):
            self._check_floor(operation)
        elif isinstance(operation.response, pb.ControllerResponse):
            for right in _listed(operation.response):
                self.listed += 1
                self._check_since(operation, right, began, "since it asked")

    def _judged(self, response: broker_pb2.BrokerResponse) -> Iterator[tuple[Right, bool]]:
        kind = response.WhichOneof("body")
        if kind == "metadata":
            for topic in response.metadata.topics:
                yield (DESCRIBE, TOPIC, topic.name), topic.error_code in REFUSALS
        elif kind == "describe_configs":
            for result in response.describe_configs.results:
                yield right_of_config(result, DESCRIBE_CONFIGS), result.error_code in REFUSALS
        elif kind in ("describe_cluster", "describe_broker"):
            yield DESCRIBE_CLUSTER, False
        elif kind in ("fetch", "list_offsets"):
            operation = READ if kind == "fetch" else DESCRIBE
            for partition in getattr(response, kind).partitions:
                # Another error is of a partition that is not here.
                if partition.error_code in REFUSALS or not partition.error_code:
                    name = self._golden.topic_name(partition.topic_id)
                    yield (operation, TOPIC, name), partition.error_code in REFUSALS

    def _check_floor(self, operation: Operation) -> None:
        response, floor = operation.response, self._floor.at(operation.invoked_at)
        if floor < 0 or self._sent.of_unfenced(response) is None:
            return
        for right, refused in self._judged(response):
            if not refused:
                self.held_to += 1
                self._check_since(
                    operation, right, floor, f"since {floor} was acknowledged, before it began"
                )

    def _check_since(self, operation: Operation, right: Right, first: int, since: str) -> None:
        site, last = CALLERS[operation.client], self._golden.end - 1
        if not self._history.ever_allows(site.principal, site.address, right, first, last):
            fail(
                f"I28: {operation.client}'s {operation.key} (number {operation.number}) is shown"
                f" {right} (operation, type, name), which {site.principal} at {site.address} has"
                f" not been allowed {since}"
            )


def _listed(response: pb.ControllerResponse) -> Iterable[Right]:
    kind = response.WhichOneof("body")
    if kind in OF_CLUSTER_LISTS:
        return [DESCRIBE_CLUSTER]
    if kind == "list_hostnames":
        hostnames = response.list_hostnames
        of_cluster = bool(hostnames.absent_ids or hostnames.waiting_brokers)
        return [
            *((DESCRIBE, HOSTNAME, one.hostname) for one in hostnames.hostnames),
            *[DESCRIBE_CLUSTER] * of_cluster,
        ]
    if kind == "list_export_cursors":
        return [(DESCRIBE, EXPORT_CURSOR, one.name) for one in response.list_export_cursors.cursors]
    return []


def _code(message: Any) -> int:
    if isinstance(message, quorum_pb2.QuorumMessage):
        message = getattr(message, str(message.WhichOneof("body")))
    if "error" in message.DESCRIPTOR.fields_by_name:
        return int(message.error.error_code)
    return int(message.error_code)
