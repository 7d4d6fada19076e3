"""What the other voters of an epoch showed lately: who supports this node, and whom it lets go
first.

Theory of operation. A voter that asks for a pre-vote, or grants one, hears no leader. A refusal
alone would lose that: the first one to ask is refused, as the others' timers still run, and the one
whose timer ends last may be refused for its log, which is too short. So each keeps for a while what
the others showed:

* a *doubter* would grant this node a pre-vote: its log is no longer than this one. Its question
  counts as its answer;
* a *rival* goes before this node: it has the longer log, with equal logs the lower id, or it was
  granted a vote or a pre-vote. Of those that lose their leader together one goes first then, and
  the votes are not split. How long that takes is not known before the others have answered: with
  proof that the leader is gone, or never was, the pause is short, and grows with what the answers
  took.

Nothing here is a vote. An election is won by votes alone, which are durable; a wrong claim costs an
epoch or a pause.

Why: docs/decisions/002-elections-by-proof-of-death.md
"""

from __future__ import annotations

import math

RIVAL_TRIPS = 3.0
"""Round trips to the slowest peer, for as long as a rival goes first: one until it has its answers,
one in which it waits for another leader, and one in which it asks again. A shorter pause ends
before its next question comes: both then campaign in each epoch, and as nothing is random but a few
milliseconds, they split the votes of every epoch alike."""


class ElectionHints:
    """Of one epoch without a leader. Times are seconds of the monotonic clock."""

    def __init__(self, remembered_s: float) -> None:
        """``remembered_s``: half the fetch timeout.

        Who hears the leader again is forgotten before this node may ask anew.
        """
        self.remembered_s = remembered_s
        self._supporters: dict[int, float] = {}
        # Since when, and for how long at least.
        self._rivals: dict[int, tuple[float, float]] = {}
        self._answers_s: dict[int, float] = {}

    def clear(self) -> None:
        """Another epoch, or another leader. How far the others are stays known."""
        self._supporters.clear()
        self._rivals.clear()

    def forget(self, peer_id: int) -> None:
        """Its process is gone."""
        self._supporters.pop(peer_id, None)
        self._rivals.pop(peer_id, None)
        self._answers_s.pop(peer_id, None)

    def note_answer(self, peer_id: int, took_s: float) -> None:
        """How long it took to answer the last time."""
        self._answers_s[peer_id] = took_s

    def note_supporter(self, peer_id: int, now: float) -> None:
        """It supports this node."""
        self._rivals.pop(peer_id, None)
        self._supporters[peer_id] = now + self.remembered_s

    def note_rival(self, peer_id: int, now: float, pause_s: float) -> None:
        """It goes first for ``pause_s``; for longer where answers take long, see
        ``RIVAL_TRIPS``.
        """
        self._supporters.pop(peer_id, None)
        self._rivals[peer_id] = (now, pause_s)

    def supporters(self, now: float) -> set[int]:
        """Who supports this node."""
        return {peer_id for peer_id, until in self._supporters.items() if until >= now}

    def rivals(self, now: float) -> set[int]:
        """Who goes first."""
        return {
            peer_id
            for peer_id, (since, pause_s) in self._rivals.items()
            if self._until(since, pause_s) >= now
        }

    def yields_until(self) -> float:
        """When nobody goes first any more."""
        return max(
            (self._until(since, pause_s) for since, pause_s in self._rivals.values()),
            default=-math.inf,
        )

    def _until(self, since: float, pause_s: float) -> float:
        trips_s = RIVAL_TRIPS * max(self._answers_s.values(), default=0.0)
        # An answer may have been late for another reason: no pause is longer than the fetch timeout
        # for that.
        return since + max(pause_s, min(trips_s, 2 * self.remembered_s))
