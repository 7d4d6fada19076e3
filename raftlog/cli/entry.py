"""The program ``raftlog``.

Only programs import this module: first of all it lets Ctrl-C end the process silently until there
is something to clean up.
"""

from __future__ import annotations

# Not the module signal: it imports enum, milliseconds in which Ctrl-C would print a traceback.
import _signal  # type: ignore[import-not-found]

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import sys

from raftlog.cli.process import run_interruptible

TYPE_CHECKING = (
    False  # Replaces the constant in typing, whose import takes longer than all of these.
)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process."""
    run_interruptible(_load)


def _load() -> Callable[[], object]:
    from raftlog.cli.built_in import version_asked
    from raftlog.cli.nodes import read_start, run_start

    version = version_asked(sys.argv[1:])
    if version is not None:
        return lambda: print(version)
    start = read_start(sys.argv[1:])
    if start is not None:
        import gc

        # Of what a node imports nothing is garbage. tune_memory enables the collection.
        gc.disable()
        _import_structlog_alone()
        return lambda: run_start(start, _command_line)
    return _command_line()


def _command_line() -> Callable[[], object]:
    try:
        from raftlog.cli.main import main as command_line
    except ModuleNotFoundError as error:
        from raftlog.cli.built_in import BY_NAME, missing

        command = " ".join(sys.argv[1:2])
        message = missing(command, error, BY_NAME[command].extras if command in BY_NAME else ())
        if message is None:
            raise
        sys.stderr.write(f"raftlog: {message}\n")
        sys.exit(2)
    return command_line


def _import_structlog_alone() -> None:
    """Import structlog without rich, which structlog would import for tracebacks that raftlog never
    logs: a fifth of a node's start-up time.

    A module whose entry in ``sys.modules`` is None cannot be imported.
    """
    import importlib

    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("structlog")
    except ModuleNotFoundError:
        pass  # The command line, which would name the extra to install, cannot be imported either.
    finally:
        del sys.modules["rich"]
