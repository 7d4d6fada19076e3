"""TLS over the connection of a lane.

A :class:`TlsTransport` is placed between a socket and a protocol: to the socket's transport it is
the protocol, and to the lane's protocol it is the transport. OpenSSL works on two memory buffers,
so it never waits for the network. The steps of the handshake run in a thread, as a signature takes
a millisecond, and a hundred brokers may connect to a new leader at once.

Only TLS 1.3 is used, as both ends are raftlog, so there is no renegotiation and no older cipher.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from raftlog.bounds import LANE_RECORD_MAX_BYTES
from raftlog.transport.lanes import LaneError, LaneTransport

HANDSHAKE_MAX_BYTES = 32 << 10
"""Largest size of a peer's handshake, in bytes, including its certificates."""
SLICE_BYTES = 256 << 10
"""Number of bytes of a message that are encrypted before the kernel is checked for room."""
RECORD_EXTRA_BYTES = 22
"""Number of bytes of a record in addition to its content: header, type and tag."""
EMPTY_MAX_BYTES = 48 << 10
"""Maximum number of bytes without content that a peer may send during the life of a lane: the
beginning of a partially received record, sessions to resume, and a thousand key updates of 16 us
each. raftlog itself never updates keys.
"""

SESSIONS_MAX = 64


@dataclass(frozen=True, slots=True, eq=False)
class LaneTls:
    """The TLS settings of one end of a lane, made from the same files as those of its stream."""

    context: ssl.SSLContext
    fingerprint: str = ""
    """SHA-256 of this end's certificate, in hex, or empty if it presents none."""
    sessions: dict[str, ssl.SSLSession] = field(default_factory=dict)
    """Sessions that a client may resume, by the server's address.

    A resumed session does not verify certificates again. The lane's stream has just done that, with
    the same files; if the files change, both ends get new settings.
    """

    def keep(self, address: str, session: ssl.SSLSession | None) -> None:
        """Keep a server's session for the next lane."""
        if session is not None and session.has_ticket:
            if len(self.sessions) >= SESSIONS_MAX:
                self.sessions.clear()
            self.sessions[address] = session


def fingerprint_of(certificate: bytes | None) -> str:
    """Return the SHA-256 of a DER certificate, in hex, or empty without a certificate."""
    return hashlib.sha256(certificate).hexdigest() if certificate else ""


@cache
def _handshakes() -> ThreadPoolExecutor:
    """Return the thread for all handshakes of the process, which so use at most one core."""
    return ThreadPoolExecutor(1, "lane-handshake")


