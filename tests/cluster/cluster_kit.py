"""Helpers for tests with real processes."""

import asyncio
import io
import json
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from command_runs import Ran, run_text

from raftlog.cli.main import main
from raftlog.client.controller_client import ControllerClient
from raftlog.client.log_reader import LogReader
from raftlog.errors import ApiError
from raftlog.local.cluster import LocalCluster, Node, own_environment
from raftlog.local.processes import wait_until
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.controller.v1 import controller_pb2 as pb

PATIENCE_S = 60.0
"""Timeout in seconds for operations that take well under a second on an idle machine."""
CLIENT_METRICS = 16
AnyCluster = TypeVar("AnyCluster", bound=LocalCluster)


def raftlog(
    command: object,
    *arguments: object,
    controllers: LocalCluster | str = "",
    brokers: LocalCluster | str = "",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Ran:
    """Run one command line as a process of its own. ``command`` is split at its spaces;
    ``controllers`` and ``brokers`` are those of a cluster, or addresses, to connect to.
    """
    words = [*str(command).split(), *map(str, arguments)]
    if controllers:
        at = controllers if isinstance(controllers, str) else controllers.bootstrap_controllers
        words += ["--bootstrap-controller", at]
    if brokers:
        at = brokers if isinstance(brokers, str) else brokers.bootstrap_servers
        words += ["--bootstrap-server", at]
    begun = time.monotonic()
    ended = run_text(
        [sys.executable, "-m", "raftlog", *words],
        stdin=subprocess.DEVNULL,
        env={**own_environment(), **(environment or {})},
        timeout=timeout_s,
    )
    ran = Ran(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - begun)
    assert "Traceback" not in ran.err, ran.err
    return ran


def succeed(command: object, *arguments: object, **options: Any) -> Ran:
    """Run a command line that has to end with exit code 0."""
    return raftlog(command, *arguments, **options).showed()


def on_files(command: str, *arguments: object) -> Ran:
    """Run a file-only command line in this process, which must succeed: it saves a process."""
    out, err = io.BytesIO(), io.BytesIO()
    texts = [io.TextIOWrapper(one, write_through=True) for one in (out, err)]
    words = [*command.split(), *map(str, arguments)]
    with redirect_stdout(texts[0]), redirect_stderr(texts[1]), pytest.raises(SystemExit) as ended:
        main(words)
    return Ran(ended.value.code or 0, out.getvalue().decode(), err.getvalue().decode()).showed()


def one_message(ran: Ran) -> str:
    """Assert that a command printed exactly one message, on stderr. Its further lines are a list."""
    first, *more = ran.err.splitlines()
    assert first.startswith("raftlog: "), ran.err
    assert all(line.startswith("  - ") for line in more), ran.err
    assert ran.out == ""
    return ran.err


def until(found: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> float:
    """Wait for a condition; return the seconds it took."""
    begun = time.monotonic()
    assert wait_until(found, within_s, 0.05), f"not within {within_s:g} s: {what}"
    return time.monotonic() - begun


async def until_true(
    found: Callable[[], Awaitable[bool]], what: str, within_s: float = PATIENCE_S
) -> float:
    """Wait for an async condition, which may fail with ApiError; return the seconds it took."""
    begun = time.monotonic()
    while True:
        try:
            if await found():
                return time.monotonic() - begun
            last = ""
        except ApiError as error:
            last = str(error)
        assert time.monotonic() - begun < within_s, f"not within {within_s:g} s: {what} {last}"
        await asyncio.sleep(0.05)


def setting(name: str, value: str) -> pb.IncrementalAlterConfigsRequest:
    """Return a write of one config value."""
    config = pb.AlterableConfig(name="match", value=value)
    resource = pb.AlterConfigsResource(
        resource_type=CLIENT_METRICS, resource_name=name, configs=[config]
    )
    return pb.IncrementalAlterConfigsRequest(resources=[resource])


def configure(cluster: LocalCluster, node: Node, keys: Mapping[str, Any]) -> None:
    """Set keys in a node's file."""
    path = cluster.config_path(node.name)
    there = path.read_text().splitlines()
    kept = [line for line in there if line.partition(" = ")[0].strip('"') not in keys]
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in keys.items()]
    path.write_text("\n".join([*kept, *lines]) + "\n")


@contextmanager
def running(made: AnyCluster, *commands: str) -> Iterator[AnyCluster]:
    """Run this cluster until every node is ready, after ``commands`` to its controllers."""
    made.generate()
    try:
        made.start_controllers()
        made.start_brokers()
        made.wait_ready([node.name for node in made.nodes], PATIENCE_S)
        for command in commands:
            succeed(command, controllers=made)
        yield made
    finally:
        for node in made.nodes:
            made.kill(node.name, signal.SIGCONT)
        made.stop_all(timeout_s=5)


def cluster_of(
    controllers: int,
    brokers: int,
    *commands: str,
    scope: Literal["session", "module", "function"] = "module",
    kind: type[LocalCluster] = LocalCluster,
    **options: Any,
) -> Any:
    """Return a fixture: a running cluster, after ``commands`` to its controllers."""

    @pytest.fixture(scope=scope)
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
        directory = tmp_path_factory.mktemp("cluster") / "c"
        made = kind(directory, controllers=controllers, brokers=brokers, **options)
        with running(made, *commands):
            yield made

    return cluster


three_controllers = cluster_of(controllers=3, brokers=0, scope="session")
"""A quorum that several files use; each test leaves all its nodes ready."""


def endpoints_of(controllers: LocalCluster | Sequence[str]) -> list[str]:
    """Addresses of the controllers of a cluster, or these addresses."""
    if isinstance(controllers, LocalCluster):
        return [node.endpoint for node in controllers.controllers]
    return list(controllers)


@asynccontextmanager
async def controllers_of(cluster: LocalCluster | Sequence[str]) -> AsyncIterator[ControllerClient]:
    """A client of the active controller."""
    transport = GrpcTransport()
    client = ControllerClient(transport, endpoints_of(cluster), rng=random.Random(0))
    try:
        yield client
    finally:
        client.close()
        await transport.close()


class ControllerProcess:
    """A controller process in ``directory``. ``settings``: further configuration lines."""

    def __init__(
        self, directory: Path, node_id: int, port: int, *, cluster_id: str, settings: str
    ) -> None:
        self.id, self.endpoint = node_id, f"127.0.0.1:{port}"
        self.config = directory / f"c{node_id}.toml"
        self.log = directory / f"c{node_id}.log"
        self.config.write_text(
            'process.roles = ["controller"]\n'
            f'node.id = {node_id}\ncluster.id = "{cluster_id}"\nlog.dirs = ["data-{node_id}"]\n'
            f'listeners = ["{self.endpoint}"]\n{settings}'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "raftlog", "controller", "run", "-c", str(self.config)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """Stop the process with SIGTERM, as systemd does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()[-2000:]

    def kill(self) -> None:
        """Kill the process, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)


class Load:
    """Writers that run until stopped, and their acknowledged writes."""

    def __init__(
        self, client: ControllerClient, *, prefix: str, writers: int = 16, pause_s: float = 0.0
    ) -> None:
        self._client = client
        self._pause_s = pause_s
        self._stopping = False
        self._last = time.monotonic()
        self.acknowledged: dict[str, int] = {}
        """Name -> offset."""
        self.epoch = 0
        self.longest_gap_s = 0.0
        self.unknown: list[ApiError] = []
        """Errors that left a write's outcome unknown."""
        self._tasks = [
            asyncio.create_task(self._write(f"{prefix}-{number}")) for number in range(writers)
        ]

    async def _write(self, name: str) -> None:
        count = 0
        while not self._stopping:
            count += 1
            key = f"{name}-{count}"
            try:
                response = await self._client.call(setting(key, key), timeout_s=2.0)
            except ApiError as error:
                if error.outcome_unknown:
                    self.unknown.append(error)
                await asyncio.sleep(0.005)
                continue
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self._last)
            self._last, self.epoch = now, max(self.epoch, response.controller_epoch)
            self.acknowledged[key] = response.write.token.offset
            if self._pause_s:
                await asyncio.sleep(self._pause_s)

    async def more(self, count: int) -> None:
        """Wait until this many more writes have been acknowledged."""
        wanted = len(self.acknowledged) + count

        async def written() -> bool:
            return len(self.acknowledged) >= wanted

        await until_true(written, f"{count} more writes are acknowledged")

    async def led_by_another(self, epoch: int) -> float:
        """Wait for an acknowledged write of a later epoch; return the seconds it took."""

        async def led() -> bool:
            return self.epoch > epoch

        return await until_true(led, "a write is acknowledged in a new epoch")

    async def stop(self) -> None:
        """Stop, and finish the write under way."""
        self._stopping = True
        await asyncio.gather(*self._tasks)


