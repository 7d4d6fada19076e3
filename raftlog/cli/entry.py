"""The program ``raftlog``. Imports next to nothing, so that a Ctrl-C finds it ready."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import NoReturn

from raftlog.cli.interrupts import run_interruptible


def main() -> NoReturn:
    """Run the command line of this process."""
    run_interruptible(_load)


def _load() -> Callable[[], object]:
    from raftlog.cli.node_start import read_start, run_start
    from raftlog.cli.version import version_asked

    version = version_asked(sys.argv[1:])
    if version is not None:
        return lambda: print(version)
    start = read_start(sys.argv[1:])
    if start is not None:
        _import_structlog_alone()
        return lambda: run_start(start, _command_line)
    return _command_line()


def _command_line() -> Callable[[], object]:
    from raftlog.cli.main import main as command_line

    return command_line


def _import_structlog_alone() -> None:
    """Import it without rich, a fifth of a node's start, which it would import for tracebacks that
    no log of ours has. What None stands for in ``sys.modules`` cannot be imported.
    """
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
