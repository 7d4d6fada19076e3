"""Imports and work of a command line before its command."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command_lines import Raftlog
from command_runs import run_text

from raftlog.cli import built_in, completion
from raftlog.cli.main import build, build_for

LOADED = """
import atexit, sys
sys.argv = ["raftlog", *sys.argv[1:]]
atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr))
from raftlog.cli.entry import main
main()
"""


def run(*arguments: str, **variables: str) -> tuple[str, set[str]]:
    """Return the output of a command, and the packages that it imported."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("RAFTLOG_")}
    done = run_text(
        [sys.executable, "-c", LOADED, *arguments], timeout=60, env={**environment, **variables}
    )
    modules = done.stderr[done.stderr.rindex("['") :]
    return done.stdout, {name.partition(".")[0] for name in json.loads(modules.replace("'", '"'))}


def test_help_sections_and_commands_match() -> None:
    of = [one.section for one in built_in.COMMANDS if " " not in one.name]
    assert set(of) == set(built_in.SECTIONS)
    assert of == sorted(of, key=built_in.SECTIONS.index), "the order of the help"
    assert {one.section for one in built_in.COMMANDS if " " in one.name} == {""}


def test_version_imports_neither_typer_nor_grpc() -> None:
    out, packages = run("--version", "--json")
    assert set(json.loads(out)) == {"version", "commit", "python", "codec"}
    assert not packages & {"typer", "grpc", "structlog", "rich"}


@pytest.mark.parametrize("columns", [80, 300])
@pytest.mark.parametrize("group", ["", "cluster", "kv", "deploy"])
def test_command_list_matches_the_summaries_of_the_commands(columns: int, group: str) -> None:
    texts = []
    for app in (build_for([group] if group else []), build()):
        command: Any = typer.main.get_command(app)
        command = command.commands[group] if group else command
        with command.make_context("raftlog", [], resilient_parsing=True) as context:
            context.terminal_width = context.max_content_width = columns
            texts.append(command.get_help(context))
    assert texts[0] == texts[1]


def lists(command: Any, context: Any) -> Iterator[str]:
    """The help of a command and of all within, at 80 columns."""
    context.terminal_width = context.max_content_width = 80
    yield command.get_help(context)
    for name, inner in getattr(command, "commands", {}).items():
        yield from lists(inner, type(context)(inner, parent=context, info_name=name))


def test_each_summary_fits_one_line_of_80_columns() -> None:
    command: Any = typer.main.get_command(build())
    checked = 0
    with command.make_context("raftlog", [], resilient_parsing=True) as context:
        for text in lists(command, context):
            headings = "|".join(["Commands", *built_in.SECTIONS])
            for found in re.findall(rf"(?m)^(?:{headings}):\n((?:  .*\n?)+)", text):
                for line in found.splitlines():
                    assert not line.endswith("..."), "cut"
                    assert not line.startswith("    "), "in two lines"
                checked += len(found.splitlines())
    assert checked > 100


def test_command_list_loads_no_command() -> None:
    out, packages = run("--help")
    assert "topics" in out
    assert not packages & {"structlog", "numpy", "pyarrow", "grpc", "google", "asyncio", "rich"}


def test_nothing_slow_is_imported_before_ctrl_c_is_silent() -> None:
    program = """
import signal, sys
before = {*sys.modules}
import raftlog.cli
print(*({*sys.modules} - before))
import raftlog.cli.entry
print(*({*sys.modules} - before))
print(signal.getsignal(signal.SIGINT))
"""
    done = run_text([sys.executable, "-c", program], timeout=60, check=True)
    before, ready, disposition = done.stdout.splitlines()
    assert set(before.split()) == {"__future__", "raftlog", "raftlog.cli"}
    assert not {"typing", "contextlib", "importlib", "collections"} & set(ready.split())
    assert disposition == "0", "SIG_DFL"


def test_help_of_a_client_command_imports_no_grpc_and_no_log() -> None:
    out, packages = run("topics", "--help")
    assert "create" in out
    assert not packages & {"grpc", "structlog", "pydantic", "importlib_metadata", "numpy"}


def test_client_command_imports_no_structlog_and_no_rich() -> None:
    _, packages = run("doctor", "--bootstrap-controller", "127.0.0.1:1", "--timeout", "0.3")
    assert "grpc" in packages
    assert not packages & {"structlog", "rich", "pydantic", "pyarrow", "uvloop"}


