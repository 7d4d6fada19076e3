"""Mutants of operators' requests: brokers unregistered, levels lowered, hosts mapped by hand,
voters moved.
"""

from __future__ import annotations

from simulation.mutants.configs import BUILDS, BUSY, LOW, MAPPED, MOVED, OPERATED
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "unregistration-keeps-isr",
        "an unregistered broker stays in ISRs and stays leader",
        (
            Edit(
                "controller.decisions.brokers.registration:unregister_broker",
                "records = removals(state.log.pending, broker.id)",
                "records = []",
            ),
        ),
        OPERATED,
        "brokers that are unregistered while they run",
    ),
    Mutant(
        "raised-beside-old-brokers",
        "metadata.version is raised although a registered broker does not know it",
        (
            Edit(
                "controller.decisions.quorum.features:_brokers_against",
                "if not low <= level <= high:",
                "if False:",
            ),
        ),
        BUILDS,
        "brokers of two builds",
    ),
    Mutant(
        "raised-beside-old-voters",
        "metadata.version is raised although a voter does not know it",
        (
            Edit(
                "controller.decisions.quorum.features:_voters_against",
                "elif known < level:",
                "elif False:",
            ),
        ),
        BUILDS,
        "controllers of two builds",
        known=2,
    ),
    Mutant(
        "old-broker-registered",
        "a broker that does not know the level of the cluster is registered",
        (
            Edit(
                "controller.decisions.brokers.registration:_check_features",
                "feature is None or not feature.min_supported_version <= level <="
                " feature.max_supported_version",
                "False",
            ),
        ),
        BUILDS,
        "brokers of two builds",
        known=21,
    ),
    Mutant(
        "hand-mapping-ignored",
        "a host that was mapped by hand to the id of a broker from elsewhere does not get it",
        (
            Edit(
                "controller.decisions.brokers.broker_ids:_of_host",
                "by_hand = mapping.cause != HostnameCause.BY_REGISTRATION and",
                "by_hand = False and",
            ),
        ),
        MAPPED,
        "hosts mapped by hand",
        known=2,
    ),
    Mutant(
        "kept-id-given-away",
        "an id that was reserved by hand for a host is given to another host",
        (
            Edit(
                "controller.decisions.brokers.broker_ids:_missing",
                "if mapping.cause != HostnameCause.BY_REGISTRATION and name != asking.host",
                "if False",
            ),
        ),
        MAPPED,
        "hosts mapped by hand",
        known=41,
    ),
    Mutant(
        "move-drops-voters",
        "a voter that moves is the only one that remains in the set",
        (
            Edit(
                "controller.decisions.quorum.membership:Membership.update",
                "VoterEntry(v.id, v.directory_id, request.endpoint) if v is old else v for v in"
                " voters",
                "VoterEntry(v.id, v.directory_id, request.endpoint) for v in voters if v is old",
            ),
        ),
        MOVED,
        "voters that move",
    ),
    Mutant(
        "low-disks-not-counted",
        "a leader does not count the other voters whose disks are below their reserve",
        (
            Edit(
                "controller.disk.space:SpaceWatch.judge",
                "if (self.low if replica.node_id == node_id else replica.low_on_space)",
                "if replica.node_id == node_id and self.low",
            ),
        ),
        LOW,
        "disks that are below their reserve",
        known=4,
    ),
    Mutant(
        "reserve-not-told",
        "a follower does not report that its disk is below its reserve",
        (
            Edit(
                "raftlog.quorum.fetcher:Fetcher.pump",
                "request.low_on_space = node.low_on_space",
                "pass",
            ),
        ),
        LOW,
        "disks that are below their reserve",
        known=4,
    ),
    Mutant(
        "turn-unbounded",
        "a controller decides all waiting requests in one turn",
        (
            Edit(
                "controller.service.turns:Turns._decide_waiting",
                "and self._stopwatch() - begun < MAX_TURN_S",
                "and self._stopwatch() >= begun",
            ),
        ),
        BUSY,
        "code that takes time",
    ),
)
