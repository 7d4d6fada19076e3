"""The actions of a development cluster's prompt: failures, writes, reads, and views.

Each action returns when its effect is known, and reports it in a few lines. A write that has to
wait for a broker continues in the background, so that the broker can be resumed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from raftlog.cli.output import table_lines
from raftlog.client.async_client import AsyncClient
from raftlog.client.options import ClientOptions
from raftlog.client.values import QuorumInfo, Visibility
from raftlog.errors import RaftlogError
from raftlog.local.authority import ADMINISTRATOR, SOMEBODY, Authority
from raftlog.local.cluster import LocalCluster, Node, own_environment
from raftlog.local.load import WRITERS, Load
from raftlog.outcome import WriteResult
from raftlog.text import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

WRITE_TIMEOUT_S = 60.0
BACKGROUND_AFTER_S = 0.5
"""Time after which a write continues in the background, in seconds."""
READ_TIMEOUT_S = 3.0
LOOK_TIMEOUT_S = 0.5
READY_TIMEOUT_S = 30.0
GAP_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.5
"""Interval at which the prompt's toolbar is refreshed, in seconds."""
POLL_S = 0.01
SETTLE_S = 0.25
STALLED_S = 0.1
"""Time without an acknowledged write after which writes count as stalled, in seconds."""
ACKS = ("committed", "acknowledged", "visible")
READS = ("repeatable", "latest", "strict")


class UsageError(RaftlogError):
    """An input line that cannot be run."""


