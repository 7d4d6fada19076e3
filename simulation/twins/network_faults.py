"""Permanent faults of messages on open links, drawn per envelope and connect.

In a gRPC stream nothing is lost, doubled or overtaken, but the code above can still see it:

* *broken link*: what was in flight is lost, and both ends learn of it;
* *stalled stream*: everything after waits; the sender may use another link meanwhile, so that old
  messages arrive after new ones;
* *duplicate*: stands for a sender that repeats, so only repeatable requests are doubled (votes,
  fetches, heartbeats, registrations, numbered writes);
* *refused* or unanswered connects of a live process: a full backlog, a firewall.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raftlog.transport.api import Conversation
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1.quorum_pb2 import FetchSnapshotResponse

_REPEATABLE = frozenset(
    (Conversation.QUORUM, Conversation.REPLICATION, Conversation.SNAPSHOT, Conversation.OBSERVER)
)
_REPEATABLE_BODIES = frozenset(("broker_heartbeat", "register_broker", "describe_brokers"))


@dataclass(slots=True)
class LinkFaults:
    """Probabilities. ``happened`` receives each fault's name; ``spares``: links left alone."""

    happened: Callable[[str], None]
    break_p: float = 0.0
    """Probability that the link breaks instead of sending an envelope."""
    duplicate_p: float = 0.0
    """Probability that an envelope of repeatable requests arrives again a little later."""
    stall_p: float = 0.0
    """Probability that an envelope takes ``stall_mean_s`` more, exponential; later ones wait."""
    stall_mean_s: float = 1.0
    refuse_p: float = 0.0
    """Probability that a connection attempt is refused."""
    late_change_p: float = 0.0
    """Probability that an envelope with an AlterPartition takes ``late_change_mean_s`` more;
    nothing else of its sender waits.
    """
    late_change_mean_s: float = 1.0
    part_sent: Callable[[str, str], None] | None = None
    """Told of each part of a snapshot that is not the last one: who gives it, and whom."""
    spares: Callable[[str, str], bool] = lambda _one, _other: False

    def breaks(self, rng: random.Random, one: str, other: str) -> bool:
        if self.break_p and rng.random() < self.break_p and not self.spares(one, other):
            self.happened("link_broken")
            return True
        return False

    def stall_s(self, rng: random.Random, one: str, other: str) -> float:
        if self.stall_p and rng.random() < self.stall_p and not self.spares(one, other):
            self.happened("message_late")
            return rng.expovariate(1 / self.stall_mean_s)
        return 0.0

    def late_change_s(self, rng: random.Random, one: str, other: str, messages: list[Any]) -> float:
        if not self.late_change_p or not any(_is_isr_change(message) for message in messages):
            return 0.0
        if rng.random() >= self.late_change_p or self.spares(one, other):
            return 0.0
        self.happened("isr_change_late")
        return rng.expovariate(1 / self.late_change_mean_s)

    def look_for_parts(self, one: str, other: str, messages: list[Any]) -> None:
        if self.part_sent is not None and any(_is_inner_part(message) for message in messages):
            self.part_sent(one, other)

    def repeated(
        self,
        rng: random.Random,
        one: str,
        other: str,
        conversation: Conversation,
        messages: list[Any],
    ) -> list[Any]:
        """Return the requests of an envelope that are to arrive a second time."""
        if not self.duplicate_p or rng.random() >= self.duplicate_p or self.spares(one, other):
            return []
        if conversation not in _REPEATABLE:
            if conversation is not Conversation.CONTROLLER:
                return []
            messages = [
                message
                for message in messages
                if message.WhichOneof("body") in _REPEATABLE_BODIES or message.client.sequence > 0
            ]
        if messages:
            self.happened("request_repeated")
        return messages

    def connect(self, rng: random.Random, one: str, other: str) -> str:
        """Return the outcome of a connect: "" (it continues), "refused" or "silent"."""
        if not self.refuse_p or rng.random() >= self.refuse_p or self.spares(one, other):
            return ""
        self.happened("connect_refused")
        return rng.choice(("refused", "silent"))


def _is_isr_change(message: Any) -> bool:
    return type(message) is pb.ControllerRequest and message.WhichOneof("body") == "alter_partition"


def _is_inner_part(message: Any) -> bool:
    return (
        type(message) is FetchSnapshotResponse
        and message.position + len(message.bytes) < message.size
    )