def crash(cluster: LocalCluster, *names: str) -> None:
    """Kill running nodes at once, and wait until they are gone."""
    for name in names:
        assert cluster.kill(name, signal.SIGKILL)
    assert all(cluster.wait_gone(name, PATIENCE_S) for name in names)


def restart(cluster: LocalCluster, name: str) -> None:
    """Start a node that has ended or is about to, and wait until it is ready."""
    assert cluster.wait_gone(name, PATIENCE_S)
    cluster.start(name)
    cluster.wait_ready([name], PATIENCE_S)


def written(cluster: LocalCluster, prefix: str, count: int) -> dict[str, int]:
    """Write at least this many configs; return the offset of each by name."""

    async def write() -> dict[str, int]:
        async with controllers_of(cluster) as client:
            load = Load(client, prefix=prefix)
            await load.more(count)
            await load.stop()
        return load.acknowledged

    return asyncio.run(write())


async def committed_image(cluster: LocalCluster | Sequence[str]) -> Image:
    """Fold the whole committed log after one more write."""
    async with controllers_of(cluster) as client:
        await client.call(setting("settled", "yes"), timeout_s=PATIENCE_S)
    transport = GrpcTransport()
    reader = LogReader(transport, endpoints_of(cluster), rng=random.Random(0))
    try:
        end = (await reader.info()).high_watermark
        builder = ImageBuilder(Image())
        async for chunk in reader.chunks(0, end):
            builder.apply_chunk(chunk, verify=True)
        return builder.snapshot()
    finally:
        reader.close()
        await transport.close()


def lost(acknowledged: Mapping[str, int], image: Image) -> list[str]:
    """Return the acknowledged writes that an image does not hold."""
    return [
        name
        for name in acknowledged
        if image.configs.get((CLIENT_METRICS, name)) != {"match": name}
    ]


def metrics_of(node: Node) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{node.http}/metrics", timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
    return text


def metric(node: Node, sample: str) -> float:
    """Return the value of one sample, given by its name and labels."""
    (line,) = (line for line in metrics_of(node).splitlines() if line.startswith(f"{sample} "))
    return float(line.rpartition(" ")[2])


def describe(cluster: LocalCluster) -> Any:
    """Return the active controller's description of the brokers."""
    return raftlog("brokers list --json", controllers=cluster).json


def says(text: str | Path, *patterns: str) -> None:
    """Assert that a text, or the log file of a running process in time, matches all patterns."""
    for pattern in patterns:
        if isinstance(text, Path):
            until(lambda: re.search(pattern, text.read_text()), f"{pattern!r} is in {text}")  # noqa: B023
        else:
            assert re.search(pattern, text), f"{pattern!r} is not in: {text}"
