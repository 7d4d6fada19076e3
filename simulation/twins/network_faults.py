"""Permanent faults of messages on open links: drawn for each envelope and each connect.

The real links are gRPC streams over TCP, so within one stream nothing is lost, doubled or
overtaken. Loss, duplication and reordering can still affect the code above; they are represented
here as follows:

* a lost packet that is never repaired is a *broken link*: what was on its way, both ways, is lost,
  and both ends learn of it;
* a message that is late is one that *stalls its stream*: everything after it waits too. Its sender
  may give up meanwhile, open another link and be served there; then the old messages arrive, after
  the new ones: reordering across links;
* a *duplicate* is a request that its handler gets twice. No stream does that. It stands for a
  sender that asks again, so only those requests are doubled that a correct sender might repeat:
  votes, fetches, heartbeats, registrations, a client's write if it is numbered.
* a connect that is *refused* or unanswered, although the process lives: a full backlog, a firewall.
"""

from __future__ import annotations

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
    """Probabilities.

    Each fault that happens is given to ``happened`` by name. ``spares`` says which links are left
    alone.
    """

    happened: Callable[[str], None]
    break_p: float = 0.0
    """Probability that the link breaks instead of sending an envelope."""
    duplicate_p: float = 0.0
    """Probability that an envelope of repeatable requests is delivered twice, the second time a
    little later.
    """
    stall_p: float = 0.0
    """Probability that an envelope takes ``stall_mean_s`` more, exponentially distributed; all
    after it wait.
    """
    stall_mean_s: float = 1.0
    refuse_p: float = 0.0
    """Probability that a connection attempt is refused."""
    late_change_p: float = 0.0
    """Probability that an envelope with an AlterPartition takes ``late_change_mean_s`` more, as
    above.

    Nothing else of its sender is late.
    """
    late_change_mean_s: float = 1.0
    part_sent: Callable[[str, str], None] | None = None
    """Told of each part of a snapshot that is not the last one: who gives it, and whom."""
    spares: Callable[[str, str], bool] = lambda _one, _other: False

    def breaks(self, rng: random.Random, one: str, other: str) -> bool:
        """Return whether the link between two hosts breaks now."""
        if self.break_p and rng.random() < self.break_p and not self.spares(one, other):
            self.happened("link_broken")
            return True
        return False

    def stall_s(self, rng: random.Random, one: str, other: str) -> float:
        """Return the additional delay of an envelope, in seconds."""
        if self.stall_p and rng.random() < self.stall_p and not self.spares(one, other):
            self.happened("message_late")
            return rng.expovariate(1 / self.stall_mean_s)
        return 0.0

    def late_change_s(self, rng: random.Random, one: str, other: str, messages: list[Any]) -> float:
        """Return the additional delay of an ISR change, in seconds."""
        if not self.late_change_p or not any(_is_isr_change(message) for message in messages):
            return 0.0
        if rng.random() >= self.late_change_p or self.spares(one, other):
            return 0.0
        self.happened("isr_change_late")
        return rng.expovariate(1 / self.late_change_mean_s)

    def look_for_parts(self, one: str, other: str, messages: list[Any]) -> None:
        """Tell of parts of snapshots in an envelope."""
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
        """Return the requests of an envelope that come a second time."""
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
        """Return the fate of a connect: "" (it goes on), "refused" or "silent"."""
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
