"""Every engine gives the same answer: this process, worker processes, and Spark, for any slices."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asking import ask, ask_shared, written
from command_runs import run_text
from json_schemas import validator
from log_history import LogHistory
from pyspark.sql import SparkSession
from spark_runs import Replay
from tiers import nightly

from raftlog.cli.built_in import BROUGHT_BY
from replay.documents import PRINTED
from replay.engine import pool, reading
from replay.errors import ReplayError
from replay.export import open_export
from replay.request import LOCAL_JOBS, JobRequest
from replay.spark.pool import SparkPool

Question = tuple[str, dict[str, Any]]
QUESTIONS: list[Question] = [
    ("audit", {"limit": 50}),
    ("state", {"limit": 5000}),
    ("state", {"key": ("topic", "topic-3")}),
    ("diff", {"from_offset": 150, "limit": 5000}),
    ("history", {"key": ("topic", ""), "limit": 90}),
    ("verify", {}),
    ("summary", {}),
    ("lao", {"stall_ms": 50}),
    ("availability", {}),
]
SELECTIONS: list[Question] = [
    ("state", {"at_offset": 120, "limit": 3}),
    ("state", {"key": ("config", "")}),
    ("state", {"key": ("broker", "2")}),
    ("diff", {}),
    ("diff", {"from_offset": 40, "at_offset": 300, "key": ("partition", "")}),
    ("diff", {"from_offset": 300, "key": ("topic", "topic-3")}),
    ("history", {"from_offset": 300, "key": ("topic", "topic-3")}),
    ("history", {"from_offset": 300, "key": ("acl", "")}),
    ("history", {"key": ("broker", "1"), "limit": 4}),
    ("history", {"key": ("broker", "1"), "limit": 0}),
    ("history", {"key": ("client", "")}),
    ("history", {"key": ("config", "")}),
    ("history", {"key": ("acl", "")}),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of each kind, and checkpoints; the log violates many rules."""
    log = LogHistory(11).run(400)
    sizes: dict[str, Any] = {"max_segment_records": 90, "checkpoint_records": 60}
    return written(log, tmp_path_factory.mktemp("export"), **sizes)


def same(result: Any) -> Any:
    """Return a result without what depends on the way there: where it starts, and in how many
    slices.
    """
    ways = {"checkpoint": None, "slices": 0}
    names = ways.keys() & set(result.__struct_fields__)
    return msgspec.structs.replace(result, **{name: ways[name] for name in names})


@pytest.mark.parametrize("question", [*QUESTIONS, *map(nightly, SELECTIONS)], ids=str)
def test_engines_give_the_same_answer(
    spark: SparkSession,
    replay: Replay,
    exported: Path,
    monkeypatch: pytest.MonkeyPatch,
    question: Question,
) -> None:
    """From the last checkpoint before the point, and from the beginning."""
    job, asked = question
    found, expected = ask(job, exported, **asked), same(ask_shared(1, job, exported, **asked))
    assert same(found) == expected
    in_spark = replay(job, exported, **asked)
    assert same(in_spark) == expected
    assert getattr(in_spark, "checkpoint", None) == getattr(found, "checkpoint", None)
    monkeypatch.setattr(reading, "SLICE_ROWS", 17)
    assert same(ask_shared(3, job, exported, **asked)) == expected
    request = JobRequest(job=job, export=str(exported), **asked)
    shuffled = SparkPool(spark, 0)
    for shuffled.size in (2, 5):
        run = importlib.import_module(f"replay.jobs.{job}").run
        assert same(run(open_export(request), request, shuffled)) == expected


@pytest.mark.parametrize("job", ["state", "diff", "verify"])
def test_worker_processes_give_the_same_answer(
    exported: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    asked: dict[str, Any] = {"limit": 5000, "from_offset": 150 if job == "diff" else None}
    expected = ask(job, exported, **asked)
    monkeypatch.setattr(pool, "ALONE_RECORDS", 0)
    monkeypatch.setattr(pool, "workers", lambda: 2)
    found = ask(job, exported, **asked)
    assert same(found) == same(expected)
    assert job != "verify" or found.slices > expected.slices == 1


@pytest.mark.parametrize("job", LOCAL_JOBS)
def test_json_of_a_job_matches_its_declaration(exported: Path, tmp_path: Path, job: str) -> None:
    key = ("topic", "") if job == "history" else None
    result = ask(job, exported, output=str(tmp_path / "report.html"), key=key)
    assert type(result) is PRINTED[f"replay {job}"]
    validator(f"replay {job}")(msgspec.json.decode(msgspec.json.encode(result)))


def test_report_page_is_the_same_in_spark(replay: Replay, exported: Path, tmp_path: Path) -> None:
    one, other = (tmp_path / f"{name}.html" for name in ("spark", "local"))
    replay("report", exported, output=str(one))
    ask("report", exported, output=str(other))
    assert one.read_text() == other.read_text()
    assert "Availability" in one.read_text()


def test_spark_only_job_is_refused_by_the_local_engine(exported: Path) -> None:
    with pytest.raises(ReplayError, match="sql needs Spark: --engine local runs audit, "):
        ask("sql", exported)


def test_local_jobs_import_only_what_the_export_extra_brings(
    exported: Path, tmp_path: Path
) -> None:
    program = """
import sys
from raftlog.cli.main import main
export, page, jobs = sys.argv[1:]
for job in jobs.split():
    more = {"history": ["topic", "t0"], "report": ["-o", page]}.get(job, [])
    try:
        main(["replay", job, export, "--engine", "local", "--json", *more])
    except SystemExit as end:
        assert end.code in (None, 0, 3), (job, end.code)
print(*sys.modules, file=sys.stderr)
"""
    arguments = [str(exported), str(tmp_path / "report.html"), " ".join(LOCAL_JOBS)]
    done = run_text([sys.executable, "-c", program, *arguments], timeout=90, check=True)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert {f"replay.jobs.{job}" for job in LOCAL_JOBS} <= loaded
    others = {name for name, extras in BROUGHT_BY.items() if not {"export", "cli"} & {*extras}}
    assert loaded & {"pandas", "structlog", *others} <= {"jinja2", "markupsafe"}, "the report's"


@pytest.mark.parametrize("other_threads", [0, 1])
def test_workers_are_forked_only_without_other_threads(exported: Path, other_threads: int) -> None:
    program = """
import sys, threading
from replay.engine import pool
from replay.run import run_job
from replay.request import JobRequest

pool.ALONE_RECORDS, pool.workers = -1, lambda: 2
if __name__ == "__main__":
    for _ in range(int(sys.argv[2])):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print(pool._context().get_start_method())
    run_job(JobRequest(job="state", export=sys.argv[1], engine="local", json=True), spark=False)
"""
    words = [sys.executable, "-c", program, str(exported), str(other_threads)]
    method, said = run_text(words, timeout=90, check=True).stdout.split("\n", 1)
    copies = sys.platform == "linux" and not other_threads
    assert method == ("fork" if copies else "spawn")
    answer, alone = json.loads(said), ask("state", exported)
    assert (answer["state_hash"], answer["entities"]) == (alone.state_hash, alone.entities)
