"""The story of a period: all lines in the order of time, and what they come to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from raftlog.incident import brokers, elections, nodes, writes
from raftlog.incident.evidence import Evidence
from raftlog.incident.line import Line, Weight, took
from raftlog.plural import counted

BEFORE_MS = 10 * 60 * 1000
"""Changes so long before the first trouble are told apart: one of them may have begun it."""

RULES = (
    elections.elections,
    elections.outages,
    brokers.fences,
    brokers.lao_stalls,
    brokers.alone,
    nodes.processes,
    nodes.links,
    nodes.stalls,
    writes.alterations,
    writes.partitions,
    writes.gaps,
)


@dataclass(frozen=True)
class Story:
    """``summary``: one sentence for each kind of trouble. ``missing``: what could not be heard, and
    why. ``suspects``: what was changed before the first trouble, within ten minutes.
    """

    from_ms: int
    to_ms: int
    lines: tuple[Line, ...]
    summary: tuple[str, ...]
    suspects: tuple[Line, ...]
    missing: tuple[str, ...]


def tell(seen: Evidence) -> Story:
    """Everything that is known, in order."""
    found = [line for rule in RULES for line in rule(seen)]
    # A leader that hung is why there was another: what it tells comes before.
    lines = tuple(
        sorted(
            _without_doubles(found, seen.to_ms),
            key=lambda one: (one.at_ms, -one.weight, one.code == "ELECTION"),
        )
    )
    return Story(
        seen.from_ms, seen.to_ms, lines, _summary(lines), _suspects(lines), tuple(_missing(seen))
    )


def _without_doubles(lines: list[Line], to_ms: int) -> list[Line]:
    """A link that was lost says nothing new where the node tells itself that it stopped or did not
    run. Nor do brokers that reach no controller where the controllers tell that nobody led, or a
    single one whose fence is told.
    """
    kept = []
    for line in lines:
        if line.code == "NO_CONTROLLER" and _is_told(line, lines, to_ms):
            continue
        if line.code == "UNREACHABLE" and any(
            other.subject == line.subject
            and other.code in ("STOPPED", "CRASHED", "LOOP_STALL")
            and other.at_ms <= (line.until_ms if line.until_ms > 0 else other.at_ms) + 2_000
            and other.until_ms >= line.at_ms - 2_000
            for other in lines
        ):
            continue
        kept.append(line)
    return kept


def _is_told(line: Line, lines: list[Line], to_ms: int) -> bool:
    """Whether other lines tell that brokers reached no controller: the fence of the only one, or
    outages that are more than half of the time [controllers that start after a minute know no
    leader for a moment, too].
    """
    alone_ms = _both_ms(line, line, to_ms)
    if any(
        other.code == "FENCED" and other.subject == line.subject and _both_ms(line, other, to_ms)
        for other in lines
    ):
        return True
    outages = [other for other in lines if other.code == "NO_LEADER"]
    return 2 * sum(_both_ms(line, other, to_ms) for other in outages) > alone_ms


def _both_ms(one: Line, other: Line, to_ms: int) -> int:
    """How long two lines have in common."""
    ends = [to_ms if line.until_ms < 0 else line.until_ms for line in (one, other)]
    return max(0, min(ends) - max(one.at_ms, other.at_ms))


def _summary(lines: tuple[Line, ...]) -> tuple[str, ...]:
    by_code: dict[str, list[Line]] = {}
    for line in lines:
        if line.weight is Weight.TROUBLE or line.code == "ELECTION":
            by_code.setdefault(line.code, []).append(line)
    said = []
    for code, (one_, many) in _IN_SHORT.items():
        these = [one for one in by_code.get(code, []) if code != "ELECTION" or one.weight > 1]
        if these:
            longest = max(these, key=lambda one: one.lasted_ms)
            text = counted(len(these), one_, many)
            subjects = sorted({one.subject for one in these} - {"cluster", "partitions"})
            if code != "ELECTION" and subjects:
                text += f" ({', '.join(subjects[:3])}{', …' if len(subjects) > 3 else ''})"
            if longest.lasted_ms:
                text += f", {took(longest.lasted_ms)}{' at most' if len(these) > 1 else ''}"
            said.append(text)
    return tuple(said)


_IN_SHORT = {
    "ELECTION": ("change of the leader", "changes of the leader"),
    "NO_LEADER": ("outage without a leader", "outages without a leader"),
    "NO_CONTROLLER": (
        "time in which brokers reached no controller",
        "times in which brokers reached no controller",
    ),
    "CRASHED": ("crash", "crashes"),
    "STOPPED": ("stop by an error", "stops by an error"),
    "LOOP_STALL": ("stalled process", "stalled processes"),
    "DISK_STALL": ("hung disk", "hung disks"),
    "SLOW_FLUSH": ("slow disk", "slow disks"),
    "SPACE_LOW": ("full disk", "full disks"),
    "CLOCK_WRONG": ("wrong clock", "wrong clocks"),
    "WRITES_REFUSED": ("refusal of writes", "refusals of writes"),
    "UNREACHABLE": ("unreachable node", "unreachable nodes"),
    "FENCED": ("fenced broker", "fenced brokers"),
    "LAO_STALL": ("stall of visibility (LAO)", "stalls of visibility (LAO)"),
    "PARTITIONS_OFFLINE": ("loss of partitions", "losses of partitions"),
    "WRITE_GAP": ("gap in the writes", "gaps in the writes"),
}
"""Of each code that may be trouble, in the order of the summary."""


def _suspects(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    first = next((one.at_ms for one in lines if one.weight is Weight.TROUBLE), None)
    if first is None:
        return ()
    return tuple(
        one
        for one in lines
        if one.weight is Weight.CHANGE and first - BEFORE_MS <= one.at_ms <= first
    )


def _missing(seen: Evidence) -> list[str]:
    missing = [f"{one.name}: {one.failure}" for one in seen.nodes if one.failure]
    left_out: Counter[str] = Counter()
    for event in seen.events():
        left_out[f"{event.role}-{event.node_id}"] += event.left_out
    missing += [
        f"{name}: {counted(count, 'event')}, too many at once for its journal"
        for name, count in left_out.items()
        if count
    ]
    if seen.log.failure:
        missing.append(f"the log: {seen.log.failure}")
    if seen.log.late:
        missing.append(f"the log before: {seen.log.late}")
    return missing
