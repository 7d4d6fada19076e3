"""``raftlog cluster hostnames`` against a real controller and broker, and the same by unary gRPC."""

from __future__ import annotations

from typing import Any

import pytest
from command_lines import Raftlog

from raftlog.errors import ErrorCode
from raftlog.local.cluster import LocalCluster
from raftlog.transport.unary import ERROR_METADATA_KEY
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2, controller_pb2_grpc

import grpc  # isort: skip

HOSTNAMES = ("cluster", "hostnames")


@pytest.fixture
def at(cluster: LocalCluster) -> tuple[str, str]:
    return "--bootstrap-controller", cluster.bootstrap_controllers


def listed(raftlog: Raftlog, at: tuple[str, str]) -> dict[str, dict[str, Any]]:
    return {
        one["hostname"]: one for one in raftlog(*HOSTNAMES, "list", *at, "--json").json["items"]
    }


def test_a_broker_that_registered_is_listed(
    raftlog: Raftlog, at: tuple[str, str], cluster: LocalCluster
) -> None:
    broker = cluster.brokers[0]
    one = listed(raftlog, at)["127.0.0.1"]
    assert (one["version"], one["broker_id"]) == (0, broker.node_id)
    assert (one["reason"], one["cause"], one["address"]) == (
        "registered",
        "BY_REGISTRATION",
        broker.endpoint,
    )
    shown = raftlog(*HOSTNAMES, "list", *at).out
    assert "127.0.0.1" in shown
    assert broker.endpoint in shown


def test_set_compare_and_delete(raftlog: Raftlog, at: tuple[str, str]) -> None:
    ran = raftlog(*HOSTNAMES, "set", "New.Example.", 77, "--validate-only", *at)
    assert (ran.code, ran.out.strip()) == (0, "New.Example.: would be accepted")
    assert "new.example" not in listed(raftlog, at)
    assert raftlog(*HOSTNAMES, "set", "New.Example.", 77, "--expected-offset", -1, *at).code == 0
    offset = listed(raftlog, at)["new.example"]["offset"]
    ran = raftlog(*HOSTNAMES, "set", "new.example", 78, "--expected-offset", offset + 1, *at)
    assert ran.code == 1
    assert "INVALID_UPDATE_VERSION" in ran.err
    assert "field alterations[0].expected_offset" in ran.err
    ran = raftlog(*HOSTNAMES, "delete", "new.example", "--expected-offset", offset, "--json", *at)
    assert ran.json["items"] == [{"name": "new.example", "error": None, "offset": None}]
    assert "RESOURCE_NOT_FOUND" in raftlog(*HOSTNAMES, "delete", "new.example", *at).err


def test_a_broker_forwards_an_edit(
    raftlog: Raftlog, at: tuple[str, str], cluster: LocalCluster
) -> None:
    assert (
        raftlog(
            *HOSTNAMES, "set", "fwd.example", 5, "--bootstrap-server", cluster.brokers[0].endpoint
        ).code
        == 0
    )
    assert listed(raftlog, at)["fwd.example"]["broker_id"] == 5
    assert raftlog(*HOSTNAMES, "delete", "fwd.example", *at).code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["delete"], "give the names of hosts, or --all"),
        (["delete", "a", "--all"], "give the names of hosts, or --all"),
        (["delete", "a", "b", "--expected-offset", 1], "is about one host"),
        (["set", "a b", 1], "is no host:"),
    ],
)
def test_what_makes_no_sense(
    raftlog: Raftlog, at: tuple[str, str], arguments: list[str], says: str
) -> None:
    ran = raftlog(*HOSTNAMES, *arguments, *at)
    assert ran.code != 0
    assert says in ran.err


def test_unary(cluster: LocalCluster) -> None:
    with grpc.insecure_channel(cluster.controllers[0].endpoint) as channel:
        stub = controller_pb2_grpc.ControllerStub(channel)
        change = controller_pb2.HostnameAlteration(
            hostname="unary.example", broker_id=9, expected_offset=-1
        )
        done = stub.AlterHostnames(
            controller_pb2.AlterHostnamesRequest(alterations=[change]), timeout=30
        )
        (one,) = (
            one
            for one in stub.ListHostnames(
                controller_pb2.ListHostnamesRequest(), timeout=30
            ).hostnames
            if one.hostname == "unary.example"
        )
        assert (one.broker_id, one.offset) == (9, done.results[0].offset)
        again = stub.AlterHostnames(
            controller_pb2.AlterHostnamesRequest(alterations=[change]), timeout=30
        )
        assert again.results[0].error.error_code == ErrorCode.INVALID_UPDATE_VERSION
        gone = controller_pb2.HostnameAlteration(
            hostname="unary.example", expected_offset=one.offset
        )
        stub.AlterHostnames(controller_pb2.AlterHostnamesRequest(alterations=[gone]), timeout=30)
        with pytest.raises(grpc.RpcError) as refused:
            stub.RegisterBroker(
                controller_pb2.RegisterBrokerRequest(broker_id=-1, cluster_id=cluster.cluster_id),
                timeout=30,
            )
        (data,) = (
            value for key, value in refused.value.trailing_metadata() if key == ERROR_METADATA_KEY
        )
        assert common_pb2.Error.FromString(data).field == "broker_id"


def test_all_mappings_go_when_asked(raftlog: Raftlog, at: tuple[str, str]) -> None:
    assert raftlog(*HOSTNAMES, "set", "x.example", 5, *at).code == 0
    names = set(listed(raftlog, at))
    ran = raftlog(*HOSTNAMES, "delete", "--all", "--json", *at)
    assert {one["name"] for one in ran.json["items"]} == names
    assert listed(raftlog, at) == {}