class TlsTransport(asyncio.Protocol):
    """A connection under TLS.

    ``write``, ``pause_reading``, ``abort`` and so on are those of an asyncio.Transport. Before the
    handshake has succeeded, the protocol receives nothing and must write nothing.
    """

    def __init__(
        self,
        transport: LaneTransport,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        secured: Callable[[], None],
        *,
        host: str | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        """``host``: the server's name or address, which its certificate must contain; None if this
        end is the server. ``secured`` is called when the handshake has succeeded.
        """
        self._raw, self._protocol, self._secured = transport, protocol, secured
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=host is None,
            server_hostname=host,
            session=session,
        )
        self._is_open = False
        """Whether the handshake has succeeded."""
        self._step: asyncio.Future[bool] | None = None
        """The handshake step that runs in the thread, or None; meanwhile the thread owns the
        buffers.
        """
        self._early, self._early_bytes = bytearray(), 0
        """Received bytes that no step has read. ``_early_bytes``: the size of everything received
        before the end of the handshake.
        """
        self._unsent = memoryview(b"")
        """Rest of the message that is being sent, not yet encrypted."""
        self._is_writable = True
        self._empty_bytes = 0
        """Number of bytes without content that were received after the handshake."""
        self._failure: LaneError | None = None
        self._lost: tuple[Exception | None] | None = None
        """The error, or None, with which the connection ended during a step; None if it has not."""
        transport.set_write_buffer_limits(high=0)
        transport.set_protocol(self)

    def begin(self, received: bytes) -> None:
        """Start the handshake with the bytes that have already arrived."""
        self._early += received
        self._early_bytes += len(received)
        self._advance()

    @property
    def peer_fingerprint(self) -> str:
        """Fingerprint of the peer's verified certificate, or empty if it presented none."""
        return fingerprint_of(self._tls.getpeercert(binary_form=True))

    @property
    def session(self) -> ssl.SSLSession | None:
        """The session, which a later handshake of this client may resume, or None."""
        return self._tls.session

    # --- the handshake ---------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start the next step of the handshake."""
        received, self._early = bytes(self._early), bytearray()
        self._step = self._loop.run_in_executor(_handshakes(), self._shake, received)
        self._step.add_done_callback(self._shaken)

    def _shake(self, received: bytes) -> bool:
        """Continue the handshake, in the thread. Return whether it is complete."""
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _shaken(self, step: asyncio.Future[bool]) -> None:
        """Process the end of a step of the handshake."""
        self._step = None
        error = None if step.cancelled() else step.exception()
        if error is not None and self._failure is None:
            self._failure = LaneError(f"the TLS handshake failed: {reason_of(error)}")
        if self._lost:
            self._protocol.connection_lost(self._failure or self._lost[0])
            return
        if self._raw.is_closing() or step.cancelled():
            return
        if self._outgoing.pending:
            # After a failure, send the alert that gives the peer the reason.
            try:
                self._raw.write(self._outgoing.read())
            except RuntimeError:
                return  # uvloop has closed the handle, and has not called connection_lost.
        if self._failure is not None:
            self._raw.close()
        elif step.result():
            self._is_open = True
            self._secured()
            received, self._early = bytes(self._early), bytearray()
            if not self._raw.is_closing():
                self._decrypt(received)
        elif self._early:
            self._advance()

    def _refuse(self, why: str) -> None:
        self._failure = LaneError(why)
        self._raw.close()

    # --- the protocol of the socket --------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Decrypt received bytes, or continue the handshake with them."""
        if self._is_open:
            self._decrypt(data)
            return
        self._early += data
        self._early_bytes += len(data)
        if self._early_bytes > HANDSHAKE_MAX_BYTES:
            self._refuse(f"the TLS handshake exceeds {HANDSHAKE_MAX_BYTES} bytes")
        elif self._step is None and self._failure is None:
            self._advance()

    def _decrypt(self, data: bytes) -> None:
        incoming, outgoing, read = self._incoming, self._outgoing, self._tls.read
        incoming.write(data)
        self._empty_bytes += len(data)
        try:
            while incoming.pending:
                content = read(LANE_RECORD_MAX_BYTES)
                if not content:
                    self._raw.close()
                    return
                self._empty_bytes -= len(content) + RECORD_EXTRA_BYTES
                self._protocol.data_received(content)
                if self._raw.is_closing():
                    return
        except ssl.SSLWantReadError:
            pass  # The rest of a record has not arrived.
        except ssl.SSLError as error:
            self._failure = LaneError(f"TLS failed: {reason_of(error)}")
            self._raw.abort()
            return
        if self._empty_bytes > EMPTY_MAX_BYTES:
            self._failure = LaneError("TLS failed: the peer updates its keys too often")
            self._raw.abort()
        elif outgoing.pending:
            # The responses to key updates, no longer than their requests.
            self._raw.write(outgoing.read())

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end of the connection."""
        self._unsent = memoryview(b"")
        if self._step is None:
            self._protocol.connection_lost(self._failure or error)
        else:
            # The data read in this step may contain the peer's reason.
            self._lost = (error,)

    def pause_writing(self) -> None:
        """Pause the protocol, as the kernel has not accepted all bytes."""
        self._is_writable = False
        if self._is_open:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Send more, and resume the protocol if all is sent."""
        self._is_writable = True
        if self._unsent:
            self._send_rest()
        if self._is_writable and self._is_open:
            self._protocol.resume_writing()

    # --- the transport of the protocol -----------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt and send a short message."""
        self._tls.write(data)
        self._raw.write(self._outgoing.read())

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Encrypt and send a header and a message, as fast as the kernel accepts them."""
        header, data = parts
        self._unsent = memoryview(data)[SLICE_BYTES:]
        self.write(header + data[:SLICE_BYTES])
        self._send_rest()

    def _send_rest(self) -> None:
        while self._unsent and self._is_writable and not self._raw.is_closing():
            part, self._unsent = self._unsent[:SLICE_BYTES], self._unsent[SLICE_BYTES:]
            self._tls.write(part)
            self._raw.write(self._outgoing.read())

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        """Deliver to another protocol from now on."""
        self._protocol = protocol
        if not self._is_writable:
            protocol.pause_writing()

    def set_write_buffer_limits(self, high: int) -> None:
        """Accept the only valid limit: data that the kernel does not accept pauses the protocol."""
        assert high == 0

    def get_extra_info(self, name: str) -> Any:
        """Return information from the socket's transport."""
        return self._raw.get_extra_info(name)

    def pause_reading(self) -> None:
        """Stop reading from the kernel."""
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read from the kernel again."""
        self._raw.resume_reading()

    def is_closing(self) -> bool:
        """See ``LaneTransport``."""
        return self._raw.is_closing()

    def close(self) -> None:
        """Close after everything is sent."""
        self._raw.close()

    def abort(self) -> None:
        """Close at once."""
        self._raw.abort()


def reason_of(error: BaseException) -> str:
    """Return why OpenSSL failed, without the location in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return str(error.reason).lower().replace("_", " ")
    return str(error) or type(error).__name__
