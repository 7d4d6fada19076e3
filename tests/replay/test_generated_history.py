"""Generated histories: valid, repeatable, with the incidents that they name."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from asking import ask
from typer.testing import CliRunner

from raftlog import batch
from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, parse
from raftlog.metadata.snapshot import content_hash
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter
from replay.errors import EXIT_INPUT, ReplayError
from simulation.generate.__main__ import app
from simulation.generate.cluster import Cluster
from simulation.generate.history import GeneratedHistory, _begin, generate, write_export
from simulation.generate.log import GeneratedLog
from simulation.generate.schedule import Profile, Rates, Schedule
from simulation.generate.workload import Workload

SMALL = Profile(seed=3, brokers=6, topics=12, partitions=4)
EVENTFUL = Rates(
    rolling_restarts=8, crashes=8, rack_outages=6, site_outages=6, slow_disks=24, stalls=40, failovers=12, hand_overs=8,
    clients=400,
)  # fmt: skip
RECORDS = 20_000


class Made(NamedTuple):
    said: GeneratedHistory
    log: bytes


def made(profile: Profile = SMALL, records: int = RECORDS) -> Made:
    chunks: list[bytes] = []
    history = generate(profile, records, chunks.append, rates=EVENTFUL)
    return Made(history, b"".join(chunks))


@pytest.fixture(scope="module")
def history() -> Made:
    return made()


def rows(log: bytes) -> Iterator[tuple[int, batch.BatchHeader, int, Any]]:
    """Yield (offset, header, type, message)."""
    for header in batch.headers(log, expect_offset=0):
        for index, data in enumerate(batch.records(log, header)):
            yield header.base_offset + index, header, data.type, parse(data)


def folded(log: bytes) -> ImageBuilder:
    image = ImageBuilder(Image())
    image.apply_chunk(log, verify=True)
    return image


def test_history_folds_to_its_stated_state(history: Made) -> None:
    said, log = history
    image = folded(log)
    assert image.offset + 1 == said.records
    assert image.epoch == said.epochs
    assert image.timestamp_ms == said.last_ms
    state_hash = format_hash(image.state_hash & HASH_MASK)
    assert state_hash == said.state_hash == format_hash(content_hash(image.snapshot()))
    assert (len(image.brokers), len(image.topics)) == (6, said.topics)
    assert RECORDS <= said.records < RECORDS + 500


def test_same_seed_produces_the_same_bytes(history: Made) -> None:
    again, log = made(records=3000)
    assert history[1].startswith(log)
    assert made(records=3000) == (again, log)
    assert made(msgspec.structs.replace(SMALL, seed=4), 3000)[1] != log


def test_every_kind_of_event_happens(history: Made) -> None:
    said, log = history
    assert said.count_incidents().keys() == {
        "broker crash", "controller failover", "controller hand-over", "rack outage", "rolling restart", "site outage",
        "slow disk",
        "stalled broker", "stalled broker, fenced",
    }  # fmt: skip
    never = {
        RecordType.UNREGISTER_BROKER, RecordType.NO_OP, RecordType.VOTERS, RecordType.RECOVERY, RecordType.EXPORT_CURSOR,
        RecordType.ACCESS_CONTROL_ENTRY, RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
        RecordType.KEY_VALUE, RecordType.LEASE, RecordType.REMOVE_LEASE, RecordType.IMPORTED,
    }  # fmt: skip
    in_logs = {each for each in RecordType if not each.name.startswith("SNAPSHOT")}
    assert {type_ for _, _, type_, _ in rows(log)} >= in_logs - never
    for each in said.incidents:
        assert each.begins_ms <= each.ends_ms <= said.last_ms + 1
        assert 0 <= each.first_offset <= each.last_offset + 1 <= said.records


def test_crash_is_a_timeout_and_a_new_registration(history: Made) -> None:
    said, log = history
    crash = next(each for each in said.incidents if each.kind == "broker crash")
    (broker_id,) = crash.brokers
    changes = (RecordType.REGISTER_BROKER, RecordType.BROKER_REGISTRATION_CHANGE)
    fenced, registered, unfenced = [
        (header.timestamp_ms, type_, message)
        for offset, header, type_, message in rows(log)
        if crash.first_offset <= offset <= crash.last_offset
        and type_ in changes
        and message.broker_id == broker_id
    ]
    assert (fenced[2].fenced, fenced[2].reason) == (True, "session timed out")
    assert 9_000 <= fenced[0] - crash.begins_ms < 10_000
    assert registered[1] == RecordType.REGISTER_BROKER
    assert (unfenced[2].fenced, unfenced[2].reason) == (False, "caught up")
    assert fenced[0] < registered[0] < unfenced[0] <= crash.ends_ms


def test_progress_is_below_every_unfenced_brokers_applied_offset_and_never_decreases(
    history: Made,
) -> None:
    registered: dict[int, int] = {}
    unfenced: set[int] = set()
    applied: dict[tuple[int, int, int], int] = {}
    lowest, samples = -1, 0
    for offset, header, type_, message in rows(history[1]):
        if type_ == RecordType.REGISTER_BROKER:
            registered[message.broker_id] = offset
            unfenced.discard(message.broker_id)
        elif type_ == RecordType.BROKER_REGISTRATION_CHANGE and message.HasField("fenced"):
            (unfenced.discard if message.fenced else unfenced.add)(message.broker_id)
        elif type_ == RecordType.PROGRESS:
            for each in message.applied:
                key = (each.broker_id, each.broker_epoch, header.epoch)
                assert applied.get(key, -1) < each.applied_offset < message.high_watermark
                applied[key] = each.applied_offset
            assert lowest <= message.lowest_acknowledged_offset < message.high_watermark <= offset
            lowest, samples = message.lowest_acknowledged_offset, samples + 1
            for broker_id in unfenced:
                assert applied[broker_id, registered[broker_id], header.epoch] >= lowest
    assert samples > 200


def test_generated_history_can_be_skewed() -> None:
    hot, _ = made(msgspec.structs.replace(SMALL, skew="broker"))
    met = Counter(each.brokers[0] for each in hot.incidents if len(each.brokers) == 1)
    assert met[1] > 0.3 * met.total()
    _, log = made(msgspec.structs.replace(SMALL, skew="topic"), 2000)
    created = [message for *_, type_, message in rows(log) if type_ == RecordType.PARTITION]
    sizes = Counter(message.topic_id for message in created)
    assert max(sizes.values()) == 24
    assert sizes.total() > 30


@pytest.mark.parametrize("brokers", [1, 2, 3])
def test_cluster_may_be_tiny(brokers: int) -> None:
    said, log = made(Profile(seed=5, brokers=brokers, racks=1, topics=1, partitions=1), 2000)
    assert format_hash(folded(log).state_hash & HASH_MASK) == said.state_hash


def test_replay_of_a_history_has_the_same_state_and_breaks_no_rule(
    history: Made, tmp_path: Path
) -> None:
    said, log = history
    with ExportWriter(tmp_path / "made-up", "made-up", 0) as writer:
        writer.append_chunk(log)
        writer.commit(said.records)
    found = ask("summary", tmp_path / "made-up")
    assert (found.state_hash, found.point.records) == (said.state_hash, said.records)
    assert found.passed, found.audit.findings[:3]


def test_slow_broker_does_not_rejoin_a_partition_that_was_moved_away() -> None:
    """[An audit of ten million records: ISRs had members that were not replicas.]"""
    log = GeneratedLog(1, SMALL.begin_ms, lambda _chunk: None)
    cluster = Cluster(log, SMALL)
    begun_ms = _begin(cluster, Workload(cluster, Schedule(log.rng)))
    slow, held = next(
        (broker_id, each)
        for broker_id in cluster.active()
        for each in cluster.held(broker_id)
        if each.replicas[-1] == broker_id and each.leader != broker_id
    )
    key = (held.topic_id, held.index)
    to = next(one for one in cluster.active() if one not in held.replicas)
    now_ms = max(begun_ms, log.timestamp_ms)
    cluster.shrink(slow, [key], now_ms)
    cluster.reassign([key], to, now_ms)
    cluster.expand(to, now_ms, keys=[key])
    moved = cluster.partition(key)
    assert moved is not None
    assert slow not in moved.replicas
    cluster.expand(slow, now_ms, keys=[key])
    assert cluster.partition(key) == moved
    assert set(moved.isr) <= set(moved.replicas)


def test_command_writes_an_export_and_its_incidents(tmp_path: Path) -> None:
    directory, incidents = tmp_path / "made-up", tmp_path / "incidents.json"
    words = [str(directory), "--records", "3000", "--brokers", "5", "--topics", "20", "--seed", "9"]
    done = CliRunner().invoke(app, [*words, "--incidents", str(incidents), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert verify_export(directory).end_offset == said["records"] >= 3000
    assert sum(said["incidents"].values()) == len(json.loads(incidents.read_text()))
    again = CliRunner().invoke(app, words)
    assert (again.exit_code, "holds an export already" in again.stderr) == (EXIT_INPUT, True)
    small = [str(tmp_path / "small"), "--records", "500", "--brokers", "3", "--topics", "4"]
    assert CliRunner().invoke(app, [*small, "--skew", "hot"]).exit_code == 2
    shown = CliRunner().invoke(app, small).stdout
    assert f"state hash at {verify_export(tmp_path / 'small').end_offset - 1}" in shown


def kill(done: int, total: int) -> None:
    for child in active_children():
        os.kill(child.pid or 0, signal.SIGKILL)


def fail(done: int, total: int) -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize(("harm", "why"), [(kill, "exited with code -9"), (fail, "disk is full")])
def test_failed_generation_is_reported_and_leaves_no_records(
    tmp_path: Path, harm: Callable[[int, int], None], why: str
) -> None:
    """The generator dies, or the records cannot be written."""
    with pytest.raises((ReplayError, OSError), match=why):
        write_export(tmp_path / "made-up", SMALL, 10_000_000, harm)
    assert verify_export(tmp_path / "made-up").segments == ()
    assert not active_children()
