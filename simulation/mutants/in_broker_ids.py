"""Mutants of the search for broker ids (KIP-426): the id of a broker that has none."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant
from simulation.swarm.config import SwarmConfig

DISKS = SwarmConfig(
    brokers=4, clients=1, writes_per_s=5.0, reads_per_s=2.0, topics_share=0.3, safety_s=20.0, election_timeout_ms=200,
    fetch_timeout_ms=200, session_timeout_ms=1500,
    faults={"lose_broker_disk": 2.0, "kill_broker": 4.0, "kill_controller": 6.0, "resign": 6.0},
)  # fmt: skip
"""Brokers that come back on empty disks, under controllers that change."""

NEWCOMERS = SwarmConfig(
    brokers=4, clients=1, writes_per_s=5.0, reads_per_s=2.0, topics_share=0.5, safety_s=20.0, election_timeout_ms=200,
    fetch_timeout_ms=200, session_timeout_ms=1500, faults={"newcomer": 1.0, "kill_broker": 1.5, "resign": 3.0},
)  # fmt: skip
"""Brokers on new hosts, while others are down for a moment."""

ADOPTED = SwarmConfig(
    brokers=4, clients=1, writes_per_s=5.0, reads_per_s=2.0, topics_share=0.5, safety_s=40.0, election_timeout_ms=200,
    fetch_timeout_ms=200, session_timeout_ms=1500, adopt_after_ms=2000,
    faults={"newcomer": 1.0, "broker_away": 3.0, "kill_broker": 6.0, "resign": 8.0},
)  # fmt: skip
"""Brokers on new hosts, while others are away for so long that their ids are missing."""

MUTANTS = (
    Mutant(
        "generated-while-absent",
        "a newcomer gets a new id while a broker that holds replicas is absent",
        (
            Edit(
                "controller.decisions.brokers.broker_ids:_missing",
                "if free and not free[0].missing:",
                "if False:",
            ),
            Edit(
                "controller.decisions.brokers.broker_ids:_missing",
                "if not free:",
                "if not free or not free[0].missing:",
            ),
        ),
        ADOPTED,
        "newcomers, while a broker is away",
    ),
    Mutant(
        "generated-within-session",
        "a newcomer does not wait until all brokers that hold replicas have been heard from",
        (
            Edit(
                "controller.decisions.brokers.broker_ids:_missing",
                "_check_all_heard(asking, reserved)",
                "pass",
            ),
        ),
        ADOPTED,
        "newcomers, while a broker is away",
    ),
    Mutant(
        "guesses-among-missing",
        "of several missing ids, a newcomer gets the first",
        (
            Edit(
                "controller.decisions.brokers.broker_ids:_missing", "if len(free) > 1:", "if False:"
            ),
        ),
        ADOPTED,
        "newcomers, while brokers are away",
        known=3,
    ),
    Mutant(
        "hostname-ignored",
        "a broker that lost its disk does not get the id that its host is mapped to (KIP-426)",
        (
            Edit(
                "controller.decisions.brokers.broker_ids:choose_broker_id",
                "_own(asking) or _of_host(asking, notes) or _missing(asking, notes)",
                "_own(asking) or _missing(asking, notes)",
            ),
        ),
        DISKS,
        "brokers that lose their disks",
    ),
    Mutant(
        "own-past-taken-for-alive",
        "a session that has not ended counts as another process, and a broker on its own host gets"
        " a new id",
        (
            Edit(
                "controller.decisions.brokers.broker_ids:_Asking.life",
                "return _Life.ALIVE if heard else _Life.UNDECIDED",
                "return _Life.ALIVE",
            ),
        ),
        # Without replicas: those of its own past would be waited for as any other's.
        replace(DISKS, topics_share=0.0),
        "brokers that lose their disks and are back within their session",
        known=0,
    ),
    Mutant(
        "registration-unmapped",
        "a registration does not map its host",
        (
            Edit(
                "controller.decisions.brokers.hostnames:mapping_of",
                "return [mapping_change(name, broker_id, HostnameCause.BY_REGISTRATION)]",
                "return []",
            ),
        ),
        DISKS,
    ),
    Mutant(
        "missing-at-once",
        "an id is missing as soon as its broker is down",
        (
            Edit(
                "controller.state.liveness:AbsentIds.absent",
                "max(0.0, self._adopt_after_s - absent_for_s)",
                "0.0",
            ),
        ),
        NEWCOMERS,
        "newcomers, while a broker restarts",
        seeds=100,
        known=1,
    ),
    Mutant(
        "generated-twice",
        "a generated id may already be in use",
        (
            Edit(
                "controller.decisions.brokers.broker_ids:_generated",
                "broker_id = max(above, default=floor) + 1",
                "broker_id = floor + 1",
            ),
        ),
        NEWCOMERS,
        "newcomers",
    ),
)
