"""Mutants of strict reads: the rights to read, their begin and end, and the state that is read."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import STRICT
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

ENDS_AT = "controller.state.leases:ReadLeases.ends_at"

MUTANTS = (
    Mutant(
        "strict-lease-without-round",
        "a lease is given or renewed without a confirmed read-index round, also by a controller that no longer"
        " leads",
        (
            Edit(
                "controller.service.turns:Turns._settle",
                "        else:\n            turn.reads.append(parked)",
                "        elif pending.kind == 'broker_heartbeat':\n"
                "            turn.appended.append(parked)\n"
                "        else:\n"
                "            turn.reads.append(parked)",
            ),
        ),
        replace(
            STRICT,
            writes_per_s=1.0,
            safety_s=40.0,
            fetch_timeout_ms=4000,
            session_timeout_ms=2000,
            faults={"stranded": 1.0},
        ),
        "leaders cut off together with a broker",
    ),
    Mutant(
        "fenced-while-leased",
        "a broker that lags is fenced even if it holds a lease",
        (
            Edit(
                "controller.decisions.brokers.heartbeats:fence_stuck",
                "if leases.ends_at(stuck) > now:",
                "if False:",
            ),
        ),
        replace(STRICT, lag_max_ms=600, session_timeout_ms=6000, faults={"broker_behind": 2.0}),
        "brokers that heartbeat and get no log",
    ),
    Mutant(
        "leases-of-others-unknown",
        "a new controller ignores the leases that earlier controllers gave",
        (
            Edit(
                ENDS_AT,
                "max(self._granted_at.get(broker_id, self._claimed_at), self._claimed_at)",
                "self._granted_at.get(broker_id, -1e9)",
            ),
        ),
        replace(
            STRICT,
            lag_max_ms=600,
            session_timeout_ms=6000,
            faults={"broker_behind": 1.0, "resign": 1.0},
        ),
        "failovers, brokers that get no log",
        known=1,
    ),
    Mutant(
        "lease-counted-from-reply",
        "a lease starts when its reply arrives",
        (
            Edit(
                "broker.registration.registration_client:RegistrationClient._heartbeat_answered",
                "self._lease.answered(lifecycle.sent_at, ",
                "self._lease.answered(now, ",
            ),
        ),
        replace(STRICT, drift=0.1, session_timeout_ms=3000, faults={"answers_late": 1.0}),
        "replies that are late, clocks that drift",
        known=3,
    ),
    Mutant(
        "lease-without-margin",
        "a lease is as long as the session, without a margin for clock drift",
        (Edit("controller.state.leases:ReadLeases.length_ms", "LEASE_SHARE", "1.0"),),
        replace(
            STRICT,
            brokers=6,
            drift=0.1,
            session_timeout_ms=3000,
            safety_s=30.0,
            faults={"broker_behind": 0.7},
        ),
        "brokers cut off, clocks that drift",
    ),
    Mutant(
        "strict-without-lease",
        "a strict read is answered like a repeatable one, with or without a lease",
        (
            Edit(
                "broker.metadata.read_gate:ReadGate.admit", "if self._lease.held(now):", "if True:"
            ),
        ),
        STRICT,
        "brokers cut off for longer than their session",
        known=1,
    ),
    Mutant(
        "strict-below-applied",
        "a strict read does not wait until LAO covers what the broker has applied",
        (
            Edit(
                "broker.metadata.read_gate:ReadGate.admit",
                "offset = max(offset, self._view.applied)",
                "pass",
            ),
            Edit(
                "broker.metadata.read_gate:ReadGate._take_floor",
                "applied = self._view.applied",
                "applied = UNKNOWN",
            ),
        ),
        replace(STRICT, delay_min_ms=1.0, delay_mean_ms=20.0, faults={}),
        "slow links to brokers",
    ),
    Mutant(
        "offered-when-applied",
        "a broker offers the features of a level to its clients as soon as it has applied the level"
        " itself",
        (
            Edit(
                "broker.service.api_versions:ApiVersions.moved",
                "image = view.repeatable",
                "image = view.tip",
            ),
        ),
        replace(
            STRICT,
            release_version=1,
            delay_min_ms=1.0,
            delay_mean_ms=20.0,
            fetch_timeout_ms=2000,
            session_timeout_ms=3000,
            faults={"raise_features": 3.0},
        ),
        "a level that is raised, slow links to brokers",
        known=6,
    ),
)
