"""Tests that tests, files and links named in the documents exist."""

import html
import inspect
import os
import re
import sys
from pathlib import Path

import pytest
from command_runs import run_text
from reference_pages import json_documents

import raftlog
from raftlog.client.async_client import NAMESPACES
from replay.rules import choose

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / name
    for name in (
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "llms.txt",
    )
] + sorted((ROOT / "docs").rglob("*.md"))
PACKAGES = (
    "benchmarks",
    "broker",
    "controller",
    "proto",
    "raftlog",
    "replay",
    "simulation",
    "spec",
    "tests",
)


def code_words(text: str) -> list[str]:
    return re.findall(r"`([^`\s]+)`", text)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of headings."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_audit_has_as_many_rules_as_documents_say() -> None:
    """Except benchmarks, which keep the rules of their time, and imports from Kafka."""
    said = {
        (document.name, int(number))
        for document in DOCUMENTS
        if document.name != "benchmarks.md"
        for number in re.findall(r"\b(\d+) rules\b", document.read_text())
    }
    assert said
    there = {len(choose((), origin)) for origin in ("", "kafka")}
    assert [one for one in sorted(said) if one[1] not in there] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_file_and_heading_exists(document: Path) -> None:
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


@pytest.mark.nightly
def test_site_builds_without_a_broken_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Not quietly: mkdocs counts only printed warnings. [`make docs` failed, this passed.]"""
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        tmp_path,
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = run_text(command, cwd=ROOT, env=environment)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(DOCUMENTS)
    assert (tmp_path / "reference" / "json_schema.json").read_text() == json_documents.schema()
    shown = {
        page.relative_to(tmp_path).as_posix(): html.unescape(page.read_text()) for page in pages
    }
    assert not [name for name, text in shown.items() if "generated: " in text]
    library = shown["reference/python.html"]
    assert not [name for name in raftlog.__all__ if f'id="raftlog.{name}' not in library]
    calls = {
        f"{kind.__module__}.{kind.__name__}.{name}"
        for kind in (type(getattr(raftlog.AsyncClient("127.0.0.1:1"), one)) for one in NAMESPACES)
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    assert not [one for one in calls if f'id="{one}"' not in library], "inherited ones, too"
    assert not re.findall(r":\w+:<code>|::</p>", library)
    for name, text in (
        ("protocol.html", "TOPIC_ALREADY_EXISTS"),
        ("security.html", "UnregisterBroker"),
        ("correctness.html", "vote-not-durable"),
        ("proposals.html", "controller/test_heartbeats.py"),
        ("incidents.html", "became_leader"),
        ("configuration.html", "broker.session.timeout.ms"),
        ("reference/python.html", "client.topics"),
        ("reference/cli.html", "raftlog topics create"),
        ("reference/json.html", "topics describe"),
        ("reference/metrics.html", "raftlog_lowest_acknowledged_offset"),
        ("reference/broker.html", "WatchMany"),
    ):
        assert text in shown[name], name
    loads = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[^>]*|<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect)[^>]*"
    )
    elsewhere = {
        found for page in pages for found in loads.findall(page.read_text()) if "//" in found
    }
    assert elsewhere == set()


def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    assert not [
        path.name
        for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")
        if f"({path.name})" not in listed
    ]


def test_every_decision_named_in_the_code_exists() -> None:
    named = {
        match
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for match in re.findall(r"docs/decisions/([\w-]+\.md)", path.read_text())
    }
    assert named
    assert not [name for name in named if not (ROOT / "docs" / "decisions" / name).exists()]


def commands(text: str) -> list[str]:
    """Return the lines of console blocks that a user copies."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_commands_fit_into_80_columns(name: str) -> None:
    assert not [line for line in commands((ROOT / name).read_text()) if len(line) + 2 > 80]
