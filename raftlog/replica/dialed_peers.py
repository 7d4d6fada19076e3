"""The other nodes that this one talks to: which ones the quorum decides."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig
from raftlog.replica.peer_reach import PeerReach
from raftlog.replica.peers import Peer, PeerListener
from raftlog.transport.api import Transport
from raftlog.voter import Voter


class DialedPeers:
    """Links to each of them, by id."""

    def __init__(self, config: QuorumConfig, transport: Transport, listener: PeerListener) -> None:
        self._config, self._transport, self._observer = config, transport, listener
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.by_id: dict[int, Peer] = {}

    def dial(self, peers: tuple[Voter, ...]) -> None:
        """Talk to these, and to nobody else: hang up, dial, and dial anew where an address has
        changed.
        """
        own_id, answer_s = self._config.node_id, self._config.request_timeout_ms / 1000
        wanted = {peer.node_id: peer.endpoint for peer in peers if peer.node_id != own_id}
        for node_id, peer in list(self.by_id.items()):
            if not peer.stays_at(wanted.get(node_id, "")):
                del self.by_id[node_id]
                peer.close()
        for node_id, endpoint in wanted.items():
            if endpoint and node_id not in self.by_id:
                self.by_id[node_id] = Peer(
                    node_id,
                    endpoint,
                    self._transport,
                    self._observer,
                    self._spawn,
                    answer_s,
                    elsewhere=partial(self._elsewhere, node_id),
                )

    def _elsewhere(self, node_id: int) -> list[str]:
        """Where this node's own configuration says that a voter may be: where no other one answers.

        The node there proves by its id and directory id that it is the voter.
        """
        config = self._config
        if node_id < 0:
            # Itself an address of the configuration.
            return []
        named = [voter.endpoint for voter in config.configured_voters if voter.node_id == node_id]
        others = {
            peer.address
            for other_id, peer in self.by_id.items()
            if other_id != node_id and peer.reach().is_reached
        }
        return [one for one in (*named, *config.bootstrap_servers) if one not in others]

    def send(self, effect: ev.Send | ev.SendFetch | ev.SendFetchSnapshot) -> bool:
        """Send a request on the link for its kind. False: this node does not talk to that peer."""
        peer = self.by_id.get(effect.peer_id)
        if peer is None:
            return False
        if isinstance(effect, ev.SendFetch):
            peer.send_fetch(effect.correlation_id, effect.request)
        elif isinstance(effect, ev.SendFetchSnapshot):
            peer.send_fetch_snapshot(effect.correlation_id, effect.request)
        else:
            peer.send(effect.correlation_id, effect.request)
        return True

    def reach(self) -> tuple[PeerReach, ...]:
        """Whether each of them answers, by id."""
        return tuple(peer.reach() for _, peer in sorted(self.by_id.items()))

    def close(self) -> None:
        """Hang up."""
        for peer in list(self.by_id.values()):
            peer.close()
        for task in list(self._tasks):
            task.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task
