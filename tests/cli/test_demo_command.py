"""``raftlog demo``: a failed command is told apart from a broken guarantee."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import Raftlog

from raftlog.demo import running
from raftlog.demo.acts import Demo, run_command
from raftlog.demo.world import CommandFailedError, DemoError


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The demo ignores signals while it cleans up before its exit."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def test_demo_starts_nothing_when_a_module_is_missing(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """[a minute later a promise of the cluster's was said to be broken]"""
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    ran = raftlog("demo --dir", tmp_path / "d")
    assert (ran.code, ran.out) == (2, "")
    assert "`raftlog demo` needs pyarrow, which is not installed" in ran.err
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            CommandFailedError("raftlog export exited with code 2"),
            "the demo cannot continue: raftlog",
        ),
        (DemoError("LAO decreased"), "a guarantee was broken: LAO decreased"),
    ],
)
def test_demo_distinguishes_a_broken_promise_from_a_failed_command(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Any, words: str
) -> None:
    async def run(self: Demo) -> None:
        raise error

    monkeypatch.setattr(Demo, "run", run)
    ran = raftlog("demo --dir", tmp_path / "d").refused(1)
    assert words in ran.out


async def test_failed_demo_command_is_reported_with_its_output() -> None:
    with pytest.raises(CommandFailedError, match="exited with code 3: no pyarrow"):
        await run_command(
            [sys.executable, "-c", "import sys; sys.stderr.write('no pyarrow'); sys.exit(3)"]
        )
