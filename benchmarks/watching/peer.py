"""The same measurements for etcd, by the same client, at three members.

Its own scripts have built the programs (``benchmarks.peers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.members import Members
from benchmarks.watching.deliveries import Case, Served, deliveries, each_case
from benchmarks.watching.watchers import NUMBER
from raftlog.config_writes.writes import varint
from raftlog.transport import grpc_runtime  # noqa: F401  (before grpc)

import grpc.aio  # isort: skip

WATCH, PUT = "/etcdserverpb.Watch/Watch", "/etcdserverpb.KV/Put"


def watch(home: Path, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each case, one after the other on one fresh cluster. ``home``: PEERS_HOME."""
    with Members(home / "etcd") as members:
        measured = partial(_measured, members, members.leader_first(), seconds)
        return each_case(measured, laned=False)


async def _measured(
    members: Members, addresses: Sequence[str], seconds: float, case: Case
) -> dict[str, Any]:
    by = f"{case.watchers}-on-streams" if case.shared else str(case.watchers)
    prefix = "own/" if case.own_keys else f"watched-by-{by}/"
    # WatchRequest.create_request: key, and the end of the range.
    begin, end = prefix.encode(), prefix[:-1].encode() + b"0"
    one = _field(1, begin + NUMBER)
    request = _field(1, one if case.own_keys else _field(1, begin) + _field(2, end))
    served = Served(
        addresses,
        WATCH,
        request,
        asked_once=False,
        pids=members.pids,
        all_pids=members.pids,
        shared="etcd" if case.shared else "",
    )
    async with grpc.aio.insecure_channel(addresses[0]) as channel:
        put = channel.unary_unary(PUT)

        async def write(number: int, value: bytes) -> None:
            await put(_field(1, f"{prefix}{number:08d}".encode()) + _field(2, value))

        return await deliveries(served, case, write, seconds=seconds)


def _field(number: int, data: bytes) -> bytes:
    """Return a field of bytes in protobuf's encoding."""
    return varint(number << 3 | 2) + varint(len(data)) + data
