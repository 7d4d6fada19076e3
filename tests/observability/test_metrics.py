"""Metric families of each role, their names, and scrapes."""

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from reference_pages.metrics import of_a_broker, of_a_controller

from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.node.observability import http_server, node_metrics
from raftlog.node.observability.http_server import HttpServer
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2
from raftlog.wire.records.v1 import records_pb2


def page(metrics: MetricsRegistry) -> list[str]:
    return generate_latest(metrics.registry).decode().splitlines()


@pytest.fixture
def metrics() -> MetricsRegistry:
    return MetricsRegistry(process=False)


def test_metric_registries_are_independent(metrics: MetricsRegistry) -> None:
    other = MetricsRegistry(process=False)
    metrics.gauge("a", "A.", lambda: 1)
    assert "a 1.0" in page(metrics)
    assert page(other) == []


def test_process_metrics_are_optional() -> None:
    assert any(line.startswith("process_cpu_seconds_total") for line in page(MetricsRegistry()))


def test_counter_and_labelled_gauge_are_exposed(metrics: MetricsRegistry) -> None:
    metrics.counter("raftlog_elections", "Elections.", lambda: 3)
    metrics.gauges("raftlog_lag", "Lag.", ("broker",), lambda: [(("4",), 0), (("5",), 17)])
    lines = page(metrics)
    assert "raftlog_elections_total 3.0" in lines
    assert 'raftlog_lag{broker="4"} 0.0' in lines
    assert 'raftlog_lag{broker="5"} 17.0' in lines


def test_gauge_is_not_evaluated_before_a_scrape(metrics: MetricsRegistry) -> None:
    metrics.gauge("a", "A.", lambda: pytest.fail("read too early"))


def test_latency_buckets_are_cumulative_and_bounds_inclusive(metrics: MetricsRegistry) -> None:
    latency = metrics.latency("raftlog_fsync_seconds", "Fsync.")
    for seconds in (0.0001, 0.0002, 0.004, 99.0):
        latency.observe(seconds)
    lines = page(metrics)
    assert 'raftlog_fsync_seconds_bucket{le="0.0001"} 1.0' in lines
    assert 'raftlog_fsync_seconds_bucket{le="0.00025"} 2.0' in lines
    assert 'raftlog_fsync_seconds_bucket{le="0.005"} 3.0' in lines
    assert 'raftlog_fsync_seconds_bucket{le="+Inf"} 4.0' in lines
    assert "raftlog_fsync_seconds_count 4.0" in lines
    assert "raftlog_fsync_seconds_sum 99.0043" in lines


def test_leader_exposes_quorum_metrics(metrics: MetricsRegistry) -> None:
    now = quorum_pb2.DescribeQuorumResponse(
        node_id=1,
        role="leader",
        leader_id=1,
        leader_epoch=7,
        voted_id=1,
        log_end_offset=100,
        high_watermark=90,
    )
    now.voters.add(replica_id=1, log_end_offset=100)
    now.voters.add(replica_id=2, log_end_offset=95)
    now.voters.add(replica_id=3, log_end_offset=-1)
    node_metrics.add_quorum_metrics(metrics, lambda: now)
    lines = page(metrics)
    assert 'raft_metrics_current_state{state="leader"} 1.0' in lines
    assert 'raft_metrics_current_state{state="follower"} 0.0' in lines
    assert "raft_metrics_current_epoch 7.0" in lines
    assert "raft_metrics_high_watermark 90.0" in lines
    assert "raft_metrics_number_of_voters 3.0" in lines
    assert 'raftlog_replica_lag_records{replica="2"} 5.0' in lines
    assert not any("replica_lag" in line and ('"1"' in line or '"3"' in line) for line in lines)


def test_refused_messages_are_counted(metrics: MetricsRegistry) -> None:
    refused = {("VoteRequest", "replica_epoch"): 3}
    node_metrics.add_refusal_metrics(metrics, lambda: refused)
    name = "raftlog_quorum_messages_refused_total"
    assert f'{name}{{field="replica_epoch",message="VoteRequest"}} 3.0' in page(metrics)
    refused["VoteRequest", "replica_epoch"] = 4
    assert any(line.startswith(name) and line.endswith(" 4.0") for line in page(metrics))


def broker_record(broker_id: int, *, fenced: bool) -> records_pb2.RegisterBrokerRecord:
    return records_pb2.RegisterBrokerRecord(
        broker_id=broker_id, incarnation_id="i", broker_epoch=0, fenced=fenced
    )


