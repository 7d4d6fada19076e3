"""The state that a node keeps for elections: the reason for its campaign, when it last heard a
leader, and what the other voters have recently revealed in this epoch.

Why: docs/decisions/002-elections-by-proof-of-death.md
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec


class CampaignReason(StrEnum):
    """Why a voter campaigns; shown to operators, and used by no rule."""

    NONE = ""
    LEADER_GONE = "leader gone"
    """The leader's process is gone: its links broke, and its port refuses connections."""
    LEADER_RESIGNED = "leader resigned"
    """The leader resigned: a shutdown, a transfer, or a full disk."""
    FETCH_TIMEOUT = "fetch timeout"
    """The leader answered no Fetch within the fetch timeout: it hangs or is partitioned."""
    ASKED_BY_ANOTHER = "another voter asked"
    """Another voter also hears no leader."""
    COLD_START = "cold start"
    """No leader was known when the node started."""
    ELECTION_TIMEOUT = "election timeout"
    """No leader was known for a whole election timeout."""


AGE_MAX_MS = 2**53
"""Highest age that is accepted from a peer, in milliseconds."""


class Heard(msgspec.Struct, frozen=True):
    """The last time at which a leader was heard, by which the log can prove the absence of a
    leader.

    ``epoch``: the leader's epoch, or -1 if none was heard. ``at``: the time, on the clock of the
    steps. ``by_all``: no other voter of the majority can have heard the leader later.
    ``leading_ms``: how long the leader had led at that time, on its own clock.

    A leader that falls silent writes nothing, but neither does a quiet cluster. So a new leader
    records when its voters last heard a leader. This proves the absence of a leader since then,
    except for messages in flight: a commit needs a Fetch from one of these voters, which the voter
    sends after the leader's last response.
    """

    epoch: int
    at: float
    by_all: bool = True
    leading_ms: int = 0

    def age_ms(self, now: float) -> int:
        """Return the time since the leader was heard, in milliseconds."""
        return min(AGE_MAX_MS, max(0, round((now - self.at) * 1000)))

    def and_of(self, epoch: int, age_ms: int | None, now: float) -> Heard:
        """Return the later of this time and another voter's report; ``age_ms`` is None if the voter
        reported no time.
        """
        if age_ms is None or epoch < 0 or not 0 <= age_ms <= AGE_MAX_MS:
            return msgspec.structs.replace(self, by_all=False)
        at = now - age_ms / 1000
        if (epoch, at) > (self.epoch, self.at):
            return Heard(epoch, at, self.by_all)
        return self


NEVER_HEARD = Heard(-1, 0.0, by_all=False)
"""No leader was heard since startup; there may have been one before."""


RIVAL_TRIPS = 3.0
"""Time for which this node yields to a rival, in round trips to the slowest peer: one until the
rival has its responses, one in which the rival waits for another leader, and one in which it
repeats its requests.

A shorter pause would end before the rival's next request arrives. Both nodes would then campaign in
each epoch and, as only a few milliseconds are random, split the votes of every epoch in the same
way.
"""


class ElectionHints:
    """What the other voters have recently revealed in one epoch without a leader. Times are in
    seconds of the monotonic clock.

    A voter that requests or grants a pre-vote hears no leader. A refusal alone would lose that
    information: the first voter to send requests is refused, as the others' timers are still
    running, and the one whose timer expires last may be refused because its log is too short. So
    each voter remembers for a while what the others revealed:

    * A *supporter* would grant this node a pre-vote: its log is no longer than this node's. Its
      request counts as a grant.
    * A *rival* precedes this node: it has the longer log, or with equal logs the lower id, or was
      granted a vote or a pre-vote. So of the voters that lose their leader together, one campaigns
      first, and the votes are not split. How long that takes is unknown until the others have
      answered. If the leader is proven gone, or there never was one, the pause is short at first,
      and grows with the response times.

    A hint is not a vote. Elections are won by votes alone, which are durable; a false hint costs at
    most an epoch or a pause.
    """

    def __init__(self, remembered_s: float) -> None:
        """``remembered_s``: half the fetch timeout, so that a voter that hears the leader again is
        forgotten before this node may request pre-votes again.
        """
        self.remembered_s = remembered_s
        self._supporters: dict[int, float] = {}
        # (since when, minimum pause)
        self._rivals: dict[int, tuple[float, float]] = {}
        self._answers_s: dict[int, float] = {}

    def clear(self) -> None:
        """Forget everything except the response times, for another epoch or leader."""
        self._supporters.clear()
        self._rivals.clear()

    def forget(self, peer_id: int) -> None:
        """Forget a peer whose process is gone."""
        self._supporters.pop(peer_id, None)
        self._rivals.pop(peer_id, None)
        self._answers_s.pop(peer_id, None)

    def note_answer(self, peer_id: int, took_s: float) -> None:
        """Record the peer's last response time, in seconds."""
        self._answers_s[peer_id] = took_s

    def note_supporter(self, peer_id: int, now: float) -> None:
        """Record that this peer supports this node."""
        self._rivals.pop(peer_id, None)
        self._supporters[peer_id] = now + self.remembered_s

    def note_rival(self, peer_id: int, now: float, pause_s: float) -> None:
        """Yield to a rival for ``pause_s``, or longer if responses are slow: see
        ``RIVAL_TRIPS``.
        """
        self._supporters.pop(peer_id, None)
        self._rivals[peer_id] = (now, pause_s)

    def supporters(self, now: float) -> set[int]:
        """Return the supporters of this node."""
        return {peer_id for peer_id, until in self._supporters.items() if until >= now}

    def rivals(self, now: float) -> set[int]:
        """Return the peers that precede this node."""
        return {
            peer_id
            for peer_id, (since, pause_s) in self._rivals.items()
            if self._until(since, pause_s) >= now
        }

    def yields_until(self) -> float:
        """Return the time at which the last rival's pause ends, or -inf if there is no rival."""
        return max(
            (self._until(since, pause_s) for since, pause_s in self._rivals.values()),
            default=-math.inf,
        )

    def _until(self, since: float, pause_s: float) -> float:
        trips_s = RIVAL_TRIPS * max(self._answers_s.values(), default=0.0)
        # A response may have been slow for another reason, so slow responses extend no pause beyond
        # the fetch timeout.
        return since + max(pause_s, min(trips_s, 2 * self.remembered_s))
