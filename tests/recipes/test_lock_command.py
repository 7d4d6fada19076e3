"""``raftlog kv lock``: a command runs while its lock is held."""

import asyncio
import math
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer

import raftlog
from raftlog import recipes
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.process import descendants
from raftlog.errors import ApiError, ErrorCode
from raftlog.recipes import AsyncLock, command


class _Unreleased:
    """A lock that was acquired and cannot be released: no server answers any more."""

    key, token, generation, is_held = "locks/job/1", 5, 7, True
    asked = 0
    timeouts: ClassVar[list[float | None]] = []

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def acquire(self, timeout_s: float | None) -> bool:
        self.timeouts.append(timeout_s)
        return True

    async def wait_lost(self) -> bool:
        await asyncio.Event().wait()
        return True

    async def release(self) -> None:
        type(self).asked += 1
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "nobody answers", outcome_unknown=True)


class _Lost(_Unreleased):
    """A lock that is lost 0.3 s after it was acquired, and kept for ``remaining_s`` from then on."""

    keeps_s, is_held = 0.0, False
    lost_at = math.inf

    async def wait_lost(self) -> bool:
        await asyncio.sleep(0.3)
        type(self).lost_at = time.time()
        return True

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.lost_at + self.keeps_s - time.time())


@pytest.fixture(autouse=True)
def without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def client(**_: Any) -> raftlog.AsyncClient:
        return raftlog.AsyncClient("127.0.0.1:1")

    monkeypatch.setattr("raftlog.cli.command.open_client", client)
    monkeypatch.setattr(recipes, "AsyncLock", _Unreleased)


STUBBORN = """
trap 'touch asked' TERM
(trap 'touch inner-asked' TERM; while :; do touch inner; sleep 0.02; done) &
while :; do sleep 0.02; done
"""


@pytest.mark.parametrize(("keeps_s", "asked"), [(1.0, True), (0.0, False)])
def test_command_and_its_children_are_dead_before_the_lock_can_be_acquired(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keeps_s: float, asked: bool
) -> None:
    """A lock that is gone according to the cluster can be another's now: no process is asked to
    terminate. [The end of the command was reported 10 s late: the lost lock was released, and no
    server answered.]
    """
    _Lost.asked = 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "AsyncLock", _Lost)
    monkeypatch.setattr(_Lost, "keeps_s", keeps_s)
    before = descendants()
    with pytest.raises(FailedError, match="the lock was lost: the command was killed") as failed:
        command.lock("job", ["sh", "-c", STUBBORN], ttl=4.0)
    assert (failed.value.exit, _Lost.asked) == (Exit.UNREACHABLE, 0)
    assert descendants() <= before
    # A slow machine kills late; what is left for that is half a second of the second.
    assert (tmp_path / "inner").stat().st_mtime < _Lost.lost_at + max(keeps_s, 0.5)
    assert [(tmp_path / one).exists() for one in ("asked", "inner-asked")] == [asked, asked]


def test_environment_of_the_command_has_the_fencing_token(tmp_path: Path) -> None:
    out = tmp_path / "out"
    say = f'echo "$LOCK_TOKEN $LOCK_GENERATION $LOCK_KEY $OUTER" > {out}'
    command.lock("job", ["sh", "-c", say])
    assert out.read_text() == "5 7 locks/job/1 \n"
    command.lock("job", ["sh", "-c", say], fence="OUTER")
    assert out.read_text() == " 7 locks/job/1 5\n"


@pytest.mark.parametrize(
    ("options", "timeout_s"), [((), None), (("--wait", "0"), 0), (("-n",), 0), (("--wait", "2"), 2)]
)
def test_lock_is_tried_until_its_timeout(options: tuple[str, ...], timeout_s: float | None) -> None:
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    _Unreleased.timeouts.clear()
    app(["lock", "job", *options, "--", "true"], standalone_mode=False)
    assert _Unreleased.timeouts == [timeout_s]


def test_exit_code_comes_from_the_command_if_the_release_fails() -> None:
    """[The quorum was away when the command had ended and succeeded: the lock expires.]"""
    _Unreleased.asked = 0
    command.lock("job", ["true"])
    with pytest.raises(typer.Exit) as failed:
        command.lock("job", ["sh", "-c", "exit 7"])
    assert (failed.value.exit_code, _Unreleased.asked) == (7, 2)


def test_invalid_lock_name_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "AsyncLock", AsyncLock)
    with pytest.raises(FailedError, match="'a b' is not a valid lock name") as failed:
        command.lock("a b", ["true"])
    assert failed.value.exit is Exit.USAGE
