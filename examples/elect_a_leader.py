"""Elect one of several programs, and see which leads."""

import asyncio
import sys

import raftlog
from raftlog.recipes import AsyncElection


async def candidate(name: str, brokers: str) -> None:
    """Lead once, and let the next one lead."""
    async with (
        raftlog.AsyncClient(brokers) as client,
        AsyncElection(client, "scheduler", name, ttl_s=5) as election,
    ):
        leader = await election.leader()
        print(f"{name} leads with token {election.token}; everybody sees {leader}")


async def main(brokers: str) -> None:
    """Three candidates, each a program of its own elsewhere."""
    await asyncio.gather(*(candidate(f"host-{number}", brokers) for number in range(3)))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
