"""Log lines: format, level at run time, and the writer."""

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import grpc.aio
import pytest
import structlog
from command_runs import run_text
from grpc._cython import cygrpc

from raftlog.errors import ApiError
from raftlog.node.observability import log_writer
from raftlog.node.observability.log_level import DEFAULT_MS, MAX_MS, LogLevel
from raftlog.node.observability.log_writer import LogWriter
from raftlog.node.observability.logs import LogTail, setup_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_lines_are_json_with_bound_fields_without_a_terminal() -> None:
    out = io.StringIO()
    setup_logging("info", "auto", stream=out, node_id=3)
    structlog.get_logger("x").info("became leader", epoch=7)
    line = json.loads(out.getvalue())
    assert (line["event"], line["epoch"], line["node_id"]) == ("became leader", 7, 3)
    assert line["level"] == "info"
    assert line["timestamp"].endswith("Z")


def test_lines_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    setup_logging("warning", "json", stream=out)
    structlog.get_logger().info("quiet")
    logging.getLogger("uvicorn").info("quiet too")
    assert out.getvalue() == ""


def test_libraries_log_in_the_same_form() -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out, node_id=3)
    logging.getLogger("uvicorn.error").warning("port %d", 80)
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"], line["node_id"]) == ("port 80", "warning", 3)


def test_exception_is_part_of_its_line() -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out)
    try:
        json.loads("")
    except ValueError:
        structlog.get_logger().exception("stopping")
    assert "JSONDecodeError" in json.loads(out.getvalue())["exception"]


def test_terminal_lines_are_human_readable() -> None:
    out = io.StringIO()
    setup_logging("info", "console", stream=out)
    structlog.get_logger().info("became leader", epoch=7)
    assert "became leader" in out.getvalue()
    assert "epoch=7" in out.getvalue()
    assert "{" not in out.getvalue()


def test_configuring_twice_does_not_duplicate_lines() -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out)
    setup_logging("info", "json", stream=out)
    structlog.get_logger().info("once")
    assert len(out.getvalue().splitlines()) == 1


def test_spurious_grpc_wakeups_are_not_logged_but_other_failures_are() -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out)
    asyncio_log = logging.getLogger("asyncio")
    message = "Exception in callback PollerCompletionQueue._handle_events()"
    asyncio_log.error(message, exc_info=BlockingIOError(11, "Resource temporarily unavailable"))
    asyncio_log.error(message, exc_info=RuntimeError("Event loop is closed"))
    assert out.getvalue() == ""
    asyncio_log.error(message, exc_info=ValueError("x"))
    assert "ValueError: x" in out.getvalue()


@pytest.mark.parametrize("logger", ["grpc._cython.cygrpc", "asyncio"])
def test_only_failures_other_than_a_peer_that_left_are_logged(logger: str) -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out)
    message = "Unexpected [ExecuteBatchError] raised by servicer method"
    logging.getLogger(logger).error(
        message, exc_info=cygrpc.ExecuteBatchError("SendInitialMetadata")
    )
    assert out.getvalue() == ""
    logging.getLogger(logger).error(message, exc_info=grpc.aio.InternalError("x"))
    assert "InternalError" in out.getvalue()


async def test_level_is_changed_and_reset_to_the_configured_one() -> None:
    applied: list[str] = []
    level = LogLevel("info", applied.append, lambda: 1_000)
    level.alter("debug", 30)
    assert (level.level, level.until_ms) == ("debug", 1_030)
    await asyncio.sleep(0.2)
    assert (level.level, level.until_ms) == ("info", 0)
    assert applied == ["debug", "info"]


async def test_last_level_wins_and_an_empty_one_resets() -> None:
    applied: list[str] = []
    level = LogLevel("info", applied.append, lambda: 0)
    level.alter("debug", 20)
    level.alter("error", 0)
    await asyncio.sleep(0.1)
    assert (level.level, level.until_ms) == ("error", DEFAULT_MS)
    level.alter("", 0)
    assert applied == ["debug", "error", "info"]


@pytest.mark.parametrize(("name", "for_ms"), [("loud", 0), ("debug", -1), ("debug", MAX_MS + 1)])
async def test_unknown_log_level_changes_nothing(name: str, for_ms: int) -> None:
    level = LogLevel("info", lambda _: pytest.fail("applied"), lambda: 0)
    with pytest.raises(ApiError):
        level.alter(name, for_ms)
    assert level.level == "info"


TIMEOUT_S = 20.0


