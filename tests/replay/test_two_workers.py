"""Jobs on a Spark with two worker processes, and a user's own job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replay.spark.java import spark_environment
from simulation.generate.history import GeneratedHistory, write_export
from simulation.generate.schedule import Profile

SCRIPT = Path(__file__).with_name("on_two_workers.py")
SETTINGS = {
    "spark.master": "local-cluster[2,1,2048]",
    # Wait for both, or the first would do it all.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.sql.shuffle.partitions": "4",
    "spark.executor.memory": "1g",
    # Three Java processes that live for a minute: the better compiler would not pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
OPTIONS = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
PATIENCE_S = 1200
"""Each takes half a minute of CPU, which is scarce on a busy machine."""


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GeneratedHistory]:
    directory = tmp_path_factory.mktemp("workers") / "made-up"
    profile = Profile(seed=11, brokers=6, topics=20, partitions=4)
    history, _ = write_export(directory, profile, 4_000)
    return directory, history


def run(words: list[str], directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words,
        # Workers announce themselves by the machine's name, unless told otherwise.
        env=dict(os.environ) | {"SPARK_LOCAL_IP": "127.0.0.1"} | environ,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.nightly
def test_users_own_job_runs_on_two_workers(
    made_up: tuple[Path, GeneratedHistory], tmp_path: Path
) -> None:
    directory, history = made_up
    environ = spark_environment(os.environ)
    submit = str(Path(environ["SPARK_HOME"]) / "bin" / "spark-submit")
    done = run([submit, *OPTIONS, str(SCRIPT), str(directory)], tmp_path, **environ)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["executors"]) == 2
    assert found["state_hash"] == history.state_hash
    assert found["records"] == history.records
    assert (found["audited"], found["offences"]) == (history.records, 0)


@pytest.mark.nightly
def test_two_workers_write_a_report(made_up: tuple[Path, GeneratedHistory], tmp_path: Path) -> None:
    directory, history = made_up
    raftlog = str(Path(sys.executable).with_name("raftlog"))
    words = [raftlog, "replay", "report", str(directory), "-o", "report.html", "--json", *OPTIONS]
    said = json.loads(run(words, tmp_path).stdout)
    assert said["header"]["records"] == history.records
    assert (said["audit"]["checked"], said["audit"]["total"]) == (history.records, 0)
    assert "</html>" in (tmp_path / "report.html").read_text()
