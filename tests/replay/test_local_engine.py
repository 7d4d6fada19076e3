"""Jobs without Spark: the same answers, for any slices and workers."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from asking import ask, ask_shared
from command_runs import run_text
from json_schemas import validator
from log_history import LogHistory
from spark_runs import Replay

from raftlog.metadata.entities import format_hash
from raftlog.segments.export import export
from replay.documents import PRINTED
from replay.engine import pool, reading
from replay.errors import ReplayError
from replay.request import LOCAL_JOBS, JobRequest
from replay.run import compute

LEVEL = 7
WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("state", {}),
    ("diff", {"from_offset": 150}),
    ("history", {"key": ("topic", "")}),
    ("summary", {}),
    ("lao", {"stall_ms": 50}),
    ("availability", {}),
]
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    *WHOLE,
    ("state", {"at_offset": 120, "limit": 3}),
    ("state", {"key": ("config", "")}),
    ("state", {"key": ("topic", "t0")}),
    ("state", {"key": ("broker", "2")}),
    ("diff", {}),
    ("diff", {"from_offset": 40, "at_offset": 300, "key": ("partition", "")}),
    ("history", {"key": ("broker", "1"), "limit": 4}),
    ("history", {"key": ("broker", "1"), "limit": 0}),
    ("history", {"key": ("client", "")}),
    ("history", {"key": ("applied", "1")}),
    ("history", {"key": ("acl", "")}),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LogHistory]:
    log = LogHistory(11).run(400)
    directory = tmp_path_factory.mktemp("local")
    export(log, directory)
    return directory, log


@pytest.mark.parametrize(("job", "asked"), WHOLE)
def test_local_engine_equals_spark(
    replay: Replay,
    exported: tuple[Path, LogHistory],
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    asked: dict[str, Any],
) -> None:
    directory, _ = exported
    expected = replay(job, directory, **asked)
    assert ask(job, directory, **asked) == expected
    monkeypatch.setattr(reading, "SLICE_ROWS", 17)
    assert ask_shared(3, job, directory, **asked) == expected


@pytest.mark.parametrize("job", LOCAL_JOBS)
def test_json_of_a_job_matches_its_declaration(
    exported: tuple[Path, LogHistory], tmp_path: Path, job: str
) -> None:
    asked: dict[str, Any] = {"report": {"output": str(tmp_path / "report.html")}}.get(job, {})
    asked |= {"key": ("topic", "")} if job == "history" else {}
    result = compute(JobRequest(job=job, export=str(exported[0]), **asked))
    assert type(result) is PRINTED[f"replay {job}"]
    validator(f"replay {job}")(msgspec.json.decode(msgspec.json.encode(result)))


def test_report_page_is_the_same(
    replay: Replay, exported: tuple[Path, LogHistory], tmp_path: Path
) -> None:
    directory, _ = exported
    one, other = (tmp_path / f"{name}.html" for name in ("spark", "local"))
    replay("report", directory, output=str(one))
    ask("report", directory, output=str(other))
    assert one.read_text() == other.read_text()
    assert "Availability" in one.read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(("job", "asked"), QUESTIONS)
def test_local_engine_equals_spark_for_selections(
    replay: Replay, exported: tuple[Path, LogHistory], job: str, asked: dict[str, Any]
) -> None:
    directory, _ = exported
    assert ask_shared(2, job, directory, **asked) == replay(job, directory, **asked)


@pytest.mark.parametrize("buckets", [1, 4])
def test_state_equals_nodes_at_each_batch(exported: tuple[Path, LogHistory], buckets: int) -> None:
    directory, log = exported
    for offset in sorted(log.hashes)[:: len(log.hashes) // 7]:
        found = ask_shared(buckets, "state", directory, at_offset=offset)
        assert (found.point.offset, found.state_hash) == (offset, format_hash(log.hashes[offset]))


def test_worker_processes_share_the_fold(
    exported: tuple[Path, LogHistory], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, log = exported
    monkeypatch.setattr(pool, "ALONE_RECORDS", 0)
    monkeypatch.setattr(pool, "workers", lambda: 2)
    found = ask("state", directory)
    assert found.state_hash == format_hash(log.hashes[log.end_offset - 1])


def test_damaged_page_is_refused(exported: tuple[Path, LogHistory], tmp_path: Path) -> None:
    _, log = exported
    export(log, tmp_path)
    (file,) = (tmp_path / "records").glob("*.parquet")
    content = bytearray(file.read_bytes())
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    (body,) = (one for one in columns if one.path_in_schema == "body")
    content[body.data_page_offset + body.total_compressed_size // 2] ^= 1
    file.write_bytes(content)
    for job in ("audit", "state"):
        with pytest.raises(Exception, match=f"{file.name}.* is corrupt: expected the SHA-256"):
            ask(job, tmp_path)
    # The pages have checksums of their own.
    with pytest.raises(Exception, match=f"{file.name}.* is corrupt: it can't be read"):
        ask_shared(1, "state", tmp_path)


def test_spark_only_job_is_refused_by_the_local_engine(exported: tuple[Path, LogHistory]) -> None:
    with pytest.raises(ReplayError, match="sql needs Spark: --engine local runs audit, "):
        ask("sql", exported[0])


def test_job_without_spark_imports_neither_spark_nor_node_logs(
    exported: tuple[Path, LogHistory], tmp_path: Path
) -> None:
    program = """
import atexit, sys
sys.argv = ["raftlog", "replay", *sys.argv[1:]]
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from raftlog.cli.entry import main
main()
"""
    for job in LOCAL_JOBS:
        words = [job, str(exported[0]), "--engine", "local", "--json"]
        words += ["topic", "t0"] if job == "history" else []
        words += ["-o", str(tmp_path / "report.html")] if job == "report" else []
        done = run_text([sys.executable, "-c", program, *words], timeout=90)
        assert done.returncode in {0, 3}, done.stderr[-500:]
        assert '"' in done.stdout
        loaded = set(done.stderr.splitlines()[-1].split())
        assert "replay.run" in loaded
        assert not loaded & {"pyspark", "structlog", "pandas"}, job


@pytest.mark.parametrize("other_threads", [0, 1])
def test_workers_are_forked_only_without_other_threads(
    exported: tuple[Path, LogHistory], other_threads: int
) -> None:
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
    done = run_text(
        [sys.executable, "-c", program, str(exported[0]), str(other_threads)],
        timeout=90,
        check=True,
    )
    method, said = done.stdout.split("\n", 1)
    copies = sys.platform == "linux" and not other_threads
    assert method == ("fork" if copies else "spawn")
    answer = json.loads(said)
    alone = ask("state", exported[0], engine="local")
    assert answer["state_hash"] == alone.state_hash
    assert answer["entities"] == alone.entities
