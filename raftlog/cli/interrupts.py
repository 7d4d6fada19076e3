"""How a command ends that Ctrl-C interrupts: by the signal itself, after its cleaning up.

A shell ends its loop only if the program *died of* SIGINT: `while true; do raftlog ...; done` goes
on for ever over a program that catches the signal and exits with 130. Programs see no difference: a
shell reports both as 130.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import time

from raftlog.cli.endings import INTERRUPTED, UNREAD
from raftlog.cli.standard_output import has_no_reader, write_lines_at_once, written

TYPE_CHECKING = False  # As typing has it, whose import takes longer than all of these.
if TYPE_CHECKING:
    from collections.abc import Callable
    from sys import UnraisableHookArgs
    from types import FrameType
    from typing import NoReturn

AGAIN_S = 0.02


class TerminationError(KeyboardInterrupt):
    """SIGTERM came: treated as Ctrl-C is, but for the exit code."""


def raise_at_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    """A handler for SIGTERM. Raises TerminationError."""
    raise TerminationError


def interrupt_again(swallowed: UnraisableHookArgs) -> None:
    """For ``sys.unraisablehook``: send the signal once more whose exception went nowhere.

    [It comes while an import ends, whose lock is freed by a callback: Python prints the exception
    of a callback and goes on, and the command never ends.]
    """
    if not issubclass(swallowed.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(swallowed)
        return
    ended = issubclass(swallowed.exc_type, TerminationError)
    number = signal.SIGTERM if ended else signal.SIGINT

    def send() -> None:
        time.sleep(AGAIN_S)
        os.kill(os.getpid(), number)

    # Not from here: this is within the callback still.
    _thread.start_new_thread(send, ())


def run_interruptible(load: Callable[[], Callable[[], object]]) -> NoReturn:
    """Import a command's main function by ``load``, run it, and end the process. Main thread only.

    ``main`` ends as usual: it returns an exit code (None: 0), or raises SystemExit or
    KeyboardInterrupt. Where SIGINT is ignored, as in the background of a shell script, it stays so.

    Each line that it prints goes out at once, into a pipe too, and if nobody reads it any more, the
    command ends (UNREAD).
    """
    write_lines_at_once()
    interrupted = False

    def end_by_sigint() -> None:
        if interrupted:
            from contextlib import suppress

            # The interpreter flushes them after its exit handlers, and never comes to it.
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    # Exit handlers run in reverse order: the others, which clean up, run before this one.
    atexit.register(end_by_sigint)
    # By default Python has its own handler; the program has taken it off again before it came here.
    heeds = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL)
    if heeds:
        # Importing takes a while and leaves nothing to clean up: a Ctrl-C meanwhile needs no
        # traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    code: object = 0
    try:
        main = load()
        if heeds:
            sys.unraisablehook = interrupt_again
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main()
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        if not has_no_reader():
            raise
        code = UNREAD
    interrupted = code == INTERRUPTED
    code = written(code)
    sys.exit(code)  # type: ignore[arg-type]
