"""Request counters of a node, and their metrics."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from raftlog.errors import ErrorCode
from raftlog.node.observability.figures import (
    LAG_MEASURED_EVERY_S,
    Latency,
    LoopLag,
    RequestFigures,
)
from raftlog.node.observability.process_metrics import (
    add_certificate_metrics,
    add_disk_metrics,
    add_node_metrics,
    add_request_metrics,
    api_name,
)
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.data.v1 import data_pb2


def shown(metrics: MetricsRegistry) -> list[str]:
    return generate_latest(metrics.registry).decode().splitlines()


def test_responses_are_counted_by_api_with_errors_and_durations() -> None:
    now = [10.0]
    figures = RequestFigures(lambda: now[0])
    figures.answered("create_topics", 9.998)
    figures.answered("create_topics", 9.5, ErrorCode.NOT_CONTROLLER)
    figures.answered("incremental_alter_configs", 9.998, count=64)
    figures.answered("broker_heartbeat", 10.0, 12345)
    figures.answered("", 10.0, ErrorCode.INVALID_REQUEST)
    metrics = MetricsRegistry(process=False)
    add_request_metrics(metrics, figures, lambda: {"commit": 3})
    lines = shown(metrics)
    name = "kafka_network_request_metrics"
    assert f'{name}_requests_total{{request="CreateTopics"}} 2.0' in lines
    assert f'{name}_requests_total{{request="IncrementalAlterConfigs"}} 64.0' in lines
    assert f'{name}_errors_total{{error="NOT_CONTROLLER",request="CreateTopics"}} 1.0' in lines
    assert f'{name}_errors_total{{error="12345",request="BrokerHeartbeat"}} 1.0' in lines
    assert f'{name}_errors_total{{error="INVALID_REQUEST",request="Unknown"}} 1.0' in lines
    times = f"{name}_total_time_seconds"
    assert f'{times}_bucket{{le="0.0025",request="CreateTopics"}} 1.0' in lines
    assert f'{times}_bucket{{le="0.5",request="CreateTopics"}} 2.0' in lines
    assert f'{times}_count{{request="IncrementalAlterConfigs"}} 64.0' in lines
    assert 'raftlog_waiting_requests{awaits="commit"} 3.0' in lines


def _topics(*codes: int) -> pb.CreateTopicsResponse:
    return pb.CreateTopicsResponse(
        topics=[
            pb.CreatableTopicResult(error=common_pb2.Error(error_code=code) if code else None)
            for code in codes
        ]
    )


def _isrs(*codes: int) -> pb.AlterPartitionResponse:
    partitions = [pb.AlterPartitionResult(error_code=code) for code in codes]
    return pb.AlterPartitionResponse(topics=[pb.AlterPartitionTopicResult(partitions=partitions)])


def _produced(*codes: int) -> data_pb2.ProduceResponse:
    return data_pb2.ProduceResponse(
        partitions=[data_pb2.ProducePartitionResult(error_code=code) for code in codes]
    )


@pytest.mark.parametrize("make", [_topics, _isrs, _produced])
def test_each_failed_item_is_counted(make: Any) -> None:
    figures = RequestFigures(lambda: 0.0)
    figures.failed_parts("api", make(0, 36, 36, 17))
    assert figures.apis["api"].errors == {36: 2, 17: 1}
    figures.failed_parts("api", pb.BrokerHeartbeatResponse(error_code=77))
    assert figures.apis["api"].errors == {36: 2, 17: 1, 77: 1}


def test_kafka_request_names_are_those_of_its_apis() -> None:
    assert api_name("incremental_alter_configs") == "IncrementalAlterConfigs"
    assert api_name("describe_cluster") == "DescribeCluster"


def test_counting_a_response_is_cheap() -> None:
    """Compared with an empty call in the same run, as it is part of every response."""
    figures = RequestFigures(time.perf_counter)

    def cost(call: Any) -> float:
        best = 1.0
        for _ in range(7):
            begun = time.thread_time()
            for _ in range(5_000):
                call("incremental_alter_configs", 0.0)
            best = min(best, time.thread_time() - begun)
        return best

    def look(_api: str, _begun: float) -> None:
        time.perf_counter()

    assert cost(figures.answered) < 20 * cost(look)


async def refreshed(metrics: MetricsRegistry, name: str) -> None:
    """Scrape until this metric is present: on a busy machine the first scrape may lack it."""
    until = time.monotonic() + 30
    while not any(line.startswith(name) for line in shown(metrics)):
        assert time.monotonic() < until
        await metrics.refresh()


def test_build_info_can_be_joined_with_node_metrics() -> None:
    metrics = MetricsRegistry(process=False)
    build = {"version": "0.1.0", "revision": "58f7"}
    add_node_metrics(metrics, "broker", 4, "c-1", build, Latency())
    lines = shown(metrics)
    assert 'raftlog_build_info{revision="58f7",version="0.1.0"} 1.0' in lines
    assert 'raftlog_node_info{cluster_id="c-1",node_id="4",role="broker"} 1.0' in lines
    assert "raftlog_event_loop_lag_seconds_count 0.0" in lines


async def test_free_space_is_read_at_the_scrape(tmp_path: Path) -> None:
    metrics = MetricsRegistry(process=False)
    busy = [0.0]
    add_disk_metrics(metrics, tmp_path, lambda: busy[0])
    await refreshed(metrics, "raftlog_log_dir_free_bytes")
    values = dict(line.split() for line in shown(metrics) if not line.startswith("#"))
    assert float(values["raftlog_log_dir_free_bytes"]) > 0
    assert float(values["raftlog_log_dir_free_bytes"]) < float(
        values["raftlog_log_dir_total_bytes"]
    )
    busy[0] = 7.5
    assert "raftlog_disk_busy_seconds 7.5" in shown(metrics)


async def test_scrape_while_a_disk_hangs_has_other_metrics_and_the_last_values_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = MetricsRegistry(process=False)
    goes_on = threading.Event()
    hangs = [False]

    def ends() -> datetime:
        if hangs[0]:
            goes_on.wait(30)
        return datetime.now(UTC) + timedelta(days=1)

    def usage(_: Path) -> object:
        ends()
        return SimpleNamespace(free=9, total=10)

    monkeypatch.setattr("shutil.disk_usage", usage)
    add_disk_metrics(metrics, tmp_path, lambda: 3.0)
    add_certificate_metrics(metrics, ends)
    await refreshed(metrics, "raftlog_log_dir_free_bytes")
    await refreshed(metrics, "raftlog_certificate_valid_seconds")
    hangs[0] = True
    try:
        begun = time.monotonic()
        await metrics.refresh()
        lines = shown(metrics)
        assert time.monotonic() - begun < 10
    finally:
        goes_on.set()
    assert "raftlog_disk_busy_seconds 3.0" in lines
    assert "raftlog_log_dir_free_bytes 9.0" in lines
    assert any(line.startswith("raftlog_certificate_valid_seconds 8") for line in lines)


async def test_missing_directory_does_not_fail_the_scrape(tmp_path: Path) -> None:
    metrics = MetricsRegistry(process=False)
    add_disk_metrics(metrics, tmp_path / "gone", lambda: 0.0)
    await metrics.refresh()
    lines = shown(metrics)
    assert "raftlog_disk_busy_seconds 0.0" in lines
    assert not any(line.startswith("raftlog_log_dir") for line in lines)


def test_blocking_callback_shows_as_loop_lag() -> None:
    async def main() -> Latency:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(LAG_MEASURED_EVERY_S - 0.05)
        time.sleep(0.25)  # noqa: ASYNC251  (that is what it is about)
        await asyncio.sleep(0.05)
        return lag.latency

    latency = asyncio.run(main())
    assert sum(latency.counts) == 1
    assert latency.total_s > 0.1
