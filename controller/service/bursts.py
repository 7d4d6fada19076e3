"""Answers to brokers leave in bursts, and a burst is followed by as long a pause as it took of the
CPU. Brokers that would be answered in the pause are answered after it, together and with more.

So many brokers make answers larger and not more numerous, and leave the event loop half of its
time. [A hundred brokers and a hundred writes a second: each broker is sent each write by itself,
that is more than the machine has time for, and the writes themselves wait in line.] Of the CPU, not
of the clock: on a machine that others keep busy the loop needs no pause to get less of it.
"""

from __future__ import annotations

from collections.abc import Callable

SHORT_S = 0.0005
"""A burst that took no more needs no pause: a few brokers are answered whenever there is news."""


class Bursts:
    """Says when brokers wait.

    ``soon``: call back in another turn of the loop, after so many seconds; ``cpu_clock``: seconds
    of the CPU that the loop's thread has used; ``more``: whether others are still to be answered in
    this burst; ``over``: called after a pause.
    """

    def __init__(
        self,
        soon: Callable[[float, Callable[[], None]], object],
        cpu_clock: Callable[[], float],
        more: Callable[[], bool],
        over: Callable[[], None],
    ) -> None:
        self._soon, self._cpu_clock = soon, cpu_clock
        self._more, self._over = more, over
        self._begun: float | None = None
        self._again = False
        """Brokers were answered since the last look was asked for."""
        self.pausing = False
        """Brokers wait until the pause is over."""

    def begin(self) -> None:
        """Brokers are answered now; if that does not go on already, a burst begins.

        What is sent leaves in the next turn of the loop, before what is asked for here.
        """
        if self._begun is None:
            self._begun = self._cpu_clock()
            self._soon(0.0, self._look)
        else:
            self._again = True

    def _look(self) -> None:
        if self._again or self._more():
            self._again = False
            self._soon(0.0, self._look)
            return
        begun, self._begun = self._begun, None
        took_s = 0.0 if begun is None else self._cpu_clock() - begun
        if took_s > SHORT_S:
            self.pausing = True
            self._soon(took_s, self._end)

    def _end(self) -> None:
        self.pausing = False
        self._over()
