"""What all links of one transport share: its limits, the turns of the loop, the budgets, and the
complaints about peers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import PeerIdentity
from raftlog.resource_limits import ITEMS_A_SLICE, RETRY_AFTER_MS
from raftlog.shares import Shares
from raftlog.transport.api import Conversation, TransportLimits
from raftlog.transport.complaints import Complaint, Complaints
from raftlog.transport.connections import Connections
from raftlog.transport.lane_offer import LaneCounts
from raftlog.transport.send_budget import SendBudget
from raftlog.transport.turns import Newcomers, Turns
from raftlog.transport.unfinished import UnfinishedWatch

UNARY = "unary"
"""The pool of everything that is no conversation: unary calls, health, reflection."""


class Bounds:
    """Made on the event loop, once for each transport."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: TransportLimits) -> None:
        self.limits = limits
        self.complaints = Complaints(loop)
        self.send_budget = SendBudget(limits.max_queued_total_bytes)
        self.waiting = Shares(limits.max_waiting_total_bytes)
        """Bytes of received messages that wait for their turn, by peer."""
        self.unfinished = UnfinishedWatch(
            loop, limits.max_unfinished_total_bytes, limits.message_timeout_ms / 1000
        )
        self.unfinished_frames = Shares(limits.max_unfinished_total_bytes)
        """Bytes of the frames of lanes that have arrived in part, by address."""
        pools = [*(conversation.name for conversation in Conversation), UNARY]
        # Of each conversation its own: a flood of one kind never takes the time or the places of
        # another.
        self.newcomers = Newcomers()
        self.turns = {
            # What only queues its messages has no long turns of its own.
            pool: Turns(
                loop,
                limits.turn_ms,
                long_turn_ms=math.inf if pool in ITEMS_A_SLICE else limits.long_turn_ms,
                newcomers=self.newcomers,
            )
            for pool in pools
        }
        self.connections = Connections(
            per_address=limits.max_connections_per_address,
            per_principal=limits.max_connections_per_principal,
        )
        self.lanes = LaneCounts()
        self.streams = {
            pool: Shares(
                limits.max_watch_streams if pool == Conversation.WATCH.name else limits.max_streams
            )
            for pool in pools
        }

    @contextmanager
    def connection(self, peer: str, identity: PeerIdentity) -> Iterator[ApiError | None]:
        """Count a call's connection as long as the call is open; why the call is refused, None: it
        is not.
        """
        with self.connections.counted(peer, identity) as why:
            yield self.throttled(Complaint.TOO_MANY_CONNECTIONS, peer, why) if why else None

    def throttled(self, complaint: Complaint, peer: str, message: str) -> ApiError:
        """Complain about a peer; the refusal that it is told."""
        self.complaints.add(complaint, peer, message)
        return ApiError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=RETRY_AFTER_MS
        )

    def unauthenticated(self, peer: str, message: str) -> ApiError:
        """Complain about a peer that has not proved who it is; the refusal that it is told."""
        self.complaints.add(Complaint.UNAUTHENTICATED, peer, message)
        return ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
