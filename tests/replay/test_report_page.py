"""The page as a document: self-contained, safe, bounded, readable in light and dark."""

import errno
import os
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from jinja2 import Environment
from markupsafe import Markup
from msgspec.structs import replace

from raftlog.segments.files import temporary
from raftlog.text import printable
from replay.errors import ReplayError
from replay.jobs.audit import AuditResult
from replay.kernels.findings import Finding
from replay.report import page
from replay.report.model import MAX_LANES, Lane, ReportResult
from replay.report.timeline import STATES

HOSTILE = '</script><img src=x onerror=alert(1)><b>&amp;\u2028" onmouseover="alert(2)'


class Document(HTMLParser):
    """The elements, links, ids and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._script = False
        self.feed(text)
        self.ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        (self.scripts if self._script else self.words).append(data)

    @property
    def panels(self) -> int:
        return sum(tag == "svg" for tag, _ in self.elements)


@pytest.fixture(scope="module")
def plain() -> Document:
    return document(sample.result())


def document(result: ReportResult) -> Document:
    return Document(page.render_page(result))


def luminance(colour: str) -> float:
    """Return the relative luminance by WCAG."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def themes() -> list[dict[str, str]]:
    """Return the variables of the style sheet: light, dark."""
    style = (Path(page.__file__).parent / "templates" / "report.css").read_text()
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", style)
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks]


