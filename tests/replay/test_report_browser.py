"""The page in a browser. Collected only where one is installed: see ``conftest.py``."""

import re
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from browser import Browser, find_browser
from PIL import Image

from replay.report import page

WIDTH, HEIGHT = 1280, 1000
Pixels = list[tuple[int, int, int]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    found = find_browser()
    assert found is not None
    return Browser(found, tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page.render_page(sample.result()), encoding="utf-8")
    return path.as_uri()


def rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def near(pixel: tuple[int, int, int], wanted: tuple[int, int, int], by: int = 24) -> bool:
    return all(abs(one - other) <= by for one, other in zip(pixel, wanted, strict=True))


def rows(path: Path) -> list[Pixels]:
    with Image.open(path) as image:
        assert image.size == (WIDTH, HEIGHT)
        flat: list[Any] = list(image.convert("RGB").get_flattened_data())
    return [flat[start : start + WIDTH] for start in range(0, len(flat), WIDTH)]


def runs(row: Pixels, wanted: tuple[int, int, int], least: int = 40) -> list[tuple[int, int]]:
    """Return stretches of a row in about that colour, from and to (exclusive)."""
    edges = [
        index
        for index in range(1, WIDTH)
        if near(row[index], wanted) != near(row[index - 1], wanted)
    ]
    return [
        (begin, end)
        for begin, end in pairwise(edges)
        if near(row[begin], wanted) and end - begin >= least
    ]


def over(ground: str, colour: str, alpha: float) -> tuple[int, int, int]:
    """Blend a colour with an opacity over a background."""
    red, green, blue = (
        round(below * (1 - alpha) + above * alpha)
        for below, above in zip(rgb(ground), rgb(colour), strict=True)
    )
    return red, green, blue


@pytest.mark.nightly
def test_report_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    """[One incident's table made the page 687 px wide; titles of curves were cut.]"""
    measure = """const frame = document.querySelector("iframe");
      const all = [...frame.contentDocument.querySelectorAll(".title span, .incident .what, .extent")];
      const cut = all.filter((each) => each.getBoundingClientRect().right > frame.contentWindow.innerWidth);
      document.title = `${frame.contentDocument.documentElement.scrollWidth} px, ${cut.length} of ${all.length} cut`;"""
    # A window of a browser without a screen is 500 px wide at the least: a frame may be narrower.
    frame = f'<iframe width="390" height="800" style="border:0" srcdoc="{escape(page.render_page(sample.result()))}"></iframe>'
    path = tmp_path / "frame.html"
    path.write_text(
        f"<!doctype html>{frame}<script>onload = () => setTimeout(() => {{ {measure} }}, 2000)</script>"
    )
    shown = re.search(r"<title>(\d+) px, (\d+) of (\d+) cut</title>", browser.dom(path.as_uri()))
    assert shown is not None
    assert (int(shown[1]), int(shown[2])) == (390, 0)
    assert int(shown[3]) >= 10


@pytest.mark.nightly
def test_link_to_an_incident_draws_everything_and_zooms_in(browser: Browser, report: str) -> None:
    shown = browser.dom(f"{report}#incident-1")
    root = re.search(r"<html[^>]*>", shown)
    assert root is not None
    assert "data-fault" not in root[0]
    assert 'data-drawn="yes"' in root[0]
    assert re.search(r'class="incident critical chosen"', shown)
    begins, ends = (
        float(each) for each in re.search(r'data-shown="(\d+) (\d+)"', root[0]).groups()
    )
    assert sample.BEGINS_MS < begins < sample.at(60) < sample.at(90) < ends < sample.ENDS_MS


@pytest.mark.nightly
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_timeline_is_correct_in_light_and_dark(
    browser: Browser, report: str, tmp_path: Path, dark: bool
) -> None:
    browser.screenshot(report, tmp_path / "page.png", width=WIDTH, height=HEIGHT, dark=dark)
    picture = rows(tmp_path / "page.png")
    ground, card = ("#0f1317", "#171c22") if dark else ("#f6f7f8", "#ffffff")
    assert near(picture[2][2], rgb(ground), 2)
    # In the middle of broker 2's lane: it serves, is fenced for the third quarter, and serves.
    fenced = [
        (y, found)
        for y, row in enumerate(picture)
        if (found := runs(row, rgb(page.COLOURS["fenced"])))
    ]
    assert fenced
    y, ((begin, end),) = fenced[len(fenced) // 2]
    serving = runs(picture[y], over(card, page.COLOURS["serving"], 0.42))
    (left, _), (_, right) = serving[0], serving[-1]
    assert (begin - left) / (right - left) == pytest.approx(0.5, abs=0.01)
    assert (end - left) / (right - left) == pytest.approx(0.75, abs=0.01)
    # Text is there, and light on dark or dark on light.
    ink = rgb("#e4e9ee" if dark else "#1a2027")
    assert sum(near(pixel, ink, 40) for row in picture[:120] for pixel in row) > 500
