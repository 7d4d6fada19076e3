"""LAO of an export that is still written: each stall once, whatever the cuts are, by the command
that watches.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import opened
from pyspark.sql import SparkSession
from spark_runs import Replay
from test_replay_lao import Story
from typer.testing import CliRunner, Result

from raftlog.segments.export import export
from raftlog.text import counted
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.app import create_app
from replay.errors import EXIT_FINDINGS, EXIT_INPUT
from replay.jobs import watch
from replay.lag import result as causes
from replay.request import JobRequest
from replay.spark.views import VIEWS, Views
from replay.streaming import lao
from replay.streaming.ledger import ALERTS, output
from replay.text import console

Alert = tuple[int | None, str, list[int], int]
"""(offset, cause, brokers, waited_ms)."""


def story(log: Story) -> Iterator[list[Alert]]:
    """Stops in the middle of stalls: what is to be said from one stop to the next."""
    # Broker 3 applies one record a sample; the others have applied more, which only the first
    # sample says.
    log.level()
    log.wait(60_000)
    first, second, third = log.write(), log.write(), log.write()
    log.wait(5_000)
    one = log.reach(first, b1=third, b2=third, b3=first)
    yield [(one, causes.BEHIND, [3], 5_000), (None, causes.BEHIND, [3], 5_000)]
    # Then it dies. That something waits was said.
    log.wait(1_000)
    two = log.reach(second, b3=second)
    log.wait(3_000)
    log.set_fenced(3, fenced=True)
    yield [(two, causes.BEHIND, [3], 6_000)]
    # What the next sample is laid to stood before the stop.
    log.wait(10)
    last = log.end_offset - 1
    without = log.reach(last, b1=last, b2=last)
    log.write()
    log.wait(4_000)
    log.elect(2)
    log.wait(100)
    failed_over = log.level()
    log.write()
    log.wait(1_999)
    log.level()
    yield [(without, causes.FENCED, [3], 9_010), (failed_over, causes.FAILOVER, [], 4_100)]
    # Two of three are lost at once, as with a site: one alert.
    log.set_fenced(3, fenced=False)
    log.level()
    log.write()
    log.wait(5_000)
    log.set_fenced(1, fenced=True)
    log.set_fenced(2, fenced=True)
    log.wait(10)
    last = log.end_offset - 1
    yield [(log.reach(last, b3=last), causes.FENCED, [1, 2], 5_010)]
    # Nobody is in service, which was not so from the beginning.
    log.set_fenced(3, fenced=True)
    log.wait(10)
    log.set_fenced(1, fenced=False)
    last = log.end_offset - 1
    log.reach(last, b1=last)
    log.append(
        pb.BrokerRegistrationChangeRecord(
            broker_id=1,
            broker_epoch=log.draft.brokers[1].epoch,
            fenced=True,
            in_controlled_shutdown=True,
            reason="controlled shutdown",
            cause=pb.CONTROLLED_SHUTDOWN,
        )
    )
    yield []
    log.write()
    log.wait(4_000)
    log.set_fenced(1, fenced=False)
    log.wait(10)
    last = log.end_offset - 1
    yield [(log.reach(last, b1=last), causes.NO_BROKER, [], 4_010)]
    # Nothing new.
    yield []


@pytest.mark.nightly
def test_each_stall_once_over_restarts(spark: SparkSession, replay: Replay, tmp_path: Path) -> None:
    log, exported, directory, said = Story(), tmp_path / "export", tmp_path / "watched", 0

    def run(request: JobRequest, _: list[str]) -> int:
        asked = {
            name: getattr(request, name)
            for name in ("watch", "output", "every_s", "limit", "stall_ms")
        }
        result = replay(request.job, Path(request.export), **asked)
        watch.render(result, console(200))
        return 0 if result.passed else EXIT_FINDINGS

    def watched(job: str = lao.NAME) -> Result:
        return CliRunner().invoke(
            create_app(run), ["watch", str(exported), job, "-o", str(directory)]
        )

    for batch, expected in enumerate(story(log)):
        export(log, exported)
        printed = watched()
        assert printed.exit_code == (EXIT_FINDINGS if expected else 0), printed.output
        said += len(expected)
        assert (
            f"up to offset {log.end_offset - 1}: {counted(len(expected), 'new alert')}, {said}"
            " in all" in printed.output
        )
        found = output(spark, directory, ALERTS)
        assert found is not None
        rows = found.where(found["batch"] == batch).collect()
        alerts = [(row.offset, row.cause, row.broker_ids, row.waited_ms) for row in rows]
        assert sorted(alerts, key=str) == sorted(expected, key=str)
        assert ("so far" in printed.output) == (batch == 0)
        assert ("went on without: session timed out" in printed.output) == (batch in {2, 3})
        assert ("1, 2" in printed.output) == (batch == 3)
    sampled = output(spark, directory, lao.SAMPLES)
    assert sampled is not None
    whole = VIEWS["lao"](Views(spark, opened(exported)))
    # As if it had never stopped.
    assert sampled.drop("batch").orderBy("offset").collect() == whole.orderBy("offset").collect()
    assert "belongs to the job lao" in str(watched("audit").exception)


@pytest.mark.parametrize(
    "words", [["weather", "-o", "seen"], ["lao"], ["lao", "-o", "seen", "--every", "0"]]
)
def test_invalid_watch_arguments_are_refused_before_spark_starts(words: list[str]) -> None:
    refused = CliRunner().invoke(create_app(lambda *_: 0), ["watch", "exported", *words])
    assert refused.exit_code == EXIT_INPUT
