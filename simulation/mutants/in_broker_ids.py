"""Mutants of the search for broker ids (KIP-426): what is given to a broker that has none."""

from __future__ import annotations

from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant
from simulation.swarm import SwarmConfig

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

MUTANTS = (
    Mutant(
        "hostname-ignored",
        "a broker whose disk was lost is not asked for its host",
        (
            Edit(
                "controller.broker_ids:choose_broker_id",
                "_own(asking) or _of_host(asking, notes) or _missing(asking, notes)",
                "_own(asking) or _missing(asking, notes)",
            ),
        ),
        DISKS,
        "brokers that lose their disks",
    ),
    Mutant(
        "own-past-taken-for-alive",
        "a session that has not ended is taken for another process, and a broker on its own host gets a new id",
        (
            Edit(
                "controller.broker_ids:_Asking.life",
                "return _Life.ALIVE if heard else _Life.UNDECIDED",
                "return _Life.ALIVE",
            ),
        ),
        DISKS,
        "brokers that lose their disks and are back within their session",
    ),
    Mutant(
        "registration-unmapped",
        "a registration does not map its host",
        (Edit("controller.hostnames:mapping_of", "return [_record(name, broker_id, BY_REGISTRATION)]", "return []"),),
        DISKS,
    ),
    Mutant(
        "missing-at-once",
        "an id is missing as soon as its broker is down",
        (Edit("controller.absences:Absences.absent", "now - since >= self._adopt_after_s", "True"),),
        NEWCOMERS,
        "newcomers, while a broker restarts",
        seeds=100,
        known=1,
    ),
    Mutant(
        "generated-twice",
        "a generated id may be in use",
        (
            Edit(
                "controller.broker_ids:_generated",
                "broker_id = max(above, default=floor) + 1",
                "broker_id = floor + 1",
            ),
        ),
        NEWCOMERS,
        "newcomers",
    ),
)
