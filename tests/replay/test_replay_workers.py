"""The jobs on a Spark with two worker processes: nothing in them needs one machine's memory, or the
driver's.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from replay.generate.profile import Profile
from replay.generate.write import write_export
from replay.java import spark_environment

SCRIPT = Path(__file__).with_name("on_two_workers.py")
MASTER = "local-cluster[2,1,2048]"


@pytest.mark.nightly
def test_two_workers_give_the_answers_of_one(tmp_path: Path) -> None:
    directory = tmp_path / "made-up"
    history, _ = write_export(
        directory, Profile(seed=11, brokers=6, topics=20, partitions=4), 8_000
    )
    # Workers announce themselves by the machine's name, unless told otherwise.
    environ = dict(os.environ) | spark_environment(os.environ) | {"SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.master": MASTER,
        # Wait for both, or the first would do it all.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.sql.shuffle.partitions": "4",
        # A few thousand rows: planning and compiling would take most of the time.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.executor.memory": "1g",
        # Three Java processes that live for seconds: the better compiler would not pay.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    submit = str(Path(environ["SPARK_HOME"]) / "bin" / "spark-submit")
    done = subprocess.run(
        [submit, *options, str(SCRIPT), str(directory)],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["executors"]) == 2
    assert found["state_hash"] == history.state_hash
    assert found["records"] == history.records
