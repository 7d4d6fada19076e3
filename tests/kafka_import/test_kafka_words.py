"""Output about an imported Kafka log, whose records name no author."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import kafka_writer as kafka
import pytest
from command_runs import run_text
from rich.console import Console
from test_kafka_import import HERE, import_all

sys.path.insert(0, str(Path(__file__).parents[1] / "segments"))
from log_history import LogHistory

from raftlog.segments.export import export
from replay.jobs import audit, diff, history
from replay.kernels.findings import Finding
from replay.request import JobRequest
from replay.run import compute, with_origin

NOBODY = "Kafka's log does not record who made a change"
JOBS = {"history": history, "diff": diff, "audit": audit}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kafka")
    kafka.unpack(HERE / "kafka-4.4.0.tar.gz", directory / "node")
    import_all(directory / "exported", directory / "node")
    return directory / "exported"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ours")
    log = LogHistory(3)
    log.create_topic("orders")
    log.set_fenced(1, fenced=True)
    export(log, directory)
    return directory


def told(job: str, result: Any) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        JOBS[job].render(result, console)
    return captured.get()


def ask(job: str, target: Path) -> Any:
    key = ("topic", "orders") if job == "history" else None
    return compute(JobRequest(job=job, export=str(target), key=key))


@pytest.mark.parametrize("job", ["history", "diff"])
def test_jobs_name_no_author_of_an_imported_change(job: str, imported: Path, ours: Path) -> None:
    theirs, own = (told(job, ask(job, target)) for target in (imported, ours))
    assert NOBODY in " ".join(theirs.split())
    assert "Kafka" not in own
    for cell in (r"┃ by +┃", r"│ the controller +│"):
        assert not re.search(cell, theirs)
        assert re.search(cell, own)


def test_finding_of_an_imported_log_has_no_author(imported: Path) -> None:
    result = ask("audit", imported)
    assert result.origin == "kafka"
    found = Finding(
        "ISR_EMPTY", "critical", 7, [7], 1, 0, "", "partition orders-0", None, None, None, None,
        "ISR []", "at least its last member", "docs/audit.md",
    )  # fmt: skip
    failed = audit.AuditResult(1, 1, result.rules, [found])
    assert "│ the controller " in told("audit", failed)
    assert "controller" not in told("audit", with_origin(failed, "kafka"))


def test_details_of_partitions_are_described_in_words(imported: Path) -> None:
    said = told("history", ask("history", imported))
    assert '{"' not in said
    # As meta.properties says directory.id.
    assert re.search(r"created: directories [\w-]{22}, [\w-]{22}, [\w-]{22}", said)
    # A broker's state has no reason.
    while_fenced = JobRequest(job="diff", export=str(imported), at_offset=130)
    assert "fenced, broker epoch 14" in told("diff", compute(while_fenced))


def test_nested_result_names_its_log(imported: Path) -> None:
    result = ask("summary", imported)
    assert result.audit.origin == "kafka"
    assert with_origin(result, "") is result


def raftlog(*arguments: str) -> str:
    done = run_text([str(Path(sys.executable).with_name("raftlog")), *arguments], timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_history_of_an_export_names_no_author(imported: Path, ours: Path) -> None:
    theirs, own = (
        raftlog("history", "topic", "orders", "--export", str(target)).splitlines()
        for target in (imported, ours)
    )
    assert theirs[0].split() == ["OFFSET", "TIME", "WHAT", "CHANGE"]
    assert theirs[-1] == NOBODY
    assert own[0].split() == ["OFFSET", "TIME", "BY", "WHAT", "CHANGE"]
    assert any(" controller " in line for line in own)


def test_json_names_the_source_of_the_log(imported: Path) -> None:
    document = json.loads(raftlog("replay", "diff", str(imported), "--engine", "local", "--json"))
    assert document["origin"] == "kafka"
    assert {one["last_principal"] for one in document["differences"]} == {""}
