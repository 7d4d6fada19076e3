import asyncio

import pytest

from raftlog.bounds import TransportLimits, memory_bounds
from raftlog.node.transport import transport_metrics
from raftlog.transport.bounds import Bounds

LIMITS = TransportLimits(
    max_queued_total_bytes=7, max_waiting_total_bytes=5, max_unfinished_total_bytes=3
)
EVERYWHERE = {
    "unsent_responses",
    "waiting_messages",
    "unfinished_messages",
    "calls_not_begun",
    "unfinished_messages_of_lanes",
    "unfinished_tls_records_of_lanes",
}


@pytest.mark.parametrize(
    ("role", "parts"),
    [
        (
            "controller",
            EVERYWHERE
            | {"unfinished_messages_of_lanes", "unfinished_tls_records_of_lanes"}
            | {"waiting_requests", "log_tail", "rocksdb"},
        ),
        ("broker", EVERYWHERE | {"log_above_lao"}),
    ],
)
def test_each_memory_bound_is_exported_as_configured(role: str, parts: set[str]) -> None:
    bounds = memory_bounds(LIMITS, role)
    assert bounds.keys() == parts
    assert (bounds["unsent_responses"], bounds["waiting_messages"]) == (7, 5)
    assert bounds["unfinished_messages"] == 3

    async def shown() -> dict[str, float]:
        metrics = transport_metrics(Bounds(asyncio.get_running_loop(), LIMITS), role)
        (found,) = (one for one in metrics if one.name == "raftlog_memory_bound_bytes")
        return {sample.labels["part"]: sample.value for sample in found.samples}

    assert asyncio.run(shown()) == bounds
