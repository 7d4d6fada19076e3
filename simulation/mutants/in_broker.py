"""Mutants of the broker and the client: the image that answers, and the retried requests."""

from __future__ import annotations

from simulation.mutants.configs import BROKERS, LED, SLOW
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "repeatable-from-tip",
        "a repeatable read is answered from the newest image",
        (
            Edit(
                "broker.metadata.read_gate:ReadGate._find",
                "at_lao = view.repeatable",
                "at_lao = view.tip",
            ),
        ),
        SLOW,
        "slow links to brokers",
    ),
    Mutant(
        "token-ignored",
        "a read does not wait for the offset that its client has seen",
        (
            Edit(
                "broker.metadata.read_gate:ReadGate._wanted",
                "return queue, token.offset",
                "return queue, UNKNOWN",
            ),
        ),
        BROKERS,
        "slow links to brokers",
        known=2,
    ),
    Mutant(
        "serves-while-fenced",
        "a broker that is fenced, or must consider itself fenced, continues to serve",
        (
            Edit(
                "broker.service.fencing:Fencing.why",
                "if why := self._lifecycle.why_fenced(self._now()):",
                "if why := (not self._lifecycle.epoch >= 0 and 'not registered'):",
            ),
            Edit(
                "broker.metadata.view:View._note_membership",
                "if mine is None or mine.fenced:",
                "if mine is None:",
            ),
        ),
        BROKERS,
        "brokers cut off for longer than their session",
    ),
    Mutant(
        "listens-to-deposed",
        "a broker accepts a controller of an older epoch than the newest it has seen",
        (
            Edit(
                "broker.metadata.view:View.hear",
                "if controller_epoch < self.controller_epoch:",
                "if False:",
            ),
            Edit(
                "broker.metadata.follower:MetadataFollower._take",
                "elif reply.controller_epoch < view.controller_epoch:",
                "elif False:",
            ),
        ),
        BROKERS,
        "leaders that are cut off",
        seeds=200,
        known=11,
    ),
    Mutant(
        "retries-unknown",
        "a call with an unknown outcome is sent again",
        (
            Edit(
                "raftlog.client.router:RoutedCall.set_exception",
                "(self.idempotent or not error.outcome_unknown)",
                "True",
            ),
        ),
        BROKERS,
        "connections that break",
        known=13,
    ),
    Mutant(
        "isr-in-metadata",
        "topic Metadata reports the replicas outside the ISR as offline (KIP-24)",
        (
            Edit(
                "broker.metadata.reads:_metadata_partition",
                "for broker_id in partition.replicas if told.get(broker_id) is None",
                "for broker_id in partition.replicas if broker_id not in partition.isr",
            ),
        ),
        BROKERS,
        "brokers that die and come back: they are online before they are in sync again",
    ),
    Mutant(
        "proposed-isr-told",
        "a leader reports its proposed ISR as the committed one (KIP-24)",
        (
            Edit(
                "broker.partition.describe:_describe",
                "for member in state.committed",
                "for member in (dict(state.proposal.members) if state.proposal else"
                " state.committed)",
            ),
        ),
        LED,
        "followers that lag, and controllers that answer late",
    ),
)
