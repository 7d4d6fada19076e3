"""``raftlog debug simulate``: run one cluster from a seed, or search for a seed that fails."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Annotated

import typer

from raftlog.cli.command import command
from raftlog.cli.exits import Exit
from simulation.outcome import SimulatedRun
from simulation.twins.bounds import MAX_REAL_S, MAX_STEPS, RunTooLongError


def silence() -> None:
    """Silence the logs of the nodes: there may be thousands of them."""
    import structlog

    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet, logger_factory=structlog.ReturnLoggerFactory())
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    # Of a process that is killed before its first step.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


@command(lines=SimulatedRun)
def simulate(
    seed: Annotated[int, typer.Option(help="Seed that determines the whole run.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from --seed on.")] = 1,
    config: Annotated[
        str, typer.Option(metavar="JSON|FILE", help="Config to use instead of the seed's.")
    ] = "",
    until: Annotated[float, typer.Option(metavar="S", help="Stop at this virtual time.")] = 0.0,
    shrink: Annotated[
        bool, typer.Option(help="Look for a smaller config with the same failure.")
    ] = False,
    shrink_s: Annotated[float, typer.Option(metavar="S", help="Time to spend on --shrink.")] = 60.0,
    max_s: Annotated[
        float,
        typer.Option(
            metavar="S", min=0.0, help="Fail a run that takes longer in real time; 0: no limit."
        ),
    ] = MAX_REAL_S,
    max_steps: Annotated[int, typer.Option(min=1, help="Fail a run with more steps.")] = MAX_STEPS,
    lines: Annotated[
        int, typer.Option(min=0, help="Transcript lines to print after a failure or --until.")
    ] = 60,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Include each step and message in the transcript.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each seed.")
    ] = False,
) -> None:
    """Run clusters in virtual time, with faults, and check each step.

    Real controllers, brokers and clients; every promise is checked at each step. The same seed and
    config are the same run, byte for byte.

    \b
    Examples:
      raftlog debug simulate --seed 7
      raftlog debug simulate --seed 1000 --seeds 100
      raftlog debug simulate --seed 7 --config '{"brokers": 1, "faults": {"kill_controller": 2.0}}'
      raftlog debug simulate --seed 7 --until 12.5 --verbose --lines 300
    """
    from simulation import shrink as shrinking
    from simulation.checks.api import Checker
    from simulation.checks.suite import all_checkers
    from simulation.outcome import as_dict, failure_report
    from simulation.run import run_swarm
    from simulation.swarm.config import SwarmConfig
    from simulation.watching import Verbose

    def checkers() -> list[Checker]:
        return [*all_checkers(), Verbose()] if verbose else all_checkers()

    silence()
    chosen = None
    if config:
        chosen = SwarmConfig.from_json(
            config if config.lstrip().startswith("{") else Path(config).read_text()
        )
    failed = False
    for number in range(seed, seed + seeds):
        outcome = run_swarm(
            number, chosen, checkers(), until_s=until, max_steps=max_steps, max_real_s=max_s
        )
        if (
            outcome.failure is not None
            and shrink
            and not isinstance(outcome.failure, RunTooLongError)
        ):
            smaller = shrinking.shrink(number, outcome.config, outcome.failure, within_s=shrink_s)
            outcome = run_swarm(number, smaller, checkers())
        failed |= outcome.failure is not None
        if as_json:
            typer.echo(json.dumps(as_dict(outcome)))
        elif outcome.failure is not None:
            typer.echo(failure_report(outcome, lines=lines))
        else:
            faults = " ".join(f"{name}={count}" for name, count in sorted(outcome.faults.items()))
            typer.echo(
                f"seed {number}: {outcome.virtual_s:.1f} s, state {outcome.state_hash or '-'},"
                f" {faults or 'no faults'}"
            )
            if until:
                typer.echo("\n".join(list(outcome.transcript)[-lines:]))
    if failed:
        raise typer.Exit(Exit.FOUND)
