"""When a leader was last heard: what makes the absence of one provable from the log.

A leader that falls silent writes nothing, and a quiet cluster writes nothing either. So who is
elected records when those that elected it have last heard a leader. That proves its absence since,
but for what was on its way: what it commits needs a Fetch of one of them, which comes after its
last answer to that one.
"""

from __future__ import annotations

import msgspec

AGE_MAX_MS = 2**53
"""A peer that says more has made it up."""


class Heard(msgspec.Struct, frozen=True):
    """The leader of ``epoch`` was heard ``at``, by the clock of the steps. ``epoch`` -1: none was.

    ``by_all``: nobody else who counts could have heard it later. ``leading_ms``: how long it had
    led then, by its own clock.
    """

    epoch: int
    at: float
    by_all: bool = True
    leading_ms: int = 0

    def age_ms(self, now: float) -> int:
        """How long ago that is."""
        return min(AGE_MAX_MS, max(0, round((now - self.at) * 1000)))

    def and_of(self, epoch: int, age_ms: int | None, now: float) -> Heard:
        """And what another voter says just now; None: it does not tell."""
        if age_ms is None or epoch < 0 or not 0 <= age_ms <= AGE_MAX_MS:
            return msgspec.structs.replace(self, by_all=False)
        at = now - age_ms / 1000
        if (epoch, at) > (self.epoch, self.at):
            return Heard(epoch, at, self.by_all)
        return self


NEVER_HEARD = Heard(-1, 0.0, by_all=False)
"""Since the start: before it, it may have heard one."""
