"""``python -m benchmarks.codec``: the cost per write of each function in the compiled codec, and in
the Python one, in microseconds of CPU, for 64 writes at a time, in the best of many rounds.

As there are no nodes and no client, all caches are warm, so only the columns can be compared with
each other.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import xxhash

from benchmarks.load import KEYS, LOADS, Load, Writes
from raftlog import batch
from raftlog.config_writes import codec, records
from raftlog.config_writes import writes as python
from raftlog.config_writes.records import Change
from raftlog.config_writes.writes import (
    MAX_BYTES,
    MAX_REQUESTS,
    ConfigReplies,
)
from raftlog.wire.controller.v1 import controller_pb2 as pb

WRITES = 64
TIMES = 200


def measure(run: Callable[[], object]) -> float:
    """Return the lowest CPU time per write over many rounds, in microseconds."""
    best = float("inf")
    for _ in range(TIMES):
        began = time.thread_time()
        run()
        best = min(best, time.thread_time() - began)
    return best / WRITES * 1e6


Round = Callable[[], object]


def steps(native: Any) -> dict[str, tuple[Round, Round]]:
    """Return a round of WRITES calls for each function by name: compiled, and in Python."""
    load: Load = LOADS["w2"]
    made, rng = Writes(load), random.Random(2)
    writes = [made.next() for _ in range(WRITES)]
    for number, write in enumerate(writes, 1):
        write.correlation_id, write.timeout_ms = number, 30_000
    changes: list[Change] = [write.changes[0] for write in writes]
    requests = [python.request(write) for write in writes]
    envelope = b"".join(b"\x0a" + python.varint(len(data)) + data for data in requests)
    chunk = batch.encode_framed(
        (records.py_encoded(changes, 0, WRITES),),
        WRITES,
        base_offset=0,
        epoch=1,
        timestamp_ms=1,
        principal="",
    )
    (header,) = batch.headers(chunk)
    begin, end = batch.records_position(chunk, header), header.position + header.size
    configs = [
        {(16, f"key-{key:012d}"): {"match": f"{rng.random():.17f}" * 13} for key in range(KEYS)}
        for _ in range(2)
    ]
    replies = ConfigReplies(list(range(1, WRITES + 1)), [1] * WRITES, 100, 1, 3, 0)
    heads = codec._heads(1, 3, 0)
    digest = xxhash.xxh3_128_digest

    def native_requests() -> None:
        for one in writes:
            native.request(
                one.changes,
                one.correlation_id,
                one.cluster_id,
                one.timeout_ms,
                one.acks,
                one.principal,
            )

    return {
        "request": (
            native_requests,
            lambda: [python.request(one) for one in writes],
        ),
        "grouped": (
            lambda: native.grouped(envelope, MAX_REQUESTS, MAX_BYTES),
            lambda: python.grouped(
                pb.ControllerRequests.FromString(envelope).requests, MAX_REQUESTS, MAX_BYTES
            ),
        ),
        "ends": (
            lambda: native.ends(envelope, 0x0A, 1 << 20, 512, 1 << 18),
            lambda: python.ends(envelope, 0x0A, 1 << 20, 512, 1 << 18),
        ),
        "run": (
            lambda: native.run(changes, 0, 1_024, 249),
            lambda: python.run(changes, 0, 1_024, 249),
        ),
        "encoded": (
            lambda: native.encoded(changes, 0, WRITES),
            lambda: records.py_encoded(changes, 0, WRITES),
        ),
        "decoded": (
            lambda: native.decoded(chunk, begin, end, WRITES),
            lambda: records.py_decoded(chunk, header),
        ),
        "fold": (
            lambda: native.fold(changes, configs[0], {}, digest, records.entity),
            lambda: records.py_fold(changes, configs[1], {}),
        ),
        "replies": (
            lambda: native.replies(replies.correlation_ids, replies.counts, 100, *heads, 0),
            lambda: python.replies(replies),
        ),
        "entity": (
            lambda: [native.entity(one) for one in changes],
            lambda: [records.entity(one) for one in changes],
        ),
    }


def main() -> None:
    """Print a line for each function. Exits if the codec is not compiled."""
    try:
        native = importlib.import_module("raftlog.config_writes._native")
    except ImportError:
        sys.exit("the codec is not compiled: scripts/setup does it where a compiler is")
    print("             native python")
    for name, (compiled, by_python) in steps(native).items():
        print(f"{name:10s} {measure(compiled):8.2f} {measure(by_python):6.2f}")


if __name__ == "__main__":
    main()
