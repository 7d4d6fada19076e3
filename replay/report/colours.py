"""Colours of the plots: one set for light and dark, told apart by people who see no red or green,
each with 3:1 against both grounds.
"""

from __future__ import annotations

from replay.report.model import CRITICAL, NOTICE, PLANNED, WARNING

BLUE, VERMILION, AMBER, TEAL, PURPLE, PINK, GREY, BROWN = (
    "#3b7fc4", "#d0521f", "#b3801a", "#1c8f80", "#8b6cc8", "#c4588f", "#7b8794", "#96704a",
)  # fmt: skip
SERIES = (BLUE, AMBER, TEAL, PURPLE, PINK, BROWN, VERMILION, GREY)
"""Colours, in this order, of series without a meaning of their own."""

STATES = {
    "serving": BLUE,
    "leaving": PURPLE,
    "stopped": GREY,
    "fenced": VERMILION,
    "starting": AMBER,
    "holding": PINK,
}
PATTERNS = {
    "serving": "",
    "leaving": "/",
    "stopped": "\\",
    "fenced": "",
    "starting": "x",
    "holding": "",
}
"""Beside the colour, so that states differ in print and for everyone."""
THICKNESS = {
    "serving": 0.4,
    "leaving": 0.74,
    "stopped": 0.74,
    "fenced": 0.74,
    "starting": 0.74,
    "holding": 0.2,
}
"""Thickness of a state's bar, in lanes: normal states are thin."""
SEVERITIES = {CRITICAL: VERMILION, WARNING: AMBER, NOTICE: GREY, PLANNED: GREY}
SEVERITY_NAMES = {CRITICAL: "critical", WARNING: "warning", NOTICE: "notice", PLANNED: "planned"}


def faint(colour: str, alpha: float) -> str:
    """Return the colour with so much opacity."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
