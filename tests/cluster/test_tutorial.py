"""The tutorial, command by command, in one shell with its own home."""

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S

from raftlog.local.cluster import LocalCluster, free_ports, own_environment

ROOT = Path(__file__).parents[2]
END = "--- the command has ended:"
ENDLESS = ("while sleep", "--follow")
"""Commands that a reader ends with Ctrl-C."""
ENDLESS_S = 8
KILLS_LEADER_FIRST = ("--value Barbara", "--value Edsger --timeout")
"""Commands before which the page tells the reader to kill the broker that leads the partition."""


@dataclass
class Command:
    """A command of the page, with the output that the page shows."""

    text: str
    shown: list[str] = field(default_factory=list)


def commands_of(page: str) -> Iterator[Command]:
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        command: Command | None = None
        for line in block.splitlines():
            if line.startswith("$ "):
                if command is not None:
                    yield command
                command = Command(line[2:])
            elif command is not None and (line.startswith("> ") or command.text.endswith("\\")):
                command.text += "\n" + line.removeprefix("> ")
            elif command is not None:
                command.shown.append(line)
        if command is not None:
            yield command


class Reader:
    def __init__(self, directory: Path) -> None:
        for path in ROOT.iterdir():
            if path.name not in (".raftlog", ".git"):
                (directory / path.name).symlink_to(path)
        self.directory = directory
        self._shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env=own_environment() | {"HOME": str(directory), "COLUMNS": "160"},
        )

    def run(self, text: str) -> tuple[int, str]:
        """Return the exit code and everything printed."""
        if any(word in text for word in ENDLESS):
            # Bash reads the whole of it before it runs.
            text = f"timeout -s INT {ENDLESS_S} bash -c {quoted(text)}"
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{text}\ncode=$?; echo; echo '{END}' $code\n")
        self._shell.stdin.flush()
        printed: list[str] = []
        for line in self._shell.stdout:
            if line.startswith(END):
                return int(line.removeprefix(END)), "".join(printed)
            printed.append(line)
        raise AssertionError(f"the shell has ended in {text!r}: {''.join(printed)}")

    def close(self) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(PATIENCE_S)
        cluster = LocalCluster(self.directory / ".raftlog")
        if cluster.exists:
            cluster.delete()


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def shape(line: str) -> str:
    """Return a line without ids, numbers, paths and column widths."""
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}|/\S+", "ID", line)
    return re.sub(r"\s+", " ", re.sub(r"\d+", "N", line)).strip()


def is_fixed(line: str) -> bool:
    """Return whether a line of the page must be printed exactly, except for its numbers."""
    return bool(re.fullmatch(r"[A-Z][A-Z ]+[A-Z]", line)) or bool(
        re.match(r"(\w[\w-]*: (created|altered)|visible at|letters-0 at|exit |raftlog: )", line)
    )


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_each_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    port = min(free_ports(20))
    reader, wrong, ran, replayed = Reader(tmp_path), list[str](), 0, ""
    try:
        for command in commands_of(page):
            if command.text.startswith("git clone"):
                continue
            text = command.text.replace("--base-port 19093", f"--base-port {port}")
            text = with_pids(text, LocalCluster(tmp_path / ".raftlog"))
            if any(one in text for one in KILLS_LEADER_FIRST):
                kill_leader_of_letters(reader)
            if text == "raftlog log image --at 118":
                # The page compares it with what Spark has found in the whole export.
                (last,) = re.findall(r"offsets 0 to (\d+)", replayed)
                (state_hash,) = re.findall(rf"state hash at {last} +│ ([0-9a-f]+)", replayed)
                code, printed = reader.run(f"raftlog log image --at {last}")
                if f"state hash  {state_hash}" not in printed:
                    wrong.append(f"{text}: another state hash than {state_hash}: {printed}")
            else:
                code, printed = reader.run(text)
            replayed = printed if text == "scripts/replay exported" else replayed
            ran += 1
            print(f"$ {text}\n{printed}(exit {code})")
            ended = any(one in text for one in ENDLESS)
            if code not in ((0, 124) if ended else (0,)):
                wrong.append(f"{text}: exit {code}: {printed[-500:]}")
            shapes = [shape(line) for line in printed.splitlines()]
            wrong += [
                f"{text}: nothing like {line!r} in {printed[-700:]}"
                for line in command.shown
                if is_fixed(line) and not any(one.startswith(shape(line)) for one in shapes)
            ]
    finally:
        reader.close()
        shutil.rmtree(tmp_path / ".raftlog", ignore_errors=True)
    assert wrong == []
    assert ran > 40


def kill_leader_of_letters(reader: Reader) -> None:
    _, printed = reader.run("raftlog partitions isr letters --json")
    leader = json.loads(printed)["partitions"][0]["leader_id"]
    cluster = LocalCluster(reader.directory / ".raftlog")
    assert cluster.kill(f"broker-{leader}", signal.SIGKILL)


def with_pids(text: str, cluster: LocalCluster) -> str:
    """Return the command with the pids of this cluster: the page kills its leader and broker 5."""
    if not text.startswith("kill -"):
        return text
    node = cluster.node("broker-5") if text.endswith("28296") else cluster.wait_leader()
    return re.sub(r"\d+$", str(cluster.pid(node.name)), text)
