"""Commitment (I5, I8) and durability (I18).

I5: when a leader's high watermark advances, everything below it is durable on a majority of the
voter set in its log, as the disks themselves show. I8: no commit by counting before a record of the
leader's own epoch (Raft §5.4.2, figure 8). I18: a replica's disk has all that it acknowledges, and
a node sends nothing after a disk error. A Fetch acknowledges everything below its offset (KIP-595):
when it leaves, its sender's disk durably holds a batch of that epoch that ends there. After a
restart all that was acknowledged is in the log.
"""

from typing import Any

from raftlog.endpoint import Voter
from raftlog.errors import ErrorCode
from raftlog.quorum import events as ev
from raftlog.wire.broker.v1.broker_pb2 import BrokerResponse
from raftlog.wire.data.v1.data_pb2 import ReplicaFetchRequest, ReplicaFetchResponse
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from simulation.checks.api import BrokerView, Checker, ControllerView, fail, present
from simulation.checks.ledger import Directory, Ledger, Node, directory_of
from simulation.checks.node_log import holds_durably
from simulation.twins.disk import SimDisk


class Commitment(Checker):
    """Checker of I5 and I8."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.advances = 0
        self._disks: dict[Directory, SimDisk] = {}
        """Disk of each directory. What was acknowledged from a lost disk still counts."""
        ledger.on(ev.HighWatermarkAdvanced, self._advanced)

    def controller_started(self, host: ControllerView) -> None:
        self._disks[directory_of(host)] = host.disk

    def _advanced(self, node: Node, effect: ev.HighWatermarkAdvanced) -> None:
        if node.leads < 0:
            return
        self.advances += 1
        offset = effect.offset
        epoch, _ = present(node.log.at(offset))
        if epoch != node.leads:
            fail(f"I8: {node.name} leads epoch {node.leads}, and commits {offset} of epoch {epoch}")
        voters = node.voters
        holding = [voter.node_id for voter in voters if self._holds(voter, offset, epoch)]
        if len(holding) <= len(voters) // 2:
            fail(
                f"I5: {node.name} commits up to {offset} in epoch {epoch}, durable only on"
                f" {holding} of the voters {[voter.node_id for voter in voters]}"
            )

    def _holds(self, voter: Voter, offset: int, epoch: int) -> bool:
        return any(
            node_id == voter.node_id
            and voter.directory_id in ("", directory_id)
            and holds_durably(disk, self._ledger.matching, offset, epoch)
            for (node_id, directory_id), disk in self._disks.items()
        )


class Durability(Checker):
    """Checker of I18, and of the flush before each acknowledgement."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.acknowledgements = 0
        self._acknowledged: dict[Directory, tuple[int, int]] = {}
        """Directory -> (end offset, epoch) of its last acknowledgement, lowered by truncations."""
        self._replacing: dict[Directory, int] = {}
        """Directory -> end offset of a diverging snapshot that is being stored."""
        ledger.on(ev.Truncate, self._truncated)
        ledger.on(ev.StoreSnapshot, self._stores)

    def controller_started(self, host: ControllerView) -> None:
        said = self._acknowledged.get(directory_of(host))
        replaced_by = self._replacing.pop(directory_of(host), -1)
        if said is None or host.disk.was_set_back:
            return
        log = self._ledger.nodes[host.name].log
        end, epoch = said
        if end <= log.start or log.start == replaced_by:
            return
        there = log.at(end)
        if there is None or there[0] != epoch:
            fail(
                f"{host.name} had acknowledged everything below {end} (epoch {epoch}); after its"
                f" restart its log ends at {log.end}, and has {there} there"
            )

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        disk = getattr(host, "disk", None)
        if disk is None:
            return
        broker = not hasattr(host, "core")
        if (not broker or _of_partitions(message)) and (failure := disk.failure) is not None:
            fail(f"I18: {host.name} sends {type(message).__name__} to {peer} after {failure}")
        if type(message) is pb.FetchRequest and message.fetch_offset > 0:
            self.acknowledgements += 1
            end, epoch = message.fetch_offset, message.last_fetched_epoch
            if not holds_durably(disk, self._ledger.matching, end, epoch):
                fail(
                    f"{host.name} acknowledges everything below {end} (epoch {epoch}), and its disk"
                    " does not hold it durably"
                )
            self._acknowledged[directory_of(host)] = end, epoch
            self._replacing.pop(directory_of(host), None)

    def _stores(self, node: Node, effect: ev.StoreSnapshot) -> None:
        """A snapshot whose end is not in the log may replace the log on the disk before the process
        is told.
        """
        end = effect.snapshot_id.end_offset
        there = node.log.at(end)
        if effect.last and (there is None or there[0] != effect.snapshot_id.epoch):
            self._replacing[directory_of(node.host)] = end

    def _truncated(self, node: Node, effect: ev.Truncate) -> None:
        key = directory_of(node.host)
        said = self._acknowledged.get(key)
        if said is not None and said[0] > effect.end_offset:
            self._acknowledged[key] = effect.end_offset, node.log.last_epoch


def _of_partitions(message: Any) -> bool:
    """Return whether a broker's message depends on the contents of its disk."""
    if type(message) is BrokerResponse:
        body = message.WhichOneof("body")
        # Who may do nothing is told so without a look at the disk.
        return body in ("produce", "fetch") and any(
            one.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for one in getattr(message, body).partitions
        )
    if type(message) is ReplicaFetchResponse:
        # Nor who poses as a follower.
        return message.error_code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return type(message) is ReplicaFetchRequest
