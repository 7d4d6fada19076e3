"""The permissions of a broker's clients: requests that they may send, and items that answers leave
out.

The newest image applied here decides, whichever image answers [a topic is read from the image at
LAO, which does not have the removal of a permission yet]; and it decides when the answer is sent,
too, not only when the request arrives [a read waits here while a permission is removed and every
broker acknowledges that]. So a permission whose removal every unfenced broker has applied is of no
use at any of them.

Why: docs/decisions/025-verdicts-by-the-newest-image.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from broker.metadata.view import View
from raftlog.errors import ApiError
from raftlog.metadata.acls import AclOperation, Resource
from raftlog.node.security.authorization import NONE_REFUSED, Asker, Refused, refusal
from raftlog.node.security.client_rules import ClientRules, Peer
from raftlog.node.security.permissions import BROKER, EachPartition, topic
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2

Answer = Callable[..., None]
_RESULTS: dict[str, Callable[..., Any]] = {
    "produce": data_pb2.ProducePartitionResult,
    "fetch": data_pb2.FetchPartitionResult,
    "list_offsets": data_pb2.ListOffsetsPartitionResult,
}
_RESPONSES: dict[str, Callable[..., Any]] = {
    "produce": data_pb2.ProduceResponse,
    "fetch": data_pb2.FetchResponse,
    "list_offsets": data_pb2.ListOffsetsResponse,
}
_NO_OFFSETS: dict[str, dict[str, int]] = {
    "produce": {"base_offset": -1},
    "fetch": {"high_watermark": -1, "log_start_offset": -1},
    "list_offsets": {"offset": -1, "leader_epoch": -1},
}


class RequestAccess:
    """The permissions of a broker's clients. ``rules`` None: every client may do everything."""

    def __init__(self, rules: ClientRules | None, view: View) -> None:
        self._rules, self._view = rules, view

    def check(self, peer: Peer, body: str, request: broker_pb2.BrokerRequest) -> Refused:
        """Return the refused items. Raises ApiError if the whole request is refused."""
        if self._rules is None:
            return NONE_REFUSED
        return self._rules.authorization.check(
            BROKER.get(body), getattr(request, body), self._rules.asker_of(peer), self._view.tip
        )

    def may_describe(
        self, peer: Peer, resource: Callable[[str], Resource] = topic
    ) -> Callable[[str], bool] | None:
        """Return whether a resource of this name, a topic, may be shown; None: each may."""
        if self._rules is None:
            return None
        authorization, asker = self._rules.authorization, self._rules.asker_of(peer)
        image = self._view.tip
        return lambda name: authorization.allows(
            asker, AclOperation.DESCRIBE, resource(name), image
        )

    def partitions(
        self, peer: Peer, body: str, request: broker_pb2.BrokerRequest, answer: Answer
    ) -> tuple[broker_pb2.BrokerRequest | None, Answer]:
        """Return the request without the refused partitions, None if nothing is left of it; and the
        answer that has their errors in their places.
        """
        if self._rules is None:
            return request, answer
        row = BROKER[body]
        assert isinstance(row, EachPartition)
        asker = self._rules.asker_of(peer)
        asked = getattr(request, body).partitions
        refused = self._refused(asker, row.operation, asked)
        if len(refused) == len(asked) > 0:
            results = [_refused_result(body, one, refused[at]) for at, one in enumerate(asked)]
            answer(**{body: _RESPONSES[body](partitions=results)})
            return None, answer
        left = broker_pb2.BrokerRequest()
        left.CopyFrom(request)
        partitions = getattr(left, body).partitions
        for index in sorted(refused, reverse=True):
            del partitions[index]

        def woven(**fields: Any) -> None:
            response = fields.get(body)
            if response is not None:
                late = self._refused(asker, row.operation, response.partitions)
                results = [
                    _refused_result(body, one, late[at]) if body == "fetch" and at in late else one
                    for at, one in enumerate(response.partitions)
                ]
                for index in sorted(refused):
                    results.insert(index, _refused_result(body, asked[index], refused[index]))
                fields[body] = _RESPONSES[body](partitions=results)
            answer(**fields)

        return left, woven

    def _refused(self, asker: Asker, operation: AclOperation, partitions: Iterable[Any]) -> Refused:
        """Return the partitions whose topic is known here, and not allowed."""
        assert self._rules is not None
        image, authorization = self._view.tip, self._rules.authorization
        errors: dict[int, ApiError] = {}
        for index, one in enumerate(partitions):
            found = image.topics.get(one.topic_id)
            if found is None:
                continue
            wanted = topic(found.name)
            if not authorization.allows(asker, operation, wanted, image):
                # A client that has only the topic's id does not learn its name.
                unnamed = topic(one.topic_id.hex())
                errors[index] = refusal(
                    asker.caller, operation, unnamed, f"partitions[{index}].topic_id"
                )
        return errors


def _refused_result(body: str, partition: Any, error: ApiError) -> Any:
    return _RESULTS[body](
        topic_id=partition.topic_id,
        partition_index=partition.partition_index,
        error_code=error.code,
        error_message=error.message,
        **_NO_OFFSETS[body],
    )
