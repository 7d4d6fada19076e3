"""The audit of an export that is still written: the same rules, each micro-batch with the
remembered state of those before it.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack

from replay.audit.check import audit, beginnings, partitions
from replay.audit.history import History
from replay.audit.memory import remember
from replay.audit.rules import RULES, Rule
from replay.streaming.open_spans import TOPICS_DDL, last_spans, open_spans
from replay.streaming.watch import Judge, Judged, Piece

NAME = "audit"
"""Name of the job in its directory."""


def judge(
    rules: Collection[Rule] = RULES,
    super_users: Collection[str] = (),
    *,
    allow_everyone_if_no_acl_found: bool = False,
    state_from: int = 0,
) -> Judge:
    """Findings against the rules (:data:`replay.kernels.finding.FINDING_DDL`) as alerts."""

    def judge_piece(piece: Piece, stack: ExitStack) -> Judged:
        memory = piece.remembered("records")
        history = History(
            # What a build remembered that had fewer columns has null in the others.
            piece.records
            if memory is None
            else memory.unionByName(piece.records, allowMissingColumns=True),
            piece.end_offset,
            piece.since,
            brokers_before=piece.remembered("brokers"),
            partitions_before=piece.remembered("partitions"),
            topics_before=piece.remembered("topics"),
            super_users=frozenset(super_users),
            allow_everyone_if_no_acl_found=allow_everyone_if_no_acl_found,
            state_from=state_from,
        )
        stack.enter_context(history.kept())
        spark = history.records.sparkSession
        facts = history.facts
        state = {
            "brokers": last_spans(spark, facts.brokers),
            "partitions": partitions(history),
            "topics": open_spans(spark, facts.topics, TOPICS_DDL),
            "records": remember(history),
        }
        begins = beginnings(history, rules)
        judging = [rule for rule in rules if begins[rule.id] is not None] or rules
        return Judged({"alerts": audit(history, judging)}, state)

    return judge_piece
