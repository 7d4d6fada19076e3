"""Keep an in-memory copy of all topics: start with the existing ones, then apply changes."""

import asyncio
import sys

import raftlog


async def main(bootstrap: str) -> None:
    """Follow the topics that are created and deleted meanwhile."""
    topics: set[str] = set()
    async with raftlog.AsyncClient(bootstrap) as client:
        async with client.watch("topics/cached-*", initial=True, idle_timeout_s=1) as changes:
            for name in ("cached-1", "cached-2"):
                await client.topics.create(name)
            await client.topics.delete("cached-1")
            async for change in changes:
                if change.after is None:
                    topics.discard(change.key)
                else:
                    topics.add(change.key)
        print(f"topics: {', '.join(sorted(topics))}")
        await client.topics.delete("cached-2")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
