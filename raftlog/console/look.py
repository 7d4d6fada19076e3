"""Asks the cluster for the console, as `raftlog doctor` and `raftlog explain` do."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from raftlog.cli.doctor_evidence import LOOK_S, gather
from raftlog.cli.node_queries import NodeAt, journals, nodes_of
from raftlog.client.security import ClientSecurity
from raftlog.console.document import document
from raftlog.console.local import Local
from raftlog.console.recent import MAX_CHUNKS, RecentChanges
from raftlog.doctor.evidence import Evidence as Seen
from raftlog.incident.evidence import Evidence
from raftlog.incident.story import Story, tell
from raftlog.printable import printable

JOURNALS_S = 1.0
JOURNALS_EVERY_S = 15.0
MAX_JOURNALS = 50
HOUR_MS = 3_600_000


class Looker:
    """One node's looks at the cluster. ``security``: how the node connects to others."""

    def __init__(self, local: Local, security: ClientSecurity) -> None:
        self._local, self._security = local, security
        self._changes = RecentChanges()
        self._story: Story | None = None
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[Story] | None = None
        self._brokers: list[NodeAt] = []

    async def look(self) -> bytes:
        """The document as JSON in one line."""
        local = self._local
        seen = await gather(local.controllers(), LOOK_S, self._security)
        self._ask_journals(seen)
        until = local.committed_end()
        changes = self._changes.read(local.newest_chunks(MAX_CHUNKS), until, local.image())
        made = document(
            seen,
            local.image(),
            changes,
            self._story,
            {"role": local.role, "node_id": local.node_id},
        )
        return msgspec.json.encode(cleaned(made))

    def _ask_journals(self, seen: Seen) -> None:
        """Now and then, and nobody waits: the story of the last answer is shown meanwhile."""
        now = asyncio.get_running_loop().time()
        if self._asking is not None:
            if not self._asking.done():
                return
            if not self._asking.cancelled() and self._asking.exception() is None:
                self._story = self._asking.result()
            self._asking = None
        if now - self._asked_at >= JOURNALS_EVERY_S:
            self._asked_at = now
            self._asking = asyncio.create_task(self._tell(seen), name="console journals")

    async def _tell(self, seen: Seen) -> Story:
        if seen.brokers is not None:
            # Without a leader nobody names them, and they alone tell of controllers that are dead.
            self._brokers = [one for one in nodes_of(seen) if one.role == "broker"]
        nodes = nodes_of(seen, self._brokers)[:MAX_JOURNALS]
        told = await journals(seen, nodes, HOUR_MS, JOURNALS_S, self._security)
        return tell(Evidence.until_now(seen.at_ms - HOUR_MS, seen.at_ms, tuple(told)))


def cleaned(value: Any) -> Any:
    """Texts of strangers without control characters."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: cleaned(each) for name, each in value.items()}
    return [cleaned(each) for each in value] if isinstance(value, list) else value
