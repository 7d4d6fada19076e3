"""Which tests stay together when two workers share them (pytest-xdist), and what each finds whoever ran before it."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import structlog
from xdist.scheduler.loadscope import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parent / "replay"))

from browser import find_browser

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell: whatever is started here would be deaf to Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TOGETHER = ("cluster",)
"""Directories that one worker runs alone: real clusters would slow each other."""


def pytest_report_header() -> str:
    """So that nobody believes that pages were looked at where they were not."""
    found = find_browser()
    return f"browser: {found}" if found else "browser: none, so tests/replay/test_report_browser.py is left out"


class Together(LoadScopeScheduling):
    """A file's tests stay in one worker, as they share its fixtures, and so do those of some directories.

    Not ``--dist loadgroup``: that of pytest-xdist 3.8 names groups in a way that pytest 9.2 does not see, and so makes none.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return next((each for each in TOGETHER if each in file.parts), str(file))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """For whatever ``--dist`` says."""
    return Together(config, log)


@pytest.fixture(autouse=True)
def _logs_are_heard() -> Iterator[None]:
    """Simulated worlds silence asyncio's log and structlog for the whole process, and command lines configure both."""
    logger = logging.getLogger("asyncio")
    level, configured, structured = logger.level, structlog.is_configured(), structlog.get_config()
    yield
    logger.setLevel(level)
    structlog.configure(**structured)
    if not configured:
        structlog.reset_defaults()
