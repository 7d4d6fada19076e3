"""Elect one of several programs as leader, and see which one leads."""

import asyncio
import sys

import raftlog
from raftlog.recipes import AsyncElection


async def candidate(name: str, brokers: str) -> None:
    """Lead once, then let the next candidate lead."""
    async with (
        raftlog.AsyncClient(brokers) as client,
        AsyncElection(client, "scheduler", name, ttl_s=5) as election,
    ):
        leader = await election.leader()
        print(f"{name} leads with token {election.token}; every client sees {leader}")


async def main(brokers: str) -> None:
    """Run three candidates, which in practice are separate programs."""
    await asyncio.gather(*(candidate(f"host-{number}", brokers) for number in range(3)))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
