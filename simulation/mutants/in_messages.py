"""Mutants of encoded messages: they show only because the simulated network carries bytes, and no
objects.
"""

from __future__ import annotations

from simulation.mutants.configs import QUIET
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "numbered-after-send",
        "a Fetch gets its correlation id after it was sent",
        (
            Edit(
                "raftlog.quorum.fetcher:Fetcher.pump",
                "request.correlation_id = correlation_id",
                "pass",
            ),
            Edit(
                "raftlog.node.replica.peers:Peer.send_fetch",
                """request.correlation_id = correlation_id
        self._replication.send(correlation_id, request)""",
                """self._replication.send(correlation_id, request)
        request.correlation_id = correlation_id""",
            ),
        ),
        QUIET,
    ),
)
