"""Starts the probe (``hostile_probe.py``) beside an attack, and reads its measurements."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster_kit import PATIENCE_S

from raftlog.local.cluster import Node

PROBE = Path(__file__).with_name("hostile_probe.py")
ROUNDS = 8
WITHIN_S = 1.0


@dataclass(slots=True)
class Probed:
    """The probe's measurements after the attack."""

    calm_s: float
    """The longest call before the attack: what the machine does by itself."""
    took: list[tuple[float, str]] = field(default_factory=list)
    """Each call beside the attack, the longest first: seconds, and which call."""

    def check(self, *, but: int = 0) -> None:
        assert len(self.took) > ROUNDS
        # On a busy machine a call takes its time without any attack, too; on a quiet one that is
        # some hundredths.
        assert self.took[but][0] - 2 * self.calm_s < WITHIN_S, (self.calm_s, self.took[:5])


@asynccontextmanager
async def probing(controller: Node, broker: Node) -> AsyncIterator[Probed]:
    """Run the probe during the body, then set ``took``. Fails if a call of the probe was refused."""
    process = await asyncio.to_thread(
        subprocess.Popen,
        [
            sys.executable,
            str(PROBE),
            controller.endpoint,
            broker.endpoint,
            controller.http,
            broker.http,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready, calm_s = (await asyncio.to_thread(process.stdout.readline)).split()
        assert ready == "ready"
        probed = Probed(float(calm_s))
        yield probed
        out, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
    assert process.returncode == 0, "the probe was refused something"
    probed.took = [(took_s, call) for took_s, call in json.loads(out)]
