"""Starting spark-submit: arguments, environment, Java, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from asking import ask
from command_runs import run_text
from log_history import LogHistory
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from raftlog.cli.streams import TERMINATED, UNREAD
from raftlog.clock import MAX_MS
from raftlog.metadata.entities import format_hash
from raftlog.segments.export import export
from replay import submit
from replay.app import create_app
from replay.cli import command, register
from replay.errors import EXIT_FINDINGS, EXIT_INPUT, ReplayError
from replay.request import JOBS, JobRequest, parse_time_ms
from replay.spark import java
from replay.spark.java import make_launcher, worker_python
from replay.spark.session import expect_records
from replay.text import format_moment, format_time


def script(path: Path, text: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    return script(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")


@pytest.fixture(scope="module")
def shimmed_java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JAVA_HOME by the shim, around the wheel's Java, else the machine's."""
    wheel = java.wheel_home() or java.find_java_home(os.environ)
    return java.make_shim(wheel, [tmp_path_factory.mktemp("cache")])


def clean_environment(home: Path, java_home: Path) -> dict[str, str]:
    """No virtual environment, and another python3 on PATH."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "JAVA_HOME": str(java_home)}


def fake_spark(home: Path, text: str) -> dict[str, str]:
    """An environment whose Java and spark-submit are scripts, with an export."""
    fake_java(home, "21")
    script(home / "bin" / "spark-submit", text)
    export(LogHistory(5).run(26), home / "exported")
    return clean_environment(home, home) | {"SPARK_HOME": str(home)}


def in_spark(words: str) -> list[str]:
    """Return the command line of a job in Spark."""
    return [sys.executable, "-m", "raftlog", "replay", *words.split(), "--engine", "spark"]


# --- Java ---------------------------------------------------------------------------------------


def test_java_runs_through_the_shim(shimmed_java: Path) -> None:
    launcher = shimmed_java / "bin" / "java"
    done = run_text([launcher, "--add-modules=jdk.incubator.vector", "-version"], check=True)
    assert "version" in done.stderr
    assert (java.java_version(launcher) or 0) >= java.MIN_JAVA


def test_shim_drops_two_arguments_and_keeps_the_others(tmp_path: Path) -> None:
    wheel = tmp_path / "a wheel's home"
    script(wheel / "bin" / "java", "printf '%s\\n' \"$@\"")
    home = java.make_shim(wheel, [tmp_path / "cache"])
    opens = "--add-opens=java.base/"
    dropped = ["--add-modules=jdk.incubator.vector", f"{opens}sun.security.action=ALL-UNNAMED"]
    before, after = ["-cp", "a b:*"], ["", "--add-modules=other", f"{opens}x", "$HOME"]
    done = run_text([home / "bin" / "java", *before, *dropped, *after], check=True)
    assert done.stdout.split("\n")[:-1] == [*before, *after]


def test_shim_is_created_where_possible_and_follows_the_wheel(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wheel in (tmp_path / "old", tmp_path / "new"):
        home = java.make_shim(wheel, [tmp_path / "file", tmp_path / "cache"])
        assert home.is_relative_to(tmp_path / "cache")
        assert str(wheel) in (home / "bin" / "java").read_text()
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    with pytest.raises(ReplayError, match="no Java launcher could be written"):
        java.make_shim(tmp_path / "wheel", [tmp_path / "file"])


@pytest.mark.parametrize(("version", "found"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8)])
def test_java_version_is_parsed(tmp_path: Path, version: str, found: int) -> None:
    assert java.java_version(fake_java(tmp_path, version)) == found


def test_java_home_takes_precedence_over_path_and_old_java_is_skipped(tmp_path: Path) -> None:
    new, old, wheel = tmp_path / "new", tmp_path / "old", tmp_path / "wheel"
    fake_java(new, "21.0.1")
    fake_java(old, "1.8.0")
    assert java.find_java_home({"JAVA_HOME": str(new), "PATH": str(old / "bin")}) == new
    assert java.find_java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new
    shim = java.find_java_home({"PATH": str(old / "bin")}, wheel=wheel)
    assert str(wheel) in (shim / "bin" / "java").read_text()
    (shim / "bin" / "java").unlink()


def test_missing_java_error_lists_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "wheel_home", lambda: None)
    old, why = fake_java(tmp_path, "1.8.0"), r"JAVA_HOME .*nowhere.* does not run; .*is Java 8"
    with pytest.raises(ReplayError, match=f"needs Java 17 or later: {why}"):
        java.find_java_home({"JAVA_HOME": "/nowhere", "PATH": str(old.parent)})


def test_environment_keeps_existing_settings(tmp_path: Path) -> None:
    fake_java(tmp_path, "21")
    ours = java.spark_environment({"JAVA_HOME": str(tmp_path)})
    assert ours["PYSPARK_PYTHON"] == sys.executable
    assert (Path(ours["SPARK_HOME"]) / "bin" / "spark-submit").is_file()
    assert (Path(ours["SPARK_CONF_DIR"]) / "log4j2.properties").is_file()
    theirs = java.spark_environment(
        {"JAVA_HOME": str(tmp_path), "SPARK_HOME": "/opt/spark", "PYSPARK_PYTHON": "py"}
    )
    assert (theirs["SPARK_HOME"], theirs["PYSPARK_PYTHON"]) == ("/opt/spark", "py")
    assert "SPARK_CONF_DIR" not in theirs


# --- workers ------------------------------------------------------------------------------------

PROBE = "import json, os, pyspark, sys; print(json.dumps([sys.argv[1:], pyspark.__file__, os.environ['PYTHONPATH']]))"


@pytest.mark.parametrize("others", [[], ["/before it"], ["/before it", "/after it"]])
def test_workers_use_pyspark_from_its_installation(tmp_path: Path, others: list[str]) -> None:
    spark_home = Path(str(find_spec("pyspark").submodule_search_locations[0]))  # type: ignore[index]
    launcher = make_launcher(spark_home, [tmp_path / "a cache"])
    assert launcher is not None
    zips = sorted(str(path) for path in (spark_home / "python" / "lib").glob("*.zip"))
    assert len(zips) == 2
    path = os.pathsep.join([*zips, *others[:1], *reversed(zips), *others[1:]])
    environ = {**os.environ, "PYTHONPATH": path}
    done = run_text([launcher, "-c", PROBE, "a b", "$HOME"], env=environ, check=True)
    assert json.loads(done.stdout) == [
        ["a b", "$HOME"],
        str(spark_home / "__init__.py"),
        os.pathsep.join(others),
    ]


def test_chosen_python_and_master_are_not_overridden(tmp_path: Path) -> None:
    assert {*worker_python({})} == {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    for chosen in (*worker_python({}), "SPARK_HOME", "SPARK_CONF_DIR", "MASTER"):
        assert worker_python({chosen: "theirs"}) == {}
    assert worker_python({}, ["spark.ui.enabled=true"])
    assert worker_python({}, ["spark.ui.enabled=true", "spark.master=spark://other:7077"]) == {}
    (tmp_path / "file").write_text("")
    assert make_launcher(tmp_path, [tmp_path / "file"]) is None


# --- the command line ---------------------------------------------------------------------------


def parsed(words: list[str]) -> tuple[JobRequest, list[str]]:
    seen: list[tuple[JobRequest, list[str]]] = []

    def run(request: JobRequest, conf: list[str]) -> int:
        seen.append((request, conf))
        return 0

    result = CliRunner().invoke(create_app(run), words)
    assert result.exit_code == 0, result.output
    return seen[0]


def command_of(words: str, export: str = "e", **asked: Any) -> tuple[list[str], JobRequest]:
    """Return a command line, and the request that it is."""
    job, *more = words.split()
    return [job, export, *more], JobRequest(job=job, export=export, **asked)


RANGE: dict[str, Any] = {"from_offset": 2, "from_time_ms": 3, "at_offset": 4, "at_time_ms": 5}
QUERY = "SELECT 'ä'\nFROM x"
COMMANDS = [
    command_of("summary", "/data/a b"),
    command_of("state --at-offset 17 --limit 3 --json", at_offset=17, limit=3, json=True),
    command_of("state topic", key=("topic", "")),
    command_of(
        "diff broker 1 --from-offset 2 --from-time 3 --to-offset 4 --to-time 5",
        **RANGE,
        key=("broker", "1"),
    ),
    command_of("lao --since 1 --stall 500 --at-time 17", since_ms=1, stall_ms=500, at_time_ms=17),
    command_of("availability --since 1", since_ms=1, limit=20),
    command_of("audit --rule a --rule b", rules=("a", "b")),
    command_of("history config topic:o:k --limit 7", key=("config", "topic:o:k"), limit=7),
    command_of("report", output="report.html", limit=20),
    (["sql", "e", QUERY], JobRequest(job="sql", export="e", query=QUERY)),
    command_of("verify"),
    command_of("watch -o seen/ --every 10", output="seen", every_s=10),
    command_of("watch -o seen --json", "e\udc80", output="seen", json=True),
]


@pytest.mark.parametrize(
    ("words", "asked"), COMMANDS, ids=lambda value: value[0] if isinstance(value, list) else ""
)
def test_request_survives_the_spark_submit_command_line(
    words: list[str], asked: JobRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed(words) == (asked, [])
    submitted = command({"SPARK_HOME": "/spark"}, asked, [])[1:]
    assert all(word.isascii() and word.isprintable() for word in submitted)
    seen: list[JobRequest] = []
    monkeypatch.setattr("sys.argv", submitted)
    monkeypatch.setattr("replay.submit.run_job", lambda request, spark: seen.append(request))
    submit.main()
    assert seen == [asked]


@pytest.mark.parametrize("words", [[], ["-o", "seen", "--every", "0"]])
def test_invalid_watch_arguments_are_refused_before_spark_starts(words: list[str]) -> None:
    refused = CliRunner().invoke(create_app(lambda *_: 0), ["watch", "exported", *words])
    assert refused.exit_code == EXIT_INPUT


def test_submitted_file_takes_a_jobs_words_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[JobRequest, bool]] = []

    def run_job(request: JobRequest, *, spark: bool) -> int:
        seen.append((request, spark))
        return EXIT_FINDINGS

    monkeypatch.setattr(submit, "run_job", run_job)
    monkeypatch.setattr(sys, "argv", ["submit.py", "audit", "/data", "--limit", "5"])
    with pytest.raises(SystemExit) as caught:
        submit.main()
    assert caught.value.code == EXIT_FINDINGS
    assert seen == [(JobRequest(job="audit", export="/data", limit=5), True)]


def test_times_and_settings_are_parsed() -> None:
    words = ["state", "e", "--at-time", "2023-11-14T22:13:20Z", "--conf", "a=b", "--conf", "c=d"]
    request, conf = parsed(words)
    assert (request.at_time_ms, conf) == (1_700_000_000_000, ["a=b", "c=d"])


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2023-11-14T23:13:20.250+01:00", 1_700_000_000_250),
        ("2023-11-14 22:13:20", 1_700_000_000_000),
        ("1700000000000", 1_700_000_000_000),
        ("9" * 400, MAX_MS),
        ("-" + "9" * 400, -1),
    ],
)
def test_time_is_limited_to_what_a_log_can_hold(text: str, at_ms: int) -> None:
    assert parse_time_ms(text) == at_ms


@pytest.mark.parametrize("text", ["yesterday", "²", "--5", "9" * 5000, "10000-01-01"])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ReplayError, match="is not a time: give milliseconds since 1970"):
        parse_time_ms(text)
    result = CliRunner().invoke(create_app(lambda *_: 0), ["state", "e", f"--at-time={text}"])
    assert (result.exit_code, text[:9] in result.output) == (EXIT_INPUT, True)


@pytest.mark.parametrize(
    ("at_ms", "shown"),
    [
        (-(1 << 63), "1970-01-01 00:00:00Z"),
        (-1, "1970-01-01 00:00:00Z"),
        (1_700_000_000_999, "2023-11-14 22:13:20Z"),
        (1 << 62, "9999-12-31 23:59:59Z"),
    ],
)
def test_every_timestamp_can_be_shown(at_ms: int, shown: str) -> None:
    assert format_time(at_ms) == shown
    assert format_moment(at_ms)[:19] == shown[:19]


def test_spark_submit_command_line_is_built() -> None:
    words = command(
        {"SPARK_HOME": "/spark"}, JobRequest(job="audit", export="e"), ["spark.master=local[1]"]
    )
    assert words[:3] == ["/spark/bin/spark-submit", "--conf", "spark.master=local[1]"]
    assert words[3].endswith("replay/submit.py")
    assert words[4:] == ["--request", '{"job": "audit", "export": "e"}']


def test_raftlog_has_the_replay_commands() -> None:
    assert {asked.job for _, asked in COMMANDS} == {*JOBS}, "each has its request above"
    app = typer.Typer()
    app.command("other")(lambda: None)
    register(app)
    result = CliRunner().invoke(app, ["replay", "--help"])
    assert result.exit_code == 0
    assert [job for job in JOBS if job not in result.output] == []


# --- the whole way ------------------------------------------------------------------------------

UNTIL_ENDED = "while :; do sleep 0.05; done"


def begun(words: str, home: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    """Start a job in Spark."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(in_spark(words), env=environ, cwd=home, **pipes)


