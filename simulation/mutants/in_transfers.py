"""Mutants of committed writes whose wait a leadership transfer interrupts."""

from __future__ import annotations

from simulation.mutants.configs import WAITED
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "wait-ends-with-the-leadership",
        "a committed write that waits for brokers is answered for good when its leader resigns",
        (
            Edit(
                "raftlog.client.controller_client:_wait_on",
                "if not response.write.leadership_lost:",
                "if response.write.leadership_lost or True:",
            ),
        ),
        WAITED,
        "transfers, and writes that wait for brokers",
        known=1,
    ),
    Mutant(
        "continued-wait-executes-again",
        "a request to continue the wait of a committed write executes that write a second time",
        (
            Edit(
                "controller.decider:Decider._decide_one",
                "if continues_wait:",
                "if continues_wait and False:",
            ),
            Edit(
                "controller.decider:Decider._decide_one",
                "and not continues_wait",
                "",
            ),
        ),
        WAITED,
        "transfers, and writes that wait for brokers",
        known=1,
    ),
)
