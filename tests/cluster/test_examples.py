"""The programs of ``examples/`` against one cluster."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, cluster_of
from command_runs import run_text

from raftlog.local.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BUF = Path(sys.executable).parent / "buf"
INSTALL_S = 600.0
"""Downloads and compilers."""
SAY = {
    "allow_reading.py": r"ALLOW READ on alice\.\*\nrevoked",
    "cache_of_topics.py": r"topics: cached-2\n",
    "concurrent_writes.py": r"100 writes at 100 offsets\n",
    "count_together.py": r"counted 30\n",
    "elect_a_leader.py": r"(host-\d leads with token \d+; every client sees Leader\(value='host-\d'.*\n){3}",
    "ensure_topics.py": r"ensured\.orders: created\nensured\.audit: created\n",
    "errors_and_outcomes.py": r"refused: the value of retention\.ms",
    "first_topic.py": r"visible on every broker at offset \d+\npartition 0: leader \d+",
    "move_partitions.py": r"moving-1: leader \d+, in sync \(\d+,\)\n",
    "one_at_a_time.py": r"with token \d+\nwithout the lock, nothing was changed\n",
    "produce_and_consume.py": r"0 b'key \d' b'hello \d'",
    "read_your_writes.py": r"written at \d+-1-\d+\nread: handed-over\n",
    "watch_configs.py": r"\d+ User:me configs/topic/watched/retention\.ms None -> 1000\n",
    "who_holds_back.py": r"visible everywhere up to offset \d+\n",
}
"""Patterns of lines that each example prints."""


def test_each_example_is_run_and_listed() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert programs == SAY.keys()
    assert len(programs) == 14
    listed = re.findall(r"^\* \[(\w+\.py)\]\(\1\):", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(programs)


def test_documentation_shows_the_actual_programs() -> None:
    page = (ROOT / "docs" / "clients_other_languages.md").read_text()
    for language, program in (("go", "go/main.go"), ("js", "node/main.js")):
        shown = re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)
        assert shown
        for block in shown:
            assert block in (EXAMPLES / program).read_text()


cluster = cluster_of(controllers=3, brokers=3)


def output(command: list[str | Path], directory: Path, timeout_s: float = PATIENCE_S) -> str:
    done = run_text(command, timeout=timeout_s, cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def brokers(cluster: LocalCluster) -> str:
    return ",".join(node.endpoint for node in cluster.brokers)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SAY)
def test_example_prints_its_documented_output(name: str, cluster: LocalCluster) -> None:
    said = output([sys.executable, "-W", "error", EXAMPLES / name, brokers(cluster)], EXAMPLES)
    assert re.search(SAY[name], said), said


def of_other_language(said: str, name: str, cluster: LocalCluster) -> None:
    """Assert that a program in another language created, read, was refused, watched and locked; and
    that two of three controllers name the leader.
    """
    lines = said.splitlines()
    assert re.fullmatch(rf"created: {name} at offset \d+", lines[0])
    assert lines[1] == f"read: {name} has 3 partitions"
    assert lines[2] == f"refused: topic '{name}' already exists (field topics[0].name)"
    assert lines[3] == f'changed: configs/topic/{name}/retention.ms to "1000"'
    assert lines[4] == f"held: live/{name} for 10000 ms"
    assert len(lines) == 7
    controllers = {node.endpoint for node in cluster.controllers}
    leaders = {next(one for one in controllers if one in line) for line in lines[5:]}
    assert len(leaders) == 1
    assert all("NOT_CONTROLLER" in line for line in lines[5:])


def needs(program: str, example: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"NOT TESTED: {program} is not installed, so examples/{example} was not run")


@pytest.mark.nightly
def test_example_program_in_go_runs(cluster: LocalCluster, tmp_path: Path) -> None:
    needs("go", "go")
    module = tmp_path / "go"
    shutil.copytree(EXAMPLES / "go", module, ignore=shutil.ignore_patterns("gen"))
    output([BUF, "generate", ROOT / "proto"], module, INSTALL_S)
    output(["go", "build", "-o", "topics", "."], module, INSTALL_S)
    controllers = [node.endpoint for node in cluster.controllers]
    said = output([module / "topics", cluster.brokers[0].endpoint, *controllers], module)
    of_other_language(said, "from-go", cluster)


@pytest.mark.nightly
def test_example_program_in_node_runs(cluster: LocalCluster, tmp_path: Path) -> None:
    needs("npm", "node")
    package = tmp_path / "node"
    shutil.copytree(EXAMPLES / "node", package, ignore=shutil.ignore_patterns("node_modules"))
    output(["npm", "ci", "--no-audit", "--no-fund"], package, INSTALL_S)
    controllers = [node.endpoint for node in cluster.controllers]
    said = output(
        ["node", "main.js", cluster.brokers[0].endpoint, ROOT / "proto", *controllers], package
    )
    of_other_language(said, "from-node", cluster)
