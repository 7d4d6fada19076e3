"""``raftlog lock``: what it says is what became of the command."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import typer

from raftlog import recipes
from raftlog.cli.exits import Exit, FailedError
from raftlog.errors import ApiError, ErrorCode
from raftlog.recipes import command


class _Unreleased:
    """A lock that is taken, and not let go: nobody answers any more."""

    key, token = "locks/job/1", 1
    asked = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def acquire(self, timeout_s: float | None) -> bool:
        return True

    async def wait_lost(self) -> bool:
        await asyncio.Event().wait()
        return True

    async def release(self) -> None:
        type(self).asked += 1
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "nobody answers", outcome_unknown=True)


def test_the_exit_code_is_that_of_the_command_if_nobody_takes_the_lock_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[The quorum was away when the command had ended: the lock goes with its time, and what ran
    under it had succeeded.]
    """

    @contextlib.asynccontextmanager
    async def client(*_: Any) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(command, "_client", client)
    monkeypatch.setattr(recipes, "AsyncLock", _Unreleased)
    command.lock("job", ["true"])
    with pytest.raises(typer.Exit) as failed:
        command.lock("job", ["sh", "-c", "exit 7"])
    assert (failed.value.exit_code, _Unreleased.asked) == (7, 2)


def test_a_name_that_is_no_part_of_a_key_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def client(*_: Any) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(command, "_client", client)
    with pytest.raises(FailedError, match="'a b' is no name of a lock") as failed:
        command.lock("a b", ["true"])
    assert failed.value.code is Exit.USAGE
