"""Send a hundred concurrent writes from one asynchronous client: they share fsyncs, and each is
executed exactly once.
"""

import asyncio
import sys

import raftlog


async def main(bootstrap: str) -> None:
    """Write, and count the offsets: one per write."""
    async with raftlog.AsyncClient(bootstrap, client_id="concurrent") as client:
        writes = [
            client.configs.alter("client-metrics", f"busy-{number}", set={"interval.ms": 1000})
            for number in range(100)
        ]
        results = await asyncio.gather(*writes)
        print(f"{len(results)} writes at {len({one.offset for one in results})} offsets")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