def as_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m raftlog``, started by a shell whose completion it may show."""
    line = shlex.join([sys.executable, "-m", "raftlog", *arguments])
    return run_text(["bash", "-c", f"{line}; exit $?"], timeout=60)


def test_usage_names_the_module_when_it_was_run_as_one() -> None:
    for arguments in ([], ["topics", "list"]):
        line = " ".join(["python -m raftlog", *arguments])
        assert as_module(*arguments, "--help").stdout.startswith(f"Usage: {line} [OPTIONS]")
    assert "python -m raftlog --help" in as_module("nope").stderr


def test_module_exits_like_the_script() -> None:
    script = Path(sys.executable).with_name("raftlog")
    for arguments in (["--version"], ["config", "check", "/none"]):
        expected = run_text([script, *arguments])
        ran = as_module(*arguments)
        assert ran.returncode == expected.returncode
        assert ran.stdout == expected.stdout
        assert ran.stderr.replace("python -m raftlog", "raftlog") == expected.stderr


def test_module_prints_the_completion_of_the_script() -> None:
    said = as_module("--show-completion").stdout
    assert "_RAFTLOG_COMPLETE=complete_bash" in said
    assert "python" not in said


def completed(words: str, **variables: str) -> tuple[list[str], set[str]]:
    """Return the completions that bash offers for a line whose last word is incomplete."""
    out, packages = run(
        _RAFTLOG_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(words.count(" ")),
        **variables,
    )
    return out.split(), packages


def test_words_are_completed_by_their_command_alone() -> None:
    names, _ = completed("raftlog ")
    assert set(names) == {name for name in built_in.BY_NAME if " " not in name}
    for words, some in (
        ("raftlog cluster ", {"describe", "features", "loglevel", "perf"}),
        ("raftlog configs alter topic orders --set retention.m", {"retention.ms="}),
    ):
        names, packages = completed(words)
        assert {*names} >= some
        assert not packages & {"numpy", "pyarrow", "grpc", "structlog", "rich"}


@pytest.mark.parametrize(
    ("words", "names"),
    {
        "co": "configs consume config controller",
        "topics de": "delete describe",
        "topic de": "delete describe",
        "cluster features down": "downgrade",
        "kv lease re": "revoke",
        "history ex": "export_cursor",
        "cluster features upgrade me": "metadata.version=",
        "configs alter topic orders --delete retention.": "retention.bytes retention.ms",
        "configs alter topic orders --set retention.m": "retention.ms=",
        "configs describe topic orders --key retention.m": "retention.ms",
        "config describe topic orders --key retention.m": "retention.ms",
        "topics create t --config retention.m": "retention.ms=",
    }.items(),
)
def test_word_is_completed(
    words: str, names: str, monkeypatch: pytest.MonkeyPatch, raftlog: Raftlog
) -> None:
    monkeypatch.setattr("typer._click.utils._detect_program_name", lambda: "raftlog")
    monkeypatch.setenv(completion.ASKED, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"raftlog {words}")
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ") + 1))
    assert raftlog().out.split() == names.split()


def test_history_completes_only_keys_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_topic_names", lambda: ["orders", "other"])
    monkeypatch.setattr(completion, "_broker_ids", lambda: ["4"])
    monkeypatch.setenv(completion.ASKED, "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "3")
    for kind, typed, expected in [
        ("topic", "or", ["orders"]),
        ("broker", "", ["4"]),
        ("acl", "", []),
    ]:
        monkeypatch.setenv("COMP_WORDS", f"raftlog history {kind} {typed}")
        assert completion.history_keys(typed) == expected


@pytest.mark.parametrize("variables", [{}, {"RAFTLOG_BOOTSTRAP_SERVER": "127.0.0.1:1"}])
def test_names_that_cannot_be_listed_have_no_completion(variables: dict[str, str]) -> None:
    names, _ = completed("raftlog topics describe ", **variables)
    assert names == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, None),
        ({"_RAFTLOG_COMPLETE": "source_bash"}, None),
        ({"_RAFTLOG_COMPLETE": "complete_bash", "COMP_WORDS": "raftlog", "COMP_CWORD": "1"}, []),
        (
            {
                "_RAFTLOG_COMPLETE": "complete_bash",
                "COMP_WORDS": "raftlog topics de",
                "COMP_CWORD": "2",
            },
            ["topics"],
        ),
        ({"_RAFTLOG_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "raftlog to"}, []),
        (
            {"_RAFTLOG_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "raftlog topics "},
            ["topics"],
        ),
    ],
)
def test_completion_parses_the_words_before_the_cursor(
    variables: dict[str, str], words: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (completion.ASKED, "COMP_WORDS", "COMP_CWORD", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert completion.words_to_complete() == words
