"""``raftlog explain``: what happened, in order, from the log and the journals of the nodes."""

from __future__ import annotations

import asyncio
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
from raftlog.cli.times import From, Since, To, period_ms

if TYPE_CHECKING:
    from raftlog.doctor.finding import Finding
    from raftlog.incident.evidence import Evidence

HOUR_MS = 3_600_000


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
    """Tell an incident in order: elections with their reasons, crashes, stalls, fences, who held
    visibility back, what was changed before, gaps in the writes, and what is wrong now.

    Asks each node for its journal, and the leader for the log. What some node does not answer is
    named as missing. Default: the last hour. Times are UTC.

    \b
    Examples:
      raftlog explain
      raftlog explain --since 15m --all
      raftlog explain --from 12:00 --to 12:30 --json
      raftlog explain -d data/controller-1 -d data/controller-2 --since 7d
    """
    from raftlog.cli.explain_screen import document, screen
    from raftlog.cli.output import print_json
    from raftlog.incident.story import tell

    now: tuple[list[Finding], str] | None = None
    if bundle is not None:
        from raftlog.cli.bundle import Bundle
        from raftlog.doctor.diagnosis import diagnose, verdict

        found = Bundle(bundle)
        first_ms, last_ms = found.about.from_ms, found.about.to_ms
        if since or begin or end:
            first_ms, last_ms = period_ms(since, begin, end, HOUR_MS, now=last_ms)
        seen = found.told(first_ms, last_ms)
        findings = diagnose(found.seen())
        now = findings, verdict(findings).value
    elif directories:
        first_ms, last_ms = period_ms(since, begin, end, HOUR_MS)
        from raftlog.cli.explain_evidence import of_directories

        seen = of_directories(directories, first_ms, last_ms)
    else:
        first_ms, last_ms = period_ms(since, begin, end, HOUR_MS)
        addresses = controllers(bootstrap_controller)
        seen, now = _asked(addresses, bootstrap_server, timeout, first_ms, last_ms)
    story = tell(seen)
    if as_json:
        print_json(document(story, now))
    else:
        typer.echo(screen(story, now, everything=everything))


def _asked(
    addresses: list[str], bootstrap_server: str, timeout_s: float, first_ms: int, last_ms: int
) -> tuple[Evidence, tuple[list[Finding], str]]:
    from raftlog.cli.client_security import security_of_environment
    from raftlog.cli.doctor_evidence import gather
    from raftlog.cli.explain_evidence import of_cluster
    from raftlog.doctor.diagnosis import diagnose, verdict

    servers = [one.strip() for one in bootstrap_server.split(",") if one.strip()]
    seen = of_cluster(addresses, servers, timeout_s, first_ms, last_ms)
    looked = asyncio.run(gather(addresses, min(timeout_s, 1.0), security_of_environment()))
    findings = diagnose(looked)
    return seen, (findings, verdict(findings).value)
