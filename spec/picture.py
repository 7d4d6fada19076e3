"""Draw a counter-example of Lao.tla as a message sequence, in SVG.

What happens between two states is found by comparing them: TLC names few actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

State = Mapping[str, Any]
_TOKEN = re.compile(r'\s*(<<|>>|\|->|:>|@@|"[^"]*"|-?\d+|\w+|[\[\](){},])')
_STATE = re.compile(r"^State \d+:.*\n((?:.+\n)+)", re.MULTILINE)
_VARIABLE = re.compile(r"^/\\ (\w+) = (.*(?:\n(?!/\\ ).+)*)", re.MULTILINE)


class _Values:
    """A reader of values as TLC prints them: numbers and names, <<tuples>>, {sets}, records
    [name |-> value, ...], and functions (x :> y @@ ...), whose keys may be tuples.
    """

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def value(self) -> Any:
        token = self._next()
        if token == "<<":
            return tuple(self._list(">>"))
        if token == "{":
            return frozenset(self._list("}"))
        if token == "[":
            return dict(self._pairs("|->", ",", "]"))
        if token == "(":
            return dict(self._pairs(":>", "@@", ")"))
        if token[0] == '"':
            return token[1:-1]
        return int(token) if token.lstrip("-").isdigit() else token

    def _next(self) -> str:
        self._at += 1
        return str(self._tokens[self._at - 1])

    def _list(self, end: str) -> Iterator[Any]:
        while self._tokens[self._at] != end:
            yield self.value()
            if self._tokens[self._at] == ",":
                self._at += 1
        self._at += 1

    def _pairs(self, between: str, separator: str, end: str) -> Iterator[tuple[Any, Any]]:
        while True:
            key = self.value()
            if self._next() != between:
                raise ValueError(f"no {between} after {key}")
            yield key, self.value()
            if self._next() == end:
                return


def states_in(story: str) -> list[State]:
    """Return the states of a counter-example as TLC prints it."""
    return [
        {name: _Values(value).value() for name, value in _VARIABLE.findall(body)}
        for body in _STATE.findall(story)
    ]


@dataclass(frozen=True)
class Line:
    """A line of the picture: something that happens at a place, or a message to another."""

    at: str
    text: str
    to: str = ""


BROKEN = {
    "LaoNeverAhead": "LAO is ahead of what an unfenced broker has applied",
    "LaoNeverFalls": "LAO of the later controller is below that of the earlier one",
    "ReadAfterVisible": "a plain read shows less than was answered `visible`",
    "StrictReadLinearizable": "a strict read shows less than was acknowledged",
    "ReadLevels": "a plain read shows what is not applied",
}
_KINDS = {"w": "a write", "reg": "registers {}", "unf": "unfences {}", "fen": "fences {}"}


def lines_of(states: list[State]) -> Iterator[Line]:
    """Yield the events between each state and the next."""
    first = states[0]
    unfenced = [b for b, it in sorted(first["log"][0][0]["image"].items()) if it["by"]]
    yield Line("controller 1", f"leads; unfenced: {', '.join(unfenced) or 'nobody'}; log ends at 2")
    for before, after in pairwise(states):
        yield from _between(before, after)


def _between(before: State, after: State) -> Iterator[Line]:
    leader = f"controller {after['newest']}"
    if after["newest"] > before["newest"]:
        kept = after["start"][after["newest"] - 1]
        what = "is restored with" if after["gen"][after["newest"] - 1] > 1 else "is elected with"
        yield Line(leader, f"{what} the log up to {kept}; its first record is {kept + 1}")
        return
    for number, (old, new) in enumerate(zip(before["log"], after["log"], strict=True), 1):
        if len(new) > len(old):
            brokers = [b for b in new[-1]["image"] if new[-1]["image"][b] != new[-2]["image"][b]]
            what = _KINDS[new[-1]["t"]].format(*brokers)
            said = f"proposes {len(new)}: {what}{_lao(before, after, number)}"
            yield Line(f"controller {number}", said)
    for number, (old, new) in enumerate(zip(before["hw"], after["hw"], strict=True), 1):
        if new > old:
            what = "commits" if number == after["newest"] else "learns late that it committed"
            yield Line(f"controller {number}", f"{what} up to {new}{_lao(before, after, number)}")
    for process, seen in sorted(after["seen"].items()):
        changed = ("seen", "applied", "told", "known", "reported")
        if any(before[name][process] != after[name][process] for name in changed):
            broker, source = process[0], f"controller {seen}"
            told = after["told"][process]
            heard = f", LAO {told['l']}" if told != before["told"][process] else ""
            yield Line(source, f"records up to {after['applied'][process]}{heard}", to=broker)
            report = after["reported"][process][seen - 1]
            knows = f", knows LAO {report['k']}" if report["k"] else ""
            yield Line(
                broker, f"has applied {report['a']}{knows}{_lao(before, after, seen)}", to=source
            )
    for process, lease in sorted(after["lease"].items()):
        if lease != before["lease"][process]:
            if lease:
                yield Line(leader, "a lease for strict reads", to=process[0])
            else:
                yield Line(process[0], "its lease ends")
    for broker, process in sorted(after["inc"].items()):
        if process != before["inc"][broker]:
            yield Line(broker, "a new process begins")
    if after["token"] != before["token"]:
        yield Line("client", f"reads at {after['token']['o']}")


def _lao(before: State, after: State, number: int) -> str:
    lao = after["lao"][number - 1]
    return f"; LAO is {lao}" if lao != before["lao"][number - 1] else ""


ROW, TOP, COLUMN, LEFT = 34, 64, 210, 120


def picture(title: str, end: str, lines: list[Line]) -> str:
    """Return the SVG of lines, with what is wrong at the end."""
    places = [line.at for line in lines] + [line.to for line in lines if line.to]
    order = sorted({*places}, key=lambda place: (place[0] != "c", place == "client", place))
    x = {place: LEFT + COLUMN * at for at, place in enumerate(order)}
    height = TOP + ROW * (len(lines) + 2)
    width = 2 * LEFT + COLUMN * (len(order) - 1) + 60
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#335"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="16" y="22" font-weight="bold" fill="#223">{escape(title)}</text>',
    ]
    for place, middle in x.items():
        out.append(
            f'<text x="{middle}" y="{TOP - 14}" text-anchor="middle" fill="#223">{place}</text>'
            f'<line x1="{middle}" y1="{TOP - 6}" x2="{middle}" y2="{height - ROW}" stroke="#bbc"/>'
        )
    for row, line in enumerate(lines):
        y, begin = TOP + ROW * row + 20, x[line.at]
        if line.to:
            target = x[line.to]
            out.append(
                f'<line x1="{begin}" y1="{y}" x2="{target}" y2="{y}" stroke="#335" '
                f'marker-end="url(#to)"/>'
            )
            middle, anchor, above = (begin + target) // 2, "middle", y - 5
        else:
            out.append(f'<circle cx="{begin}" cy="{y}" r="4" fill="#335"/>')
            middle, anchor, above = begin + 9, "start", y + 4
        out.append(
            f'<text x="{middle}" y="{above}" text-anchor="{anchor}" fill="#112" stroke="#fff" '
            f'stroke-width="3" paint-order="stroke">{escape(line.text)}</text>'
        )
    out.append(
        f'<text x="16" y="{height - 14}" font-weight="bold" fill="#b11">{escape(end)}</text></svg>'
    )
    return "\n".join(out) + "\n"


def draw(name: str, promise: str, story: str) -> str:
    """Return the picture of a counter-example."""
    end = f"{promise} is broken: {BROKEN.get(promise, 'see docs/specification.md')}"
    return picture(name, end, list(lines_of(states_in(story))))
