"""Log lines as they leave the process."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from raftlog.node.observability.logs import setup_logging
from raftlog.transport import grpc_runtime  # noqa: F401  (before grpc)

import grpc.aio  # isort: skip
from grpc._cython import cygrpc  # isort: skip


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_json_when_not_a_terminal_with_bound_fields() -> None:
    out = io.StringIO()
    setup_logging("info", "auto", stream=out, node_id=3)
    structlog.get_logger("x").info("became leader", epoch=7)
    line = json.loads(out.getvalue())
    assert (line["event"], line["epoch"], line["node_id"], line["level"]) == (
        "became leader",
        7,
        3,
        "info",
    )
    assert line["timestamp"].endswith("Z")


def test_below_the_level_nothing_is_written() -> None:
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


def test_an_exception_is_part_of_the_line() -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out)
    try:
        json.loads("")
    except ValueError:
        structlog.get_logger().exception("stopping")
    assert "JSONDecodeError" in json.loads(out.getvalue())["exception"]


def test_console_is_for_people() -> None:
    out = io.StringIO()
    setup_logging("info", "console", stream=out)
    structlog.get_logger().info("became leader", epoch=7)
    assert "became leader" in out.getvalue()
    assert "epoch=7" in out.getvalue()
    assert "{" not in out.getvalue()


def test_setting_up_twice_does_not_double_lines() -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out)
    setup_logging("info", "json", stream=out)
    structlog.get_logger().info("once")
    assert len(out.getvalue().splitlines()) == 1


def test_spurious_wakeups_of_grpc_are_no_news_but_other_failures_are() -> None:
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
def test_a_peer_that_left_before_its_answer_is_no_news_but_other_failures_of_a_call_are(
    logger: str,
) -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out)
    message = "Unexpected [ExecuteBatchError] raised by servicer method"
    logging.getLogger(logger).error(
        message, exc_info=cygrpc.ExecuteBatchError("SendInitialMetadata")
    )
    assert out.getvalue() == ""
    logging.getLogger(logger).error(message, exc_info=grpc.aio.InternalError("x"))
    assert "InternalError" in out.getvalue()
