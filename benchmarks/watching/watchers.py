"""Watchers that record when they received a change; run as a process: see ``deliveries``.

    python -m benchmarks.watching.watchers < PLAN

``PLAN`` is a line of JSON (:class:`Plan`). Prints ``ready`` when every watcher has had its first
response; when a second line arrives on stdin, prints JSON and exits: for each change its number,
how many watchers received it, and when the first and the last did, by the machine's monotonic
clock, which all processes share. The process also exits if a watcher's call ends or a watcher
receives a change twice.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from functools import partial

import msgspec
import uvloop

from benchmarks.watching.laned import LanedStream, opened_lanes
from benchmarks.watching.shared import SHARED, Shared
from benchmarks.watching.streams import Streams

MARK = re.compile(rb"benchmark-change-([0-9]{8})")
"""Mark in the value of each write, for which messages are searched without being parsed."""
NUMBER = b"00000000"
"""Placeholder for a watcher's number, as long as any number, since requests contain the lengths of
their fields.
"""
STREAMS_A_CONNECTION = 100
"""Number of streams per connection, below servers' default limits."""
START_TIMEOUT_S = 60.0


def mark(number: int) -> bytes:
    """Return the text by which a watcher recognises this change in a message."""
    return b"benchmark-change-%08d" % number


class Plan(msgspec.Struct):
    """The plan of one process.

    ``watchers``: number of watchers per address, numbered from ``first``. ``request``: each
    watcher's request; NUMBER in it stands for the watcher's number. ``shared``: how the watchers at
    one address share a stream (a key of SHARED), or "" if each has a stream. ``laned``: the request
    begins a raftlog watch whose stream moves to a lane.
    """

    addresses: list[str]
    watchers: list[int]
    path: str
    request: bytes
    asked_once: bool
    shared: str = ""
    first: int = 0
    laned: bool = False


class Seen:
    """The changes that the watchers of this process have received."""

    def __init__(self) -> None:
        self.changes: dict[int, list[float]] = {}
        self.answered = 0
        self._newest: dict[tuple[int, int], int] = {}
        self.failure = ""

    def watcher(self, connection: int, stream: int, message: bytes) -> None:
        """Record each change in a message on one stream of one connection."""
        self._note(
            time.monotonic(), connection, stream, [int(one) for one in MARK.findall(message)]
        )

    def shared(self, way: Shared, connection: int, stream: int, message: bytes) -> None:
        """Record the changes in a message to several watchers on one stream."""
        now = time.monotonic()
        for watchers, told in way.told(message):
            numbers = [int(one) for one in MARK.findall(told)]
            for watcher in watchers:
                self._note(now, connection, watcher, numbers)

    def _note(self, now: float, connection: int, watcher: int, numbers: list[int]) -> None:
        key = (connection, watcher)
        newest = self._newest.get(key)
        if newest is None:
            newest = self._newest[key] = -1
            self.answered += 1
        for number in numbers:
            if number <= newest:
                self.failure = f"a watcher had change {number} after {newest}"
            self._newest[key] = newest = number
            row = self.changes.get(number)
            if row is None:
                self.changes[number] = [1, now, now]
            else:
                row[0] += 1
                row[2] = now


async def main() -> None:
    """Read the plan, open all watchers, and print at the end what they received."""
    loop = asyncio.get_running_loop()
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    seen = Seen()
    way = SHARED.get(plan.shared)
    connections: list[Streams] = []
    lanes: list[LanedStream] = []
    opened = 0
    deadline = time.monotonic() + START_TIMEOUT_S
    for address, watchers in zip(plan.addresses, plan.watchers, strict=True):
        host, _, port = address.rpartition(":")
        for begin in range(0, watchers, STREAMS_A_CONNECTION):
            count = min(watchers - begin, STREAMS_A_CONNECTION)
            numbers = range(plan.first + opened, plan.first + opened + count)
            opened += count
            requests = [plan.request.replace(NUMBER, b"%08d" % number) for number in numbers]
            if plan.laned:
                lanes += await opened_lanes(address, plan.path, requests, seen, len(lanes))
                continue
            if way is not None:
                requests = way.requests(begin + 1, requests)
            if way is None or not begin:
                told = seen.watcher if way is None else partial(seen.shared, way)
                streams = Streams(
                    plan.path,
                    address,
                    requests if way is None else requests[:1],
                    partial(told, len(connections)),
                    asked_once=plan.asked_once,
                )
                connections.append(streams)
                await loop.create_connection(partial(_same, streams), host, int(port))
                requests = [] if way is None else requests[1:]
            for request in requests:
                streams.say(0, request)
            # One connection after the other: all at once would measure a stampede.
            while seen.answered < opened:
                if streams.ended.done() or time.monotonic() > deadline:
                    why = streams.ended.result() if streams.ended.done() else "no response"
                    raise SystemExit(f"{seen.answered} of {opened} watchers have begun: {why}")
                await asyncio.sleep(0.002)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    for streams in connections:
        if streams.ended.done():
            seen.failure = seen.failure or streams.ended.result()
    seen.failure = seen.failure or next((one.failure for one in lanes if one.failure), "")
    if seen.failure:
        raise SystemExit(seen.failure)
    print(msgspec.json.encode(seen.changes).decode(), flush=True)
    for streams in connections:
        streams.close()


def _same(streams: Streams) -> Streams:
    return streams


if __name__ == "__main__":
    uvloop.run(main())
