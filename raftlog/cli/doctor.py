"""``raftlog doctor``: what is wrong with the cluster, and what to do."""

from __future__ import annotations

import asyncio
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import BootstrapController, BundleFile, Json, controllers

if TYPE_CHECKING:
    from raftlog.ops.doctor import Verdict
    from raftlog.ops.evidence import Survey
    from raftlog.ops.quorum_findings import Finding

    Looked = tuple[Survey, list[Finding], Verdict]

LOOK_S, LAST_LOOK_S, WAIT_S = 1.0, 0.5, 60.0
WATCH_PAUSE_S, WAIT_PAUSE_S = 2.0, 0.5
_CLEAR = "\x1b[H\x1b[2J"


class Wanted(StrEnum):
    """What ``--wait`` waits for."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", epilog=EPILOG)(doctor)


def doctor(
    bootstrap_controller: BootstrapController = "",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again every 2 s, until Ctrl-C.")
    ] = False,
    wait: Annotated[
        Wanted | None,
        typer.Option(
            "--wait",
            help=(
                "Look again until the cluster is healthy, and a broker serves (or until it is at"
                " least degraded: it has a leader), for rolling restarts."
            ),
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            envvar="RAFTLOG_TIMEOUT",
            min=0.01,
            metavar="S",
            help=(
                "Seconds until nodes that say nothing are given up: 1; a tenth of it once a leader"
                " has answered. With --wait: seconds in all, 60."
            ),
        ),
    ] = None,
    bundle: BundleFile = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong, what follows from it, and what to do.

    Asks every controller by itself, and the leader for the brokers; needs no leader. Where none
    answers, it looks a second time before it says so. Exit code 0: healthy, 3: something was found,
    4: nobody answers, or --wait took too long.

    \b
    Examples:
      raftlog doctor --bootstrap-controller 127.0.0.1:9093
      raftlog doctor --watch
      raftlog doctor --bundle raftlog-debug.tar.gz
      raftlog doctor --wait healthy --timeout 120 && restart-the-next-node
    """
    if bundle is not None:
        from raftlog.cli.bundle import read_bundle
        from raftlog.ops.doctor import diagnose, verdict

        with read_bundle(bundle) as found:
            seen = found.seen()
            findings = diagnose(seen)
            code = shown((seen, findings, verdict(findings)), as_json=as_json)
        raise typer.Exit(code)
    addresses = controllers(bootstrap_controller)
    looking = _Looking(addresses, timeout or LOOK_S, as_json=as_json)
    if wait is not None:
        work = looking.until(wait, timeout or WAIT_S)
    elif watch:
        work = looking.for_ever()
    else:
        work = looking.once()
    raise typer.Exit(asyncio.run(work))


class _Looking:
    """Looks at a cluster, once or again and again, on one event loop. Returns exit codes."""

    def __init__(self, addresses: list[str], timeout_s: float, *, as_json: bool) -> None:
        from raftlog.client.security import security_of_environment

        self._addresses, self._timeout_s, self._as_json = addresses, timeout_s, as_json
        self._security = security_of_environment()

    async def once(self) -> Exit:
        """Look, and show what was found."""
        return self._show(await self._look(self._timeout_s))

    async def for_ever(self) -> Exit:
        """Until Ctrl-C."""
        clear = _CLEAR if sys.stdout.isatty() and not self._as_json else ""
        while True:
            looked = await self._look(self._timeout_s)
            typer.echo(clear, nl=False)
            self._show(looked)
            await asyncio.sleep(WATCH_PAUSE_S)

    async def until(self, wanted: Wanted, timeout_s: float) -> Exit:
        """Until it is as wanted, and show the last look. Raises FailedError when time is over."""
        deadline = time.monotonic() + timeout_s
        good = ("healthy",) if wanted is Wanted.HEALTHY else ("healthy", "degraded")
        while True:
            left_s = deadline - time.monotonic()
            # The last look is the one that is shown: in less time a busy node seems to hang.
            looked = await self._look(min(LOOK_S, timeout_s, max(LAST_LOOK_S, left_s)))
            # A cluster that has just been started has no broker yet, and nothing is wrong with it.
            if looked[2] in good and (wanted is Wanted.DEGRADED or serves(looked[0])):
                self._show(looked)
                return Exit.OK
            if left_s <= WAIT_PAUSE_S:
                self._show(looked)
                why = ": no broker is unfenced" if looked[2] in good else ""
                raise FailedError(
                    f"the cluster was not {wanted.value} within {timeout_s:g} s{why}",
                    Exit.UNREACHABLE,
                )
            await asyncio.sleep(WAIT_PAUSE_S)

    async def _look(self, timeout_s: float) -> Looked:
        from raftlog.cli.doctor_evidence import gather
        from raftlog.cli.local_remedies import as_typed_here
        from raftlog.ops.doctor import diagnose, verdict

        seen = await gather(self._addresses, timeout_s, self._security)
        findings = as_typed_here(diagnose(seen), self._addresses)
        return seen, findings, verdict(findings)

    def _show(self, looked: Looked) -> Exit:
        return shown(looked, as_json=self._as_json)


def serves(seen: Survey) -> bool:
    """Whether any broker is unfenced, so that clients are served."""
    from raftlog.wire.controller.v1 import controller_pb2

    brokers = seen.brokers.brokers if seen.brokers is not None else ()
    return any(one.state == controller_pb2.ACTIVE for one in brokers)


def shown(looked: Looked, *, as_json: bool) -> Exit:
    """Show what was found; the exit code that says so."""
    from raftlog.cli.output import print_json
    from raftlog.ops.doctor import document, screen

    seen, _, verdict = looked
    if as_json:
        print_json(document(*looked))
    else:
        typer.echo(screen(*looked))
    if not seen.answers:
        return Exit.UNREACHABLE
    return Exit.OK if verdict == "healthy" else Exit.FOUND
