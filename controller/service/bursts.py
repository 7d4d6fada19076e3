"""Answers to brokers leave in bursts, and a burst is followed by a pause that is twice as long as
it took of the CPU. Brokers that would be answered in the pause are answered after it, together
and with more.

A rest before the burst counts as such a pause, within a bound: who is told a lone write is told
LAO as soon as it has moved.

So many brokers make answers larger and not more numerous, and leave the event loop two thirds of
its time, in which the writes get ready that the next burst tells. [A hundred brokers and a
hundred writes a second: each broker is sent each write by itself, that is more than the machine
has time for, and the writes themselves wait in line.] Of the CPU, not of the clock: on a machine
that others keep busy the loop needs no pause to get less of it.
"""

from __future__ import annotations

from collections.abc import Callable

SHORT_S = 0.0005
"""A burst that took no more needs no pause: a few brokers are answered whenever there is news."""
LONG_S = 0.005
"""A burst that took more ends, though some are left: on a busy machine others ask while some are
answered, so some always are.
"""
PAUSES = 2
"""So many times what a burst took of the CPU. [Once only: a hundred brokers on a busy machine, and
a write waits half as long again.]
"""
REST_MAX_S = 0.005
"""So much of a rest counts: no more of the loop's time is taken at once without a pause."""


class Bursts:
    """Says when brokers wait.

    ``soon``: call back in another turn of the loop, after so many seconds; ``now``: seconds of the
    clock; ``cpu_clock``: seconds of the CPU that the loop's thread has used; ``more``: whether
    others are still to be answered in this burst; ``over``: called after a pause.
    """

    def __init__(
        self,
        soon: Callable[[float, Callable[[], None]], object],
        now: Callable[[], float],
        cpu_clock: Callable[[], float],
        more: Callable[[], bool],
        over: Callable[[], None],
    ) -> None:
        self._soon, self._now, self._cpu_clock = soon, now, cpu_clock
        self._more, self._over = more, over
        self._begun: float | None = None
        self._looks = False
        """A look is due."""
        self._ended = now()
        self._rested_s = 0.0
        """In which nobody was answered, and that no burst has used up."""
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
            self._rested_s = min(REST_MAX_S, self._rested_s + self._now() - self._ended)
        self.go_on()

    def go_on(self) -> None:
        """Who is due was looked at: if a burst goes on, it may be over."""
        if self._looks:
            self._again = True
        elif self._begun is not None:
            self._looks = True
            self._soon(0.0, self._look)

    def _look(self) -> None:
        self._looks = False
        again, self._again = self._again, False
        begun = self._begun
        took_s = 0.0 if begun is None else self._cpu_clock() - begun
        owed_s = took_s - self._rested_s
        if self._more() and owed_s <= LONG_S:
            # Whoever is left is looked at in another turn of the loop, which may be a while away:
            # not to be waited for by looking.
            return
        if again and owed_s <= SHORT_S:
            self.go_on()
            return
        self._begun = None
        self._ended = self._now()
        self._rested_s = max(0.0, -owed_s)
        if owed_s > SHORT_S:
            self.pausing = True
            self._soon(PAUSES * owed_s, self._end)

    def _end(self) -> None:
        # The pause is no rest: it was owed.
        self.pausing, self._ended = False, self._now()
        self._over()
