"""The cost of keys of the key-value store to a node, in isolation: ``python -m benchmarks.keys
[COUNT]`` folds that many in random order, 100 in a batch, and prints CPU times and sizes.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.stats import percentile, resident_bytes
from broker.metadata.reads import list_key_values
from broker.watch.responses import listing
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, record
from raftlog.metadata.selectors import parse_selectors
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.process import tune_memory
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.records.v1 import records_pb2 as pb

COUNT, BATCH, DIRECTORIES, VALUE_BYTES = 1_000_000, 100, 1_000, 256


def _put(number: int) -> Record:
    key = f"app/{number % DIRECTORIES:04d}/{number:012d}"
    return record(pb.KeyValueRecord(key=key, value=os.urandom(VALUE_BYTES)))


def _timed(what: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    begun = time.process_time()
    result = what(*args)
    return time.process_time() - begun, result


def _fold(builder: ImageBuilder, records: list[Record]) -> Image:
    builder.apply_batch(records, base_offset=builder.offset + 1, epoch=1, timestamp_ms=1)
    return builder.snapshot()


def main() -> None:
    """Fold, save, load and list keys."""
    tune_memory()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)
    builder, spent_s, before = ImageBuilder(Image()), 0.0, resident_bytes(os.getpid())
    for begin in range(0, count, BATCH):
        records = [_put(number) for number in numbers[begin : begin + BATCH]]
        spent_s += _timed(_fold, builder, records)[0]
    print(f"fold of a key, {BATCH} per batch: {spent_s / count * 1e6:.1f} us")
    print(f"memory per key: {(resident_bytes(os.getpid()) - before) / count:.0f} bytes")
    alone = [_timed(_fold, builder, [_put(count + n)])[0] for n in range(200)]
    print(f"fold of one new key alone, p50: {percentile(alone, 0.5) * 1e6:.1f} us")
    image = builder.snapshot()
    header = header_of(image, cluster_id="bench", generations=())
    took_s, content = _timed(lambda: list(pieces(image, header)))
    print(f"snapshot: {took_s:.2f} s, {sum(map(len, content)) / count:.0f} bytes per key")
    print(f"loading it: {_timed(load, content)[0]:.2f} s")
    page = broker_pb2.ListKeyValuesRequest(after="app/0500/")
    print(f"a page of keys: {_timed(list_key_values, image, page)[0] * 1e3:.2f} ms")
    few = broker_pb2.ListKeyValuesRequest(prefix="app/0777/", limit=10)
    print(f"ten keys below a prefix: {_timed(list_key_values, image, few)[0] * 1e6:.0f} us")
    selection = parse_selectors(["kv/app/0777/"])
    took_s, found = _timed(lambda: sum(one is not None for one in listing(image, selection)))
    print(f"initial list of a directory: {took_s * 1e3:.2f} ms, {found} keys")


if __name__ == "__main__":
    main()