class Lines(logging.Handler):
    """Keeps the events; each waits for ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.came = threading.Condition()
        self.go = threading.Event()
        self.go.set()
        self.hangs = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if not self.go.is_set():
            self.hangs.set()
            assert self.go.wait(TIMEOUT_S)
        with self.came:
            self.events.append(record.getMessage() if record.args else _event(record))
            self.came.notify_all()

    def wait(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.events) >= count, TIMEOUT_S), self.events


def _event(record: logging.LogRecord) -> str:
    line = record.msg
    return str(line["event"] if isinstance(line, dict) else line)


def line(event: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("x", level, "x.py", 1, "", None, None)
    record.msg = {"event": event, **fields}
    return record


def test_lines_are_written_asynchronously_in_order() -> None:
    lines = Lines()
    lines.go.clear()
    writer = LogWriter([lines])
    for number in range(100):
        writer.handle(line(str(number)))
    assert lines.events == []
    lines.go.set()
    lines.wait(100)
    assert lines.events == [str(number) for number in range(100)]
    writer.handle(line("a second time"))
    lines.wait(101)


@pytest.mark.parametrize(
    "urgent",
    [
        line("urgent", logging.ERROR),
        line("urgent", logging.WARNING, exc_info=True),
        logging.LogRecord("grpc", logging.INFO, "x.py", 1, "urgent", None, None),
    ],
    ids=["an error", "an exception", "a line of a library"],
)
def test_urgent_line_is_written_at_once_after_the_queued_ones(
    urgent: logging.LogRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "LATER_S", TIMEOUT_S)
    lines = Lines()
    writer = LogWriter([lines])
    writer.handle(line("before"))
    assert lines.events == []
    writer.handle(urgent)
    assert lines.events == ["before", "urgent"]


def test_log_writer_counts_dropped_lines_of_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "WAITING_LINES_MAX", 10)
    monkeypatch.setattr(log_writer, "FLUSH_S", 0.01)
    lines, told = Lines(), list[int]()

    def warning(_: str, *, lines: int) -> None:
        told.append(lines)

    monkeypatch.setattr(log_writer, "log", SimpleNamespace(warning=warning))
    lines.go.clear()
    writer = LogWriter([lines])
    writer.handle(line("the thread has this one"))
    assert lines.hangs.wait(TIMEOUT_S)
    for number in range(15):
        writer.handle(line(str(number)))
    begun = time.monotonic()
    writer.flush()
    assert time.monotonic() - begun < TIMEOUT_S / 2
    lines.go.set()
    lines.wait(11)
    writer.handle(line("room again"))
    lines.wait(12)
    assert lines.events[1:] == [*map(str, range(10)), "room again"]
    deadline = time.monotonic() + TIMEOUT_S
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told == [5]


def test_error_lines_wait_only_once_for_a_hanging_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_S", 0.3)
    lines = Lines()
    lines.go.clear()
    writer = LogWriter([lines])
    writer.handle(line("the thread has this one"))
    assert lines.hangs.wait(TIMEOUT_S)
    begun = time.monotonic()
    for number in range(100):
        writer.handle(line(str(number), logging.ERROR))
    assert 0.3 <= time.monotonic() - begun < 10
    lines.go.set()
    lines.wait(101)
    writer.handle(line("again", logging.ERROR))
    lines.wait(102)
    assert lines.events[1:] == [*map(str, range(100)), "again"]


def test_newest_lines_include_queued_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LATER_S", TIMEOUT_S)
    tail = LogTail()
    tail.setFormatter(logging.Formatter("%(message)s"))
    writer, root = LogWriter([tail]), logging.getLogger()
    root.addHandler(writer)
    try:
        writer.handle(line("just now"))
        assert len(tail.newest(5)) == 1
    finally:
        root.removeHandler(writer)


def test_process_with_an_unread_log_exits_with_its_exit_code() -> None:
    program = """
import structlog
from raftlog.node.observability.logs import exit_process, setup_logging
setup_logging("info", "json", in_thread=True)
for _ in range(2_000):
    structlog.get_logger("x").info("line", text="x" * 200)
exit_process(3)
"""
    unread, stderr = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stderr=stderr, timeout=60, check=False
        )
        assert done.returncode == 3
    finally:
        os.close(unread)
        os.close(stderr)


@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_first_lines_do_not_wait_longer_for_a_hanging_reader(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[The caller itself wrote the queue, without an end, if the thread had not started yet.]"""
    monkeypatch.setattr(log_writer, "FLUSH_S", 0.1)
    lines = Lines()
    lines.go.clear()
    writer = LogWriter([lines])
    begun = time.monotonic()
    writer.handle(line("nobody reads this", level))
    writer.flush()
    assert time.monotonic() - begun < TIMEOUT_S / 2
    assert writer.hangs
    lines.go.set()
    lines.wait(1)
    writer.handle(line("read again", logging.ERROR))
    assert lines.events == ["nobody reads this", "read again"]
    assert not writer.hangs


def test_exiting_process_writes_queued_lines() -> None:
    program = """
import structlog
from raftlog.node.observability.logs import setup_logging
setup_logging("info", "json", in_thread=True, node_id=7)
for number in range(50):
    structlog.get_logger("x").info("line", number=number)
raise SystemExit(3)
"""
    done = run_text([sys.executable, "-c", program], timeout=60)
    lines = done.stderr.splitlines()
    assert done.returncode == 3
    assert len(lines) == 50
    assert all('"node_id": 7' in one for one in lines)
