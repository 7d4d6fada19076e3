"""The program ``raftlog``. Imports next to nothing, so that a Ctrl-C finds it ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from raftlog.cli.interrupts import run_interruptible


def main() -> NoReturn:
    """Run the command line of this process."""
    run_interruptible(_load)


def _load() -> Callable[[], object]:
    from raftlog.cli.main import main as command_line

    return command_line
