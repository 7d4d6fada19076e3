"""The story of a period: its lines in order of time, and their display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from raftlog.client.wire import reader
from raftlog.ops.doctor import Verdict, paragraph, screen_width, verdict
from raftlog.ops.evidence import Timeline
from raftlog.ops.quorum_findings import Finding
from raftlog.ops.story_lines import RULES, Line, Weight, took
from raftlog.text import counted, moment

BEFORE_MS = 10 * 60 * 1000
"""Time in ms before the first trouble within which a change counts as a possible cause."""


@dataclass(frozen=True)
class Story:
    """The story of a period."""

    from_ms: int
    to_ms: int
    lines: tuple[Line, ...]
    summary: tuple[str, ...]
    """One sentence for each kind of trouble."""
    suspects: tuple[Line, ...]
    """Changes within ten minutes before the first trouble."""
    missing: tuple[str, ...]
    """Evidence that could not be read, with the reasons."""


def tell(timeline: Timeline) -> Story:
    """Return the story of a period."""
    found = [line for rule in RULES for line in rule(timeline)]
    # A hung leader is the cause of the election, so its line comes first.
    lines = tuple(
        sorted(
            _without_doubles(found, timeline.to_ms),
            key=lambda one: (one.at_ms, -one.weight, one.code == "ELECTION"),
        )
    )
    missing = tuple(_missing(timeline))
    return Story(
        timeline.from_ms, timeline.to_ms, lines, _summary(lines), _suspects(lines), missing
    )


def _without_doubles(lines: list[Line], to_ms: int) -> list[Line]:
    """Return the lines, without those that other lines explain.

    A lost link is left out if the node's own journal records its stop or pause. So are brokers that
    reach no controller while the controllers report a time without a leader, and a single broker
    that has a line about its fencing.
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
    """Return whether other lines explain that brokers reached no controller: the fencing of the
    only broker, or outages that cover more than half of the time. (Controllers that start a minute
    later also have no leader briefly.).
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
    """Return the time for which two lines overlap, in ms."""
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
            if longest.lasted_ms and not (
                code == "ELECTION" and any(x.lasted_ms == 0 for x in these)
            ):
                text += f", {took(longest.lasted_ms)}{' at most' if len(these) > 1 else ''}"
            said.append(text)
    return tuple(said)


_IN_SHORT = {
    "ELECTION": ("leader change", "leader changes"),
    "NO_LEADER": ("outage without a leader", "outages without a leader"),
    "NO_CONTROLLER": (
        "period in which brokers reached no controller",
        "periods in which brokers reached no controller",
    ),
    "CRASHED": ("crash", "crashes"),
    "STOPPED": ("stop after an error", "stops after an error"),
    "LOOP_STALL": ("stalled process", "stalled processes"),
    "LOG_DAMAGED": ("damaged log", "damaged logs"),
    "DISK_STALL": ("hung disk", "hung disks"),
    "SLOW_FLUSH": ("slow disk", "slow disks"),
    "SPACE_LOW": ("full disk", "full disks"),
    "CLOCK_WRONG": ("wrong clock", "wrong clocks"),
    "WRITES_REFUSED": ("refusal of writes", "refusals of writes"),
    "UNREACHABLE": ("unreachable node", "unreachable nodes"),
    "FENCED": ("fenced broker", "fenced brokers"),
    "LAO_STALL": ("stall of visibility (LAO)", "stalls of visibility (LAO)"),
    "PARTITIONS_OFFLINE": ("loss of partitions", "losses of partitions"),
    "UNCLEAN_ELECTION": ("unclean election", "unclean elections"),
    "WRITE_GAP": ("gap in the writes", "gaps in the writes"),
}
"""Singular and plural of each code that may be trouble, in the order of the summary."""


def _suspects(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    first = next((one.at_ms for one in lines if one.weight is Weight.TROUBLE), None)
    if first is None:
        return ()
    return tuple(
        one
        for one in lines
        if one.weight is Weight.CHANGE and first - BEFORE_MS <= one.at_ms <= first
    )


def _missing(timeline: Timeline) -> list[str]:
    missing = [f"{one.name}: {one.failure}" for one in timeline.nodes if one.failure]
    left_out: Counter[str] = Counter()
    for event in timeline.events():
        left_out[f"{event.role}-{event.node_id}"] += event.left_out
    missing += [
        f"{name}: {counted(count, 'event')} lost, which arrived too fast for its journal"
        for name, count in left_out.items()
        if count
    ]
    if timeline.log.failure:
        missing.append(f"the log: {timeline.log.failure}")
    if timeline.log.late:
        missing.append(f"the earlier log: {timeline.log.late}")
    return missing


MOST_LINES = 200
_DAY_MS = 86_400_000
_MARK = {Weight.TROUBLE: "!", Weight.CHANGE: "*", Weight.NOTE: " "}


@dataclass(frozen=True)
class Now:
    """The doctor's verdict and findings at the end of the period."""

    verdict: Verdict
    findings: Sequence[Finding]


