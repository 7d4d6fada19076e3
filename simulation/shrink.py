"""A smaller config with the same failure: fewer faults, nodes and clients, a shorter run."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from simulation.outcome import Outcome
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig

Run = Callable[[int, SwarmConfig], Outcome]


def kind_of(failure: BaseException | None) -> str:
    """Return the kind of a failure: its exception and words, without numbers and quoted names."""
    if failure is None:
        return ""
    words = re.sub(r"[0-9a-f]{8,}|\d+|'[^']*'|\[[^]]*\]", "#", str(failure))
    return f"{type(failure).__name__} {words[:40]}"


def _smaller(config: SwarmConfig) -> Iterator[SwarmConfig]:
    names = sorted(config.faults)
    if len(names) > 3:
        for half in (names[: len(names) // 2], names[len(names) // 2 :]):
            yield replace(config, faults={name: config.faults[name] for name in half})
    for name in names:
        yield replace(
            config, faults={other: config.faults[other] for other in names if other != name}
        )
    if config.drift:
        yield replace(config, drift=0.0)
    if config.safety_s > 2:
        yield replace(config, safety_s=config.safety_s / 2)
    for name, least in (
        ("observers", 0),
        ("direct_clients", 0),
        ("voters", 1),
        ("brokers", 0),
        ("clients", 1),
    ):
        value = getattr(config, name)
        if value > least:
            yield replace(config, **{name: value - 1})
    if config.value_bytes > 10:
        yield replace(config, value_bytes=10)


def shrink(
    seed: int,
    config: SwarmConfig,
    failure: BaseException,
    *,
    within_s: float = 60.0,
    runs: int = 100,
    run: Run = run_swarm,
) -> SwarmConfig:
    """Return the smallest config found within ``within_s`` that fails like ``failure``."""
    wanted = kind_of(failure)
    deadline = time.monotonic() + within_s
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(config):
            if runs <= 0 or time.monotonic() > deadline:
                return config
            runs -= 1
            if kind_of(run(seed, candidate).failure) == wanted:
                config, smaller = candidate, True
                break
    return config
