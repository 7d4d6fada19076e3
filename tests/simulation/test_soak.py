"""A soak that is interrupted says what it saw, leaves no process behind, and ends as Ctrl-C ends a
program.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

SOAK = (
    "from simulation.soak import main; from raftlog.cli.process import run_interruptible;"
    " run_interruptible(lambda: main)"
)


def test_ctrl_c_ends_a_soak_with_its_summary_and_without_a_traceback(tmp_path: Path) -> None:
    soak = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SOAK,
            "--minutes",
            "5",
            "--first-seed",
            "1",
            "--failures",
            str(tmp_path / "failures"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert soak.stdout is not None
    assert soak.stdout.readline().startswith("seeds from 1 on")
    tree = psutil.Process(soak.pid)
    while not any("spawn_main" in " ".join(child.cmdline()) for child in tree.children()):
        assert soak.poll() is None
    children = tree.children(recursive=True)
    # As a terminal does it: to the whole process group.
    os.killpg(soak.pid, signal.SIGINT)
    out, errors = soak.communicate(timeout=60)
    assert soak.returncode == -signal.SIGINT
    assert "Traceback" not in errors
    assert json.loads(out[out.index("{") :])["interrupted"] is True
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
