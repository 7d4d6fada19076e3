"""A hostile client with raw gRPC and lanes, which sends its messages to every method of every node
and records the refusals. As a process: ``python tests/hostile/hostile_attack.py '{"controllers":
[...], "brokers": [...], ...}'`` prints a JSON summary.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hostile_messages import Stranger, Target, targets
from raw_http2 import RawHttp2

from raftlog.transport.lane_tickets import ASK_KEY, GREETING, TICKET_BYTES, Proofs, door_of, offered
from raftlog.transport.lane_tls import fingerprint_of
from raftlog.transport.lanes import HEADER_BYTES
from raftlog.transport.tls import TlsConfig
from raftlog.transport.unary import ERROR_METADATA_KEY
from raftlog.wire.common.v1 import common_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip

HALVES, LANES = 0.01, 0.2
"""Number of times that messages are begun only, and how often a stream asks for a lane."""
UNARY_TIMEOUT_S = 3.0
STREAM_S = 0.3
"""Time for which the answers of a stream are listened to."""
EXPECTED = ("answered", "half", "lane answered")
"""Outcomes that an attack has to bring about. A slow machine answers too late for many of its
streams: then up to MOST_TIMES as many messages are sent.
"""
MOST_TIMES = 10
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
]


class Attack:
    """``messages`` messages in total, from ``seed``. ``refused``: markers of those that were
    definitely refused as a whole.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._nodes = {"controller": options["controllers"], "broker": options["brokers"]}
        self._known: dict[str, Sequence[Any]] = {
            name: list(values) for name, values in options["known"].items()
        }
        self._known["topic_id"] = [
            bytes.fromhex(value) for value in self._known.get("topic_id", [])
        ]
        files = options.get("tls")
        self._tls = None if files is None else TlsConfig(*map(Path, files))
        self._left = self._messages = options["messages"]
        self._seed, self._attackers = options["seed"], options["attackers"]
        self._targets = targets()
        self._untried = random.Random(self._seed).sample(self._targets, len(self._targets))
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        self.refused: list[str] = []

    async def run(self) -> None:
        """Run until all are sent, to every method once and then to random ones, and each of
        EXPECTED came.
        """
        await asyncio.gather(*(self._attacker(number) for number in range(self._attackers)))

    async def _attacker(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        stranger = Stranger(rng, self._known)
        channels: dict[str, grpc.aio.Channel] = {}
        try:
            while self._left > 0 or self._untried or self._lacks_an_outcome():
                target = self._untried.pop() if self._untried else rng.choice(self._targets)
                address = rng.choice(self._nodes[target.role])
                if address not in channels or rng.random() < 0.02:
                    old = channels.pop(address, None)
                    if old is not None:
                        await old.close()
                    channels[address] = self._channel(address)
                self.methods[target.name] += 1
                if self._tls is None and rng.random() < HALVES:
                    await self._halves(address, target, rng)
                elif target.streams and rng.random() < LANES:
                    await self._lane(channels[address], address, target, stranger, rng)
                elif target.streams:
                    await self._stream(channels[address], target, stranger, rng)
                else:
                    await self._call(channels[address], target, stranger)
        finally:
            for channel in channels.values():
                await channel.close()

    def _lacks_an_outcome(self) -> bool:
        may_go_on = self.sent < MOST_TIMES * self._messages
        # HTTP/2 by hand is plain text.
        expected = [name for name in EXPECTED if name != "half" or self._tls is None]
        return may_go_on and any(not self.outcomes[name] for name in expected)

    def _channel(self, address: str) -> Any:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        return grpc.aio.secure_channel(address, self._tls.channel_credentials(), options=OPTIONS)

    def _next(self) -> str:
        self._left -= 1
        self.sent += 1
        # Long: the bytes of a shorter one come up by chance in a log's checksums and random ids.
        return f"hostile-message-{self.sent}."

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

    async def _halves(self, address: str, target: Target, rng: random.Random) -> None:
        """Make calls on one connection without completing a message."""
        lengths = [rng.choice((1, 100, 65_536, 32 << 20)) for _ in range(rng.choice((1, 5, 50)))]
        until = time.monotonic() + STREAM_S * rng.random()

        def begin() -> None:
            raw = RawHttp2(address)
            try:
                for length in lengths:
                    raw.begin(target.name, length=length, sends=length * 9 // 10)
                while not raw.closed and time.monotonic() < until:
                    raw.pump(0.01)
            except OSError:
                pass  # The server has hung up.
            finally:
                raw.close()

        for _ in lengths:
            self._next()
        await asyncio.to_thread(begin)
        self.outcomes["half"] += len(lengths)

    async def _lane(
        self,
        channel: grpc.aio.Channel,
        address: str,
        target: Target,
        stranger: Stranger,
        rng: random.Random,
    ) -> None:
        """Send messages on the lane that the stream was offered: whole, truncated, too long, or
        without a ticket.
        """
        call = channel.stream_stream(target.name)(
            timeout=UNARY_TIMEOUT_S, metadata=((ASK_KEY, "1"),)
        )
        writer = None
        try:
            async with asyncio.timeout(STREAM_S):
                offer = offered(await call.initial_metadata())
                if offer is None:
                    self.outcomes["no lane"] += 1
                    return
                host = address.rpartition(":")[0]
                reader, writer = await asyncio.open_connection(host, offer.port)
                forged = rng.random() < 0.1
                ticket = rng.randbytes(TICKET_BYTES) if forged else offer.ticket
                writer.write(GREETING + door_of(ticket))
                server = ""
                if self._tls is not None:
                    context = self._tls.rereading_credentials()().lane.context
                    await writer.start_tls(context, server_hostname=host)
                    server = fingerprint_of(writer.get_extra_info("ssl_object").getpeercert(True))
                writer.write(Proofs.of(ticket, server).of_client)
                for _ in range(rng.choice((1, 2, 20))):
                    message = stranger.message(target, self._next())
                    length = len(message) if rng.random() < 0.9 else rng.choice((0, 9, 2**32 - 1))
                    sent = length.to_bytes(HEADER_BYTES, "big") + message
                    if rng.random() < 0.2:
                        sent = sent[: rng.randrange(len(sent))]
                    writer.write(sent)
                await writer.drain()
                while await reader.read(1 << 16):
                    self.outcomes["lane answered"] += 1
            self.outcomes["lane ended"] += 1
        except TimeoutError:
            self.outcomes["lane left"] += 1
        except (OSError, grpc.aio.BaseError, asyncio.InvalidStateError):
            self.outcomes["lane closed"] += 1
        finally:
            if writer is not None:
                writer.close()
            call.cancel()


def main() -> None:
    """Attack as the argument says, and print the results."""
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
