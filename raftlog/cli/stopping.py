"""Commands that go on until somebody stops them, and then finish what they have begun."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal:
    """While it is entered, Ctrl-C and SIGTERM ask to stop; a second one interrupts.

    Main thread only.
    """

    def __init__(self) -> None:
        self.asked = False
        self.interrupted = False
        """Whether it was Ctrl-C that asked."""
        self._before: list[object] = []

    def __enter__(self) -> StopOnSignal:
        self._before = [signal.signal(number, self._stop) for number in _SIGNALS]
        return self

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked, self.interrupted = True, number == signal.SIGINT

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)  # type: ignore[arg-type]
