"""What a message may make a node believe about epochs and leaders: the limits at the door.

Theory of operation. Messages are not signed, so a message is a claim. Two kinds of evidence differ:

* A *request* can come from anybody who reaches the port.
* A *response* comes on a link that this node dialed. Where the address is the one that the voter
  set or the configuration has for that node, the response is *proven* to be from there.

An epoch is a counter of 31 bits that never goes down, and it is durable. One claim of the highest
epoch would end all elections, so no claim above ``MAX_EPOCH`` is taken, proven or not.
Below it a proven epoch is taken however far it is ahead: a node that was away for a year has to
catch up. Unproven ones may raise the epoch by ``EpochAllowance`` in all. Honest elections need one
epoch each, and with pre-vote (KIP-996) they are rare; a node that is refused for the allowance
loses nothing, because it soon asks for pre-votes itself, and the answers are proven.

A refused message changes nothing.

Why: docs/decisions/004-messages-are-claims.md
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from raftlog.endpoint import endpoints_error
from raftlog.errors import ErrorCode

EPOCH_LIMIT = 2**31 - 1
"""The highest epoch, exclusive, that the wire and the batch header can hold."""
MAX_EPOCH = EPOCH_LIMIT - 2**20
"""The highest epoch that a node enters.

The rest is left to offline recovery, and keeps sums with epochs inside 31 bits.
"""
MAX_OFFSET = 2**62
"""No log ends above this: at 10^9 records per second it takes 146 years."""
ALLOWANCE_EPOCHS = 2**20
ALLOWANCE_EPOCHS_PER_S = 10
"""Elections fail and are repeated at this rate at most for long.

At this rate the epochs last for six years.
"""
MAX_DIRECTORY_ID_CHARS = 64
MAX_PREFERRED_CANDIDATES = 1000


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a message is refused: Kafka's code, the offending field, and a sentence.

    ``contradiction``: no node that keeps the rules sends this, so either messages are forged or a
    promise was broken.
    """

    code: ErrorCode
    field: str
    reason: str
    contradiction: bool = False

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class EpochAllowance:
    """The number of epochs by which unproven claims may still raise the epoch."""

    def __init__(self, now: float) -> None:
        self._left = float(ALLOWANCE_EPOCHS)
        self._at = now

    def spend(self, epochs: int, now: float) -> bool:
        """Use up this number of epochs; False, and nothing is used, if fewer are left."""
        refilled = self._left + max(0.0, now - self._at) * ALLOWANCE_EPOCHS_PER_S
        self._left, self._at = min(float(ALLOWANCE_EPOCHS), refilled), max(now, self._at)
        if epochs > self._left:
            return False
        self._left -= epochs
        return True


def epoch_refusal(epoch: int, field: str) -> Refusal | None:
    """Return the refusal of an epoch that no node enters, or None."""
    if epoch <= MAX_EPOCH:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        field,
        f"epoch {epoch} is above {MAX_EPOCH}, the highest there may be",
        True,
    )


@lru_cache(maxsize=256)  # Each Fetch names one. None that is too long comes this far.
def is_directory_id(directory_id: str) -> bool:
    """Return whether this may name a directory; it is stored, and printed for people.

    Empty if not known.
    """
    return len(directory_id) <= MAX_DIRECTORY_ID_CHARS and directory_id.isprintable()


@lru_cache(maxsize=256)  # Each Fetch of a spare names one.
def is_endpoint(endpoint: str) -> bool:
    """Return whether this endpoint can be dialed."""
    return not endpoints_error(endpoint)
