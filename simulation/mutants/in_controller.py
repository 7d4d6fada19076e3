"""Mutants of the controller: what it says, and when."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import DEPOSED, ELECTIONS, QUIET, SLOW, TWINS
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "reply-before-commit",
        "a write is answered when it is proposed",
        (
            Edit(
                "controller.parking:Parking.park",
                "(self._writes if parked.is_write else self._reads).append(parked)",
                "self._finish(parked) if parked.is_write else self._reads.append(parked)",
            ),
        ),
        QUIET,
    ),
    Mutant(
        "unknown-as-definite",
        "a write whose fate is open when the leadership is lost is called failed",
        (
            Edit(
                "controller.service:ControllerService._give_up",
                "outcome_unknown=parked.is_write",
                "outcome_unknown=False",
            ),
        ),
        DEPOSED,
        "leaders that are cut off or asked to resign",
        known=1,
    ),
    Mutant(
        "pending-survives",
        "who loses the leadership keeps the pending image as its committed one",
        (
            Edit(
                "controller.service:ControllerService.lost_leadership",
                "leadership, self.leadership = self.leadership, None",
                "leadership, self.leadership = self.leadership, None\n"
                "        if leadership is not None and leadership.active is not None:\n"
                "            self._committed.replace(leadership.pending.snapshot())",
            ),
        ),
        ELECTIONS,
        "leaders that are cut off",
    ),
    Mutant(
        "pending-without-tail",
        "a new leader decides without what the inherited tail has changed",
        (
            Edit(
                "controller.image_loader:fold_slice",
                "builder.apply_decoded(header, records)",
                "builder.offset, builder.epoch = header.last_offset, header.epoch",
            ),
        ),
        ELECTIONS,
        "failovers",
    ),
    Mutant(
        "committed-from-pending",
        "the committed image is the newest one proposed",
        (
            Edit(
                "controller.leadership:Leadership.committed",
                "while self._images and self._images[0][0] <= high_watermark:",
                "while self._images:",
            ),
        ),
        ELECTIONS,
        "several chunks under way",
    ),
    Mutant(
        "visible-when-acknowledged",
        "a write is called visible before every broker was told",
        (
            Edit(
                "controller.parking:Parking.visibility",
                "(self._visible, min_told)",
                "(self._visible, lowest_acknowledged_offset)",
            ),
        ),
        SLOW,
        "slow links to brokers",
        known=2,
    ),
    Mutant(
        "old-incarnation-accepted",
        "what a former incarnation of a broker reports counts for the one that is registered now",
        (
            Edit(
                "controller.state:ControllerState.check_broker_epoch",
                "broker is None or broker.epoch != broker_epoch",
                "broker is None",
            ),
            Edit(
                "controller.lao:LaoTracker.report",
                "self._registrations.get((broker_id, broker_epoch))",
                "self._current.get(broker_id)",
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
                "controller.active:ActiveController.decide",
                "if result is not None:",
                "if result is not None and result.epoch == self.state.epoch:",
            ),
        ),
        replace(ELECTIONS, numbered_share=1.0, timeout_s=3.0),
        "failovers under numbered writes",
    ),
    Mutant(
        "duplicate-not-looked-for",
        "a numbered write is executed whether or not it was before",
        (Edit("controller.active:ActiveController.decide", "if result is not None:", "if False:"),),
        replace(ELECTIONS, numbered_share=1.0, timeout_s=3.0),
        "failovers under numbered writes",
    ),
)
