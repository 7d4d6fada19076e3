"""Opens partition replicas for a test as flip_prober.py does logs: reads directories from its
input, answers each with a line of JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import structlog
from partition_kit import open_rocks_partitions, whole

from raftlog.errors import FatalError


async def what_is_found(directory: Path) -> dict[str, Any]:
    """What a starting broker reads."""
    store = None
    try:
        store = open_rocks_partitions(directory, probe_timeout_s=10.0)
        return {
            f"{one.key[0].hex()} {one.key[1]}": [
                one.start_offset,
                one.end_offset,
                list(map(list, one.epochs)),
                hashlib.sha256(whole(store, one.key, one.end_offset)).hexdigest(),
            ]
            for one in store.recover()
        }
    except FatalError as error:
        return {"error": type(error).__name__, "text": str(error)}
    finally:
        if store is not None:
            store.close()


def main() -> None:
    """Answer until there are no more lines. The directory is gone afterwards."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for line in sys.stdin:
        directory = Path(line.strip())
        found = asyncio.run(what_is_found(directory))
        shutil.rmtree(directory)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
