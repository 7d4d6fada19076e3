"""Ctrl-C during the demo: it ends at once, and leaves no process or data."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cluster_kit import PATIENCE_S, until

AT_A_TERMINAL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("raftlog", run_name="__main__", alter_sys=True)
"""
"""Restores SIGINT, which a shell's background processes inherit as ignored."""
MOMENTS = {"while it starts": "1. Three controllers", "while Spark runs": "spark-submit ..."}


def family(parent: psutil.Process, directory: Path) -> list[psutil.Process]:
    """Return the demo's children, and its nodes, which have sessions of their own."""
    own = [parent, *parent.children(recursive=True), *family_left(directory)]
    return list({process.pid: process for process in own}.values())


def ended(process: psutil.Process) -> bool:
    """Whether it has ended, also as a zombie without a parent here."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.nightly
@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupted_demo_leaves_no_process(tmp_path: Path, moment: str) -> None:
    directory = tmp_path / "demo"
    output = tmp_path / "output"
    with output.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-c", AT_A_TERMINAL, "demo", "--dir", str(directory)],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    processes: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 2 * PATIENCE_S
        while MOMENTS[moment] not in output.read_text():
            assert demo.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        if "Spark" in moment:
            # What it puts aside is there, not where nobody looks for it.
            aside = directory / "spark"
            until(lambda: aside.exists() and any(aside.iterdir()), "Spark has begun to write")
        processes = family(psutil.Process(demo.pid), directory)
        # A terminal's Ctrl-C reaches all that runs in the foreground.
        os.killpg(demo.pid, signal.SIGINT)
        code = demo.wait(PATIENCE_S)
        left = [process for process in [*processes, *family_left(directory)] if not ended(process)]
        assert left == [], output.read_text()
        assert not directory.exists()
        text = output.read_text()
        assert code != 0
        assert text.rstrip().splitlines()[-1].startswith("interrupted")
        assert "Traceback" not in text, text
    finally:
        for process in [*processes, *family_left(directory)]:
            if not ended(process):
                process.kill()


def family_left(directory: Path) -> list[psutil.Process]:
    """Return processes that name the directory of a demo that has ended."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(directory) in argument for argument in process.info["cmdline"] or ())
    ]