@pytest.mark.nightly
def test_replay_runs_through_spark_submit_and_the_shim(tmp_path: Path, shimmed_java: Path) -> None:
    history = LogHistory(71).run(300)
    history.create_topic("orders", 1)
    bad = history.alter_isr("orders", 0, [1, 2], {2: 9})
    export(history, tmp_path / "export")
    words = in_spark(f"summary {tmp_path / 'export'} --json")
    done = run_text(words, env=clean_environment(tmp_path, shimmed_java), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (EXIT_FINDINGS, "")
    found = json.loads(done.stdout)
    assert found["state_hash"] == format_hash(history.hashes[history.end_offset - 1])
    assert found["point"]["records"] == history.end_offset
    alone = ask("audit", tmp_path / "export")
    offsets = [finding["offset"] for finding in found["audit"]["findings"]]
    assert bad in offsets
    assert offsets == [finding.offset for finding in alone.findings]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export"]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_replay_stops_spark(tmp_path: Path, number: signal.Signals) -> None:
    """Spark ends first, with time to clean up, and only one line is printed."""
    environ = fake_spark(
        tmp_path,
        f"trap 'echo half an answer; rm started; exit 143' TERM\ntouch started\n{UNTIL_ENDED}",
    )
    with begun("audit exported", tmp_path, environ) as process:
        while process.poll() is None and not (tmp_path / "started").exists():
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    # Ctrl-C has to end the shell's loop, too: only a program that dies of the signal does that.
    assert process.returncode == (-signal.SIGINT if number == signal.SIGINT else TERMINATED)
    assert out == ""
    assert err == "raftlog replay: interrupted, nothing was answered\n"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("reader", "code"), [("| true", UNREAD), ("> /dev/full", 6)])
