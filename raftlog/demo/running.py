"""The runner of the demo, which plays the acts and cleans up in any case."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import structlog
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from raftlog.cli.exits import Exit
from raftlog.cli.process import TerminationError, raise_at_sigterm
from raftlog.cli.streams import INTERRUPTED, TERMINATED
from raftlog.demo.acts import Demo
from raftlog.demo.world import CommandFailedError, DemoError
from raftlog.local.authority import Authority
from raftlog.local.cluster import LocalCluster
from raftlog.safe_console import SafeConsole

NEEDED = ("pyarrow", "pyspark")
SETTINGS = {
    # Shorter than in production, so that a dead broker is fenced after a short wait.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "broker.fencing.timeout.ms": 4000,
}


def run_demo(*, keep: bool, directory: Path | None, secure: bool) -> None:
    """Run the demo, and stop everything. Raises typer.Exit, ModuleNotFoundError."""
    # Checked before anything is started: otherwise the last act would fail a minute later.
    for module in NEEDED:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    # The demo prints its own lines; its clients' logs about nodes killed on purpose would only
    # confuse.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    console = SafeConsole()
    begun = time.monotonic()
    # Temporary directories may be in memory, but a log belongs on a disk.
    chosen = (
        directory
        if directory is not None
        else Path(tempfile.mkdtemp(prefix="raftlog-demo-", dir=_disk()))
    )
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise typer.BadParameter(f"{directory} is not empty", param_hint="--dir")
    authority = Authority(chosen / "pki") if secure else None
    cluster = LocalCluster(
        chosen,
        controllers=3,
        brokers=3,
        settings=SETTINGS,
        settings_of=None if authority is None else authority.settings,
    )
    play = Demo(cluster, console, authority)
    code: int = Exit.OK
    signal.signal(signal.SIGTERM, raise_at_sigterm)
    try:
        asyncio.run(play.run())
    except KeyboardInterrupt as error:
        console.print("\ninterrupted")
        code = TERMINATED if isinstance(error, TerminationError) else INTERRUPTED
    except DemoError as error:
        console.print(
            f"\n[bold red]a guarantee was broken:[/bold red] {escape(str(error))}", highlight=False
        )
        keep, code = True, Exit.REFUSED
    except CommandFailedError as error:
        console.print(f"\n[bold red]the demo cannot continue:[/bold red] {escape(str(error))}")
        keep, code = True, Exit.REFUSED
    finally:
        # Nothing may interrupt the clean-up.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        _clean_up(cluster, console, keep=keep)
        if directory is None:
            with contextlib.suppress(OSError):  # The directory contains other files.
                chosen.parent.rmdir()
    if code == Exit.OK:
        _summarize(play, console, time.monotonic() - begun, keep=keep)
    raise typer.Exit(code)


def _summarize(play: Demo, console: Console, took_s: float, *, keep: bool) -> None:
    table = Table(title="What was shown", show_header=False, title_justify="left")
    for row in play.summary:
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print(
        f"{took_s:.0f} s in total; no process is left" + ("" if keep else ", and no data")
    )


def _disk() -> Path:
    home = Path.cwd() / ".raftlog"
    home.mkdir(exist_ok=True)
    return home


def _clean_up(cluster: LocalCluster, console: Console, *, keep: bool) -> None:
    cluster.stop_all(timeout_s=5.0)
    if keep:
        console.print(f"data, logs and export are in {cluster.directory}", highlight=False)
    else:
        shutil.rmtree(cluster.directory, ignore_errors=True)
