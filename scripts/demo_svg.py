"""Make docs/demo.svg from a recording of ``scripts/demo``. Uses the standard library only.

Record, then draw; the picture shows the whole text of the recording::

    script -q -f --timing=demo.timing -c 'stty cols 92; scripts/demo' demo.out
    python scripts/demo_svg.py demo.out demo.timing > docs/demo.svg

Each line appears when it was printed, ``SPEED`` times as fast; pauses are shortened to
``PAUSE_MAX_S``. Without animation, the picture shows the end. The repository's own path is drawn as
``~/raftlog``.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEED, PAUSE_MAX_S = 4.0, 6.0
CHAR_PX, LINE_PX, PAD_PX, SHOWN = 7.83, 17, 14, 36
STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#c9d1d9;white-space:pre}
.b{font-weight:bold;fill:#79c0ff}.d{fill:#8b949e}.g{fill:#7ee787}
.l{animation:show .01s linear backwards}
@keyframes show{from{opacity:0}to{opacity:1}}
"""  # noqa: E501
_HEADER = re.compile(rb"^Script started[^\n]*\n")
_ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([a-zA-Z])")


def lines_with_times(recording: bytes, timing: str) -> list[tuple[float, str]]:
    """Return each printed line with the time of its end."""
    recording = _HEADER.sub(b"", recording)
    found: list[tuple[float, str]] = []
    at, position, line = 0.0, 0, b""
    for row in timing.splitlines():
        delay, size = row.split()
        at += float(delay)
        for part in recording[position : position + int(size)].splitlines(keepends=True):
            line += part
            if line.endswith(b"\n"):
                found.append((at, line.decode().rstrip("\r\n")))
                line = b""
        position += int(size)
    return found


def spans(line: str) -> list[tuple[str, str]]:
    """Return a line's runs as (class, text); the class is bold, dim, green, or ""."""
    runs, style, position = [], "", 0
    for match in _ESCAPE.finditer(line):
        runs.append((style, line[position : match.start()]))
        position = match.end()
        if match[2] == "m":
            codes = match[1].split(";")
            style = "d" if "2" in codes else "b" if "1" in codes else "g" if "32" in codes else ""
    runs.append((style, line[position:]))
    return [run for run in runs if run[1]]


def joined(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the lines with the repository's own path shortened."""
    result: list[tuple[float, str]] = []
    for at, line in lines:
        if line.startswith(str(ROOT)) and result:
            begun, before = result.pop()
            result.append((begun, before + line.replace(str(ROOT), "~/raftlog")))
        else:
            result.append((at, line.replace(str(ROOT), "~/raftlog")))
    return result


def paced(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the time when each line appears in the picture."""
    result: list[tuple[float, str]] = []
    before = shown = 0.0
    for at, line in lines:
        shown += min(at - before, PAUSE_MAX_S) / SPEED
        before = at
        result.append((shown, line))
    return result


def scrolling(lines: list[tuple[float, str]]) -> str:
    """Return the style that scrolls the text when the window is full, and stops at the end."""
    over, end = len(lines) - SHOWN, lines[-1][0]
    if over <= 0:
        return ""
    steps = [
        f"{at / end:.2%}{{transform:translateY({-max(0, n + 1 - SHOWN) * LINE_PX}px)}}"
        for n, (at, _) in enumerate(lines)
    ]
    last = f"transform:translateY({-over * LINE_PX}px)"
    return (
        f".s{{{last};animation:scroll {end:.1f}s steps(1,end) backwards}}\n@keyframes"
        " scroll{0%{transform:none}"
        + "".join(steps[SHOWN:])
        + "}\n@media (prefers-reduced-motion:reduce){.l,.s{animation:none}}\n"
    )


def svg(lines: list[tuple[float, str]]) -> str:
    """Return the picture."""
    lines = paced([(0.0, "\x1b[32m$ scripts/demo"), *lines])
    columns = max(len(_ESCAPE.sub("", line).rstrip()) for _, line in lines)
    width, height = (
        round(columns * CHAR_PX) + 2 * PAD_PX,
        min(SHOWN, len(lines)) * LINE_PX + 2 * PAD_PX,
    )
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" xml:space="preserve" role="img" aria-label="What'
            ' scripts/demo prints">'
        ),
        f"<style>{STYLE}{scrolling(lines)}</style>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#0d1117"/>',
        f'<svg y="{PAD_PX}" width="{width}" height="{height - 2 * PAD_PX}"><g class="s">',
    ]
    for number, (at, line) in enumerate(lines):
        y = (number + 0.75) * LINE_PX
        runs = "".join(
            f'<tspan class="{style}">{escape(text)}</tspan>' if style else escape(text)
            for style, text in spans(line)
        ).rstrip()
        if runs:
            out.append(
                f'<text class="l" style="animation-delay:{at:.2f}s" x="{PAD_PX}"'
                f' y="{y:g}">{runs}</text>'
            )
    return "\n".join([*out, "</g></svg></svg>", ""])


def main() -> int:
    """Draw the recording named by the arguments."""
    recording, timing = (Path(name) for name in sys.argv[1:3])
    sys.stdout.write(svg(joined(lines_with_times(recording.read_bytes(), timing.read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
