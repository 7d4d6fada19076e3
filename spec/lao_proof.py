"""Prove LaoNeverAhead for any number of brokers, epochs, writes and fencings.

TLC searches Lao.tla within bounds. Here an inductive invariant is stated, and z3 discharges each of
its parts, for the first state and for each step.

The model is that of Lao.tla without what the promise does not rest on: one generation, no new
processes, no read leases. Reports are left out: all that is used of a report is that it is not
above what its broker has applied, so a tracker may take any such number. What is proven for more
behaviours holds for fewer.

Needs z3: ``pip install z3-solver``, 29 MB, and so none of the project's dependencies.

    python spec/lao_proof.py                    # the proof
    python spec/lao_proof.py joins at LAO       # the same with a rule switched off: it must fail
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

try:
    z3: Any = importlib.import_module("z3")
except ImportError:
    sys.exit("this proof needs z3: pip install z3-solver")

BROKER = z3.DeclareSort("Broker")
INT = z3.IntSort()


@dataclass(frozen=True)
class State:
    """A state; names as in Lao.tla. Functions of epochs, offsets and brokers."""

    newest: Any
    chosen: Any
    length: Callable[[Any], Any]
    start: Callable[[Any], Any]
    hw: Callable[[Any], Any]
    limit: Callable[[Any], Any]
    lao: Callable[[Any], Any]
    writer: Callable[[Any, Any], Any]
    """(epoch, offset) -> the epoch that wrote this entry of the log; 0: the first entry."""
    unfenced: Callable[[Any, Any, Any], Any]
    """(epoch, offset, broker) -> by whom it is unfenced in this image; 0: at first; -1: fenced."""
    applied: Callable[[Any], Any]

    def is_epoch(self, e: Any) -> Any:
        """An epoch that has begun."""
        return z3.And(e >= 1, e <= self.newest)

    def in_log(self, e: Any, n: Any) -> Any:
        """An offset of the log of e."""
        return z3.And(self.is_epoch(e), n >= 1, n <= self.length(e))

    def electable(self, d: Any) -> Any:
        """The log of d has all that is committed, so a later leader may begin with it."""
        return z3.And(
            self.is_epoch(d),
            self.length(d) >= self.chosen,
            self.writer(d, self.chosen) == self.writer(self.newest, self.chosen),
        )

    def may_be_read(self, d: Any, n: Any) -> Any:
        """The image at n of the log of d is committed, or may be one day."""
        return z3.And(self.electable(d), n >= self.chosen, n <= self.length(d))


def variables() -> State:
    """Return an arbitrary state."""
    return State(
        z3.Int("newest"),
        z3.Int("chosen"),
        z3.Function("length", INT, INT),
        z3.Function("start", INT, INT),
        z3.Function("hw", INT, INT),
        z3.Function("limit", INT, INT),
        z3.Function("lao", INT, INT),
        z3.Function("writer", INT, INT, INT),
        z3.Function("unfenced", INT, INT, BROKER, INT),
        z3.Function("applied", BROKER, INT),
    )


d, e, m, n, q = z3.Ints("d e m n q")
b = z3.Const("b", BROKER)


def invariant(s: State) -> dict[str, Any]:
    """Return the parts of the invariant."""
    all_, and_, or_, if_ = z3.ForAll, z3.And, z3.Or, z3.Implies
    w = s.writer(d, n)
    return {
        "bounds": and_(s.newest >= 1, s.chosen >= 1, s.chosen <= s.length(s.newest)),
        "offsets": all_(
            e,
            if_(
                s.is_epoch(e),
                and_(
                    s.start(e) >= 1, s.start(e) < s.length(e), s.hw(e) >= 1, s.hw(e) <= s.chosen,
                    s.lao(e) >= 0,
                    if_(s.lao(e) > 0, and_(s.start(e) < s.hw(e), s.lao(e) <= s.hw(e))),
                    if_(e < s.newest, and_(s.hw(e) <= s.limit(e), s.limit(e) <= s.chosen)),
                ),
            ),
        ),
        "a later log begins with what is committed": all_(
            [d, e], if_(and_(s.is_epoch(d), s.is_epoch(e), d < e), s.limit(d) <= s.start(e))
        ),
        "writers": all_(
            [d, n],
            if_(
                s.in_log(d, n),
                and_(
                    w <= d, (w == d) == (n > s.start(d)), (w == 0) == (n == 1), w >= 0,
                    if_(w >= 1, and_(n <= s.length(w), n > s.start(w))),
                ),
            ),
        ),
        "log matching, entries": all_(
            [d, n, m],
            if_(and_(s.in_log(d, n), w >= 1, m >= 1, m <= n), s.writer(w, m) == s.writer(d, m)),
        ),
        "log matching, images": all_(
            [d, n, m, b],
            if_(
                and_(s.in_log(d, n), w >= 1, m >= 1, m <= n),
                s.unfenced(w, m, b) == s.unfenced(d, m, b),
            ),
        ),
        "what is committed stays": all_(
            [e, m],
            and_(
                if_(
                    and_(s.is_epoch(e), s.start(e) < m, m <= s.hw(e)), s.writer(s.newest, m) == e
                ),
                if_(
                    and_(s.is_epoch(e), e < s.newest, s.start(e) < m, m <= s.limit(e)),
                    s.writer(s.newest, m) == e,
                ),
            ),
        ),
        "who unfences is of the log": all_(
            [d, n, b],
            if_(
                s.in_log(d, n),
                and_(
                    s.unfenced(d, n, b) >= -1,
                    s.unfenced(d, n, b) <= s.writer(d, n),
                    if_(s.unfenced(d, n, b) >= 1, s.applied(b) > s.start(s.unfenced(d, n, b))),
                ),
            ),
        ),
        "a deposed controller counts whom it may have unfenced": all_(
            [e, b],
            if_(
                and_(
                    s.is_epoch(e), e < s.newest, s.limit(e) > s.start(e),
                    all_(
                        q,
                        if_(and_(s.limit(e) <= q, q <= s.length(e)), s.unfenced(e, q, b) == -1),
                    ),
                ),
                all_(
                    [d, n],
                    if_(
                        s.may_be_read(d, n),
                        or_(s.unfenced(d, n, b) == -1, s.unfenced(d, n, b) > e),
                    ),
                ),
            ),
        ),
        "LaoNeverAhead, whatever is committed": all_(
            [e, d, n, b],
            if_(
                and_(s.is_epoch(e), s.may_be_read(d, n), s.unfenced(d, n, b) >= 0),
                s.applied(b) >= s.lao(e),
            ),
        ),
    }  # fmt: skip


def lemma(s: State) -> Any:
    """Return what follows from the invariant: a log that a later leader may begin with has all
    entries of an epoch that its controller knows as committed.
    """
    return z3.ForAll(
        [d, e, m],
        z3.Implies(
            z3.And(s.electable(d), s.is_epoch(e), s.start(e) < m, m <= s.hw(e)),
            s.writer(d, m) == e,
        ),
    )


def promise(s: State) -> Any:
    """LaoNeverAhead: an unfenced broker has applied every LAO."""
    return z3.ForAll(
        [e, b],
        z3.Implies(
            z3.And(s.is_epoch(e), s.unfenced(s.newest, s.chosen, b) >= 0),
            s.applied(b) >= s.lao(e),
        ),
    )


def at(function: Callable[[Any], Any], place: Any, value: Any) -> Callable[[Any], Any]:
    """Return the function with another value at one place."""
    return lambda x: z3.If(x == place, value, function(x))


def first(s: State) -> Any:
    """The state in which everything begins."""
    return z3.And(
        s.newest == 1, s.chosen == 1, s.length(1) == 2, s.start(1) == 1, s.hw(1) == 1,
        s.lao(1) == 0, s.writer(1, 1) == 0, s.writer(1, 2) == 1,
        z3.ForAll(b, z3.And(s.unfenced(1, 1, b) >= -1, s.unfenced(1, 1, b) <= 0)),
        z3.ForAll(b, z3.And(s.applied(b) >= 1, s.unfenced(1, 2, b) == s.unfenced(1, 1, b))),
    )  # fmt: skip


def steps(s: State, off: str = "") -> Iterator[tuple[str, Any, State]]:
    """Yield each step: its name, when it is possible, and the state after it."""
    epoch, offset, broker = z3.Int("epoch"), z3.Int("offset"), z3.Const("broker", BROKER)
    value, source, secret = z3.Ints("value source secret")
    end = s.length(epoch)

    def appended(change: Callable[[Any], Any]) -> State:
        return replace(
            s,
            length=at(s.length, epoch, end + 1),
            writer=lambda x, y: z3.If(z3.And(x == epoch, y == end + 1), epoch, s.writer(x, y)),
            unfenced=lambda x, y, z: z3.If(
                z3.And(x == epoch, y == end + 1), change(z), s.unfenced(x, y, z)
            ),
        )

    # A deposed controller appends, too.
    yield "write", s.is_epoch(epoch), appended(lambda z: s.unfenced(epoch, end, z))
    yield (
        "fence",
        s.is_epoch(epoch),
        appended(lambda z: z3.If(z == broker, -1, s.unfenced(epoch, end, z))),
    )
    may_join = z3.And(
        z3.Or(off == "joins at LAO", s.applied(broker) >= s.lao(epoch)),
        z3.Or(off == "joins at the epoch's start", s.applied(broker) > s.start(epoch)),
    )
    yield (
        "unfence",
        z3.And(s.is_epoch(epoch), may_join),
        appended(lambda z: z3.If(z == broker, epoch, s.unfenced(epoch, end, z))),
    )
    yield (
        "commit",
        z3.And(
            offset > s.hw(s.newest), offset > s.start(s.newest), offset <= s.length(s.newest),
            offset >= s.chosen,
        ),
        replace(s, hw=at(s.hw, s.newest, offset), chosen=offset),
    )  # fmt: skip
    yield (
        "learn",
        z3.And(
            s.is_epoch(epoch), epoch < s.newest, offset > s.hw(epoch), offset > s.start(epoch),
            offset <= s.limit(epoch),
        ),
        replace(s, hw=at(s.hw, epoch, offset)),
    )  # fmt: skip
    new = s.newest + 1
    yield (
        "elect",
        z3.And(
            s.electable(source), offset >= s.chosen, offset <= s.length(source),
            secret >= s.chosen, secret <= offset,
            z3.Or(secret == s.chosen, z3.And(source == s.newest, secret > s.start(s.newest))),
        ),
        replace(
            s, newest=new, chosen=secret,
            length=at(s.length, new, offset + 1), start=at(s.start, new, offset),
            hw=at(s.hw, new, s.hw(source)), limit=at(s.limit, s.newest, secret),
            lao=at(s.lao, new, z3.IntVal(0)),
            writer=lambda x, y: z3.If(
                x == new, z3.If(y == offset + 1, new, s.writer(source, y)), s.writer(x, y)
            ),
            unfenced=lambda x, y, z: z3.If(
                x == new,
                z3.If(y == offset + 1, s.unfenced(source, offset, z), s.unfenced(source, y, z)),
                s.unfenced(x, y, z),
            ),
        ),
    )  # fmt: skip
    yield (
        "apply",
        value >= s.applied(broker),
        replace(s, applied=at(s.applied, broker, value)),
    )
    begin = s.length(epoch) if off == "fencing counts when committed" else s.hw(epoch)
    last = s.hw(epoch) if off == "unfencing counts when proposed" else s.length(epoch)
    member = z3.And(begin <= q, q <= last, s.unfenced(epoch, q, b) >= 0)
    yield (
        "advance",
        z3.And(
            s.is_epoch(epoch), s.hw(epoch) > s.start(epoch), value >= s.lao(epoch),
            value <= s.hw(epoch), z3.ForAll([q, b], z3.Implies(member, s.applied(b) >= value)),
        ),
        replace(s, lao=at(s.lao, epoch, value)),
    )  # fmt: skip


EFFORT = 20_000_000
"""Resources of z3 for one part, whatever the speed of the machine."""


def contradict(what: str, *claims: Any) -> bool:
    """Return whether the claims contradict each other, as far as z3 finds out."""
    for options in ({"auto_config": False, "mbqi": False}, {}, {"random_seed": 7}):
        solver = z3.SimpleSolver()
        solver.set(rlimit=EFFORT, **options)
        solver.add(*claims)
        found = solver.check()
        if found == z3.unsat:
            return True
        if found == z3.sat:
            break
    print(f"  {what}: {'does not hold' if found == z3.sat else 'not proven'}", flush=True)
    return False


def prove(off: str = "") -> int:
    """Return how many of the proof's parts do not hold, with a rule switched off."""
    s = variables()
    before = invariant(s)
    failed = checked = 0
    for name, part in before.items():
        checked += 1
        failed += not contradict(f"first: {name}", first(s), z3.Not(part))
    checked += 1
    failed += not contradict("the lemma", *before.values(), z3.Not(lemma(s)))
    known = (*before.values(), lemma(s))
    for step, possible, after in steps(s, off):
        for name, part in invariant(after).items():
            checked += 1
            claims = (*known, possible, z3.Not(part))
            failed += not contradict(f"{step}: {name}", *claims)
    checked += 1
    failed += not contradict("the promise", *before.values(), z3.Not(promise(s)))
    print(f"{off or 'all rules'}: {checked - failed} of {checked} parts hold")
    return failed


if __name__ == "__main__":
    sys.exit(1 if prove(" ".join(sys.argv[1:])) else 0)
