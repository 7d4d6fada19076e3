"""The sizing command follows figures that are documented or measured here."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raftlog import batch
from raftlog.cli.main import build
from raftlog.deploy.sizing import FIGURES, MIB, size
from raftlog.metadata import records
from raftlog.node.config.settings import Settings
from raftlog.wire.records.v1 import records_pb2 as pb

BENCHMARKS = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()


def measured(label: str) -> list[float]:
    """Return the figures of benchmark rows whose label matches."""
    rows = re.findall(rf"^\|.*?\|[^|]*{label}[^|]*\| ([\d.,]+(?: [\d.,]+)*) \|", BENCHMARKS, re.M)
    assert rows, label
    return [float(word.rstrip(",").replace(",", "")) for word in " ".join(rows).split()]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("controller_bytes_per_partition", r"memory of controller \d, bytes per partition"),
        ("broker_bytes_per_partition", r"memory of broker \d, bytes per partition"),
        ("log_bytes_per_partition", "log, bytes per partition"),
        ("snapshot_bytes_per_partition", "snapshot, bytes per partition"),
    ],
)
def test_figures_equal_those_of_the_benchmarks(name: str, label: str) -> None:
    found = measured(label)
    assert (FIGURES[name].least, FIGURES[name].most) == (min(found), max(found))


def test_heartbeats_cost_what_the_benchmarks_show() -> None:
    none, hundred, thousand = measured(r"\d+ brokers: CPU of the leader, % of a core")
    figure = FIGURES["leader_cpu_percent_per_broker"]
    assert figure.most == pytest.approx((hundred - none) / 100, abs=0.001)
    assert figure.least == pytest.approx((thousand - none) / 1000, abs=0.001)


def test_log_bytes_per_write_match_the_stated_figure() -> None:
    message = pb.ConfigRecord(
        resource_type=2, resource_name="orders", name="retention.ms", value="604800000"
    )
    one = records.record(message).data
    alone, shared = (
        len(batch.encode([one] * count, base_offset=9, epoch=1, timestamp_ms=1)) / count
        for count in (1, 64)
    )
    figure = FIGURES["log_bytes_per_write"]
    assert (figure.least, figure.most) == (round(shared), alone)


def test_defaults_equal_those_of_the_configuration() -> None:
    assert FIGURES["retention_bytes"].most == Settings.metadata_max_retention_bytes
    between = Settings.metadata_log_max_record_bytes_between_snapshots
    assert FIGURES["between_snapshots_bytes"].most == between
    reserve = Settings.metadata_log_free_space_reserve_bytes
    assert FIGURES["free_space_reserve_bytes"].most == reserve


def test_cluster_size_follows_from_measured_figures() -> None:
    found = size(100_000, 50, 200, 1.0)
    assert found.controller_memory_bytes == 75 * MIB + 43_300_000
    assert found.broker_memory_bytes == 75 * MIB + 48_300_000
    assert found.controller_log_bytes_per_day == 200 * 103 * 86_400
    assert found.controller_disk_bytes == (100 + 20 + 256) * MIB + 4_100_000
    assert found.controller_fsyncs_per_second == 200
    assert found.leader_cpu_percent_for_heartbeats == pytest.approx(2.0)
    assert found.leader_sent_bytes_per_second == 200 * 103 * 52


def test_writes_share_the_syncs_of_a_slow_disk() -> None:
    assert size(0, 0, 5000, 10.0).controller_fsyncs_per_second == 100


def test_large_state_has_fewer_snapshots() -> None:
    """Its newest snapshot is kept, though it is larger than the retention."""
    assert size(10_000_000, 0, 0, 1).controller_disk_bytes == 6 * (41 * 10_000_000) + 256 * MIB


def test_size_command_prints_figures_with_their_source() -> None:
    words = ["deploy", "size"]
    words += ["--partitions", "100000", "--brokers", "50", "--writes-per-second", "200"]
    ran = CliRunner().invoke(build(), words)
    assert ran.exit_code == 0
    assert re.search(r"^memory of a controller +116\.3 MiB$", ran.output, re.M)
    assert max(map(len, ran.output.splitlines())) <= 80
    document = json.loads(CliRunner().invoke(build(), [*words, "--json"]).stdout)
    assert document["controller_log_bytes_per_day"] == 200 * 103 * 86_400
    assert document["figures"]["log_bytes_per_partition"]["source"] == "docs/benchmarks.md, w7"


@pytest.mark.parametrize(
    "words",
    ["--partitions -1", "--sync-ms 0", "--sync-ms nan", "--writes-per-second nan", "--brokers x"],
)
def test_size_command_refuses_invalid_numbers(words: str) -> None:
    good = ["deploy", "size", "--partitions", "1", "--brokers", "1", "--writes-per-second", "1"]
    assert CliRunner().invoke(build(), [*good, *words.split()]).exit_code == 2
