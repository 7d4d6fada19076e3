from __future__ import annotations

import asyncio

import pytest

from raftlog.errors import ApiError
from raftlog.node.observability.log_level import DEFAULT_MS, MAX_MS, LogLevel


async def test_another_level_and_the_configured_one_again() -> None:
    applied: list[str] = []
    level = LogLevel("info", applied.append, lambda: 1_000)
    level.alter("debug", 30)
    assert (level.level, level.until_ms) == ("debug", 1_030)
    await asyncio.sleep(0.2)
    assert (level.level, level.until_ms) == ("info", 0)
    assert applied == ["debug", "info"]


async def test_the_last_one_counts_and_empty_is_the_configured_one() -> None:
    applied: list[str] = []
    level = LogLevel("info", applied.append, lambda: 0)
    level.alter("debug", 20)
    level.alter("error", 0)
    await asyncio.sleep(0.1)
    assert (level.level, level.until_ms) == ("error", DEFAULT_MS)
    level.alter("", 0)
    assert applied == ["debug", "error", "info"]


@pytest.mark.parametrize(("name", "for_ms"), [("loud", 0), ("debug", -1), ("debug", MAX_MS + 1)])
async def test_what_is_no_level_changes_nothing(name: str, for_ms: int) -> None:
    level = LogLevel("info", lambda _: pytest.fail("applied"), lambda: 0)
    with pytest.raises(ApiError):
        level.alter(name, for_ms)
    assert level.level == "info"
