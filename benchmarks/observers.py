"""Brokers that record when they applied an offset, and when they received a LAO that covers it; run
as a process: see ``propagation``.

    python -m benchmarks.observers CLUSTER_ID CONTROLLERS FIRST_ID COUNT

Prints ``ready`` when all are unfenced; when a line arrives on stdin, prints JSON and exits.
``moves``: for each broker a list of [time, applied, told], with times by the machine's monotonic
clock, which all processes share. ``messages``: numbers of messages received and sent on all
metadata streams between SIGUSR1 and SIGUSR2.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

import structlog
import uvloop

from broker.metadata.view import View
from broker.partition.events import Effect, Event
from broker.service.service import BrokerService
from broker.settings import BrokerSettings, LifecycleSettings
from raftlog.metadata.entities import Process
from raftlog.process import tune_memory
from raftlog.transport.api import Conversation, Dialer, Link
from raftlog.transport.grpc_server import GrpcServerTransport


class Counter:
    """Messages received and sent, while it counts."""

    def __init__(self) -> None:
        self.on = False
        self.received = self.sent = 0

    def begin(self) -> None:
        """Count from now on, until ``end``."""
        self.on = True

    def end(self) -> None:
        """Stop counting."""
        self.on = False


class CountingTransport(GrpcServerTransport):
    """A transport that counts the messages of metadata streams."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(asks_for_lanes=True)
        self._counter = counter

    def dial(self, address: str, conversation: Conversation, handler: Any) -> Dialer:
        """Connect as the transport does, with a handler that counts the messages."""
        if conversation is Conversation.OBSERVER:
            handler = _CountingHandler(handler, self._counter)
        return super().dial(address, conversation, handler)


class _CountingHandler:
    def __init__(self, handler: Any, counter: Counter) -> None:
        self._handler, self._counter = handler, counter
        self.closed = handler.closed

    def opened(self, link: Any) -> None:
        send = link.send

        def counted(message: Any) -> None:
            self._counter.sent += self._counter.on
            send(message)

        link.send = counted
        self._handler.opened(link)

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        self._counter.received += self._counter.on * len(messages)
        self._handler.received(link, messages)


class Notebook:
    """A recorder of the times at which a broker's view has moved, and to which offsets."""

    def __init__(self) -> None:
        self.moves: tuple[list[float], list[int], list[int]] = ([], [], [])
        """Times, applied offsets and known LAOs. (A tuple for each move would make the garbage
        collector stop all brokers of the process more often.)
        """
        self.view: View | None = None

    def view_moved(self) -> None:
        """Record the move; a view that is not known yet has no offsets."""
        if self.view is not None:
            times, applied, told = self.moves
            times.append(time.monotonic())
            applied.append(self.view.applied)
            told.append(self.view.known_lao)

    def fencing_checked(self, why_fenced: str) -> None:
        """Accept the reason for a fencing, which the benchmark does not use."""

    def replicas_recovered(self) -> None:
        """Do nothing, as there are no replicas."""

    def stepped(self, event: Event, effects: Sequence[Effect], now: float) -> None:
        """Do nothing: there are no replicas."""

    def step_failed(self, error: Exception) -> None:
        """Do nothing: there are no replicas."""


async def main(cluster_id: str, controllers: tuple[str, ...], first_id: int, count: int) -> None:
    """Run observers until a line arrives on stdin; print their recordings as JSON."""
    counter = Counter()
    transport = CountingTransport(counter)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, counter.begin)
    loop.add_signal_handler(signal.SIGUSR2, counter.end)
    observers: list[BrokerService] = []
    notebooks: list[Notebook] = []
    for broker_id in range(first_id, first_id + count):
        settings = BrokerSettings(
            broker_id=broker_id,
            cluster_id=cluster_id,
            controllers=controllers,
            listen="127.0.0.1:0",
            advertised_host="127.0.0.1",
            lifecycle=LifecycleSettings(),
        )
        notebook = Notebook()
        observer = BrokerService(
            settings,
            transport,
            process=Process("bench", str(broker_id), 0, broker_id),
            incarnation_id=str(uuid.uuid4()),
            rng=random.Random(),
            tracer=notebook,
        )
        notebook.view = observer.view
        notebooks.append(notebook)
        observers.append(observer)
        await observer.start()
    while not all(observer.report.describe().state == 2 for observer in observers):
        await asyncio.sleep(0.02)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    noted = {
        "moves": [notebook.moves for notebook in notebooks],
        "messages": [counter.received, counter.sent],
    }
    print(json.dumps(noted), flush=True)
    for observer in observers:
        await observer.close()
    await transport.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    tune_memory()
    uvloop.run(main(sys.argv[1], tuple(sys.argv[2].split(",")), int(sys.argv[3]), int(sys.argv[4])))
