"""Appends for ever in group commits, printing each acknowledged end offset, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from storage_kit import make_batch, make_chunk, open_rocks

from raftlog.errors import StorageError


async def main() -> None:
    store = open_rocks(Path(sys.argv[1]))
    end = store.recover().end_offset
    window = asyncio.Semaphore(20)

    def acknowledged(outcome: int | StorageError) -> None:
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()
        window.release()

    while True:
        await window.acquire()
        size = 1 if end % 3 else 5
        chunk = make_batch(end) if end % 3 else make_chunk(end, 2, 3, body=b"y" * 3000)
        store.append(chunk, end, end + size)
        end += size
        store.flush(acknowledged, inline=end % 2 == 0)


asyncio.run(main())
