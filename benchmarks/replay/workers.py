"""CPU and bytes of a job on a Spark with several worker processes::

    python -m benchmarks.replay.workers EXPORT [--job audit] [--workers 1 2 4]

Each run is a whole command on ``local-cluster``. CPU time is the total of all its processes, of
Java and of Python, sampled by the session that they share; a run on few records shows the cost of
the start. The bytes are those of the files that one task of the first stage reads, according to the
job's own plan.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from replay.engine.plan import stretches
from replay.export import open_export
from replay.request import JobRequest
from replay.spark.pool import STRETCH_BYTES

SETTINGS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.executor.memory": "1g",
}
SAMPLE_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


def times_of(session: int) -> Iterator[tuple[int, float]]:
    """Yield pid and CPU seconds of each process in a session."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            yield int(entry.name), (int(fields[11]) + int(fields[12])) / _TICKS


def run(export: Path, job: str, workers: int) -> tuple[float, float]:
    """Run a job; return CPU seconds and elapsed seconds."""
    settings = {"spark.master": f"local-cluster[{workers},1,1024]"} | SETTINGS
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    raftlog = str(Path(sys.executable).with_name("raftlog"))
    words = [raftlog, "replay", job, str(export), "--engine", "spark", *options]
    began = time.monotonic()
    environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.Popen(
        words, env=environ, stdout=subprocess.DEVNULL, start_new_session=True
    )
    used: dict[int, float] = {}
    while process.poll() is None:
        used |= dict(times_of(process.pid))
        time.sleep(SAMPLE_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return sum(used.values()), time.monotonic() - began


def largest_task(export: Path, workers: int) -> int:
    """Return the size of the files that the largest task reads, in bytes."""
    opened = open_export(JobRequest(job="audit", export=str(export)))
    size = sum(each.bytes for each in opened.segments)
    count = min(len(opened.segments), max(workers, -(-size // STRETCH_BYTES)))
    return max(sum(each.bytes for each in part) for part in stretches(opened, count))


def main() -> None:
    """Run the job, and print a row for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path)
    parser.add_argument("--job", default="audit")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    asked = parser.parse_args()
    records = open_export(JobRequest(job="audit", export=str(asked.export))).record_count
    print("| workers | CPU, s | us a record | waited, s | largest task reads, MB |")
    print("| --- | --- | --- | --- | --- |")
    for workers in asked.workers:
        cpu_s, waited_s = run(asked.export, asked.job, workers)
        largest = largest_task(asked.export, workers) / 1e6
        print(
            f"| {workers} | {cpu_s:.1f} | {1e6 * cpu_s / records:.1f} | {waited_s:.0f} |"
            f" {largest:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
