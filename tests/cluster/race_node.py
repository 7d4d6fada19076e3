"""``raftlog`` for KIP-903's race: while files named in the environment exist, a leader's
AlterPartition and a follower's fetches are held.

``NO_EPOCH_CHECK`` not empty: the controller does not look at the broker epochs of a proposed ISR,
as before KIP-903.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from broker.partition import events as ev
from broker.replication.data_plane import DataPlane
from broker.replication.links import LeaderLinks
from controller.decisions.partitions import alter_partition
from raftlog.cli.main import main
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.records.v1 import records_pb2

POLL_S = 0.02


def held(variable: str) -> bool:
    return Path(os.environ[variable]).exists()


def hold_alter_partition() -> None:
    """A proposal waits on its way; what it says stays what it was."""
    send = DataPlane._send_alter_partition

    def later(self: DataPlane, effect: ev.SendAlterPartition) -> None:
        if held("HOLD_ALTER_FILE"):
            asyncio.get_running_loop().call_later(POLL_S, later, self, effect)
        else:
            send(self, effect)

    DataPlane._send_alter_partition = later  # type: ignore[method-assign]


def hold_fetches() -> None:
    """A follower asks for nothing."""
    send = LeaderLinks.send

    def later(
        self: LeaderLinks, leader_id: int, request: data_pb2.ReplicaFetchRequest, now: float
    ) -> None:
        if held("HOLD_FETCH_FILE"):
            asyncio.get_running_loop().call_later(POLL_S, later, self, leader_id, request, now)
        elif leader_id in self._links:
            send(self, leader_id, request, now)

    LeaderLinks.send = later  # type: ignore[method-assign]


def check_no_epochs() -> None:
    """Every epoch is taken for the registered one."""
    ineligible = alter_partition._ineligible

    def lenient(view: Any, member: records_pb2.BrokerState, *, skip: bool) -> str:
        broker = view.brokers.get(member.broker_id)
        epoch = member.broker_epoch if broker is None else broker.epoch
        return ineligible(
            view, records_pb2.BrokerState(broker_id=member.broker_id, broker_epoch=epoch), skip=skip
        )

    alter_partition._ineligible = lenient


if __name__ == "__main__":
    hold_alter_partition()
    hold_fetches()
    if os.environ.get("NO_EPOCH_CHECK"):
        check_no_epochs()
    main()
