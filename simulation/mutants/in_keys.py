"""Mutants of keys, conditions and leases, and of the recipes that clients build on them."""

from __future__ import annotations

from simulation.mutants.configs import BROKERS, HOLDERS, KEEPERS, KEPT, STALLED
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

_FASTER = "clients that think before they write"
_LOST = "the disks of a majority are lost for good"
_DEPOSED = "leaders that are cut off from all but clients"

MUTANTS = (
    Mutant(
        "condition-not-compared",
        "a key is changed whatever it is expected to be",
        (
            Edit(
                "controller.decisions.clients.key_values:_compare",
                "if not one.HasField(name) or getattr(one, name) == found:",
                "if True:",
            ),
        ),
        KEEPERS,
        _FASTER,
        known=1,
    ),
    Mutant(
        "condition-on-what-is-committed",
        "a condition is compared with the committed image, not with the end of the log",
        (
            Edit(
                "controller.decider:Decider._alter_key_values",
                "log.pending, self.state",
                "log.committed, self.state",
            ),
        ),
        KEEPERS,
        _FASTER,
        known=2,
    ),
    Mutant(
        "expected-value-not-compared",
        "a config is changed whatever value it is expected to have",
        (Edit("controller.decisions.configs:_compare", "if present != expected:", "if False:"),),
        KEEPERS,
        _FASTER,
        known=2,
    ),
    Mutant(
        "new-leader-ends-leases",
        "a new controller counts leases on from nothing",
        (
            Edit(
                "controller.state.state:ControllerState.__post_init__",
                "[(id_, one.ttl_ms) for id_, one",
                "[(id_, 0) for id_, one",
            ),
        ),
        KEEPERS,
        "elections",
        known=1,
    ),
    Mutant(
        "keep-alive-not-counted",
        "a keep-alive is answered, and the lease ends when it would have without",
        (
            Edit(
                "controller.decisions.clients.key_values:keep_lease_alive",
                "(LeaseKeptAlive(lease.id, lease.ttl_ms),)",
                "()",
            ),
        ),
        KEEPERS,
        "none",
        known=1,
    ),
    Mutant(
        "keep-alive-without-a-round",
        "a keep-alive is answered at once, also by a leader that leads no more",
        (
            Edit(
                "controller.service.turns:Turns._settle",
                "turn.reads.append(parked)",
                "(turn.appended if pending.kind == 'keep_lease_alive' else turn.reads).append(parked)",
            ),
        ),
        KEPT,
        _DEPOSED,
        known=20,
    ),
    Mutant(
        "lease-leaves-its-keys",
        "a lease ends, and its keys stay",
        (
            Edit(
                "controller.decisions.clients.key_values:_end",
                "for key in keys[:most]]",
                "for key in keys[:0]]",
            ),
        ),
        KEEPERS,
        "none",
        known=1,
    ),
    Mutant(
        "lease-believed-for-too-long",
        "a client relies on a lease for longer than the cluster keeps it",
        (
            Edit(
                "raftlog.client.leases:AsyncLease.__init__",
                "ttl_s * BELIEVED_SHARE",
                "ttl_s * 1.5",
            ),
        ),
        KEEPERS,
        "clients that are cut off",
        known=9,
    ),
    Mutant(
        "lock-without-a-queue",
        "who comes for a lock has it",
        (
            Edit(
                "raftlog.recipes.place:Place._before",
                "if one.create_offset < self.token",
                "if one.create_offset < 0",
            ),
        ),
        KEEPERS,
        "none",
        known=1,
    ),
    Mutant(
        "group-without-a-condition",
        "a group of a double barrier is formed of those who were seen, whether they are there or not",
        (
            Edit(
                "raftlog.recipes.double_barrier:AsyncDoubleBarrier._form",
                "await self._client.kv.alter(*there, formed)",
                "await self._client.kv.alter(formed)",
            ),
        ),
        KEEPERS,
        "programs that die and clients that are cut off",
        known=11,
    ),
    Mutant(
        "guard-of-another-generation",
        "a condition on an offset of a log that is over holds for what has the offset now",
        (
            Edit(
                "controller.decisions.clients.key_values:_check_generation",
                'if one.HasField("expected_generation") and',
                "if False and",
            ),
        ),
        HOLDERS,
        _LOST,
        known=8,
    ),
    Mutant(
        "lease-of-another-generation",
        "who held a lease of a log that is over keeps the one alive that has its id now",
        (
            Edit(
                "controller.decisions.clients.key_values:_lease_of",
                'if request.HasField("generation") and',
                "if False and",
            ),
        ),
        HOLDERS,
        _LOST,
        known=4,
    ),
    Mutant(
        "lease-id-is-a-number",
        "the client library does not know of which log the id of a lease is",
        (
            Edit(
                "raftlog.client.leases:AsyncLeases.keep_alive",
                "generation_of(lease_id) if generation is None else generation",
                "generation",
            ),
        ),
        HOLDERS,
        _LOST,
        known=4,
    ),
    Mutant(
        "stalls-count-for-leases-that-came-later",
        "a lease that is kept alive after the loop stood still lives for that time besides",
        (
            Edit(
                "controller.state.leases:LeaseTracker.keep",
                "due = now + ttl_ms / 1000 - self._extended_s",
                "due = now + ttl_ms / 1000",
            ),
        ),
        STALLED,
        "loops that stand still",
        known=3,
    ),
    Mutant(
        "attempt-forgotten-at-the-deadline",
        "a numbered write has failed at its deadline, whatever became of its attempts",
        (
            Edit(
                "raftlog.client.session:Session._pause",
                "outcome_unknown=on_the_way > 0",
                "outcome_unknown=False",
            ),
        ),
        BROKERS,
        "controllers and brokers that die with a write on its way",
        known=6,
    ),
)
