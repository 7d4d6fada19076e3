"""``raftlog explain``: what happened, in order, from the log and the journals of the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    BundleFile,
    Json,
    Timeout,
    controllers,
)
from raftlog.cli.times import From, Period, Since, To

if TYPE_CHECKING:
    from raftlog.ops.evidence import Survey as Seen
    from raftlog.ops.evidence import Timeline
    from raftlog.ops.quorum_findings import Finding


def register(app_: typer.Typer) -> None:
    """Add the command."""
    app_.command("explain", epilog=EPILOG)(explain)


def explain(
    since: Since = "",
    begin: From = "",
    end: To = "",
    directories: Annotated[
        list[Path] | None,
        typer.Option(
            "--directory",
            "-d",
            metavar="DIR",
            help="Read data directories of stopped nodes instead; may be repeated.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show what is normal, too: starts, snapshots, …")
    ] = False,
    bundle: BundleFile = None,
    bootstrap_controller: BootstrapController = "",
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Tell an incident in order: elections, crashes, stalls, changes.

    Elections with their reasons, fences, which broker held visibility back, gaps in the writes,
    what was changed before, and what is wrong now. Asks each node for its journal, and the leader
    for the log. What some node does not answer is named as missing. Default: the last hour. Times
    are UTC, by the clock of the leader; of directories and bundles, the last hour that they tell
    of.

    \b
    Examples:
      raftlog explain
      raftlog explain --since 15m --all
      raftlog explain --from 12:00 --to 12:30 --json
      raftlog explain -d data/controller-1 -d data/controller-2 --since 7d
    """
    from raftlog.cli.explain_evidence import of_cluster, of_directories

    period = Period(since, begin, end, default="1h")
    if bundle is not None:
        from raftlog.cli.bundle import read_bundle

        with read_bundle(bundle) as found:
            _show(found.told(period), found.seen(), everything=everything, as_json=as_json)
        return
    looked = None
    if directories:
        told = of_directories(directories, period)
    else:
        servers = [one.strip() for one in bootstrap_server.split(",") if one.strip()]
        told, looked = of_cluster(controllers(bootstrap_controller), servers, timeout, period)
    _show(told, looked, everything=everything, as_json=as_json)


def _show(told: Timeline, looked: Seen | None, *, everything: bool, as_json: bool) -> None:
    """``looked``: what the doctor sees now; None: nobody was asked."""
    from raftlog.cli.output import print_json
    from raftlog.ops.doctor import diagnose, verdict
    from raftlog.ops.story import document, screen, tell

    now: tuple[list[Finding], str] | None = None
    if looked is not None:
        findings = diagnose(looked)
        now = findings, verdict(findings).value
    story = tell(told)
    if as_json:
        print_json(document(story, now))
    else:
        typer.echo(screen(story, now, everything=everything))
