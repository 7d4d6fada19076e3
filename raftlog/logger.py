"""The logger of library code, silent in a program that has not configured logs.

An unconfigured structlog prints to stdout, which belongs to the application that imports the
library. Until structlog is configured (by a node or the command line, see ``observability.logs``),
lines go to the standard logger of their module: an application sees them only once it configures
``logging``.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

# Without a handler, the standard library would print warnings to stderr.
logging.getLogger("raftlog").addHandler(logging.NullHandler())


class LibraryLogger:
    """A logger that uses structlog if it is configured, else ``logging``.

    Never imports structlog: a program that has not imported it has not configured it, and should
    not wait for the import.
    """

    __slots__ = ("_standard", "_structured")

    def __init__(self, name: str) -> None:
        self._structured: Any = None
        self._standard = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        """Log an event for developers."""
        self._log("debug", logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log a normal and rare event."""
        self._log("info", logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that may need an operator's attention."""
        self._log("warning", logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log a failure."""
        self._log("error", logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log a failure with the current exception's traceback."""
        self._log("exception", logging.ERROR, event, fields, exc_info=True)

    def critical(self, event: str, **fields: Any) -> None:
        """Log an event that ends this process's work."""
        self._log("critical", logging.CRITICAL, event, fields)

    def _log(
        self, method: str, level: int, event: str, fields: dict[str, Any], *, exc_info: Any = None
    ) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            if self._structured is None:
                self._structured = structlog.get_logger(self._standard.name)
            getattr(self._structured, method)(event, **fields)
        elif self._standard.isEnabledFor(level):
            exc_info = fields.pop("exc_info", exc_info)
            text = " ".join((event, *(f"{name}={value!r}" for name, value in fields.items())))
            self._standard.log(level, "%s", text, exc_info=exc_info, stacklevel=3)


def get_logger(name: str) -> LibraryLogger:
    """Return the logger of the module ``name``."""
    return LibraryLogger(name)
