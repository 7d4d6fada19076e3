"""Which tests stay together when two workers share them (pytest-xdist)."""

from __future__ import annotations

from pathlib import Path

import pytest

TOGETHER = ("cluster", "replay")
"""Directories that one worker runs alone: real clusters would slow each other, and Spark takes seconds to start."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(root)
        # A file's tests share its fixtures.
        group = path.parts[0] if path.parts[0] in TOGETHER else str(path)
        item.add_marker(pytest.mark.xdist_group(group))