def test_controller_metrics_show_active_and_standby(metrics: MetricsRegistry) -> None:
    builder = ImageBuilder(Image())
    records = [record(broker_record(4, fenced=True)), record(broker_record(5, fenced=False))]
    builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=1234)
    image = builder.snapshot()
    brokers = controller_pb2.DescribeBrokersResponse(
        lowest_acknowledged_offset=8, high_watermark=12, held_back_by=[5]
    )
    brokers.brokers.add(broker_id=4, applied_offset=-1, last_contact_age_ms=-1)
    brokers.brokers.add(broker_id=5, applied_offset=8, last_contact_age_ms=30)
    active = False
    node_metrics.add_controller_metrics(
        metrics,
        active=lambda: active,
        image=lambda: image,
        describe_brokers=lambda: brokers,
        lowest_known_lao=lambda: 7,
    )
    lines = page(metrics)
    assert "kafka_controller_active_controllers 0.0" in lines
    assert "kafka_controller_fenced_brokers 1.0" in lines
    assert "kafka_controller_active_brokers 1.0" in lines
    assert "kafka_controller_last_applied_record_offset 1.0" in lines
    assert not any("lowest_acknowledged" in line or "known_lao" in line for line in lines)
    active = True
    lines = page(metrics)
    assert "kafka_controller_active_controllers 1.0" in lines
    assert "raftlog_lowest_acknowledged_offset 8.0" in lines
    assert "raftlog_lowest_known_lao 7.0" in lines
    assert 'raftlog_broker_acknowledged_offset_lag{broker="5"} 3.0' in lines
    assert not any(
        line.startswith('raftlog_broker_acknowledged_offset_lag{broker="4"}') for line in lines
    )
    assert 'raftlog_broker_holds_lowest_acknowledged_offset{broker="5"} 1.0' in lines


def test_broker_metrics_show_state_and_offsets(metrics: MetricsRegistry) -> None:
    now = broker_pb2.DescribeBrokerResponse(
        broker_id=4,
        broker_epoch=17,
        state=controller_pb2.ACTIVE,
        applied_offset=40,
        lowest_acknowledged_offset=38,
    )
    node_metrics.add_broker_metrics(metrics, lambda: now)
    lines = page(metrics)
    assert 'kafka_server_broker_state{state="active"} 1.0' in lines
    assert 'kafka_server_broker_state{state="stopping"} 0.0' in lines
    assert "broker_metadata_metrics_last_applied_record_offset 40.0" in lines
    assert "raftlog_broker_self_fenced 0.0" in lines


def test_watch_metrics_show_their_counts(metrics: MetricsRegistry) -> None:
    node_metrics.add_watch_metrics(
        metrics,
        watchers=lambda: 5,
        live=lambda: 4,
        told=lambda: 30,
        compacted=lambda: 3,
        too_slow=lambda: 2,
    )
    lines = page(metrics)
    assert "raftlog_watchers 5.0" in lines
    assert "raftlog_watchers_live 4.0" in lines
    assert "raftlog_watch_changes_sent_total 30.0" in lines
    assert "raftlog_watches_compacted_total 3.0" in lines
    assert "raftlog_watches_too_slow_total 2.0" in lines


def test_every_node_exposes_disk_space_metrics(metrics: MetricsRegistry) -> None:
    low = [False]
    node_metrics.add_space_metrics(metrics, lambda: low[0])
    assert "raftlog_low_on_space 0.0" in page(metrics)
    low[0] = True
    assert "raftlog_low_on_space 1.0" in page(metrics)


ABBREVIATED = ("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d")
"""Units as promtool does not want them."""


def faults(family: Metric) -> Iterator[str]:
    """Return the faults that promtool would find, in its words."""
    name = f"{family.name}_total" if family.type == "counter" else family.name
    if not family.documentation:
        yield f"{name} no help text"
    if re.search(r"[a-z][A-Z]", name):
        yield f"{name} metric names should be written in 'snake_case'"
    if any(part in ABBREVIATED for part in name.split("_")):
        yield f"{name} metric names should not contain abbreviated units"
    if family.type not in {"histogram", "summary"} and name.endswith(("_count", "_sum", "_bucket")):
        yield f"{name} non-histogram and non-summary metrics should not have such a suffix"
    if family.type != "counter" and name.endswith("_total"):
        yield f"{name} non-counter metrics should not have '_total' suffix"
    if family.type in name.split("_"):
        yield f"{name} metric name should not include type"


def test_names_and_units_follow_the_conventions_of_prometheus() -> None:
    families = [*of_a_controller(), *of_a_broker()]
    assert len(families) > 80
    assert [fault for family in families for fault in faults(family)] == []


def test_metric_name_rules_find_violations() -> None:
    for name in ("a_count", "a_ms", "aBc", "a_total", "a_gauge"):
        assert list(faults(Metric(name, "A.", "gauge"))), name
    assert list(faults(Metric("a_seconds", "", "gauge")))
    assert not list(faults(Metric("a_seconds", "A.", "histogram")))


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("families", [of_a_controller, of_a_broker])
def test_promtool_finds_no_fault_in_the_metrics(families: object) -> None:
    class Page:
        def collect(self) -> Iterator[Metric]:
            assert callable(families)
            yield from families()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page())
    ran = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, b"")


async def test_scrapes_are_serialized_with_a_pause_between(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = 0

    def render(registry: Any) -> bytes:
        nonlocal rendered
        rendered += 1
        time.sleep(0.02)
        return b""

    monkeypatch.setattr(http_server, "generate_latest", render)

    server = HttpServer("127.0.0.1", 0, MetricsRegistry(), lambda: (True, ""))
    anything: Any = None
    scrapes = [asyncio.create_task(server._metrics(anything)) for _ in range(5)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert rendered == 1
    assert [response.status_code for response in await asyncio.gather(*scrapes)] == [200] * 5
    assert rendered == 5
