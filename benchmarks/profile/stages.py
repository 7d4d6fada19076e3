"""The stages of a write, with the functions of each.

A stage's time is the self time of its functions, including the functions they call unless those are
listed under another stage. When a function is renamed or a stage gets another entry point, only
this table changes; a test checks that every name exists.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

Stages = Mapping[str, tuple[str, ...]]

DISK = "disk"
REST = "rest"
"""The CPU time of the loop's thread outside all stages: event loop, coroutines of the
links, gRPC.
"""

NODE: Stages = {
    "receive and parse": (
        "raftlog.transport.conversations:RequestsWire.decode",
        "raftlog.transport.conversations:RepeatedWire.cut",
        "raftlog.transport.conversations:SingleWire.decode",
        "raftlog.transport.links:BaseLink.deliver",
        "controller.service.intake:Reception.received",
    ),
    "decide": (
        "controller.service.turns:Turns.decide_all",
        "controller.decider:Decider.decide",
        "controller.decider:Decider.proposed",
    ),
    "fold": (
        "controller.state.epoch_log:EpochLog.add",
        "controller.state.epoch_log:EpochLog.end_chunk",
        "controller.state.epoch_log:EpochLog.commit",
        "raftlog.metadata.fold:ImageBuilder.apply_batch",
        "raftlog.metadata.fold:ImageBuilder.apply_configs",
        "raftlog.metadata.fold:ImageBuilder.apply_chunk",
    ),
    "encode": (
        "controller.state.epoch_log:ChunkBuilder.add",
        "controller.state.epoch_log:ChunkBuilder.add_group",
        "controller.state.epoch_log:ChunkBuilder.end",
    ),
    "commit round": (
        "raftlog.node.replica.replica:Replica._step",
        "raftlog.node.replica.replica:Replica.answered",
        "raftlog.node.replica.replica:Replica.propose",
        "raftlog.node.replica.local_log:LocalLog._flush_now",
    ),
    "reply": (
        "controller.service.replies:Answers.parked",
        "raftlog.transport.conversations:ResponsesWire.encode",
        "controller.service.replies:Parking.park",
        "controller.service.service:Announcements.committed",
        "controller.service.service:Announcements._after_commit",
        "raftlog.transport.conversations:RepeatedWire.envelopes",
    ),
    DISK: (
        "raftlog.node.storage.rocks_adapter:RocksLog.put",
        "raftlog.node.storage.rocks_adapter:RocksLog.sync",
    ),
}

CLIENT: Stages = {
    "make the request": ("benchmarks.load:Writes.next",),
    "send": (
        "raftlog.client.controller_client:ControllerClient.send",
        "raftlog.transport.conversations:RepeatedWire.envelopes",
    ),
    "parse": (
        "raftlog.transport.conversations:RepeatedWire.decode",
        "raftlog.transport.links:BaseLink.deliver",
    ),
    "complete the call": (
        "raftlog.transport.rpc_client:RpcClient.received",
        "raftlog.client.router:RoutedCall.set_result",
    ),
}


def functions(stages: Stages) -> Iterator[tuple[str, type, str]]:
    """Yield (stage, class, method name) for every function that exists."""
    for stage, names in stages.items():
        for name in names:
            found = find(name)
            if found is not None:
                yield stage, *found


def missing(stages: Stages) -> list[str]:
    """Return the functions that this build does not have; their time counts for the stages of their
    callers.
    """
    return [name for names in stages.values() for name in names if find(name) is None]


def find(name: str) -> tuple[type, str] | None:
    """Return the class and the method name for ``module:Class.method``, or None if it does not
    exist.
    """
    module, _, path = name.partition(":")
    owner, _, method = path.partition(".")
    try:
        found = getattr(importlib.import_module(module), owner)
    except (ImportError, AttributeError):
        return None
    return (found, method) if hasattr(found, method) else None
