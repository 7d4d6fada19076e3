"""``raftlog demo``. The acts are imported only when it runs, since ``raftlog --help`` needs none of
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from raftlog.cli.command import command
from raftlog.cli.options import opt


@command()
def demo(
    keep: Annotated[bool, opt("--keep", "Keep the data, the logs and the export.")] = False,
    directory: Annotated[
        Path | None, opt("--dir", "The directory for them; default: a temporary directory.")
    ] = None,
    secure: Annotated[
        bool, opt("--secure", "Use mutual TLS, access control entries and an audit log.")
    ] = False,
) -> None:
    """Demonstrate raftlog: six nodes, failures, export and Spark.

    Runs three controllers and three brokers as processes, for about a minute. Stops everything at
    the end, and on Ctrl-C.
    """
    from raftlog.demo.running import run_demo

    run_demo(keep=keep, directory=directory, secure=secure)