class Session:
    """A running cluster and its clients. Must be created on the event loop.

    ``say``: prints lines, even while the prompt waits for input.
    """

    def __init__(
        self, cluster: LocalCluster, authority: Authority | None, say: Callable[[str], None]
    ) -> None:
        self.cluster, self._authority, self._say = cluster, authority, say
        self.user = ADMINISTRATOR if authority is not None else ""
        """The user whose certificate the clients present, or "" if the cluster has no users."""
        self._clients: dict[str, AsyncClient] = {}
        self.load = Load()
        self.visibility: Visibility | None = None
        """The active controller's last report, or None if it does not answer."""
        self.leader_id: int | None = None
        self._expected: set[str] = {node.name for node in cluster.nodes}
        """Names of the nodes that should be running: not deliberately killed or stopped."""
        self._writes: dict[asyncio.Task[None], str] = {}
        """Keys of the pending writes, by task."""
        self._looking = asyncio.create_task(self._look())

    async def connect(self) -> None:
        """Connect the clients, so that the first action does not wait for a connection."""
        await self._look_once()

    async def close(self) -> None:
        """End the load and the background writes."""
        self._looking.cancel()
        if self._writes:
            self._say(f"outcome unknown: {', '.join(self._writes.values())}")
        for task in self._writes:
            task.cancel()
        await self.load.stop()
        await asyncio.gather(self._looking, *self._writes, return_exceptions=True)
        for client in self._clients.values():
            await client.close()

    def nodes(self, words: Sequence[str]) -> list[Node]:
        """Return the nodes that the words name: ``2``, ``broker 5``, ``broker-5``, ``leader``.
        Raises UsageError.
        """
        found, role = list[Node](), ""
        for word in words:
            if word in ("controller", "broker", "node"):
                role = word
                continue
            found.append(self._node(word, role))
            role = ""
        if role or not found:
            raise UsageError(f"name a node: {', '.join(self._names())}, or leader")
        return found

    def _running(self, words: Sequence[str]) -> list[Node]:
        """Return the nodes that the words name. Raises UsageError if one is not running."""
        nodes = list(dict.fromkeys(self.nodes(words)))
        if absent := [node for node in nodes if self.cluster.pid(node.name) is None]:
            raise UsageError(f"{_listed(absent)} {_verb(absent, 'is', 'are')} not running")
        return nodes

    def _are_up(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that are running and not paused."""
        cluster = self.cluster
        return [
            node
            for node in nodes
            if cluster.pid(node.name) is not None and not cluster.is_paused(node.name)
        ]

    def _names(self) -> Iterator[str]:
        return (node.name for node in self.cluster.nodes)

    def _node(self, word: str, role: str) -> Node:
        if word == "leader":
            if self.leader_id is None:
                raise UsageError("no controller leads at the moment")
            word = str(self.leader_id)
        for node in self.cluster.nodes:
            if word in (node.name, str(node.node_id)) and role in ("", "node", node.role):
                return node
        wanted = f"{role} {word}".strip()
        raise UsageError(f"there is no {wanted!r}; the nodes are {', '.join(self._names())}")

    # --- failures --------------------------------------------------------------------------------

    async def kill(self, words: Sequence[str]) -> None:
        """Kill nodes with SIGKILL, and report how long writes stalled."""
        nodes = self._running(words)
        async with self._measured_gap(f"killed {_listed(nodes)}"):
            for node in nodes:
                self._expected.discard(node.name)
                self.cluster.kill(node.name, signal.SIGKILL)
                self.cluster.wait_gone(node.name)

    async def stop(self, words: Sequence[str]) -> None:
        """Shut down nodes with SIGTERM."""
        nodes = self._running(words)
        names = [node.name for node in nodes]
        async with self._measured_gap(f"stopped {_listed(nodes)}"):
            self._expected.difference_update(names)
            await asyncio.to_thread(self.cluster.stop, names)

    async def start(self, words: Sequence[str]) -> None:
        """Start nodes that are not running, by default all of them, and wait until they are
        ready.
        """
        nodes = self.nodes(words) if words else self.cluster.nodes
        absent = [node for node in nodes if self.cluster.pid(node.name) is None]
        if not absent:
            self._say(f"{_listed(nodes)} {_verb(nodes, 'runs', 'run')} already")
            return
        begun = time.monotonic()
        for node in absent:
            self.cluster.start(node.name)
            self._expected.add(node.name)
        names = [node.name for node in absent]
        await asyncio.to_thread(self.cluster.wait_ready, names, READY_TIMEOUT_S)
        self._say(f"{_listed(absent)} ready after {_span(time.monotonic() - begun)}")

    async def pause(self, words: Sequence[str]) -> None:
        """Pause nodes with SIGSTOP: connected, but silent."""
        nodes = self._running(words)
        ids = " ".join(str(node.node_id) for node in nodes)
        said = f"paused {_listed(nodes)}; continue with: resume {ids}"
        if any(node.role == "controller" for node in nodes):
            async with self._measured_gap(said):
                self._pause(nodes)
        else:
            self._pause(nodes)
            self._say(said)

    def _pause(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.cluster.pause(node.name)

    async def resume(self, words: Sequence[str]) -> None:
        """Resume paused nodes, by default all of them."""
        paused = self._paused()
        nodes = self.nodes(words) if words else paused
        if not nodes:
            raise UsageError("no node is paused")
        if others := [node for node in nodes if node not in paused]:
            raise UsageError(f"{_listed(others)} {_verb(others, 'is', 'are')} not paused")
        for node in nodes:
            self.cluster.resume(node.name)
        self._say(f"resumed {_listed(nodes)}")

    def _paused(self) -> list[Node]:
        return [node for node in self.cluster.nodes if self.cluster.is_paused(node.name)]

    async def cut(self, words: Sequence[str]) -> None:
        """Partition a node from another one, or from all: no message passes in either direction."""
        first, *others = self.nodes(words)
        cut_off = others or [node for node in self.cluster.nodes if node != first]
        if first in others:
            raise UsageError("a node cannot be cut off from itself")
        async with self._measured_gap(
            f"cut {first.name} off from {_listed(others) if others else 'all others'}"
        ):
            self.cluster.cut(first.name, [node.name for node in cut_off])

    async def heal(self, words: Sequence[str]) -> None:
        """End partitions: all, those of one node, or the one between two nodes."""
        nodes = self.nodes(words) if words else []
        if not self.cluster.cuts:
            raise UsageError("no node is cut off")
        self.cluster.heal(*(node.name for node in nodes))
        left = "; some remain" if self.cluster.cuts else ""
        self._say(f"healed the partitions{f' of {_listed(nodes)}' if nodes else ''}{left}")

    async def transfer(self, words: Sequence[str]) -> None:
        """Transfer the leadership, by default to the voter with the most complete log."""
        to = self.nodes(words)[0].node_id if words else None
        if to is not None and to == await self._leader():
            raise UsageError(f"controller-{to} already leads")
        async with self._measured_gap("requested a transfer"):
            await self._client().quorum.transfer(to, timeout_s=READY_TIMEOUT_S)

    @asynccontextmanager
    async def _measured_gap(self, what: str) -> AsyncGenerator[None]:
        """After the block, report its action, and the longest time without an acknowledged write
        since.
        """
        was_on = self.load.is_on
        load = self.load if was_on else Load()
        before = await self._leader()
        if not was_on:
            load.start(self._admin(), 1)
        deadline = time.monotonic() + LOOK_TIMEOUT_S
        while load.idle_s() > STALLED_S and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        try:
            load.watch_gap()
            yield
            self._say(what)
            self._say(await self._gap(load, before))
        finally:
            if not was_on:
                await load.stop()

    async def _gap(self, load: Load, before: int | None) -> str:
        deadline = time.monotonic() + GAP_TIMEOUT_S
        # Writes in flight may still be acknowledged before the gap begins.
        await asyncio.sleep(SETTLE_S)
        while load.idle_s() > STALLED_S:
            if not self._has_majority():
                return "no write can be committed: no majority of the controllers is connected"
            if time.monotonic() > deadline:
                return f"no write was acknowledged for {GAP_TIMEOUT_S:.0f} s; try: status, lag"
            await asyncio.sleep(POLL_S)
        gap = f"the longest gap between committed writes was {_span(load.gap_s())}"
        after = await self._leader()
        if after is None or after == before:
            return gap
        return f"{gap}; controller-{after} leads now"

    def _has_majority(self) -> bool:
        """Return whether a controller reaches enough others for a majority to commit."""
        controllers, cuts = self.cluster.controllers, self.cluster.cuts
        running = [node.name for node in self._are_up(controllers)]
        return any(
            sum(frozenset((one, other)) not in cuts for other in running) > len(controllers) // 2
            for one in running
        )

    # --- data ------------------------------------------------------------------------------------

    async def write(self, words: Sequence[str]) -> None:
        """Put keys, by default with acks=visible."""
        acks = words[-1] if words and words[-1] in ACKS else "visible"
        pairs = [word for word in words if word not in ACKS]
        if not pairs or not all(word.partition("=")[0] and "=" in word for word in pairs):
            raise UsageError("write KEY=VALUE ... [committed|acknowledged|visible]")
        for pair in pairs:
            task = asyncio.create_task(self._write(pair, acks))
            self._writes[task] = pair.partition("=")[0]
            task.add_done_callback(self._writes.pop)
            done, _ = await asyncio.wait({task}, timeout=BACKGROUND_AFTER_S)
            if not done:
                self._say(f"{pair.partition('=')[0]}: {await self._waiting_for()}")

    async def _write(self, pair: str, acks: str) -> None:
        key, _, value = pair.partition("=")
        begun = time.monotonic()
        client = self._client()
        try:
            put: Any = client.kv.put
            result: WriteResult = await put(key, value, acks=acks, timeout_s=WRITE_TIMEOUT_S)
        except RaftlogError as error:
            self._say(f"{key}: {error}")
        else:
            reached = {
                "committed": "committed on a majority of the controllers",
                "acknowledged": "applied by every unfenced broker",
                "visible": "visible on every unfenced broker",
            }[str(result.reached)]
            took = _span(time.monotonic() - begun)
            self._say(f"{key}: {reached}, at offset {result.offset} after {took}")

    async def _waiting_for(self) -> str:
        with suppress(RaftlogError):
            seen = await self._client().brokers.visibility(timeout_s=LOOK_TIMEOUT_S)
            if seen.held_back_by:
                brokers = ", ".join(f"broker-{one}" for one in seen.held_back_by)
                return f"waiting for {brokers} to apply it"
        if not self._are_up(self.cluster.brokers):
            return "waiting for a broker: none is running"
        return (
            "waiting for the controllers" if self.leader_id is None else "waiting for the brokers"
        )

    async def read(self, words: Sequence[str]) -> None:
        """Read keys from one broker, by default from each running one."""
        words = list(words)
        mode = words.pop() if words and words[-1] in READS else "repeatable"
        source: list[Node] = []
        if "from" in words:
            at = words.index("from")
            source, words = self.nodes(words[at + 1 :]), words[:at]
            if [node for node in source if node.role != "broker"]:
                raise UsageError("brokers serve reads: read KEY from BROKER")
        if not words:
            raise UsageError("read KEY ... [from BROKER] [repeatable|latest|strict]")
        nodes = source or self._are_up(self.cluster.brokers)
        if not nodes:
            raise UsageError("no broker is running")
        for key in words:
            for line in await asyncio.gather(*(self._read(key, node, mode) for node in nodes)):
                self._say(line)
        left = [node.name for node in self.cluster.brokers if node not in nodes]
        if left and not source:
            self._say(f"down or paused, not queried: {', '.join(left)}")

    async def _read(self, key: str, node: Node, mode: str) -> str:
        # A new client, since the token of an earlier read would exclude an older state.
        reader = AsyncClient(node.endpoint, **self._options(self.user))
        try:
            get: Any = reader.kv.get
            found = await get(key, read=mode, timeout_s=READ_TIMEOUT_S)
            token = reader.token
        except RaftlogError as error:
            return f"{node.name}: {key}: {error}"
        finally:
            await reader.close()
        shown = "" if token is None else f"  (state at offset {token.offset})"
        hidden = ", or may not be read" if self.user == SOMEBODY else ""
        value = (
            f"does not exist{hidden}"
            if found is None
            else f"= {found.value.decode(errors='replace')}"
        )
        return f"{node.name}: {key} {value}{shown}"

    async def set_load(self, words: Sequence[str]) -> None:
        """Turn the load on or off, or show its figures."""
        if words[:1] == ["on"]:
            count = words[1] if len(words) > 1 else str(WRITERS)
            if not count.isdecimal() or not 1 <= int(count) <= 64 or len(words) > 2:
                raise UsageError("load on [WRITERS], from 1 to 64")
            self.load.start(self._client(), int(count))
            self._say(f"load on: {counted(int(count), 'writer')}")
            return
        if words not in ([], ["off"]):
            raise UsageError("load [on [WRITERS] | off]")
        figures, was_on = self.load.figures(), self.load.is_on
        if words:
            await self.load.stop()
        now = (
            f"{figures.writes_per_s:,.0f} writes/s, p50 {figures.p50_ms:.1f} ms; " if was_on else ""
        )
        self._say(
            f"load {'on' if self.load.is_on else 'off'}: {now}in total {figures.acknowledged:,} "
            f"committed, {figures.failed:,} failed, {figures.unknown:,} of unknown outcome"
        )

    async def set_user(self, words: Sequence[str]) -> None:
        """Act as another user from now on."""
        if self._authority is None:
            raise UsageError("there are no users: start with raftlog dev --secure")
        if list(words) not in ([ADMINISTRATOR], [SOMEBODY]):
            raise UsageError(f"user {ADMINISTRATOR} | user {SOMEBODY}")
        self.user = words[0]
        self._say(f"acting as User:{self.user}")

    # --- views -----------------------------------------------------------------------------------

    async def status(self, words: Sequence[str]) -> None:
        """Show each node's process and its own report."""
        _no_words(words)
        leader = await self._leader()
        nodes = self.cluster.nodes
        looks = (asyncio.to_thread(self.cluster.ready, node.name, LOOK_TIMEOUT_S) for node in nodes)
        rows = []
        for node, (ready, said) in zip(nodes, await asyncio.gather(*looks), strict=True):
            pid = self.cluster.pid(node.name)
            if pid is None:
                state = "down", f"start it with: start {node.node_id}"
            elif self.cluster.is_paused(node.name):
                state = "paused", f"resume it with: resume {node.node_id}"
            elif ready:
                state = "leader" if node.node_id == leader else "ready", said
            else:
                state = "not ready", said
            rows.append((node.name, str(pid or "-"), node.endpoint, *state))
        self._table(("NODE", "PID", "ENDPOINT", "STATE", "REASON"), rows, right=("PID",))
        for pair in sorted(map(sorted, self.cluster.cuts)):
            self._say(f"cut: {' and '.join(pair)}")

    async def lag(self, words: Sequence[str]) -> None:
        """Show how far each broker has applied the log, and which ones hold LAO back."""
        _no_words(words)
        seen = await self._client().brokers.visibility(timeout_s=READ_TIMEOUT_S)
        last = seen.high_watermark - 1
        rows = []
        for one in seen.brokers:
            applied = one.applied_offset
            lag = "-" if applied is None else f"{max(0, last - applied)}"
            rows.append(
                (
                    f"broker-{one.id}",
                    one.state.name.lower(),
                    "-" if applied is None else str(applied),
                    lag,
                    "-" if one.last_contact_age_ms is None else f"{one.last_contact_age_ms} ms",
                    one.reason,
                )
            )
        self._table(
            ("BROKER", "STATE", "APPLIED", "LAG", "CONTACT", "REASON"),
            rows,
            right=("APPLIED", "LAG", "CONTACT"),
        )
        self._say(lao_text(seen))

    def _table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]
    ) -> None:
        from raftlog.cli.output import terminal_width

        lines, _ = table_lines(columns, rows, right=right, width=terminal_width())
        for line in lines:
            self._say(line)

    def toolbar(self, width: int) -> str:
        """Return the line below the prompt: leader, LAO, the brokers that hold it back, load.

        If it is too narrow for the nodes' names, it shows their number.
        """
        whole = self._toolbar(named=True)
        return whole if len(whole) <= width else self._toolbar(named=False)[:width]

    def _toolbar(self, *, named: bool) -> str:
        leader = "no leader" if self.leader_id is None else f"leader {self.leader_id}"
        seen = self.visibility
        parts = [leader, "LAO unknown" if seen is None else lao_text(seen, named=named)]
        if paused := self._paused():
            parts.append(f"paused {_listed(paused)}" if named else f"{len(paused)} paused")
        if self.cluster.cuts:
            parts.append(counted(len(self.cluster.cuts), "link") + " cut")
        if self.load.is_on:
            parts.append(f"{self.load.figures().writes_per_s:,.0f} writes/s")
        return " · ".join(parts)

    # --- commands --------------------------------------------------------------------------------

    async def run_command(self, words: Sequence[str]) -> None:
        """Run a ``raftlog`` command on this cluster."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "raftlog", *words, env=self._environment()
        )
        try:
            await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await process.wait()
            raise

    def _environment(self) -> dict[str, str]:
        found = own_environment() | self.cluster.environment()
        if self._authority is not None:
            found |= self._authority.environment(self.user)
        return found

    # --- looks -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Refresh the toolbar's view, and report nodes that exit unexpectedly."""
        while True:
            await self._look_once()
            for name in sorted(self._expected):
                if self.cluster.pid(name) is None:
                    self._expected.discard(name)
                    self._say(f"{name} has exited unexpectedly; see {self.cluster.log_path(name)}")
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look_once(self) -> None:
        try:
            self.visibility = await self._admin().brokers.visibility(timeout_s=LOOK_TIMEOUT_S)
        except RaftlogError:
            self.visibility = None
        await self._leader()

    async def _leader(self) -> int | None:
        with suppress(RaftlogError):
            described: QuorumInfo = await self._admin().quorum.describe(timeout_s=LOOK_TIMEOUT_S)
            self.leader_id = described.leader_id
            return described.leader_id
        self.leader_id = None
        return None

    # --- clients ---------------------------------------------------------------------------------

    def _client(self) -> AsyncClient:
        return self._client_of(self.user)

    def _admin(self) -> AsyncClient:
        return self._client_of(ADMINISTRATOR if self._authority is not None else "")

    def _client_of(self, user: str) -> AsyncClient:
        if user not in self._clients:
            self._clients[user] = AsyncClient(self.cluster.bootstrap_servers, **self._options(user))
        return self._clients[user]

    def _options(self, user: str) -> ClientOptions:
        options = ClientOptions(
            controllers=self.cluster.bootstrap_controllers, client_id="raftlog dev"
        )
        if self._authority is not None:
            tls = self._authority.tls(user)
            options["tls_ca_file"] = tls.ca_path
            options["tls_certificate_file"] = tls.certificate_path
            options["tls_key_file"] = tls.private_key_path
        return options


def lao_text(seen: Visibility, *, named: bool = True) -> str:
    """Return the text about LAO, with the brokers that hold it back by name or as a number."""
    if seen.lowest_acknowledged_offset is None:
        return f"LAO unknown: {seen.unknown_reason}" if seen.unknown_reason else "LAO unknown"
    last = seen.high_watermark - 1
    text = f"LAO {seen.lowest_acknowledged_offset} of {last}"
    if seen.held_back_by and seen.lowest_acknowledged_offset < last:
        brokers = (
            ", ".join(f"broker-{one}" for one in seen.held_back_by)
            if named
            else counted(len(seen.held_back_by), "broker")
        )
        text += f", held back by {brokers} for {_span(seen.held_back_ms / 1000)}"
    return text


def _no_words(words: Sequence[str]) -> None:
    if words:
        raise UsageError(f"takes no arguments, but got {' '.join(words)!r}")


def _listed(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes)


def _verb(nodes: Sequence[Node], one: str, several: str) -> str:
    return one if len(nodes) == 1 else several


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


Action = Callable[[Sequence[str]], Coroutine[Any, Any, None]]
