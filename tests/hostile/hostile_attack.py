"""A stranger with a raw gRPC client: sends its messages to every method of every node, and notes
what was refused.

A process of its own: ``python tests/hostile/hostile_attack.py '{"controllers": [...], "brokers":
[...], ...}'`` prints a JSON summary.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hostile_messages import Stranger, Target, targets

from raftlog.transport import grpc_env  # noqa: F401  (before grpc)
from raftlog.transport.unary import ERROR_METADATA_KEY
from raftlog.wire.common.v1 import common_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip

ATTACKERS = 4
UNARY_TIMEOUT_S = 3.0
STREAM_S = 0.3
"""How long the answers of a stream are listened to."""
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
]


class Attack:
    """``messages`` messages in all, from ``seed``.

    ``refused``: markers of those that were definitely refused as a whole.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._nodes = {"controller": options["controllers"], "broker": options["brokers"]}
        self._known: dict[str, Sequence[Any]] = {
            name: list(values) for name, values in options["known"].items()
        }
        self._known["topic_id"] = [
            bytes.fromhex(value) for value in self._known.get("topic_id", [])
        ]
        self._left = options["messages"]
        self._seed = options["seed"]
        self._targets = targets()
        self._untried = random.Random(self._seed).sample(self._targets, len(self._targets))
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        self.refused: list[str] = []

    async def run(self) -> None:
        """Until all are sent: to every method once, and then to any."""
        await asyncio.gather(*(self._attacker(number) for number in range(ATTACKERS)))

    async def _attacker(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        stranger = Stranger(rng, self._known)
        channels: dict[str, grpc.aio.Channel] = {}
        try:
            while self._left > 0 or self._untried:
                target = self._untried.pop() if self._untried else rng.choice(self._targets)
                address = rng.choice(self._nodes[target.role])
                if address not in channels or rng.random() < 0.02:
                    old = channels.pop(address, None)
                    if old is not None:
                        await old.close()
                    channels[address] = grpc.aio.insecure_channel(address, options=OPTIONS)
                self.methods[target.name] += 1
                if target.streams:
                    await self._stream(channels[address], target, stranger, rng)
                else:
                    await self._call(channels[address], target, stranger)
        finally:
            for channel in channels.values():
                await channel.close()

    def _next(self) -> str:
        self._left -= 1
        self.sent += 1
        return f"h{self.sent}."

    async def _call(self, channel: grpc.aio.Channel, target: Target, stranger: Stranger) -> None:
        marker = self._next()
        call = channel.unary_unary(target.name)(
            stranger.message(target, marker), timeout=UNARY_TIMEOUT_S
        )
        try:
            await call
        except grpc.aio.AioRpcError as error:
            self.outcomes[error.code().name] += 1
            said = [
                value for key, value in error.trailing_metadata() or () if key == ERROR_METADATA_KEY
            ]
            if said and not common_pb2.Error.FromString(said[0]).outcome_unknown:
                self.refused.append(marker)
        else:
            self.outcomes["answered"] += 1

    async def _stream(
        self, channel: grpc.aio.Channel, target: Target, stranger: Stranger, rng: random.Random
    ) -> None:
        call = channel.stream_stream(target.name)(timeout=UNARY_TIMEOUT_S)
        try:
            for _ in range(rng.choice((1, 1, 2, 5, 20, 200))):
                await call.write(stranger.message(target, self._next()))
            if rng.random() < 0.5:
                await call.done_writing()
            async with asyncio.timeout(STREAM_S * rng.random()):
                while await call.read() is not grpc.aio.EOF:
                    self.outcomes["streamed"] += 1
            self.outcomes["stream ended"] += 1
        except TimeoutError:
            self.outcomes["stream left"] += 1
        except grpc.aio.AioRpcError as error:
            self.outcomes[f"stream {error.code().name}"] += 1
        except (asyncio.InvalidStateError, grpc.aio.BaseError):
            # The server ended the stream while this side wrote, or said that it had written all.
            self.outcomes["stream closed"] += 1
        finally:
            call.cancel()


def main() -> None:
    """Attack as the argument says, and print what came of it."""
    attack = Attack(json.loads(sys.argv[1]))
    asyncio.run(attack.run())
    counts = {
        "sent": attack.sent,
        "methods": attack.methods,
        "outcomes": attack.outcomes,
        "refused": attack.refused,
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
