"""Contradictions: no node that keeps the rules sends a message that its receiver refuses as one.

No message of a simulation is forged.

Would catch: two leaders of one epoch, an election won by a log that lacks committed records, a
leader that answers by a log that it does not have, an epoch that grows without elections.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from raftlog.quorum.events import Effect, Event, Refused
from simulation.checks.api import Checker, CheckFailedError, ControllerView


class Contradictions(Checker):
    """Checker: no controller receives a contradiction."""

    def __init__(self) -> None:
        self.effects = 0
        """Number of checked effects.

        Other refusals are not judged: honest nodes cause hardly any.
        """

    @override
    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        self.effects += len(effects)
        for effect in effects:
            if type(effect) is Refused and effect.contradiction:
                raise CheckFailedError(
                    f"{host.name} refuses a {effect.message}: {effect.field}: {effect.reason}"
                )
