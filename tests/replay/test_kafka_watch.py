"""A watch on the import of a growing Kafka log."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from json_schemas import validator
from kafka_log import kafka
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_runs import Replay

from replay.kafka.copies import find_copies
from replay.kafka.importing import Importer
from replay.kafka.log_format import batches
from replay.rules import choose
from replay.streaming import audit
from replay.streaming.ledger import Ledger
from replay.streaming.watch import STARTS_MAX, connected_late, start

KEPT = Path(__file__).parents[1] / "kafka_import" / "kafka-4.4.0.tar.gz"
LOG = "__cluster_metadata-0/00000000000000000000.log"
PATIENCE_S = 120.0


class LiveLog:
    """A node's directory to which real records are appended batch by batch."""

    def __init__(self, directory: Path) -> None:
        kafka.unpack(KEPT, directory / "kept")
        data = (directory / "kept" / "node101" / LOG).read_bytes()
        self._ends = [end for end, _ in batches(data)]
        last = [one for _, one in batches(data)][-1]
        self.end_offset, self._epoch = last.last_offset + 1, last.epoch
        self._data, self._written = data, 0
        self.node = kafka.write_node(directory / "live", b"")

    def _append(self, data: bytes) -> None:
        with (self.node.parent / LOG).open("ab") as log:
            log.write(data)

    def write(self, part: float) -> None:
        """Write up to this part of the real batches."""
        until = self._ends[round(part * len(self._ends)) - 1]
        self._append(self._data[self._written : until])
        self._written = until

    def break_rules(self) -> int:
        """Write records that no controller writes; return their offset."""
        record = kafka.config("retention.ms", "1", "never-was")
        self._append(kafka.batch(self.end_offset, [record], epoch=self._epoch, timestamp_ms=2**41))
        return self.end_offset


@pytest.fixture
def live(tmp_path: Path) -> LiveLog:
    return LiveLog(tmp_path)


def test_watch_judges_appended_records_once(replay: Replay, live: LiveLog, tmp_path: Path) -> None:
    exported, watched = tmp_path / "exported", str(tmp_path / "watched")
    live.write(0.4)
    found = []
    with Importer(find_copies([live.node]), str(exported)) as importer:
        for more in (False, True):
            if more:
                live.write(1.0)
                live.break_rules()
            imported = importer.run()
            result = replay("watch", exported, output=watched)
            validator("replay watch")(msgspec.json.decode(msgspec.json.encode(result)))
            assert result.end_offset == imported.end_offset
            found.append((result.new, result.total))
    assert found == [(0, 0), (1, 1)]
    (row,) = (dict(zip(result.columns, each, strict=True)) for each in result.alerts)
    assert (row["rule"], row["offset"]) == ("CONFIG_OF_UNKNOWN_TOPIC", live.end_offset)


@pytest.fixture
def following(live: LiveLog, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    live.write(0.4)
    command = [str(Path(sys.executable).with_name("raftlog")), "import", "kafka", str(live.node)]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path / "exported"), "--follow"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("imported up to offset ")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.nightly
def test_watch_follows_an_import_that_follows_kafka(
    spark: SparkSession, live: LiveLog, following: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Two processes that follow a growing log: `import kafka --follow`, and a polling stream."""
    ledger = Ledger(tmp_path / "watched")
    judge = audit.judge(choose((), "kafka"))
    queries: list[StreamingQuery] = []

    def begin() -> None:
        queries.append(start(spark, str(tmp_path / "exported"), ledger, judge, every="1 seconds"))

    def wait_for(end_offset: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while Ledger(tmp_path / "watched").done.end_offset < end_offset:
            if not queries[-1].isActive:
                # As the job does.
                error = queries[-1].exception()
                assert connected_late(error), error
                assert len(queries) < STARTS_MAX, error
                begin()
            assert time.monotonic() < deadline
            time.sleep(0.2)

    begin()
    try:
        for part in (0.6, 0.8, 1.0):
            live.write(part)
        wait_for(live.end_offset)
        assert Ledger(tmp_path / "watched").done.alerts == 0
        offset = live.break_rules()
        wait_for(offset + 1)
    finally:
        queries[-1].stop()
    assert Ledger(tmp_path / "watched").done.alerts == 1
    following.send_signal(signal.SIGTERM)
    assert following.wait(30) == 0
