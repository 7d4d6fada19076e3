"""What a node remembers between elections: the reason of its campaign, when a leader was last
heard, and what the other voters of an epoch have recently shown.

Why: docs/decisions/002-elections-by-proof-of-death.md
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec


class CampaignReason(StrEnum):
    """The reason why a voter asks for an election: shown to operators, used by no rule."""

    NONE = ""
    LEADER_GONE = "leader gone"
    """The leader's process is gone: its links broke, and its port refuses connections."""
    LEADER_RESIGNED = "leader resigned"
    """The leader resigned: a stop, a transfer, a full disk."""
    FETCH_TIMEOUT = "fetch timeout"
    """The leader answered no Fetch within the fetch timeout: it hangs, or the network is cut."""
    ASKED_BY_ANOTHER = "another voter asked"
    """Another voter hears no leader either."""
    COLD_START = "cold start"
    """No leader was known when the node started."""
    ELECTION_TIMEOUT = "election timeout"
    """No leader was known for the election timeout."""


AGE_MAX_MS = 2**53
"""Highest age that is believed."""


class Heard(msgspec.Struct, frozen=True):
    """The last time at which a leader was heard: ``at``, by the clock of the steps; ``epoch``: the
    leader's, -1 if none was heard. It makes the absence of a leader provable from the log.

    A leader that falls silent writes nothing, and neither does a quiet cluster. So the new leader
    records when its voters have last heard a leader. That proves the absence of one since then, but
    for what was on its way: a commit needs a Fetch of one of these voters, which comes after the
    leader's last answer to that voter.

    ``by_all``: no other voter of the majority could have heard the leader later. ``leading_ms``:
    how long the leader had led then, by its own clock.
    """

    epoch: int
    at: float
    by_all: bool = True
    leading_ms: int = 0

    def age_ms(self, now: float) -> int:
        """Return the time since then in milliseconds."""
        return min(AGE_MAX_MS, max(0, round((now - self.at) * 1000)))

    def and_of(self, epoch: int, age_ms: int | None, now: float) -> Heard:
        """Return the later of this and another voter's report; None if it reports no time."""
        if age_ms is None or epoch < 0 or not 0 <= age_ms <= AGE_MAX_MS:
            return msgspec.structs.replace(self, by_all=False)
        at = now - age_ms / 1000
        if (epoch, at) > (self.epoch, self.at):
            return Heard(epoch, at, self.by_all)
        return self


NEVER_HEARD = Heard(-1, 0.0, by_all=False)
"""No leader since the start; there may have been one before."""


RIVAL_TRIPS = 3.0
"""Round trips to the slowest peer, for as long as a rival goes first: one until it has its answers,
one in which it waits for another leader, and one in which it asks again. A shorter pause ends
before its next question comes: both then campaign in each epoch, and as nothing is random but a few
milliseconds, they split the votes of every epoch alike."""


class ElectionHints:
    """What the other voters have recently shown in one epoch without a leader. Times are seconds of
    the monotonic clock.

    A voter that asks for a pre-vote, or grants one, hears no leader. A refusal alone would lose
    that: the first one to ask is refused, as the others' timers still run, and the one whose timer
    ends last may be refused for its log, which is too short. So each voter keeps for a while what
    the others showed:

    * a *supporter* would grant this node a pre-vote: its log is no longer than this one. Its
      request counts as its answer;
    * a *rival* goes before this node: it has the longer log, with equal logs the lower id, or it
      was granted a vote or a pre-vote. Of the voters that lose their leader together one goes first
      then, and the votes are not split. How long that takes is not known before the others have
      answered: with proof that the leader is gone, or never was, the pause is short, and grows with
      the time that the answers took.

    Nothing here is a vote. An election is won by votes alone, which are durable; a wrong claim
    costs an epoch or a pause.
    """

    def __init__(self, remembered_s: float) -> None:
        """``remembered_s``: half the fetch timeout, so that a voter that hears the leader again is
        forgotten before this node may ask anew.
        """
        self.remembered_s = remembered_s
        self._supporters: dict[int, float] = {}
        # (since when, minimum pause)
        self._rivals: dict[int, tuple[float, float]] = {}
        self._answers_s: dict[int, float] = {}

    def clear(self) -> None:
        """Forget all but the answer times, in another epoch or under another leader."""
        self._supporters.clear()
        self._rivals.clear()

    def forget(self, peer_id: int) -> None:
        """Forget a peer whose process is gone."""
        self._supporters.pop(peer_id, None)
        self._rivals.pop(peer_id, None)
        self._answers_s.pop(peer_id, None)

    def note_answer(self, peer_id: int, took_s: float) -> None:
        """Note the peer's last answer time."""
        self._answers_s[peer_id] = took_s

    def note_supporter(self, peer_id: int, now: float) -> None:
        """Note a supporter of this node."""
        self._rivals.pop(peer_id, None)
        self._supporters[peer_id] = now + self.remembered_s

    def note_rival(self, peer_id: int, now: float, pause_s: float) -> None:
        """Let a rival go first for ``pause_s``, or longer where answers take long: see
        ``RIVAL_TRIPS``.
        """
        self._supporters.pop(peer_id, None)
        self._rivals[peer_id] = (now, pause_s)

    def supporters(self, now: float) -> set[int]:
        """Return the supporters of this node."""
        return {peer_id for peer_id, until in self._supporters.items() if until >= now}

    def rivals(self, now: float) -> set[int]:
        """Return the peers that go before this node."""
        return {
            peer_id
            for peer_id, (since, pause_s) in self._rivals.items()
            if self._until(since, pause_s) >= now
        }

    def yields_until(self) -> float:
        """Return when the last rival's pause ends."""
        return max(
            (self._until(since, pause_s) for since, pause_s in self._rivals.values()),
            default=-math.inf,
        )

    def _until(self, since: float, pause_s: float) -> float:
        trips_s = RIVAL_TRIPS * max(self._answers_s.values(), default=0.0)
        # An answer may have been late for another reason: no pause is longer than the fetch timeout
        # for that.
        return since + max(pause_s, min(trips_s, 2 * self.remembered_s))
