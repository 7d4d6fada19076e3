"""``raftlog demo``. What it plays is imported when it runs: ``raftlog --help`` needs none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from raftlog.cli.command import command
from raftlog.cli.options import opt


@command()
def demo(
    keep: Annotated[bool, opt("--keep", "Leave the data, the logs and the export behind.")] = False,
    directory: Annotated[
        Path | None, opt("--dir", "Where to put them; default: a temporary directory.")
    ] = None,
    secure: Annotated[
        bool, opt("--secure", "With mutual TLS, access control entries and an audit log.")
    ] = False,
) -> None:
    """Show raftlog at work: six nodes, failures, export and Spark.

    Three controllers and three brokers as processes. About a minute. Everything is stopped at the
    end, and on Ctrl-C.
    """
    from raftlog.demo.running import run_demo

    run_demo(keep=keep, directory=directory, secure=secure)
