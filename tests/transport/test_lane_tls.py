"""TLS of lanes."""

import asyncio
import gc
import math
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from lane_kit import Pair, frame, lane_listener, lane_of, pair
from lane_kit import run as alone
from scenarios import scenario
from test_lane_tickets import complaints, hung_up, knock, stream_to
from tls_files import issue
from transport_worlds import LIMITS, Medium, until

from raftlog.identity import ANONYMOUS, Access, Admitted, PeerIdentity, Proved
from raftlog.transport import lane_tickets, lane_tls
from raftlog.transport.admission import ExpiryTimer
from raftlog.transport.api import Conversation, TransportLimits
from raftlog.transport.bounds import Complaint
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.lane_tls import EMPTY_MAX_BYTES, HANDSHAKE_MAX_BYTES, LaneTls, TlsTransport
from raftlog.transport.lanes import Lane, LaneError
from raftlog.transport.tls import TlsConfig, TlsTrust, lane_context

ASK = (lane_tickets.ASK_KEY, "1")
pytestmark = pytest.mark.usefixtures("certificates")


class Certificates:
    """Files of one authority, and of another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority, self.foreign = trustme.CA(), trustme.CA()

    def issue(self, name: str, *, foreign: bool = False) -> TlsConfig:
        return issue(self.directory, self.foreign if foreign else self.authority, name)

    def renew(self, tls: TlsConfig) -> None:
        assert issue(self.directory, self.authority, "renewed", stem="node") == tls

    def expired(self) -> TlsConfig:
        now = datetime.now(UTC)
        validity = now - timedelta(days=2), now - timedelta(days=1)
        return issue(self.directory, self.authority, "expired", validity=validity)


@pytest.fixture
def certificates(tmp_path: Path) -> Iterator[Certificates]:
    made = Certificates(tmp_path)
    Medium.tls = made.issue("node")
    yield made
    Medium.tls = None


def moved(scenario: Callable[[Pair], Awaitable[None]], limits: TransportLimits = LIMITS) -> None:
    """Run with a follower that has moved to its lane."""

    async def main() -> None:
        async with pair(limits=limits) as both:
            await both.ask_until_moved()
            await scenario(both)

    uvloop.run(main())


def run(scenario: Callable[[Pair], Awaitable[None]], limits: TransportLimits = LIMITS) -> None:
    """Run the scenario as ``moved``; it does not use the follower's lane."""

    async def main(both: Pair) -> None:
        await scenario(both)
        for _ in range(3):
            await both.ask()
        assert both.lanes == (1, 1), "nobody else's lane is touched"

    moved(main, limits)


def own_tls() -> TlsConfig:
    assert Medium.tls is not None
    return Medium.tls


def settings_of(tls: TlsConfig | TlsTrust) -> LaneTls:
    return tls.rereading_credentials()().lane


@asynccontextmanager
async def offer_of(both: Pair) -> AsyncIterator[lane_tickets.Offer]:
    """Return a stream's offer that its client does not use."""
    async with stream_to(both, ASK) as stream:
        assert stream.offer is not None
        yield stream.offer


async def opens(offer: lane_tickets.Offer, tls: LaneTls | None) -> str:
    """Return the reason why a lane does not open; empty if it does."""
    try:
        lane = await lane_tickets.connect("127.0.0.1", offer, 1 << 20, 10, tls)
    except LaneError as error:
        return str(error).partition(": ")[2]
    lane.abort()
    return ""


@scenario(run)
async def test_lane_opens_only_with_the_certificate_of_its_stream(
    both: Pair, *, certificates: Certificates
) -> None:
    others = {
        "another of the authority": settings_of(certificates.issue("other")),
        "another authority": settings_of(certificates.issue("foreign", foreign=True)),
        "expired": settings_of(certificates.expired()),
        "none": settings_of(TlsTrust(certificates.issue("node-2").ca_path)),
        "plain text": None,
    }
    # It trusts the server all the same: the server has to refuse it.
    others["another authority"].context.load_verify_locations(
        cadata=certificates.authority.cert_pem.bytes().decode()
    )
    async with offer_of(both) as offer:
        for number, (what, tls) in enumerate(others.items(), 1):
            assert await opens(offer, tls), what
            await until(
                lambda n=number: complaints(both, Complaint.UNAUTHENTICATED) == n  # type: ignore[misc]
            )
        assert await opens(offer, settings_of(own_tls())) == "", "its ticket is not used up"
    assert both.server._lanes.pending_places.total == 0


