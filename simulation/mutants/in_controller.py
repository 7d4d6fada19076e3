"""Mutants of the controller: its answers, and their time."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import (
    ANSWERED,
    ASKED,
    DEPOSED,
    ELECTIONS,
    EVICTED,
    HASTY,
    OVERTAKEN,
    QUIET,
    SLOW,
    TWINS,
)
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "reply-before-commit",
        "a write is answered when it is proposed",
        (
            Edit(
                "controller.service.replies:Parking.park",
                "(self._reads if parked.round else self._writes).append(parked)",
                "self._reads.append(parked) if parked.round else self._finish(parked)",
            ),
        ),
        QUIET,
    ),
    Mutant(
        "answer-before-commit",
        "an answer without records does not wait for the commit of the records that its decision"
        " depends on",
        (
            Edit(
                "controller.service.replies:Parking.release_reads",
                "reads[0].round <= self._confirmed_round and reads[0].offset <"
                " self._high_watermark",
                "reads[0].round <= self._confirmed_round",
            ),
        ),
        ANSWERED,
        "slow disks",
        known=1,
    ),
    Mutant(
        "answer-without-round",
        "an answer without records does not wait for the proof that this node still leads",
        (
            Edit(
                "controller.service.replies:Parking.release_reads",
                "reads[0].round <= self._confirmed_round and reads[0].offset <"
                " self._high_watermark",
                "reads[0].offset < self._high_watermark",
            ),
        ),
        ASKED,
        "leaders that are cut off or sleep, and are asked",
        seeds=200,
        known=34,
    ),
    Mutant(
        "unknown-as-definite",
        "a write with an unknown outcome is reported as failed when the leadership is lost",
        (
            Edit(
                "controller.service.replies:Answers.give_up",
                "outcome_unknown=one.is_write",
                "outcome_unknown=False",
            ),
        ),
        DEPOSED,
        "leaders that are cut off or asked to resign",
        known=2,
    ),
    Mutant(
        "pending-survives",
        "a node that loses the leadership keeps the pending image as its committed one",
        (
            Edit(
                "controller.service.service:ControllerService.lost_leadership",
                "leadership, self.node.leadership = self.node.leadership, None",
                "leadership, self.node.leadership = self.node.leadership, None\n"
                "        if leadership is not None and leadership.decider is not None:\n"
                "            self.node.committed.replace("
                "leadership.log.pending.snapshot(), leadership.log.log_hash)",
            ),
        ),
        ELECTIONS,
        "leaders that are cut off",
    ),
    Mutant(
        "pending-without-tail",
        "a new leader decides without the changes in the inherited tail",
        (
            Edit(
                "controller.state.epoch_log:EpochLog.inherit",
                "pending.apply_bodies(header, bodies)",
                "pending.offset, pending.epoch = header.last_offset, header.epoch",
            ),
        ),
        ELECTIONS,
        "failovers",
    ),
    Mutant(
        "log-hash-without-tail",
        "a new leader hashes the log without the inherited tail",
        (
            Edit(
                "controller.state.epoch_log:EpochLog.inherit",
                "self._inherited_hash = extended(self._inherited_hash, chunk)",
                "self._inherited_hash = self._inherited_hash._replace("
                "end_offset=self._pending.offset + 1 + sum("
                "header.record_count for header in batch.headers(chunk, verify=False)))",
            ),
        ),
        ELECTIONS,
        "failovers",
    ),
    Mutant(
        "committed-from-pending",
        "the committed image is the newest proposed image",
        (
            Edit(
                "controller.state.epoch_log:EpochLog.commit",
                "while proposed and proposed[0][0] <= high_watermark:",
                "while proposed:",
            ),
        ),
        ELECTIONS,
        "several chunks under way",
    ),
    Mutant(
        "visible-when-acknowledged",
        "a write is reported as visible before every broker has received the LAO",
        (
            Edit(
                "controller.service.replies:Parking.visibility",
                "(self._visible, min_known_lao)",
                "(self._visible, lowest_acknowledged_offset)",
            ),
        ),
        SLOW,
        "slow links to brokers",
        known=4,
    ),
    Mutant(
        "old-incarnation-accepted",
        "reports of a former incarnation of a broker count for the registered one",
        (
            Edit(
                "controller.state.state:ControllerState.check_broker_epoch",
                "broker is None or broker.epoch != broker_epoch",
                "broker is None",
            ),
            Edit(
                "controller.visibility.lao:LaoTracker.report",
                "self._registrations.by_id_and_epoch.get((broker_id, broker_epoch))",
                "self._registrations.current.get(broker_id)",
            ),
        ),
        TWINS,
        "brokers that die and come back, twins",
    ),
    Mutant(
        "duplicate-of-old-epoch",
        "a retry is not recognized if an earlier controller executed it",
        (
            Edit(
                "controller.decider:Decider._decide_one",
                "if result is not None:",
                "if result is not None and result.epoch == state.log.epoch:",
            ),
        ),
        replace(ELECTIONS, numbered_share=1.0, timeout_s=3.0),
        "failovers under numbered writes",
        known=3,
    ),
    Mutant(
        "duplicate-not-looked-for",
        "a numbered write is executed even if it was executed before",
        (Edit("controller.decider:Decider._decide_one", "if result is not None:", "if False:"),),
        replace(ELECTIONS, numbered_share=1.0, timeout_s=3.0),
        "failovers under numbered writes",
        known=3,
    ),
    Mutant(
        "round-by-count",
        "any Fetch confirms the newest round, also one that echoes an older round",
        (
            Edit(
                "raftlog.quorum.leader:Leader.on_fetch",
                "if request.round > replica.echoed_round:\n                self._echoed(replica,"
                " request.round)",
                "if self.rounds.current > replica.echoed_round:\n               "
                " self._echoed(replica, self.rounds.current)",
            ),
        ),
        OVERTAKEN,
        "Fetches that arrive late, sent before their sender voted for another",
        seeds=300,
        known=3,
    ),
    Mutant(
        "change-before-own-commit",
        "a leader changes the voter set before it has committed in its epoch (the defect that"
        " KIP-853 avoids)",
        (
            Edit(
                "controller.decisions.quorum.membership:Membership._changeable",
                "state.log.committed.offset < state.log.epoch_start_offset",
                "False",
            ),
            Edit(
                "raftlog.quorum.node:Node.membership_obstacle",
                "if self.high_watermark <= start_offset:",
                "if False:",
            ),
            Edit(
                "controller.service.turns:Turns.decide_all",
                "1 if self._intake.waiting_bytes < TURN_MAX_REQUEST_BYTES else MAX_UNCOMMITTED_CHUNKS",
                "MAX_UNCOMMITTED_CHUNKS",
            ),
        ),
        HASTY,
        "failovers, while voters join and leave",
        known=1,
    ),
    Mutant(
        "evicted-client-is-new",
        "a numbered write of a client that is not open is executed",
        (
            Edit(
                "controller.decisions.clients.clients:find_result",
                "if client is None:",
                "if client is None:\n        return None\n    if False:",
            ),
        ),
        EVICTED,
        "failovers under numbered writes of more clients than may be open",
    ),
)
