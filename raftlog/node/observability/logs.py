"""Structured logs on stderr: readable text on a terminal, JSON otherwise. Lines from libraries have
the same form.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import MutableMapping
from typing import Any, NoReturn, TextIO

import structlog

from raftlog.node.observability.log_writer import LogWriter
from raftlog.text import printable

_LONG = frozenset({"exception", "stack"})
"""Fields with several lines."""
TAIL_LINES, TAIL_LINE_MAX_CHARS = 1_000, 4_000
_SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)


class LogTail(logging.Handler):
    """The newest lines in memory, as JSON, for queries to the node."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        try:
            self._lines.append(self.format(record)[:TAIL_LINE_MAX_CHARS])
        except Exception:
            self.handleError(record)

    def newest(self, count: int) -> list[str]:
        """Return at most ``count`` of the newest lines, oldest first."""
        for writer in _writers():
            writer.flush()
        return list(self._lines)[-count:] if count > 0 else []


TAIL = LogTail()
"""The newest lines of this process."""


def setup_logging(
    level: str = "info",
    log_format: str = "auto",
    *,
    stream: TextIO | None = None,
    in_thread: bool = False,
    **bound: object,
) -> None:
    """Log at ``level`` and above to ``stream`` (default: stderr).

    ``bound`` (for instance node_id=1) is added to each line. ``in_thread``: True to write on a
    thread, see ``log_writer``. ``log_format``: "console", "json", or "auto": console if the stream
    is a terminal. May be called again.
    """
    out = stream if stream is not None else sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(out)
    handler.addFilter(_is_news)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(console=console, out=out),
            ],
        )
    )
    TAIL.addFilter(_is_news)
    TAIL.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(console=False, out=out),
            ],
        )
    )
    handlers: list[logging.Handler] = [handler, TAIL]
    if in_thread:
        handlers = [LogWriter(handlers)]
    logging.basicConfig(handlers=handlers, level=number, force=True)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def set_level(level: str) -> None:
    """Log at ``level`` and above from now on; the rest of ``setup_logging`` stays unchanged."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(number)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))


def exit_process(code: int) -> NoReturn:
    """Exit with this code after all lines are written, except lines whose reader hangs, for which
    the interpreter would wait.
    """
    for writer in _writers():
        writer.flush()
        if writer.hangs:
            os._exit(code)
    sys.exit(code)


def _writers() -> list[LogWriter]:
    return [one for one in logging.getLogger().handlers if isinstance(one, LogWriter)]


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for lines of gRPC with a traceback that call for no action.

    One case: a peer has closed a call that was being answered, and gRPC's server logs the failed
    batch before it notices. Another case: a process has, or had, several event loops, and gRPC's
    pollers of two loops woke for the same byte, so one of them found nothing; or an event was left
    for a closed loop.
    """
    if record.exc_info is None:
        return True
    error = record.exc_info[1]
    if record.name.startswith(("grpc.", "asyncio")) and type(error).__name__ == "ExecuteBatchError":
        return False
    if "PollerCompletionQueue._handle_events" not in record.getMessage():
        return True
    return not (isinstance(error, BlockingIOError) or str(error) == "Event loop is closed")


def _harmless(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Make text from strangers harmless for a terminal. JSON is escaped anyway."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value, keep="\n\t" if name in _LONG else "")
    return event


def _renderers(*, console: bool, out: TextIO) -> list[Any]:
    if console:
        return [
            structlog.processors.format_exc_info,
            _harmless,
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