@asynccontextmanager
async def between(own: TlsConfig, onward_port: int) -> AsyncIterator[int]:
    """Return the port of a server with this certificate, which passes proofs on to the node."""
    context = lane_context(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate_path, own.private_key_path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await reader.readexactly(len(lane_tickets.GREETING) + lane_tickets.DOOR_BYTES)
        await writer.start_tls(context)
        proof = await reader.readexactly(lane_tickets.PROOF_BYTES)
        onward, leaving = await asyncio.open_connection("127.0.0.1", onward_port)
        leaving.write(hello)
        await leaving.start_tls(settings_of(own).context, server_hostname="127.0.0.1")
        leaving.write(proof)
        with suppress(asyncio.IncompleteReadError, ConnectionResetError):
            writer.write(await onward.readexactly(lane_tickets.PROOF_BYTES))
        leaving.close()
        writer.close()

    fake = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield fake.sockets[0].getsockname()[1]
    finally:
        fake.close()


def test_server_of_another_authority_or_host_is_refused(certificates: Certificates) -> None:
    own = settings_of(own_tls())

    async def main(served: trustme.LeafCert) -> str:
        context = lane_context(ssl.PROTOCOL_TLS_SERVER)
        served.configure_cert(context)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(lane_tickets.GREETING) + lane_tickets.DOOR_BYTES)
            try:
                await writer.start_tls(context)
            except OSError:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        why = await opens(lane_tickets.Offer(port, bytes(32)), own)
        server.close()
        return why

    foreign = asyncio.run(main(certificates.foreign.issue_cert("127.0.0.1")))
    assert "certificate verify failed" in foreign
    elsewhere = asyncio.run(main(certificates.authority.issue_cert("elsewhere.example")))
    assert "IP address mismatch" in elsewhere


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01", b"\x00" * 600, b"GET /"
                                                  b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x40\x00"],
    ids=["silence", "begun", "zeros", "http", "cut"],
)  # fmt: skip
@scenario(run, replace(LIMITS, handshake_timeout_ms=1_000))
async def test_invalid_handshake_is_closed_leaving_the_ticket(both: Pair, *, said: bytes) -> None:
    async with offer_of(both) as offer:
        async with knock(both) as (reader, writer):
            writer.write(lane_tickets.GREETING + lane_tickets.door_of(offer.ticket) + said)
            await hung_up(reader)
        assert await opens(offer, settings_of(own_tls())) == ""


@scenario(run)
async def test_endless_handshake_is_aborted_at_its_limit(both: Pair) -> None:
    record = b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes((1 << 14) - 4)
    async with offer_of(both) as offer, knock(both) as (reader, writer):
        writer.write(lane_tickets.GREETING + lane_tickets.door_of(offer.ticket) + record * 8)
        await hung_up(reader)
        assert 8 * len(record) > HANDSHAKE_MAX_BYTES
        await until(lambda: complaints(both, Complaint.UNAUTHENTICATED) == 1)
    await until(lambda: both.server.bounds.unfinished_frames.total == 0)


@scenario(run)
async def test_ticket_allows_one_handshake_at_a_time(both: Pair) -> None:
    async with offer_of(both) as offer:
        async with knock(both) as (_, writer):
            writer.write(lane_tickets.GREETING + lane_tickets.door_of(offer.ticket))
            lanes: Any = lane_listener(both.server)
            await until(lambda: lanes.at_door(lane_tickets.door_of(offer.ticket)) is None)
            async with knock(both) as (reader, again):
                again.write(lane_tickets.GREETING + lane_tickets.door_of(offer.ticket))
                assert await hung_up(reader) == b""
        await until(lambda: not both.server._lanes.pending)
        assert await opens(offer, settings_of(own_tls())) == ""


