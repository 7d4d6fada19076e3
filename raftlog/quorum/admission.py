"""Limits on the epochs and leaders that a message may make a node believe.

Theory of operation. Messages are not signed, so a message is a claim. There are two kinds of
evidence:

* A *request* can come from anybody who reaches the port.
* A *response* arrives on a link that this node dialed. If the address is the one that the voter set
  or the configuration has for that node, the response is *proven* to come from the node.

An epoch is a durable 31-bit counter that never decreases. A single claim of the highest epoch would
make further elections impossible, so no claim above ``MAX_EPOCH`` is accepted, proven or not.

Below that, a proven epoch is accepted however far ahead it is: a node that was away for a year has
to catch up. Unproven claims may raise the epoch by ``EpochAllowance`` in total. Honest elections
need one epoch each, and with pre-vote (KIP-996) they are rare. A node whose claim exceeds the
allowance loses nothing: it soon requests pre-votes itself, and the responses are proven.

A refused message changes nothing.

Why: docs/decisions/004-messages-are-claims.md
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from raftlog.endpoint import endpoints_error
from raftlog.errors import ErrorCode

EPOCH_LIMIT = 2**31 - 1
"""Highest epoch, exclusive, that the wire and the batch header can hold."""
MAX_EPOCH = EPOCH_LIMIT - 2**20
"""Highest epoch that a node enters. The epochs above it are reserved for offline recovery, and
leave room for sums with epochs in 31 bits.
"""
MAX_OFFSET = 2**62
"""Highest log end offset: 146 years at 10^9 records per second."""
ALLOWANCE_EPOCHS = 2**20
ALLOWANCE_EPOCHS_PER_S = 10
"""Highest sustained rate of failed and repeated elections; at this rate there are enough epochs for
six years.
"""
MAX_DIRECTORY_ID_CHARS = 64
MAX_PREFERRED_CANDIDATES = 1000


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for refusing a message: Kafka's error code, the offending field, and a sentence.
    ``contradiction`` is True if no correct node sends such a message: either messages are forged or
    a promise was broken.
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
        """Deduct ``epochs`` from the allowance. Return False, and deduct nothing, if fewer are
        left.
        """
        refilled = self._left + max(0.0, now - self._at) * ALLOWANCE_EPOCHS_PER_S
        self._left, self._at = min(float(ALLOWANCE_EPOCHS), refilled), max(now, self._at)
        if epochs > self._left:
            return False
        self._left -= epochs
        return True


def epoch_refusal(epoch: int, field: str) -> Refusal | None:
    """Return a refusal if the epoch is above ``MAX_EPOCH``, or None."""
    if epoch <= MAX_EPOCH:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        field,
        f"epoch {epoch} is above {MAX_EPOCH}, the highest allowed epoch",
        True,
    )


@lru_cache(maxsize=256)  # Called for every Fetch. The transport rejects ids that are too long.
def is_directory_id(directory_id: str) -> bool:
    """Return whether this is a valid directory id: short and printable, as it is stored and shown.
    The empty id means unknown, and is valid.
    """
    return len(directory_id) <= MAX_DIRECTORY_ID_CHARS and directory_id.isprintable()


@lru_cache(maxsize=256)  # Called for every Fetch from a spare.
def is_endpoint(endpoint: str) -> bool:
    """Return whether this endpoint can be dialed."""
    return not endpoints_error(endpoint)
