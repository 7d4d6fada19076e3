"""What a user's ``mypy --strict`` says of programs that use the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

RIGHT = """
import raftlog

def offsets(bootstrap: str) -> list[int | None]:
    with raftlog.connect(bootstrap, acks="visible", timeout_s=5) as client:
        written: raftlog.WriteResult = client.topics.create("t", partitions=3)
        names: list[str] = [topic.name for topic in client.topics.list(read="strict")]
        value: str = client.configs.describe("topic", "t")["retention.ms"].value
        try:
            client.configs.alter("topic", "t", set={"retention.ms": 1}, acks=raftlog.Acks.VISIBLE)
        except raftlog.errors.UnknownOutcomeError as error:
            print(error.code.name, error.field)
        for change in client.watch("topics/", since=written.token):
            token: raftlog.Token = change.token
            print(names, value, token.offset)
        return [written.offset]

async def main() -> None:
    async with raftlog.AsyncClient("a:1") as client:
        topic: raftlog.Topic = await client.topics.describe("t")
        print(topic.partitions[0].leader)
"""
WRONG = {
    "raftlog.connect('a:1', acks='all')": "arg-type",
    "raftlog.connect('a:1', nothing=1)": "call-arg",
    "raftlog.Client('a:1').topics.create('t', partitons=3)": "call-arg",
    "raftlog.Client('a:1').topics.create(7)": "arg-type",
    "raftlog.nothing": "attr-defined",
    "raftlog.Client('a:1').topics.describe('t').offset": "attr-defined",
}


def mypy(directory: Path, program: str) -> str:
    (directory / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "program.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    return done.stdout + done.stderr


def test_the_types_of_the_library_are_those_of_its_users(tmp_path: Path) -> None:
    assert mypy(tmp_path, RIGHT).startswith("Success")
    said = mypy(tmp_path, "import raftlog\n" + "\n".join(WRONG))
    for number, code in enumerate(WRONG.values(), start=2):
        assert any(
            line.startswith(f"program.py:{number}: error:") and line.endswith(f"[{code}]")
            for line in said.splitlines()
        ), (number, said)
