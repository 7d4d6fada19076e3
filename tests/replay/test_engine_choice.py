"""The choice of an engine for a job, and its message."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import written
from command_runs import run_text
from log_history import LogHistory
from msgspec import structs

from raftlog.cli.built_in import BROUGHT_BY
from replay import cli as launch
from replay.cli import LOCAL_MAX_BYTES, LOCAL_MAX_RECORDS, announcement, choose_engine
from replay.errors import ReplayError
from replay.export import Export, open_export
from replay.request import JOBS, LOCAL_JOBS, JobRequest

WITHOUT_EXTRAS = f"""
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted({"pandas"} | {name for name, extras in BROUGHT_BY.items() if not {"export", "cli"} & {*extras}})!r}:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(one) for one in sys.meta_path]
sys.argv = ["raftlog", "replay", *sys.argv[1:]]
from raftlog.cli.entry import main
main()
"""
"""The command line where only ``raftlog[export]`` is installed."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(LogHistory(5).run(26), tmp_path_factory.mktemp("small"))


def choice(directory: Path, *conf: str, **asked: Any) -> tuple[str, str]:
    found = choose_engine(JobRequest(export=str(directory), **asked), list(conf))
    return found.engine, announcement(found)


@pytest.mark.parametrize("job", LOCAL_JOBS)
def test_small_export_is_processed_without_spark(small: Path, job: str) -> None:
    records = open_export(JobRequest(job=job, export=str(small))).record_count
    engine, said = choice(small, job=job)
    assert engine == "local"
    assert said.startswith(f"without Spark: {records} records (")
    assert said.endswith(" KiB), a small export; --engine spark overrides this")


@pytest.mark.parametrize("job", sorted({*JOBS} - {*LOCAL_JOBS}))
@pytest.mark.parametrize("engine", ["auto", "local"])
def test_job_without_a_local_engine_names_spark(small: Path, job: str, engine: str) -> None:
    assert choice(small, job=job, engine=engine) == ("spark", f"in Spark: {job} needs Spark")
    assert choice(small, job=job, engine="spark") == ("spark", "")


def test_named_engine_and_spark_settings_decide(small: Path) -> None:
    assert choice(small, job="audit", engine="spark") == ("spark", "")
    assert choice(small, job="audit", engine="local") == ("local", "")
    assert choice(small, "a=b", job="audit") == ("spark", "in Spark: --conf was given")
    with pytest.raises(ReplayError, match="drop it, or drop --engine local"):
        choice(small, "a=b", job="audit", engine="local")


@pytest.mark.parametrize(
    ("records", "size", "engine"),
    [
        (LOCAL_MAX_RECORDS, LOCAL_MAX_BYTES, "local"),
        (LOCAL_MAX_RECORDS + 1, 1, "spark"),
        (1, LOCAL_MAX_BYTES + 1, "spark"),
    ],
)
def test_spark_is_used_above_either_limit(
    small: Path, monkeypatch: pytest.MonkeyPatch, records: int, size: int, engine: str
) -> None:
    def enlarged(request: JobRequest) -> Export:
        opened = open_export(request)
        (one,) = opened.segments
        last_offset = one.base_offset + records - 1
        segments = (structs.replace(one, last_offset=last_offset, bytes=size),)
        return replace(opened, segments=segments)

    monkeypatch.setattr(launch, "open_export", enlarged)
    found, said = choice(small, job="audit")
    assert found == engine
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    found, without = choice(small, job="audit")
    assert found == "local"
    if engine == "spark":
        assert said.endswith("a large export")
        assert "PySpark is not installed" in without


def test_checkpoint_counts_for_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that starts at a checkpoint reads the records after it."""
    log = LogHistory(11).run(400)
    written(log, tmp_path, checkpoint_records=100)
    last = open_export(JobRequest(job="state", export=str(tmp_path))).manifest.checkpoints[-1]
    monkeypatch.setattr(launch, "LOCAL_MAX_RECORDS", log.end_offset - last.offset - 1)
    assert choice(tmp_path, job="state")[0] == "local"
    assert choice(tmp_path, job="state", from_the_beginning=True)[0] == "spark"
    assert choice(tmp_path, job="audit")[0] == "spark"


def no_process(*_: Any, **__: Any) -> None:
    """Replace every process start."""
    pytest.fail("Spark was started")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"job": "audit", "export": "nowhere"}, "is not an export"),
        ({"job": "state", "export": "topic", "key": ("EXPORT", "orders")}, "put the export first"),
        ({"job": "sql", "export": "SELECT 1", "query": "EXPORT"}, "put the export first"),
        ({"job": "state", "key": ("topics", "")}, "unknown kind 'topics' of entities"),
        ({"job": "history", "key": ("acl", "User:bob")}, "not the id of an entry"),
        ({"job": "history", "key": ("broker", "two")}, "not a broker id"),
        ({"job": "history", "key": ("config", "orders")}, "not TYPE:NAME"),
        ({"job": "history", "key": ("config", "queue:orders")}, "not TYPE:NAME"),
        ({"job": "history", "key": ("partition", "orders")}, "is not TOPIC-NUMBER"),
        ({"job": "diff", "from_offset": 9_999}, "is after the end of the diff"),
        ({"job": "diff", "from_offset": -3}, "there is no offset -3"),
        ({"job": "state", "at_offset": 9_999}, "offset 9999 is not in"),
        ({"job": "audit", "rules": ("LAO",)}, "unknown rules: LAO"),
        ({"job": "sql", "query": " "}, "no query"),
        ({"job": "watch", "output": "WATCHED"}, "is damaged"),
    ],
    ids=str,
)
def test_user_mistake_is_reported_without_starting_spark(
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    said: str,
) -> None:
    (tmp_path / "done.json").write_text("{")
    names = {"EXPORT": str(small), "WATCHED": str(tmp_path)}

    def named(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(named(each) for each in value)
        return names.get(value, value)

    request = JobRequest(**{"export": "EXPORT", **asked, "engine": "spark"})
    fields = {name: named(getattr(request, name)) for name in request.__struct_fields__}
    monkeypatch.setattr(subprocess, "Popen", no_process)
    assert launch.submit(JobRequest(**fields), []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def run_without_extras(*words: str) -> subprocess.CompletedProcess[str]:
    return run_text([sys.executable, "-c", WITHOUT_EXTRAS, *words], timeout=90)


def test_export_extra_suffices_for_local_jobs(small: Path) -> None:
    """One job in a process; test_local_jobs_import_only_what_the_export_extra_brings has all."""
    done = run_without_extras("audit", str(small), "--json")
    assert done.returncode == 0, done.stderr[-500:]
    assert json.loads(done.stdout)
    (line,) = done.stderr.splitlines()
    assert line.startswith("raftlog replay: without Spark: ")


@pytest.mark.parametrize(
    ("words", "lacking"),
    [
        (["report", "EXPORT", "-o", "/dev/null"], "needs jinja2, which is not installed"),
        (["sql", "EXPORT", "SELECT 1"], "sql needs Spark, which is not installed"),
        (["audit", "EXPORT", "--engine", "spark"], "PySpark is not installed"),
    ],
)
def test_job_beyond_the_export_extra_says_what_to_install(
    small: Path, words: list[str], lacking: str
) -> None:
    done = run_without_extras(*(str(small) if word == "EXPORT" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.search(lacking, last)
    assert "pip install 'raftlog[replay]'" in last
