"""The real store of partition replicas and its simulated twin, given the same calls, answer the
same: what is held, and what is refused.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from partition_kit import KEYS, RocksMachine, SimMachine, flush
from storage_kit import make_chunk

from raftlog.node.storage.partition_api import PartitionStore

STEPS = 250


def outcome(call: Any, store: PartitionStore) -> object:
    try:
        return call(store)
    except ValueError as error:
        return f"refused: {error}"


class RpcClient:
    """Calls that mostly fit, for it knows where replicas end, and sometimes do not."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.ends: dict[Any, int] = {}

    def next(self, epoch: int) -> tuple[str, Any, Any, int]:
        """What it is called, the call, its replica, and where that ends if it is carried out (-1:
        as before).
        """
        rng = self._rng
        key, what = rng.choice(KEYS), rng.random()
        end, count = self.ends.get(key, 0), rng.randint(1, 3)
        base = end if rng.random() < 0.8 else rng.randrange(0, end + 2)
        if what < 0.5:
            chunk = make_chunk(
                base,
                *([1] * count),
                epoch=epoch,
                body=bytes([97 + epoch % 26]) * rng.randrange(1, 300),
            )
            return (
                f"append {base}",
                lambda store: store.append(key, chunk, base, base + count),
                key,
                base + count,
            )
        if what < 0.6:
            to = rng.randrange(0, end + 2)
            return f"truncate {to}", lambda store: store.truncate(key, to), key, to
        if what < 0.63:
            return "delete", lambda store: store.delete(key), key, 0
        if what < 0.7:
            start = rng.randrange(0, end + 2)
            return (
                f"begin at {start}",
                lambda store: store.advance_start(key, start, dropped_bytes=17 << 20),
                key,
                -1,
            )
        if what < 0.72:
            anew = rng.randrange(0, end + 9)
            return f"reset to {anew}", lambda store: store.reset(key, anew), key, anew
        first, size = rng.randrange(0, end + 1), rng.choice((0, 100, 1 << 20))
        until = first + rng.randrange(0, 6)
        return (
            f"read {first} {until}",
            lambda store: store.read(key, first, until=until, max_bytes=size),
            key,
            -1,
        )


@pytest.mark.parametrize("seed", range(4))
async def test_both_answer_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = Random(f"twins {seed}")
    machines = RocksMachine(tmp_path / "data", monkeypatch), SimMachine()
    stores: list[PartitionStore] = [machine.open()[0] for machine in machines]
    caller = RpcClient(rng)
    carried_out = refused = 0
    for step in range(STEPS):
        name, call, key, end = caller.next(1 + step // 50)
        real, simulated = (outcome(call, store) for store in stores)
        assert real == simulated, f"step {step}: {name} of {key}"
        if isinstance(real, str):
            refused += 1
        else:
            carried_out += 1
            caller.ends[key] = end if end >= 0 else caller.ends.get(key, 0)
        if rng.random() < 0.05:
            assert [await flush(store) for store in stores] == [None, None]
        if rng.random() < 0.02:
            for store in stores:
                store.close()
            opened = [machine.open() for machine in machines]
            assert opened[0][1] == opened[1][1], f"after step {step}"
            stores = [store for store, _ in opened]
    for store in stores:
        store.close()
    assert carried_out > STEPS // 2
    assert refused > STEPS // 20