def test_page_loads_no_external_resource(plain: Document) -> None:
    links = [each[name] for _, each in plain.elements for name in ("src", "href") if name in each]
    assert links
    assert [link for link in links if not str(link).startswith("#")] == []
    (policy,) = [
        each["content"]
        for _, each in plain.elements
        if each.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_every_link_of_the_page_has_a_target(plain: Document) -> None:
    targets = {str(each["href"])[1:] for tag, each in plain.elements if tag == "a"}
    assert targets <= set(plain.ids)
    assert {"timeline", "incidents", "incident-1", "audit"} <= targets
    assert len(plain.ids) == len(set(plain.ids))


def test_timeline_is_drawn_without_a_script(plain: Document) -> None:
    """Bars and curves are in the document; the script adds zoom."""
    fenced = [each for _, each in plain.elements if each.get("class") == "bar at fenced"]
    assert [each["style"] for each in fenced] == ["--b:0.5;--w:0.25"]
    lines = [str(each["d"]) for tag, each in plain.elements if tag == "path" and each["d"]]
    assert len(lines) == 2 * 2 + 3
    assert plain.panels == 2


def test_incidents_are_rows_with_their_extent(plain: Document) -> None:
    shown = " ".join(" ".join(plain.words).split())
    assert "1 No leader for clicks-0; broker 2 fenced: session timed out critical" in shown
    assert "30 min 1 partition 2 h 4 partitions 1 30 min" in shown
    before = [each for tag, each in plain.elements if tag == "details" and each.get("class") == "before"]  # fmt: skip
    assert [("open" in each) for each in before] == [False]
    assert "Changed on purpose in the ten minutes before: 1" in shown


def test_violated_rule_is_reported_first_with_its_offsets() -> None:
    rule, *kept = sample.audited().rules
    finding = Finding(
        "ISR_EMPTY", "critical", 712, [712, 700], 2, sample.at(71), "User:bob", "partition orders-1", None, "orders", 1, None,
        "an empty ISR", "a member", rule.documentation,
    )  # fmt: skip
    broken = AuditResult(1235, 1, [replace(rule, findings=1), *kept], [finding])
    result = replace(sample.result(), audit=broken)
    shown = " ".join(" ".join(document(result).words).split())
    assert not result.passed
    assert "The audit found broken rules: 1 finding." in shown
    assert (
        "ISR_EMPTY 712, 700 2026-11-21 10:11:00Z User:bob partition orders-1 an empty ISR a member"
        in shown
    )


def test_names_are_escaped_everywhere(plain: Document) -> None:
    harmless = [tag for tag, _ in plain.elements]
    lane = Lane("broker 1", HOSTILE, [sample.span("fenced", 0, 120, HOSTILE)])
    hurt = sample.incident(title=HOSTILE, events=[sample.event("x", 3, 60, None, HOSTILE)] * 3)
    read = document(
        sample.result(lanes=[sample.lanes()[0], lane, *sample.lanes()[2:]], incidents=[hurt])
    )
    assert [tag for tag, _ in read.elements] == harmless
    assert not [each for _, each in read.elements if {"onmouseover", "onerror"} & set(each)]
    assert printable(HOSTILE) in "".join(read.words)


def test_largest_page_is_bounded() -> None:
    text = "session timed out"
    spans = [sample.span(each, at, at + 0.5, text) for at in range(120) for each in STATES]
    lanes = [Lane(f"broker {number}", "rack", spans) for number in range(MAX_LANES)]
    events = [sample.event("x", 2, 1, 2, "t" * 300)] * 8
    incidents = [sample.incident(number=number, events=events) for number in range(1, 13)]
    largest = page.render_page(sample.result(lanes=lanes, incidents=incidents))
    assert len(largest) - len(page.render_page(sample.result())) < 4_000_000


def test_text_and_marks_have_contrast_in_light_and_dark() -> None:
    light, dark = themes()
    assert set(light) == set(dark)
    for theme in (light, dark):
        for ground in ("page", "card"):
            for text in ("ink", "soft", "accent", "good", "warning", "critical", "notice"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
            for colour in page.COLOURS.values():
                assert contrast(colour, theme[ground]) >= 3, (colour, ground)
        for grade in ("good", "warning", "critical"):
            assert contrast(theme[grade], theme[f"{grade}-tint"]) >= 4.5, grade


def test_states_differ_by_more_than_colour() -> None:
    """Each state has its own rule in the style sheet, except the plain bar of one."""
    style = (Path(page.__file__).parent / "templates" / "report.css").read_text()
    rules = dict(re.findall(r"^\.bar\.(\w+) \{ ([^}]*)\}", style, re.MULTILINE))
    marks = [rules.get(state, "") for state in STATES]
    assert len(set(marks)) == len(STATES)
    assert set(rules) - set(STATES) == {"reign"}


def test_panel_scales_counts_to_the_highest_and_durations_logarithmically() -> None:
    counts = page.panel("", ("a", "", [2, 2, 0, 1]), ("b", "", [0, 0, 0, 0]))
    assert counts.ticks == [(100, "0"), (0, "2")]
    assert [each.line for each in counts.curves] == ["M0,0H2V100H3V50H4", "M0,100H4"]
    assert counts.curves[0].area == "M0,0H2V100H3V50H4V100H0Z"
    waits = page.panel("", ("a", "", [None, 625_000, None, 1]), durations=True)
    assert waits.ticks[:3] == [(100, "1 ms"), (66.67, "100 ms"), (33.33, "10 s")]
    assert re.fullmatch(r"M1,3\.4H2M3,100H4", waits.curves[0].line)


def test_unwritable_path_is_reported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "report.html"
    for wrong, why in (
        (tmp_path, "is a directory"),
        (tmp_path / "x" / "y", "x is not a directory"),
    ):
        with pytest.raises(ReplayError, match=why):
            page.writable(str(wrong))
    assert page.writable(str(path)) == path
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(ReplayError, match=r"report\.html: No space left on device"):
        page.writable(str(path))


def test_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Also where a link has its temporary name: it is not written through that."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "kept").write_text("kept")
    temporary(tmp_path / "report.html").symlink_to(tmp_path / "kept")
    page.write("new", tmp_path / "report.html")
    with pytest.raises(ReplayError, match="can't be written"):
        page.write("new", tmp_path / "taken")
    assert [(tmp_path / name).read_text() for name in ("kept", "report.html")] == ["kept", "new"]
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "report.html", "taken"}


def test_page_is_written_into_a_pipe_or_device_and_never_replaces_it(tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    device.symlink_to("/dev/full")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        page.write("new", page.writable(str(pipe)))
        assert os.read(reader, 100) == b"new"
    finally:
        os.close(reader)
    with pytest.raises(ReplayError, match=r"link: No space left on device"):
        page.write("new", page.writable(str(device)))
    assert (pipe.is_fifo(), device.is_symlink()) == (True, True)
    assert Path("/dev/full").is_char_device()
    assert {*tmp_path.iterdir()} == {pipe, device}


def test_page_is_written_to_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("pages/report.html")
    (tmp_path / "pages").mkdir()
    for text in ("first", "second"):
        page.write(text, page.writable(str(tmp_path / "link")))
        assert (tmp_path / "pages/report.html").read_text() == text
    assert (tmp_path / "link").is_symlink()


def test_page_of_an_imported_log_does_not_mention_lao() -> None:
    ours = sample.result()
    theirs = document(replace(ours, header=replace(ours.header, origin="kafka")))
    assert "lao" not in theirs.ids
    assert [each.panels for each in (document(ours), theirs)] == [2, 1]
    assert "log of" in " ".join(theirs.words)
    assert "Kafka" in theirs.words
    # The sample's rules are ours.
    said = [word for word in theirs.words if "LAO" in word]
    assert [word for word in said if not re.search("went.back", word, re.IGNORECASE)] == []
    assert any("LAO" in word for word in document(ours).words)


def test_log_text_is_escaped_in_templates() -> None:
    evil = "a\x1b[31m<b>\u202e"
    template = Environment(autoescape=True, finalize=page.sanitize).from_string(
        "{{ name }}|{{ ours }}|{{ count }}|{{ name | upper }}"
    )
    shown = template.render(name=evil, ours=Markup("<i>\u202e</i>"), count=3)
    assert shown == "a\\x1b[31m&lt;b&gt;\\u202e|<i>\u202e</i>|3|A\\x1b[31M&lt;B&gt;\\u202e"
