"""What the documents name is there: tests, files, and links between them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
PACKAGES = ("benchmarks", "broker", "controller", "proto", "raftlog", "replay", "simulation", "tests")


def code_words(text: str) -> list[str]:
    return re.findall(r"`([^`\s]+)`", text)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_test_that_the_table_of_proposals_names_exists() -> None:
    """``…`` stands for the rest of a name."""
    defined = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    named = {
        word for word in code_words((ROOT / "docs" / "proposals.md").read_text()) if re.fullmatch(r"test_[\w…]+", word)
    }
    assert len(named) > 100
    patterns = {word: re.compile(word.replace("…", r"\w*")) for word in named}
    assert not [word for word, pattern in patterns.items() if not any(map(pattern.fullmatch, defined))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_and_heading_that_is_named_exists(document: Path) -> None:
    text = document.read_text()
    files = [path.as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.*")]
    files += [path.as_posix() for path in DOCUMENTS]
    for word in code_words(text):
        if re.fullmatch(r"[\w/.]+\.(py|proto|md)", word):
            assert any(name.endswith("/" + word) for name in files), word
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = document.parent / path if path else document
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target.read_text()), (path, anchor)
