"""What a command line does before it does anything: as little as it can."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from raftlog.cli import built_in, completion
from raftlog.cli.main import build, build_list

ROOT = Path(__file__).resolve().parents[2]
LOADED = """
import sys
sys.argv = ["raftlog", *sys.argv[1:]]
from raftlog.cli.entry import main
try:
    main()
finally:
    print(sorted(sys.modules), file=sys.stderr)
"""


def run(*arguments: str, **variables: str) -> tuple[str, set[str]]:
    """What a command printed, and the packages it has imported."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("RAFTLOG_")}
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**environment, **variables},
    )
    modules = done.stderr[done.stderr.rindex("['") :]
    return done.stdout, {name.partition(".")[0] for name in json.loads(modules.replace("'", '"'))}


def test_the_built_in_commands_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["raftlog.commands"]
    ours = {
        one.name: one.value + (f" [{','.join(one.extras)}]" if one.extras else "")
        for one in built_in.COMMANDS
    }
    assert ours == declared


@pytest.mark.parametrize("name", sorted(built_in.BY_NAME))
def test_each_of_them_can_be_loaded(name: str) -> None:
    app = build([built_in.BY_NAME[name]])
    names = {one.name for one in app.registered_groups}
    assert name in names | {one.name for one in app.registered_commands}


def test_the_version_needs_neither_typer_nor_grpc() -> None:
    out, packages = run("--version")
    assert out.startswith("raftlog ")
    assert not packages & {"typer", "grpc", "structlog", "rich"}
    out, packages = run("--version", "--json")
    assert set(json.loads(out)) == {"version", "commit", "python", "codec"}
    assert not packages & {"typer", "grpc", "structlog", "rich"}


@pytest.mark.parametrize("columns", [80, 300])
def test_the_list_of_all_commands_says_what_they_say_themselves(columns: int) -> None:
    texts = []
    for app in (build_list(), build()):
        command = typer.main.get_command(app)
        with command.make_context("raftlog", [], resilient_parsing=True) as context:
            context.terminal_width = context.max_content_width = columns
            texts.append(command.get_help(context))
    assert texts[0] == texts[1]


def test_the_list_of_all_commands_loads_none() -> None:
    out, packages = run("--help")
    assert "topics" in out
    assert not packages & {"structlog", "numpy", "pyarrow", "grpc", "google", "asyncio", "rich"}


def test_until_ctrl_c_is_silent_nothing_slow_is_imported() -> None:
    program = """
import signal, sys
before = {*sys.modules}
import raftlog.cli
print(*({*sys.modules} - before))
import raftlog.cli.entry
print(*({*sys.modules} - before))
print(signal.getsignal(signal.SIGINT))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    before, ready, disposition = done.stdout.splitlines()
    assert set(before.split()) == {"__future__", "raftlog", "raftlog.cli"}
    assert not {"typing", "contextlib", "importlib", "collections"} & set(ready.split())
    assert disposition == "0", "SIG_DFL"


def test_help_of_a_client_command_needs_no_grpc_and_no_log() -> None:
    out, packages = run("topics", "--help")
    assert "create" in out
    assert not packages & {"grpc", "structlog", "pydantic", "importlib_metadata", "numpy"}


def test_a_client_command_needs_no_structlog_and_no_rich() -> None:
    _, packages = run("doctor", "--bootstrap-controller", "127.0.0.1:1", "--timeout", "0.3")
    assert "grpc" in packages
    assert not packages & {"structlog", "rich", "pydantic", "pyarrow", "uvloop"}


def as_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m raftlog``, below a shell, whose completion it may show."""
    line = shlex.join([sys.executable, "-m", "raftlog", *arguments])
    return subprocess.run(
        ["bash", "-c", f"{line}; exit $?"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [("topics", "list"), ("quorum", "describe"), ()])
def test_usage_names_the_module_that_was_run(arguments: tuple[str, ...]) -> None:
    said = as_module(*arguments, "--help").stdout
    assert said.startswith(f"Usage: {' '.join(['python -m raftlog', *arguments])} [OPTIONS]")
    assert "python -m raftlog --help" in as_module("nope").stderr


def test_module_ends_as_the_script_does() -> None:
    script = Path(sys.executable).with_name("raftlog")
    for arguments in (["--version"], ["topics", "list", "--nope"], ["config", "check", "/none"]):
        expected = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
        ran = as_module(*arguments)
        assert ran.returncode == expected.returncode
        assert ran.stdout == expected.stdout
        assert ran.stderr.replace("python -m raftlog", "raftlog") == expected.stderr


def test_completion_that_the_module_shows_is_that_of_the_script() -> None:
    said = as_module("--show-completion").stdout
    assert "_RAFTLOG_COMPLETE=complete_bash" in said
    assert "python" not in said


# --- completion ------------------------------------------------------------------------------


def completed(words: str, **variables: str) -> tuple[list[str], set[str]]:
    """What bash is offered for a line; the word at its end is being typed."""
    out, packages = run(
        _RAFTLOG_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(words.count(" ")),
        **variables,
    )
    return out.split(), packages


def test_the_first_word_is_completed_without_loading_a_command() -> None:
    names, packages = completed("raftlog co")
    assert names == ["config", "configs", "consume", "controller"]
    assert "grpc" not in packages
    names, _ = completed("raftlog ")
    assert set(names) == set(built_in.BY_NAME)


def test_a_subcommand_is_completed_by_its_command_alone() -> None:
    for words in ("raftlog topics de", "raftlog topic de"):
        names, packages = completed(words)
        assert names == ["delete", "describe"]
        assert not packages & {"numpy", "pyarrow", "grpc", "structlog", "rich"}


def test_keys_are_completed_by_kind() -> None:
    names, _ = completed("raftlog configs alter topic orders --delete retention.")
    assert names == ["retention.bytes", "retention.ms"]
    names, _ = completed("raftlog configs alter topic orders --set retention.m")
    assert names == ["retention.ms="]
    for words in ("configs describe topic orders", "config describe topic orders"):
        names, _ = completed(f"raftlog {words} --key retention.m")
        assert names == ["retention.ms"]
    names, _ = completed("raftlog topics create t --config retention.m")
    assert names == ["retention.ms="]


def test_kinds_of_history_and_features_are_completed_without_a_cluster() -> None:
    assert completed("raftlog history ex")[0] == ["export_cursor"]
    names, packages = completed("raftlog features upgrade me")
    assert names == ["metadata.version="]
    assert "grpc" not in packages


def test_the_keys_of_a_history_are_those_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_names_that_nobody_can_tell_are_none(variables: dict[str, str]) -> None:
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
def test_which_words_come_before_the_one_that_is_typed(
    variables: dict[str, str], words: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (completion.ASKED, "COMP_WORDS", "COMP_CWORD", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert completion.words_to_complete() == words
