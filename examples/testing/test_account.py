"""Tests of the account: with real processes, and with many seeds in a simulated cluster."""

import asyncio
from functools import partial

import pytest
from account import BALANCE, RECEIPTS, draw_guarded, teller

import raftlog
from raftlog.testing import RealCluster, SeedFailedError, SimulatedCluster, simulated, sweep

START = 1000


async def two_tellers(cluster: SimulatedCluster, *, guarded: bool) -> None:
    """Let two programs withdraw, and check that nothing was withdrawn twice."""
    async with raftlog.AsyncClient() as client:
        await client.kv.put(BALANCE, str(START))
        tellers = [cluster.program(name, teller, name, guarded=guarded) for name in ("ann", "bob")]
        for one in tellers:
            await one
        await cluster.calm()
        balance = await client.kv.get(BALANCE, read="strict")
        receipts = await client.kv.list(RECEIPTS, read="strict")
        assert balance is not None
        assert int(balance.text) == START - sum(int(one.text) for one in receipts)


def test_guarded_draws_are_never_lost(raftlog_seed: int) -> None:
    simulated(partial(two_tellers, guarded=True), seed=raftlog_seed)


def test_draws_are_lost_where_only_the_lock_is_trusted() -> None:
    with pytest.raises(SeedFailedError) as failed:
        sweep(partial(two_tellers, guarded=False), range(20))
    print(failed.value)


def test_a_draw_in_a_real_cluster(raftlog_cluster: RealCluster) -> None:
    async def main() -> list[str]:
        async with raftlog_cluster.connect_async() as client:
            await client.kv.put(BALANCE, "10")
            await draw_guarded(client, "first", 3)
            return [one.text for one in await client.kv.list("account/")]

    assert asyncio.run(main()) == ["7", "3"]
