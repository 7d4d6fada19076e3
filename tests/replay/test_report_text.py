"""What a report shows of the log's names and reasons."""

from __future__ import annotations

from jinja2 import Environment
from markupsafe import Markup

from replay.report.page import harmless
from replay.report.words import escape

EVIL = "a\x1b[31m<b>\u202e"


def test_text_of_the_log_is_harmless_in_templates_and_figures() -> None:
    page = Environment(autoescape=True, finalize=harmless).from_string(
        "{{ name }}|{{ ours }}|{{ count }}|{{ name | upper }}"
    )
    shown = page.render(name=EVIL, ours=Markup("<i>\u202e</i>"), count=3)
    assert shown == "a\\x1b[31m&lt;b&gt;\\u202e|<i>\u202e</i>|3|A\\x1b[31M&lt;B&gt;\\u202e"
    assert escape(EVIL) == "a\\x1b[31m&lt;b&gt;\\u202e"
