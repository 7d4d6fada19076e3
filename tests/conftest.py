"""Which tests stay together when two workers share them (pytest-xdist)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "replay"))

from browser import find_browser

TOGETHER = ("cluster", "replay")
"""Directories that one worker runs alone: real clusters would slow each other, and Spark takes seconds to start."""


def pytest_report_header() -> str:
    """So that nobody believes that pages were looked at where they were not."""
    found = find_browser()
    return f"browser: {found}" if found else "browser: none, so tests/replay/test_report_browser.py is left out"


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(root)
        # A file's tests share its fixtures.
        group = path.parts[0] if path.parts[0] in TOGETHER else str(path)
        item.add_marker(pytest.mark.xdist_group(group))
