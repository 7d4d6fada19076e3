"""Which cluster is asked, where a node of another one answers at a known address."""

from __future__ import annotations

import pytest

from raftlog.client.quorum_queries import cluster_of
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def one(cluster_id: str, role: str = "prospective") -> pb.DescribeQuorumResponse:
    return pb.DescribeQuorumResponse(cluster_id=cluster_id, role=role)


@pytest.mark.parametrize(
    ("answers", "cluster_id"),
    [
        ([], ""),
        ([one("a")], "a"),
        ([one("b"), one("a"), one("a")], "a"),
        ([one("b"), one("b"), one("a", "leader")], "a"),
        ([one("a"), one("b")], ""),
    ],
)
def test_it_is_the_leaders_or_that_of_most(
    answers: list[pb.DescribeQuorumResponse], cluster_id: str
) -> None:
    """[a voter that was formatted with another cluster id made an outage of this cluster]"""
    assert cluster_of(answers) == cluster_id