@scenario(run)
async def test_loop_continues_during_a_handshake(
    both: Pair, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    shake, may_go_on = TlsTransport._shake, threading.Event()

    def held(self: TlsTransport, received: bytes) -> bool:
        assert may_go_on.wait(30)
        return shake(self, received)

    monkeypatch.setattr(TlsTransport, "_shake", held)
    async with offer_of(both) as offer:
        opening = asyncio.create_task(opens(offer, settings_of(own_tls())))
        try:
            for _ in range(20):
                await both.ask()
            assert not opening.done()
        finally:
            may_go_on.set()
        assert await opening == ""


@scenario(alone)
async def test_stream_and_its_lane_have_the_same_certificate(*, certificates: Certificates) -> None:
    """[The files are replaced between the two, and the lane would be another peer's.]"""
    tls = own_tls()
    async with pair() as both:
        server, client = settings_of(tls), tls.rereading_credentials()
        before = client().lane
        certificates.renew(tls)
        await until(lambda: client().lane.fingerprint != server.fingerprint)
        assert before.fingerprint == server.fingerprint
        await both.ask_until_moved()
        assert both.client.bounds.lanes.failures == 0
        # The next link has the new files at both ends.
        both.caller.links[0].close("enough")
        await both.reconnected()
        await both.ask_until_moved()
        assert both.leader.links[1].identity.fingerprint == client().lane.fingerprint
        assert both.client.bounds.lanes.failures == 0


@pytest.mark.parametrize("broken", ["a record", "the end"])
@scenario(moved)
async def test_broken_or_ended_tls_ends_the_link(both: Pair, *, broken: str) -> None:
    raw = lane_of(both.caller.links[0])._transport._raw
    if broken == "a record":
        raw.write(b"\x17\x03\x03\x00\x20" + bytes(32))
    else:
        raw.write_eof()
    await until(lambda: both.leader.reasons and both.caller.reasons)
    why = "TLS failed: " if broken == "a record" else "the peer closed the lane"
    assert both.leader.reasons[0].startswith(why)


class Wire:
    """The in-memory transport below a server's TLS."""

    def __init__(self) -> None:
        self.sent, self.closed = bytearray(), False

    def write(self, data: bytes) -> None:
        self.sent += data

    def abort(self) -> None:
        self.closed = True

    close = abort

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, _: asyncio.BaseProtocol) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...


