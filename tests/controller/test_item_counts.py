"""What a request names has a limit, also where each thing is refused by itself and nothing would be
written.
"""

from __future__ import annotations

from typing import Any

import pytest
from deciding import Cell

from controller.decisions.partitions import leader_elections
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.config_keys import ResourceType
from raftlog.wire.controller.v1 import controller_pb2 as rpc

LIMIT = 3
NOBODY = "nobody"


def _configs(count: int) -> rpc.IncrementalAlterConfigsRequest:
    resources = [
        rpc.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=f"{NOBODY}{index}")
        for index in range(count)
    ]
    return rpc.IncrementalAlterConfigsRequest(resources=resources)


def _topics(count: int) -> rpc.CreateTopicsRequest:
    return rpc.CreateTopicsRequest(
        topics=[rpc.CreatableTopic(name=f"no name {index}") for index in range(count)]
    )


def _names(count: int) -> rpc.DeleteTopicsRequest:
    return rpc.DeleteTopicsRequest(names=[f"{NOBODY}{index}" for index in range(count)])


def _partitions(count: int) -> rpc.CreatePartitionsRequest:
    topics = [rpc.CreatePartitionsTopic(name=f"{NOBODY}{index}", count=2) for index in range(count)]
    return rpc.CreatePartitionsRequest(topics=topics)


def _reassignments(count: int) -> rpc.AlterPartitionReassignmentsRequest:
    topics = [rpc.ReassignableTopic(name=f"{NOBODY}{index}") for index in range(count)]
    return rpc.AlterPartitionReassignmentsRequest(topics=topics)


@pytest.mark.parametrize(
    ("request_of", "field"),
    [
        (_configs, "resources"),
        (_topics, "topics"),
        (_names, "names"),
        (_partitions, "topics"),
        (_reassignments, "topics"),
    ],
)
def test_more_refused_items_than_a_batch_has_records_are_not_looked_at(
    request_of: Any, field: str
) -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=LIMIT))
    assert cell.decide(request_of(LIMIT)).error is None
    cell.refused(request_of(LIMIT + 1), ErrorCode.POLICY_VIOLATION, field)


def test_more_keys_than_there_are_must_be_twice_in_the_list() -> None:
    cell = Cell(brokers=0)
    configs = [rpc.AlterableConfig()] * 1_000
    resource = rpc.AlterConfigsResource(
        resource_type=ResourceType.GROUP, resource_name="g", configs=configs
    )
    cell.refused_part(
        rpc.IncrementalAlterConfigsRequest(resources=[resource]),
        ErrorCode.INVALID_REQUEST,
        "resources[0].configs",
    )


def test_a_large_topic_named_many_times_is_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """[ten thousand partitions, named a hundred thousand times: a thousand million elections in 800
    KB]
    """
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=300))
    cell.create("t", num_partitions=200, replication_factor=1)
    laid_out: list[Any] = []
    named = leader_elections._named

    def watched(*arguments: Any) -> Any:
        for each in named(*arguments):
            laid_out.append(each)
            yield each

    monkeypatch.setattr(leader_elections, "_named", watched)
    topics = [rpc.ElectableTopic(name="t") for _ in range(2_000)]
    cell.refused(rpc.ElectLeadersRequest(topics=topics), ErrorCode.POLICY_VIOLATION, "")
    assert len(laid_out) == 301
