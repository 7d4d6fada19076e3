"""The help of every command, plugins, and former or mistyped names."""

import ast
import json
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer
from command_lines import Raftlog
from typer.testing import CliRunner

from raftlog.cli import built_in
from raftlog.cli.main import GROUP, build, build_for
from raftlog.client.security import TOKEN_VARIABLE
from raftlog.node.config.sources import CLI_VARIABLES, LOCAL_DIRECTORY

NEED_NO_EXAMPLE = {"config keys", "demo", "local status", "storage random-uuid"}


def leaves(command: Any, context: Any, *words: str) -> Iterator[tuple[str, str]]:
    """Yield the words and the help of each command that runs something."""
    if not hasattr(command, "commands"):
        yield " ".join(words), command.get_help(context)
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            below = type(context)(inner, parent=context, info_name=name)
            yield from leaves(inner, below, *words, name)


def test_help_of_each_command_has_examples_and_exit_codes() -> None:
    """Commands of the replay refer to their group's page for both."""
    everything: Any = typer.main.get_command(build())
    with everything.make_context("raftlog", [], resilient_parsing=True) as context:
        found = dict(leaves(everything, context))
    assert len(found) > 90
    for words, text in found.items():
        assert text.startswith(f"Usage: raftlog {words} "), words
        assert "\\b" not in text, "a mark for the formatter was printed"
        if not words.startswith("replay "):
            assert "Exit codes: 0 done" in text, words
            assert words in NEED_NO_EXAMPLE or f"raftlog {words}" in text.split("Examples:")[1]


def test_top_level_lists_every_group_and_the_exit_codes(raftlog: Raftlog) -> None:
    out = raftlog("--help").out
    assert "Exit codes: 0 done" in out
    assert [n for n in built_in.BY_NAME if " " not in n and f"\n  {n} " not in out] == []


@pytest.mark.parametrize("arguments", ["--version --json", "--json --version"])
def test_version_option_prints_json(raftlog: Raftlog, arguments: str) -> None:
    said = json.loads(raftlog(arguments).out)
    assert said["codec"] in ("native", "python")
    assert raftlog("--version").out.startswith(f"raftlog {said['version']}")


@pytest.mark.parametrize("arguments", ["nope", "quorum nope", "log dump --from x", "config check"])
def test_wrong_usage_exits_with_2(raftlog: Raftlog, arguments: str) -> None:
    ran = raftlog(arguments).refused(2)
    assert ran.err


def plugin(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=GROUP)


def test_missing_plugin_module_says_what_to_install() -> None:
    app = build(
        [
            plugin("replay", "no_such_module.cli:register [replay]"),
            plugin("probe", f"{__name__}:register_probe"),
        ]
    )
    ran = CliRunner().invoke(app, ["replay", "audit", "--whatever", "x"])
    assert ran.exit_code == 2
    assert "No module named 'no_such_module'" in ran.output
    assert "pip install 'raftlog[replay]'" in ran.output
    assert CliRunner().invoke(app, ["probe"]).exit_code == 0
    assert "Not available" in CliRunner().invoke(app, ["--help"]).output


def register_probe(app: typer.Typer) -> None:
    @app.command("probe")
    def probe() -> None:
        typer.echo("here")


def test_plugin_adds_its_commands() -> None:
    app = build([plugin("probe", f"{__name__}:register_probe")])
    assert CliRunner().invoke(app, ["probe"]).output == "here\n"


def helps(command: Any, parent: Any = None) -> Iterator[str]:
    context = typer.Context(command, parent=parent, info_name=command.name)
    yield command.get_help(context)
    for inner in getattr(command, "commands", {}).values():
        yield from helps(inner, context)


def test_command_built_alone_equals_the_one_built_with_all() -> None:
    everything: Any = typer.main.get_command(build())
    for command in built_in.COMMANDS:
        words = command.name.split()
        alone: Any = typer.main.get_command(build_for([*words, "whatever follows"]))
        assert list(alone.commands) == words[:1]
        among_all = everything
        for word in words:
            alone, among_all = alone.commands[word], among_all.commands[word]
        if not built_in.nested(command.name):
            assert list(helps(alone)) == list(helps(among_all))