class KeyChanger:
    """A TLS 1.3 client that changes its keys, as Python's ssl never does (RFC 8446, 4.6.3, 7)."""

    def __init__(self, authority: trustme.CA, directory: Path) -> None:
        self._keys = directory / "keys"
        context = ssl.create_default_context()
        authority.configure_trust(context)
        context.keylog_filename = str(self._keys)
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self.outgoing, server_hostname="localhost")

    async def shake_hands(
        self, server: TlsTransport, wire: Wire, opened: Callable[[], bool]
    ) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                server.data_received(self.outgoing.read())
                await until(lambda: wire.sent)
                self._incoming.write(bytes(wire.sent))
                wire.sent.clear()
            else:
                server.data_received(self.outgoing.read())
                break
        await until(opened)
        lines = dict(line.split(maxsplit=1) for line in self._keys.read_text().splitlines()[1:])
        self._secret = bytes.fromhex(lines["CLIENT_TRAFFIC_SECRET_0"].split()[1])

    def change(self, *, asks: bool) -> bytes:
        """Update the keys with one record. ``asks``: the server must update its own keys in
        response.
        """
        key, iv = self._expanded("key", 32), self._expanded("iv", 12)
        header = b"\x17\x03\x03" + (6 + 16).to_bytes(2)
        plain = bytes([24, 0, 0, 1, asks, 22])
        self._secret = self._expanded("traffic upd", 48)
        # Each key encrypts this record alone, number 0.
        return header + AESGCM(key).encrypt(iv, plain, header)

    def _expanded(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = size.to_bytes(2) + bytes([len(name)]) + name + b"\0"
        return HKDFExpand(SHA384(), size, info).derive(self._secret)


@pytest.mark.parametrize("asks", [False, True])
def test_peer_with_endless_key_changes_is_disconnected(tmp_path: Path, *, asks: bool) -> None:
    """[It changed them 40,000 times a second, each for 16 us here, without an answer.]"""

    async def main() -> None:
        authority, wire, received, opened = trustme.CA(), Wire(), Received(), asyncio.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        server = TlsTransport(wire, received, context, opened.set)  # type: ignore[arg-type]
        client = KeyChanger(authority, tmp_path)
        await client.shake_hands(server, wire, opened.is_set)
        assert client.tls.cipher()[0] == "TLS_AES_256_GCM_SHA384"  # type: ignore[index]
        wire.sent.clear()
        for _ in range(100):
            server.data_received(client.change(asks=asks))
        # Some are no offence; a server that is asked changes its own, with its next read at last.
        assert not wire.is_closing()
        assert len(wire.sent) == 99 * 27 * asks
        count = 100
        while not wire.is_closing():
            server.data_received(b"".join(client.change(asks=asks) for _ in range(100)))
            count += 100
            assert count < 3_000
        server.connection_lost(None)
        assert received.reasons == ["TLS failed: the peer updates its keys too often"]
        assert len(wire.sent) <= EMPTY_MAX_BYTES + 100 * 27

    uvloop.run(main())


class Received(asyncio.Protocol):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.reasons.append(str(error))


@scenario(moved)
async def test_protocol_that_starts_while_the_kernel_accepts_nothing_is_paused(both: Pair) -> None:
    lane = lane_of(both.caller.links[0])
    secure = lane._transport
    secure.pause_writing()
    lane.begin(secure)
    assert not lane.writable
    secure.resume_writing()
    assert lane.writable


@scenario(moved)
async def test_frames_may_span_records_and_share_one(both: Pair) -> None:
    lane = lane_of(both.caller.links[0])
    secure, before = lane._transport, len(both.leader.ids)
    secure.write(frame(b"") * 3_000)
    for each in frame(b"") * 20:
        secure.write(bytes((each,)))
    await until(lambda: len(both.leader.ids) == before + 3_020)


def test_closed_lanes_leave_nothing_behind(certificates: Certificates) -> None:
    async def main() -> None:
        async with pair() as both:
            for _ in range(3):
                await both.ask_until_moved()
                count = len(both.leader.links)
                both.leader.links[-1].close("enough")
                await until(lambda count=count: len(both.caller.links) > count)  # type: ignore[misc]
        gc.collect()

    uvloop.run(main())
    # A handshake that the end interrupted may still run in its thread, which holds its transport.
    lane_tls._handshakes().submit(int).result()
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is TlsTransport]


@scenario(run)
async def test_lanes_use_tls_1_3_only(both: Pair) -> None:
    old = settings_of(own_tls())
    old.context.minimum_version = ssl.TLSVersion.TLSv1_2
    old.context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with offer_of(both) as offer:
        assert "protocol version" in await opens(offer, old)


@scenario(run)
async def test_next_lane_resumes_the_session(both: Pair, *, certificates: Certificates) -> None:
    tls = own_tls()
    current = tls.rereading_credentials()

    async def resumed(offer: lane_tickets.Offer) -> bool:
        lane: Any = await lane_tickets.connect("127.0.0.1", offer, 1 << 20, 10, current().lane)
        found = lane._transport._tls.session_reused
        lane.abort()
        return bool(found)

    for expected in (False, True, True):
        async with offer_of(both) as offer:
            assert await resumed(offer) is expected
    before = current()
    certificates.renew(tls)
    await until(lambda: current() is not before)
    async with offer_of(both) as offer:
        assert await resumed(offer) is False


class OfferedTo:
    """The link of a client without a certificate."""

    peer, identity = "127.0.0.1:1", ANONYMOUS

    def __init__(self) -> None:
        self.lanes: list[Lane] = []

    def lane_max_bytes(self) -> int:
        return 1 << 20

    def lane_opened(self, lane: Lane) -> None:
        self.lanes.append(lane)

    def lane_ended(self) -> None:
        for lane in self.lanes:
            lane.abort()


