"""The short way to start a node: few imports, and the same words for mistakes."""

import sys
from pathlib import Path

import pytest
from command_runs import run_text

from raftlog.cli.nodes import NodeStart, read_start


@pytest.mark.parametrize(
    ("line", "config", "flags"),
    [
        ("controller run -c n.toml", "n.toml", []),
        (
            "broker run --config b.toml --set broker.rack=b --set a=",
            "b.toml",
            ["broker.rack=b", "a="],
        ),
    ],
)
def test_plain_run_command_is_a_node_start(line: str, config: str, flags: list[str]) -> None:
    assert read_start(line.split()) == NodeStart(line.split(maxsplit=1)[0], Path(config), flags)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "controller",
        "controller run",
        "controller run -c",
        "controller run -c n.toml --help",
        "controller run -c n.toml -c m.toml",
        "controller run -c n.toml --set",
        "controller run -c --help",
        "controller run --set a=b -c n.toml",
        "controller run --config=n.toml",
        "controller describe -c n.toml",
        "quorum run -c n.toml",
    ],
)
def test_other_forms_are_left_to_the_command_line(line: str) -> None:
    assert read_start(line.split()) is None


def test_empty_arguments_are_left_to_the_command_line() -> None:
    assert read_start(["controller", "run", "-c", ""]) is None


_NODE = """
import atexit, sys
from raftlog.cli import entry
atexit.register(lambda: print(sys.modules["structlog.dev"].rich))
atexit.register(lambda: print([name for name in ("typer", "pydantic") if name in sys.modules]))
entry.main()
"""


def _run(*arguments: str) -> tuple[int, str, str]:
    done = run_text([sys.executable, "-c", _NODE, *arguments])
    return done.returncode, done.stdout, done.stderr


def test_node_start_imports_only_what_it_needs(tmp_path: Path) -> None:
    """It ends where its data directory is not formatted: all that comes before was imported."""
    file = tmp_path / "n.toml"
    file.write_text(
        'process.roles = ["controller"]\nnode.id = 1\ncluster.id = "c"\nlog.dirs = ["data"]\n'
        'listeners = ["127.0.0.1:9"]\ncontroller.quorum.voters = ["1@127.0.0.1:9"]\n'
    )
    code, out, err = _run("controller", "run", "-c", str(file))
    assert "not formatted" in err, err
    assert (code, out) == (2, "[]\nNone\n")


def test_mistakes_are_reported_in_the_same_words(tmp_path: Path) -> None:
    plain = _run("controller", "run", "-c", str(tmp_path / "none.toml"))
    whole = _run("controller", "run", f"--config={tmp_path / 'none.toml'}")
    assert plain[0] == whole[0] == 2
    assert plain[2] == whole[2] != ""