@pytest.mark.parametrize("arguments", [[], ["--help"], ["topic"], ["--version", "topics"]])
def test_all_commands_are_built_when_none_is_named(arguments: list[str]) -> None:
    built = build_for(arguments)
    names = {one.name for one in built.registered_groups}
    names |= {one.name for one in built.registered_commands}
    assert names == {one.name for one in built_in.COMMANDS if " " not in one.name}


@pytest.mark.parametrize(
    ("typed", "today"),
    [
        (["loglevel"], "cluster loglevel"),
        (["loglevel", "--help"], "cluster loglevel"),
        (["lease", "list", "--json"], "kv lease"),
        (["hostname", "list"], "cluster hostnames"),
        (["image", "show"], "log image"),
    ],
)
def test_former_command_name_is_explained(raftlog: Raftlog, typed: list[str], today: str) -> None:
    ran = raftlog(*typed)
    assert (ran.code, ran.out) == (2, "")
    before = {"hostname": "hostnames"}.get(typed[0], typed[0])
    assert ran.err.endswith(f"Error: `raftlog {before}` is now `raftlog {today}`\n")


def test_former_command_names_map_to_existing_commands() -> None:
    assert built_in.MOVED.keys() & built_in.BY_NAME.keys() == set()
    assert {*built_in.MOVED.values()} <= built_in.BY_NAME.keys()


def test_status_is_an_alias_of_doctor_and_help_an_option_too(raftlog: Raftlog) -> None:
    assert raftlog("status --help").out == raftlog("doctor --help").out
    for words in (["topics"], ["topics", "list"], ["cluster", "features"]):
        assert raftlog("help", *words).out == raftlog(*words, "--help").out
        assert raftlog(*words, "-h").out == raftlog(*words, "--help").out
    assert raftlog("help").out == raftlog("--help").out


@pytest.mark.parametrize("words", ["", "topics", "cluster features"])
def test_missing_command_prints_the_help_on_stdout(raftlog: Raftlog, words: str) -> None:
    ran = raftlog(*words.split())
    assert (ran.code, ran.err) == (2, "")
    assert ran.out == raftlog(*words.split(), "--help").out


def test_mistyped_command_suggests_similar_ones(raftlog: Raftlog) -> None:
    for words, meant in ((["topcis"], "topics"), (["cluster", "feature"], "features")):
        raftlog(*words).refused(2, f"Did you mean '{meant}'?")


def test_building_the_command_line_twice_adds_nothing() -> None:
    def commands() -> dict[str | None, int]:
        return {
            group.name: len(group.typer_instance.registered_commands)
            for group in build().registered_groups
        }

    assert commands() == commands()


def declarations(path: Path) -> Iterator[str]:
    """Yield the options and arguments that a module declares, in words: names and help."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        function = ast.unparse(node.func)
        if function not in {"opt", "arg", "typer.Option", "typer.Argument"}:
            continue
        arguments = [ast.unparse(one) for one in node.args]
        if function in {"opt", "arg"}:
            yield ": ".join(arguments)
        elif arguments:
            said = {one.arg: ast.unparse(one.value) for one in node.keywords}
            yield f"{', '.join(arguments)}: {said.get('help')}"


def test_shared_option_is_declared_once() -> None:
    root = Path(__file__).parents[2]
    packages = ("raftlog", "controller", "broker", "replay", "simulation")
    found = Counter(
        one
        for name in packages
        for path in (root / name).rglob("*.py")
        for one in declarations(path)
    )
    assert found.total() > 90
    assert [one for one, times in found.items() if times > 1] == []


def variables(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (
            [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
        )
    for inner in getattr(command, "commands", {}).values():
        yield from variables(inner)


def test_configuration_knows_the_variables_of_the_command_line() -> None:
    options = {*variables(typer.main.get_command(build()))}
    assert {*options, TOKEN_VARIABLE, LOCAL_DIRECTORY} == CLI_VARIABLES