@pytest.mark.parametrize(
    "job", ["audit exported --engine spark", "watch exported -o watched --every 1 --engine spark"]
)
def test_unwritable_answer_leaves_no_spark_process(
    tmp_path: Path, job: str, reader: str, code: int
) -> None:
    """[It was reported as wrong usage, and Spark continued with a watch.]"""
    goes_on = UNTIL_ENDED if "watch" in job else "rm started"
    environ = fake_spark(
        tmp_path,
        "trap 'rm started; exit 143' TERM\ntrap '' PIPE\ntouch started\nsleep 0.5\necho an answer\n"
        + goes_on,
    )
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m raftlog replay {job} {reader}"],
        env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (code, code == 6), done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.nightly
def test_watch_reports_at_once_and_prints_its_position_at_the_end(tmp_path: Path) -> None:
    """It runs until Ctrl-C, which is no failure."""
    (tmp_path / "watched").mkdir()
    done = {"batch": 4, "end_offset": 70, "alerts": 2}
    (tmp_path / "watched" / "done.json").write_text(json.dumps(done))
    later = json.dumps(done | {"batch": 5, "end_offset": 75, "alerts": 3})
    environ = fake_spark(
        tmp_path,
        f"trap 'exit 143' TERM\necho '{later}' > watched/done.json\necho one alert\n{UNTIL_ENDED}",
    )
    with begun("watch exported -o watched --every 1", tmp_path, environ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (first, out) == ("one alert\n", "")
    said = (
        "raftlog replay: stopped after 5 new records and 1 new alert; the next run continues at"
        " offset 75\n"
    )
    assert (process.returncode, err) == (EXIT_FINDINGS, said)


@pytest.mark.nightly
def test_watch_errors_go_to_standard_error(tmp_path: Path) -> None:
    environ = fake_spark(tmp_path, "echo an alert\necho 'raftlog replay: no more'\nexit 2")
    done = run_text(in_spark("watch exported -o watched --every 1"), env=environ, cwd=tmp_path)
    assert done.returncode == EXIT_INPUT
    assert done.stdout == "an alert\n"
    assert done.stderr == "raftlog replay: no more\n"


def settings(records: int, *given: str) -> dict[str, str]:
    """Return the settings for a history of this many records; ``given``: settings by --conf."""
    found: dict[str, str] = {}
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(contains=given.__contains__))
    session = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=found.__setitem__))
    expect_records(cast("SparkSession", session), records)
    return found


def test_long_history_is_split_into_more_tasks_and_a_short_one_is_not_compiled() -> None:
    assert settings(50_000_000) == {"spark.sql.shuffle.partitions": "334"}
    assert settings(1_000_000) == {"spark.sql.shuffle.partitions": "8"}
    compiled = "spark.sql.codegen.wholeStage"
    few = settings(200_000)
    assert (few["spark.sql.shuffle.partitions"], few[compiled]) == ("8", "false")
    assert settings(50_000_000, "spark.sql.shuffle.partitions") == {}
    assert settings(1, compiled) == {key: few[key] for key in few if key != compiled}
