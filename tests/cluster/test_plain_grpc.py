"""A client on generated stubs alone, which follows NOT_CONTROLLER by itself."""

from cluster_kit import PATIENCE_S, until

from raftlog.local.cluster import LocalCluster
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2, controller_pb2_grpc

import grpc  # isort: skip


def stub(channel: grpc.Channel) -> controller_pb2_grpc.ControllerStub:
    return controller_pb2_grpc.ControllerStub(channel)


def asked(address: str) -> str:
    """Return the leader's address that the node reports; its own address if it answered itself."""
    with grpc.insecure_channel(address) as channel:
        try:
            stub(channel).DescribeBrokers(
                controller_pb2.DescribeBrokersRequest(), timeout=PATIENCE_S
            )
        except grpc.RpcError as error:
            refused = error
        else:
            return address
    assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    trailing = dict(refused.trailing_metadata())
    # The same in both forms: a key of its own, and google.rpc.ErrorInfo.
    rich = common_pb2.RichStatus.FromString(trailing["grpc-status-details-bin"])
    info = common_pb2.ErrorInfo.FromString(rich.details[0].value)
    assert (info.reason, info.domain) == ("NOT_CONTROLLER", "raftlog")
    told = {entry.key: entry.value for entry in info.metadata}
    for name in ("leader_endpoint", "leader_id"):
        assert told.get(name, "") == trailing.get(f"raftlog-{name.replace('_', '-')}", "")
    return told.get("leader_endpoint", "")


def followed(address: str) -> tuple[str, int]:
    """Return the leader's address, and the number of nodes asked."""
    for count in range(1, 4):
        answer = asked(address)
        if answer == address:
            return address, count
        address = answer
    raise AssertionError(f"three nodes were asked, and none leads; the last names {address}")


def leader_of(quorum: LocalCluster) -> str:
    return quorum.wait_leader().endpoint


def test_each_node_names_the_leader_also_after_a_transfer(three_controllers: LocalCluster) -> None:
    quorum = three_controllers
    addresses = [node.endpoint for node in quorum.controllers]
    first = leader_of(quorum)
    until(lambda: all(asked(one) == first for one in addresses), "each node names the leader")
    assert sorted(followed(one)[1] for one in addresses) == [1, 2, 2]

    successor = next(node for node in quorum.controllers if node.endpoint != first)
    with grpc.insecure_channel(first) as channel:
        stub(channel).TransferLeadership(
            controller_pb2.TransferLeadershipRequest(target_id=successor.node_id),
            timeout=PATIENCE_S,
        )
    until(lambda: leader_of(quorum) == successor.endpoint, "the successor leads")
    # The one that led knows its successor at once; the third hears of it by the next message.
    assert asked(first) == successor.endpoint
    until(
        lambda: all(asked(one) == successor.endpoint for one in addresses),
        "each node names the successor",
    )
    assert sorted(followed(one)[1] for one in addresses) == [1, 2, 2]