@asynccontextmanager
async def offer_to_token_client(
    server: TlsConfig,
) -> AsyncIterator[tuple[lane_tickets.Offer, OfferedTo]]:
    """An offer on a listener that requests no certificates."""
    node, link = GrpcServerTransport(LIMITS, tls=server), OfferedTo()
    lanes = lane_tickets.Lanes(node.bounds)
    source = server.rereading_lane_tls(require_certificates=False)
    listener = await lanes.listen("127.0.0.1", 0, source)
    try:
        with listener.offered(link, Conversation.CONTROLLER) as metadata:
            offer = lane_tickets.offered(dict(metadata))
            assert offer is not None
            yield offer, link
    finally:
        lanes.close()
        await node.close()


@scenario(alone)
async def test_client_certificate_is_ignored_where_none_is_requested() -> None:
    """[The client relies on the server having seen it.]"""
    server, own = own_tls(), settings_of(own_tls())
    async with offer_to_token_client(server) as (offer, link):
        assert await opens(offer, own) == ""
        assert len(link.lanes) == 1


@scenario(alone)
async def test_server_in_between_cannot_pass_proofs_on(*, certificates: Certificates) -> None:
    """[It has a certificate of the authority for the same host.]"""
    server, other = own_tls(), certificates.issue("other")
    async with offer_to_token_client(server) as (offer, link), between(other, offer.port) as port:
        trust = settings_of(TlsTrust(server.ca_path))
        refused = await opens(lane_tickets.Offer(port, offer.ticket), trust)
        assert refused == "the server did not accept the ticket"
        assert link.lanes == []
        assert await opens(offer, trust) == "", "the client itself gets its lane"


@scenario(alone)
async def test_stream_and_lane_end_with_their_certificate() -> None:
    late_s = 0.0
    async with pair() as both:
        clock = Access(clock=lambda: time.time() + late_s)
        made = Pair(both.kind, both.server, both.client)
        await made.listen(access=clock)
        made.caller = await made.dial()
        await made.ask_until_moved()
        served: Any = made.leader.links[0]
        identity = served.identity
        assert 0 < identity.ends_at_s - time.time() < math.inf
        late_s = identity.ends_at_s - time.time() + 1
        # The timer looks at the wall clock again, by and by.
        timer = ExpiryTimer(Admitted(identity), clock, served.refuse)
        await until(lambda: made.leader.reasons and made.caller.reasons)
        timer.cancel()
        assert made.leader.reasons == [
            "the certificate has expired: connect again with a fresh one"
        ]
        await until(lambda: lane_of(served)._transport is None)


def test_caller_expires_with_the_earlier_of_token_and_certificate() -> None:
    identity = PeerIdentity("CN=a", ends_at_s=1_000.0)
    for proved, expected in (
        (None, ["", "certificate"]), (Proved("User:a", 500.0), ["token", "token"]),
        (Proved("User:a", 2_000.0), ["", "certificate"]),
    ):  # fmt: skip
        assert [Admitted(identity, proved).expired(now) for now in (999.0, 1_000.0)] == expected
    assert Admitted(identity).look_again_in_s(990.0) == 10.0
    assert Admitted(identity).look_again_in_s(0.0) == 60.0
    assert Admitted(ANONYMOUS).look_again_in_s(0.0) == math.inf


@pytest.mark.parametrize("trusted", ["root", "intermediate"])
def test_lane_is_verified_by_the_same_chain_as_its_stream(tmp_path: Path, trusted: str) -> None:
    """[gRPC accepts an intermediate authority as the end of the chain, and OpenSSL does not.]"""
    root = trustme.CA()
    below = root.create_child_ca()
    trusts = (root if trusted == "root" else below).cert_pem.bytes()
    Medium.tls = issue(tmp_path, below, trusted=trusts)

    async def main() -> None:
        async with pair() as both:
            await both.ask_until_moved()
            assert both.client.bounds.lanes.failures == 0

    try:
        uvloop.run(main())
    finally:
        Medium.tls = None
