"""A TCP proxy on loopback that can reset, refuse or swallow connections."""

import asyncio
import contextlib


class CuttableProxy:
    """A proxy before one address. Make it on a running loop; ``close`` it there."""

    def __init__(self, port: int, target: str) -> None:
        self._port = port
        host, _, target_port = target.rpartition(":")
        self._target = host, int(target_port)
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Address at which the proxy listens."""
        return f"127.0.0.1:{self._port}"

    async def open(self) -> None:
        """Listen and forward."""
        self._flows.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def cut(self) -> None:
        """Reset open connections and refuse new ones, as if the host were gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._reset()

    async def swallow(self) -> None:
        """Keep connections open and accept new ones, but pass no byte, as a dropping firewall."""
        self._flows.clear()

    async def heal(self) -> None:
        """Forward again. Swallowed bytes are lost with their connections."""
        self._reset()
        await self.open()

    async def close(self) -> None:
        """End."""
        await self.cut()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def _reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
