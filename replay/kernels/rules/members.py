"""Rules about the brokers in partitions, each checked at one moment: new replicas, ISR admissions
and their proposers, and new leaders.

KIP-903: a replica enters an ISR only under its registered broker epoch. A leader's proposal is
judged by the state before the record, the controller's own change by the state after the whole
batch, because a broker may register or leave within it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow.compute as pc

from raftlog.metadata.entities import NO_LEADER
from raftlog.metadata.versions import REPLICA_EPOCHS
from replay import rules
from replay.kernels.arrays import Bools, Ints, ints, whole
from replay.kernels.facts import BrokerSpan, Facts
from replay.kernels.findings import Finding, Judged, offence
from replay.kernels.lists import pairs_of

_UNKNOWN = -1
_ACTIVE = "registered, unfenced and not shutting down"


class _Asked(NamedTuple):
    """Brokers that records rely on, with the span of each that applies, if there is one."""

    rows: Ints
    brokers: Ints
    spans: Ints
    there: Bools


class Members:
    """Compares each broker that a record relies on with its registration at that moment."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._standings = facts.standings
        self._near = self._standings.near(0, 0)
        """Registrations that apply within the current slice, where lookups are cheap."""

    def check(self, judged: Judged) -> Iterator[Finding]:
        """Yield the findings in a slice."""
        steps = judged.steps
        if not steps.real.any():
            return
        first = int(steps.begins[steps.real].min())
        self._near = self._standings.near(first, int(steps.last_offset[steps.real].max()))
        yield from self._members(judged)
        yield from self._replicas(judged)
        yield from self._proposers(judged)
        yield from self._entered(judged)
        yield from self._leaders(judged)
        yield from self._survivors(judged)
        yield from self._recoveries(judged)

    def _ask(self, rows: Ints, brokers: Ints, at: Ints) -> _Asked:
        spans, there = self._near.at(brokers, at)
        return _Asked(rows, brokers, spans, there)

    def _inactive(self, asked: _Asked) -> Bools:
        inactive = self._standings.inactive
        return asked.there & (inactive[asked.spans] if len(inactive) else False)

    def _stale(self, asked: _Asked, claimed: Ints) -> Bools:
        epochs = self._standings.epochs
        registered = epochs[asked.spans] if len(epochs) else claimed
        return asked.there & (claimed != _UNKNOWN) & (claimed != registered)

    def _members(self, judged: Judged) -> Iterator[Finding]:
        steps = judged.steps
        column = whole(steps.table["isr_with_epochs"])
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        flat = column.flatten()
        place = np.full(len(column), -1, np.int64)
        place[steps.source[steps.real]] = np.flatnonzero(steps.real)
        rows = np.repeat(place, counts)
        brokers, claimed = ints(flat.field(0)), ints(flat.field(1))
        inside = judged.lists.contain(steps.isr[rows], brokers)
        rows, brokers, claimed = rows[inside], brokers[inside], claimed[inside]
        asked = self._ask(rows, brokers, steps.begins[rows])
        stale, inactive = self._stale(asked, claimed), self._inactive(asked)
        for index in np.flatnonzero(
            ~asked.there | stale | (claimed == _UNKNOWN) | inactive
        ).tolist():
            under = int(claimed[index])
            row = int(rows[index])
            if not asked.there[index]:
                yield self._found(judged, asked, index, rules.BROKER_NOT_REGISTERED, _ACTIVE)
            elif stale[index]:
                now = self._now(asked, index)
                yield self._found(
                    judged, asked, index, rules.STALE_BROKER_EPOCH, now, f"under epoch {under}"
                )
            elif under == _UNKNOWN:
                level = self._facts.level_at(int(steps.begins[row]))
                if level is not None and level >= REPLICA_EPOCHS:
                    yield self._found(
                        judged,
                        asked,
                        index,
                        rules.UNKNOWN_BROKER_EPOCH,
                        "the broker epoch of its last fetch",
                        "epoch -1",
                    )
            else:
                yield self._found(judged, asked, index, rules.INELIGIBLE_ISR_MEMBER, _ACTIVE)

    def _replicas(self, judged: Judged) -> Iterator[Finding]:
        """Yield the findings about new replicas. A broker may leave later and stay a replica."""
        steps, lists = judged.steps, judged.lists
        before = steps.before("replicas")
        moved = np.flatnonzero(steps.real & (steps.replicas != before))
        for word in range(lists.word_count):
            came = lists.word(steps.replicas[moved], word) & ~lists.word(before[moved], word)
            places, bits = pairs_of(came, word)
            rows = moved[places]
            brokers = np.array(lists.brokers, np.int64)[bits] if len(bits) else bits
            asked = self._ask(rows, brokers, steps.begins[rows])
            for index in np.flatnonzero(~asked.there).tolist():
                yield self._found(
                    judged, asked, index, rules.REPLICA_NOT_REGISTERED, "a registered broker"
                )

    def _proposers(self, judged: Judged) -> Iterator[Finding]:
        steps = judged.steps
        rows = np.flatnonzero(judged.proposed)
        claimed = steps.proposer_epoch[rows]
        asked = self._ask(rows, steps.proposer_id[rows], steps.begins[rows])
        for index in np.flatnonzero(~asked.there | self._stale(asked, claimed)).tolist():
            yield self._found(
                judged,
                asked,
                index,
                rules.STALE_PROPOSER_EPOCH,
                self._now(asked, index),
                f"under epoch {claimed[index]}",
            )

    def _entered(self, judged: Judged) -> Iterator[Finding]:
        rows, bits = judged.unproposed_members
        brokers = np.array(judged.lists.brokers, np.int64)[bits] if len(bits) else bits
        asked = self._ask(rows, brokers, judged.steps.last_offset[rows])
        inactive = self._inactive(asked)
        for index in np.flatnonzero(~asked.there | inactive).tolist():
            rule = (
                rules.INELIGIBLE_ISR_MEMBER if asked.there[index] else rules.BROKER_NOT_REGISTERED
            )
            yield self._found(judged, asked, index, rule, _ACTIVE)

    def _leaders(self, judged: Judged) -> Iterator[Finding]:
        steps = judged.steps
        now = steps.real & (steps.leader >= 0) & (steps.leader != steps.before("leader"))
        rows = np.flatnonzero(now & (steps.leader != NO_LEADER))
        asked = self._ask(rows, steps.leader[rows], steps.last_offset[rows])
        for index in np.flatnonzero(~asked.there | self._inactive(asked)).tolist():
            yield self._found(judged, asked, index, rules.INELIGIBLE_LEADER, _ACTIVE)

    def _survivors(self, judged: Judged) -> Iterator[Finding]:
        steps, members = judged.steps, judged.lists.members
        for row in np.flatnonzero(judged.unclean & judged.unproposed & judged.has_before).tolist():
            replicas = members[int(steps.replicas[row])]
            before = members[int(judged.isr_before[row])]
            eligible = int(judged.steps.before("eligible")[row])
            held = dict.fromkeys((*before, *(members[eligible] if eligible >= 0 else ())))
            brokers = np.array([each for each in held if each in replicas])
            rows = np.full(len(brokers), row)
            asked = self._ask(rows, brokers.astype(np.int64), steps.last_offset[rows])
            for index in np.flatnonzero(asked.there & ~self._inactive(asked)).tolist():
                now = self._now(asked, index)
                yield self._found(
                    judged,
                    asked,
                    index,
                    rules.UNCLEAN_ELECTION_TOO_EARLY,
                    "no live broker among the ISR and the eligible replicas",
                    f"broker {brokers[index]} of"
                    f" {'the ISR' if brokers[index] in before else 'the eligible replicas'}: {now}",
                )

    def _recoveries(self, judged: Judged) -> Iterator[Finding]:
        """Yield the findings about unclean recoveries, from the reports stored in their records."""
        steps = judged.steps
        column = steps.table["recovery"]
        if column.null_count == len(column):
            return
        for row in np.flatnonzero(judged.changed).tolist():
            text = steps.text("recovery", row)
            if text is None:
                continue
            if why := self._unfounded(judged, row, msgspec.json.decode(text)):
                yield offence(
                    rules.UNFOUNDED_RECOVERY,
                    judged.place(row),
                    broker_id=int(steps.leader[row]),
                    found=why,
                    expected="the live replica with the longest log of the newest leader epoch",
                )

    def _unfounded(self, judged: Judged, row: int, said: dict[str, Any]) -> str:
        """Return why the reports of a recovery do not justify its leader, or "" if they do."""
        steps, leader = judged.steps, int(judged.steps.leader[row])
        ends = {
            one["broker_id"]: (one.get("last_epoch", 0), int(one.get("log_end_offset", 0)))
            for one in said.get("logs", ())
        }
        if leader not in ends:
            return f"broker {leader} leads without having reported"
        longer = np.array([one for one, end in ends.items() if end > ends[leader]], np.int64)
        rows = np.full(len(longer), row)
        asked = self._ask(rows, longer, steps.last_offset[rows])
        for index in np.flatnonzero(asked.there & ~self._inactive(asked)).tolist():
            return f"broker {leader} leads, but broker {longer[index]} is live and has more records"
        last = ends.get(said.get("last_known_leader", 0), (-1, 0))
        silent = said.get("silent", [])
        if said.get("strategy") == "balanced" and silent and last[0] < 0:
            return f"brokers {silent} had not reported, and the last leader had no records"
        return ""

    def _now(self, asked: _Asked, index: int) -> str:
        if not asked.there[index]:
            return "not registered"
        span = self._span(asked, index)
        standing = ""
        if span.fenced:
            standing = ", fenced"
        elif span.in_controlled_shutdown:
            standing = ", shutting down"
        return f"epoch {span.broker_epoch}{standing}"

    def _span(self, asked: _Asked, index: int) -> BrokerSpan:
        return self._standings.spans[int(asked.spans[index])]

    def _found(
        self,
        judged: Judged,
        asked: _Asked,
        index: int,
        rule: rules.Rule,
        expected: str,
        found: str | None = None,
    ) -> Finding:
        return offence(
            rule,
            judged.place(int(asked.rows[index])),
            broker_id=int(asked.brokers[index]),
            also=self._span(asked, index).begins if asked.there[index] else None,
            found=self._now(asked, index) if found is None else found,
            expected=expected,
        )
