"""What ``raftlog explain`` shows: in short, then line by line."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from raftlog.doctor.finding import Finding
from raftlog.incident.line import Line, Weight, took
from raftlog.incident.story import Story
from raftlog.plural import counted
from raftlog.printable import printable
from raftlog.words import moment

MOST_LINES = 200
_WIDTH_MIN, _WIDTH_MAX = 60, 100
_DAY_MS = 86_400_000
_MARK = {Weight.TROUBLE: "!", Weight.CHANGE: "*", Weight.NOTE: " "}

Now = tuple[list[Finding], str] | None
"""What the doctor finds, and its verdict; None: nobody was asked."""


def document(story: Story, now: Now) -> dict[str, Any]:
    """For programs."""
    return {
        "from_ms": story.from_ms,
        "to_ms": story.to_ms,
        "summary": list(story.summary),
        "missing": list(story.missing),
        "lines": [_line_document(one) for one in story.lines],
        "suspects": [_line_document(one) for one in story.suspects],
        "now": None
        if now is None
        else {
            "verdict": now[1],
            "findings": [
                {"code": one.code, "severity": one.severity.name.lower(), "cause": one.cause}
                for one in now[0]
            ],
        },
    }


def _line_document(one: Line) -> dict[str, Any]:
    return {
        "at_ms": one.at_ms,
        "until_ms": one.until_ms if one.until_ms > 0 else None,
        "code": one.code,
        "weight": one.weight.name.lower(),
        "subject": one.subject,
        "text": one.text,
        "because": list(one.because),
    }


def screen(story: Story, now: Now, *, everything: bool) -> str:
    """For people."""
    width = min(max(shutil.get_terminal_size().columns, _WIDTH_MIN), _WIDTH_MAX)
    parts = ["\n".join(_head(story, width))]
    shown = [one for one in story.lines if everything or one.weight > Weight.NOTE]
    left_out = len(story.lines) - len(shown)
    dated = story.to_ms - story.from_ms > _DAY_MS
    if shown:
        lines = []
        for one in shown[-MOST_LINES:]:
            lines += _line(one, width, dated=dated)
        parts.append("\n".join(lines))
    if len(shown) > MOST_LINES:
        parts.append(f"({len(shown) - MOST_LINES} earlier lines: narrow the period, or --json)")
    if story.suspects:
        text = "; ".join(f"{_clock(one.at_ms, dated=dated)} {one.text}" for one in story.suspects)
        parts.append("\n".join(_wrapped(f"Changed before the first trouble: {text}.", width)))
    if left_out:
        parts.append(f"({counted(left_out, 'line')} of what is normal: --all)")
    if now is not None:
        parts.append("\n".join(_now(now, width)))
    return "\n\n".join(parts)


def _head(story: Story, width: int) -> list[str]:
    period = f"{_iso(story.from_ms)} to {_iso(story.to_ms)} ({took(story.to_ms - story.from_ms)})"
    lines = [period]
    nothing = "nothing that looks like trouble" + (
        " in what could be read" if story.missing else ""
    )
    text = "; ".join(story.summary) if story.summary else nothing
    lines += _wrapped(f"{text[0].upper()}{text[1:]}.", width)
    for one in story.missing:
        lines += _wrapped(f"Missing: {one}", width, "         ")
    return lines


def _line(one: Line, width: int, *, dated: bool) -> list[str]:
    clock = _clock(one.at_ms, dated=dated)
    indent = " " * (len(clock) + 3)
    lines = _wrapped(f"{clock} {_MARK[one.weight]} {one.text}", width, indent)
    for why in one.because:
        lines += _wrapped(f"{indent}- {why}", width, indent + "  ")
    return lines


def _now(now: tuple[list[Finding], str], width: int) -> list[str]:
    findings, verdict = now
    lines = [f"Now: {verdict.upper()}"]
    for one in findings:
        lines += _wrapped(f"  {one.severity.name} {one.cause}", width, "    ")
    if findings:
        lines.append("  $ raftlog doctor")
    return lines


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        printable(text),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def _clock(at_ms: int, *, dated: bool) -> str:
    text = _iso(at_ms, millis=True)
    return f"{text[5:10]} {text[11:23]}" if dated else text[11:23]


def _iso(at_ms: int, *, millis: bool = False) -> str:
    at = moment(at_ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S") + (f".{at_ms % 1000:03d}" if millis else "Z")