@dataclass(frozen=True)
class ExplainedLine:
    """A line of a story."""

    at_ms: int
    until_ms: int | None
    """The line's end, or None if it is an instant or has no known end."""
    code: str
    """Stable identifier; it never changes, though ``text`` may."""
    weight: Weight
    subject: str
    text: str
    because: tuple[str, ...]
    """Further evidence that explains the line."""


@dataclass(frozen=True)
class Explained:
    """The story of a period, and the cluster's current state."""

    from_ms: int
    to_ms: int
    lines: tuple[ExplainedLine, ...]
    summary: tuple[str, ...]
    """One sentence for each kind of trouble."""
    suspects: tuple[ExplainedLine, ...]
    """Changes within ten minutes before the first trouble."""
    missing: tuple[str, ...]
    """Evidence that could not be read, with the reasons."""
    now: Now | None
    """The current state, or None if no node was queried."""


def explained(story: Story, now: Sequence[Finding] | None) -> Explained:
    """Return the document for ``raftlog explain``. ``now``: see ``screen``."""
    line = reader(ExplainedLine, until_ms=lambda one: one.until_ms if one.until_ms > 0 else None)
    return reader(
        Explained,
        lines=lambda one: tuple(map(line, one.lines)),
        suspects=lambda one: tuple(map(line, one.suspects)),
        now=lambda _: None if now is None else Now(verdict(now), now),
    )(story)


def screen(story: Story, now: Sequence[Finding] | None, *, everything: bool) -> str:
    """Return the story as text. ``now``: the doctor's findings, or None if it did not run."""
    width = screen_width()
    shown = [one for one in story.lines if everything or one.weight > Weight.NOTE]
    left_out = len(story.lines) - len(shown)
    dated = story.to_ms - story.from_ms > _DAY_MS
    parts = [_head(story, width)]
    if shown:
        parts.append([text for one in shown[-MOST_LINES:] for text in _shown(one, width, dated)])
    if len(shown) > MOST_LINES:
        parts.append([f"({len(shown) - MOST_LINES} earlier lines: narrow the period, or --json)"])
    if story.suspects:
        text = "; ".join(f"{_clock(one.at_ms, dated)} {one.text}" for one in story.suspects)
        parts.append(paragraph(f"Changes before the first sign of trouble: {text}.", width))
    if left_out:
        parts.append([f"({counted(left_out, 'line')} about normal events omitted: --all)"])
    if now is not None:
        lines = [f"Now: {verdict(now).value.upper()}"]
        for one in now:
            lines += paragraph(f"  {one.severity.name} {one.cause}", width, then="    ")
        parts.append([*lines, "  $ raftlog doctor"] if now else lines)
    return "\n\n".join("\n".join(lines) for lines in parts)


def _head(story: Story, width: int) -> list[str]:
    period = f"{_iso(story.from_ms)}Z to {_iso(story.to_ms)}Z"
    nothing = "no sign of trouble" + (
        " in the evidence that could be read" if story.missing else ""
    )
    text = "; ".join(story.summary) if story.summary else nothing
    lines = [f"{period} ({took(story.to_ms - story.from_ms)})"]
    lines += paragraph(f"{text[0].upper()}{text[1:]}.", width)
    for one in story.missing:
        lines += paragraph(f"Missing: {one}", width, then="         ")
    return lines


def _shown(one: Line, width: int, dated: bool) -> list[str]:
    clock = _clock(one.at_ms, dated)
    indent = " " * (len(clock) + 3)
    lines = paragraph(f"{clock} {_MARK[one.weight]} {one.text}", width, then=indent)
    for why in one.because:
        lines += paragraph(f"{indent}- {why}", width, then=indent + "  ")
    return lines


def _clock(at_ms: int, dated: bool) -> str:
    text = f"{_iso(at_ms)}.{at_ms % 1000:03d}"
    return f"{text[5:10]} {text[11:]}" if dated else text[11:]


def _iso(at_ms: int) -> str:
    return moment(at_ms).strftime("%Y-%m-%dT%H:%M:%S")
