"""Mutants of brokers' lifecycles (KIP-343): members and their sessions, and the remains of a double
roll.
"""

from __future__ import annotations

from simulation.mutants.configs import DYING, LEAVES, LIVES, REFUSED, ROLLED, SILENCED
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "self-fencing-off",
        "a broker that reaches no controller never fences itself",
        (
            Edit(
                "broker.registration.lifecycle:Lifecycle.self_fenced",
                "self._heartbeats and",
                "False and",
            ),
        ),
        LIVES,
        "brokers that sleep, or are cut off, for longer than their timeout",
        known=24,
    ),
    Mutant(
        "unfenced-at-registration",
        "a broker counts from its registration on, with any applied offset",
        (
            Edit(
                "controller.decisions.brokers.registration:register_broker",
                "epoch, fenced=True,",
                "epoch, fenced=False,",
            ),
        ),
        LIVES,
    ),
    Mutant(
        "session-renewed-by-fetch",
        "a metadata fetch renews a broker's session, although the broker itself does not count it",
        (
            Edit(
                "controller.decider:Decider.report",
                "if heartbeats_off(self.state):",
                "self.heard(broker_id, broker_epoch, now)\n        if heartbeats_off(self.state):",
            ),
        ),
        SILENCED,
        "heartbeats that do not come through while the log does",
        known=1,
    ),
    Mutant(
        "silent-link-kept",
        "a client keeps using a silent link",
        (Edit("raftlog.client.router:Router.silent", "if route.silent:", "if False:"),),
        SILENCED,
        "single connections that are dead",
    ),
    Mutant(
        "gone-by-broken-link",
        "a broker whose connection broke is considered dead, whatever the state of its listener",
        (
            Edit(
                "controller.service.upkeep:BrokerProbes._find_out",
                "await self._probe(broker) is Probe.REFUSED",
                "True",
            ),
        ),
        DYING,
        "connections that are reset or cut",
    ),
    Mutant(
        "gone-under-lease",
        "a broker that seems to be gone is fenced although it may hold a lease for strict reads",
        (
            Edit(
                "controller.state.liveness:Gone.due",
                "if leases.ends_at(broker_id) <= now:",
                "if True:",
            ),
        ),
        REFUSED,
        "a firewall that refuses in a broker's name, strict reads",
        known=2,
    ),
    Mutant(
        "leave-keeps-session",
        "a leave does not end the session",
        (
            Edit(
                "controller.state.state:apply",
                "case Left(broker_id):\n            state.forget(broker_id)",
                "case Left(broker_id):\n            pass",
            ),
        ),
        LEAVES,
        "brokers that leave, and others under their ids",
    ),
    Mutant(
        "fenced-without-heartbeats",
        "silence fences a broker also where heartbeats are not in force",
        (
            Edit(
                "controller.decisions.brokers.heartbeats:fence_silent",
                " and not heartbeats_off(state)",
                "",
            ),
        ),
        LIVES,
        "the double roll, brokers that die",
    ),
    Mutant(
        "told-before-heartbeats",
        "a broker reads at an LAO that it received before heartbeats came into force",
        (
            Edit(
                "broker.metadata.view:View._shows_lao",
                "if not self.heartbeats or self._known_lao < self._heartbeats_from:",
                "if False:",
            ),
        ),
        ROLLED,
        "the double roll, brokers that die",
        known=39,
    ),
    Mutant(
        "rejoins-unaware",
        "without heartbeats, a broker counts again although it does not know that it was fenced",
        (
            Edit(
                "controller.visibility.lao:LaoView.may_join",
                "return broker.epoch > since or broker.applied >= since",
                "return True",
            ),
        ),
        ROLLED,
        "the double roll, brokers that are behind",
        known=25,
    ),
)
