"""``raftlog.Client`` over gRPC: threads, forks, interrupts, exit, types and output."""

import asyncio
import inspect
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_runs import run_text
from scripted_broker import listening

import raftlog
from raftlog import errors
from raftlog.client import client as blocking_client
from raftlog.client.async_client import AsyncClient
from raftlog.client.blocking import Blocking, BlockingContext, BlockingStream, LoopThread


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listening() as found:
        yield found


def program(text: str, *arguments: str) -> tuple[str, str, int]:
    """Run a program; return its stdout, stderr and exit code."""
    done = run_text([sys.executable, "-W", "error", "-c", text, *arguments], timeout=60)
    return done.stdout, done.stderr, done.returncode


PATCHED = """
import asyncio, select, threading, raftlog
blocking, asynchronous = raftlog.Client("127.0.0.1:1"), raftlog.AsyncClient("127.0.0.1:1")
loop = asyncio.new_event_loop()
{patch}
for call in (blocking.kv.get, lambda key: loop.run_until_complete(asynchronous.kv.get(key))):
    try:
        call("k")
    except raftlog.errors.RaftlogError as error:
        print(error)
"""


@pytest.mark.parametrize("patch", ["threading.Lock = object", "del select.epoll"])
def test_client_reports_that_gevent_has_patched_the_process(patch: str) -> None:
    """[Every call hung, whatever its timeout.]"""
    said, _, _ = program(PATCHED.format(patch=patch))
    assert said.count("monkey.patch_all(thread=False, select=False)") == 2


def test_first_topic_takes_ten_lines_of_code(address: str) -> None:
    with raftlog.connect(address) as client:
        written = client.topics.create("t", partitions=6, acks="visible")
        assert written.reached is raftlog.Acks.VISIBLE
        assert client.token == written.token
        assert client.topics.describe("t").partitions[0].replicas == (4, 5)
        with pytest.raises(errors.TopicAlreadyExistsError):
            client.topics.create("exists")


def test_several_threads_share_a_client(address: str) -> None:
    offsets: list[int | None] = []
    with raftlog.Client(address) as client:

        def write() -> None:
            offsets.extend(client.topics.create("t").offset for _ in range(20))

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(offsets)) == 160


def test_each_async_call_has_a_blocking_twin_with_the_same_arguments() -> None:
    twins = {
        kind.__orig_bases__[0].__args__[0]: kind  # type: ignore[attr-defined]
        for kind in vars(blocking_client).values()
        if inspect.isclass(kind) and issubclass(kind, Blocking)
        if kind not in {Blocking, BlockingContext, BlockingStream}
    }
    assert len(twins) == 16
    checked = 0
    for asynchronous, blocking in twins.items():
        for name, method in inspect.getmembers(asynchronous, inspect.iscoroutinefunction):
            if name.startswith("_") or name in {"begin", "next_batch", "started"}:
                continue
            twin = getattr(blocking, name)
            assert not inspect.iscoroutinefunction(twin)
            if name != "close":
                assert inspect.signature(twin) == inspect.signature(method), name
                assert twin.__doc__ == method.__doc__
            checked += 1
    assert checked > 20
    assert inspect.signature(raftlog.Client.watch) == inspect.signature(AsyncClient.watch)


@pytest.mark.parametrize(
    ("call", "failure"),
    [("create", errors.UnknownOutcomeError), ("describe", errors.ClientClosedError)],
)
def test_close_ends_a_waiting_call(address: str, call: str, failure: type[errors.ApiError]) -> None:
    client = raftlog.Client(address)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            getattr(client.topics, call)("slow")
        except errors.ApiError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    client.close()
    thread.join(10)
    assert [type(one) for one in failures] == [failure]
    with pytest.raises(errors.RaftlogError, match="closed"):
        client.topics.list()
    client.close()


def test_client_fails_at_once_without_a_listener() -> None:
    begun = time.monotonic()
    with pytest.raises(errors.NetworkError, match=r"nothing listens at 127\.0\.0\.1:1"):
        raftlog.connect("127.0.0.1:1")
    assert time.monotonic() - begun < 2


ENDS: dict[str, str] = {
    "unclosed": """
        client = raftlog.Client(ADDRESS)
        client.topics.create("t")
    """,
    "dropped": """
        raftlog.Client(ADDRESS).topics.create("t")
        assert threading.active_count() == 1
    """,
    "a daemon waits": """
        client = raftlog.Client(ADDRESS)
        client.topics.create("t")
        threading.Thread(target=client.topics.create, args=["slow"], daemon=True).start()
        time.sleep(0.2)
    """,
    "asynchronous": """
        async def main():
            async with raftlog.AsyncClient(ADDRESS) as client:
                await client.topics.create("t")
        asyncio.run(main())
    """,
    "asynchronous, unclosed": """
        client = raftlog.AsyncClient(ADDRESS)
        asyncio.run(client.topics.create("t"))
    """,
    "both": """
        client = raftlog.Client(ADDRESS)
        async def main():
            async with raftlog.AsyncClient(ADDRESS) as other:
                for _ in range(20):
                    await asyncio.gather(
                        other.topics.create("t"), asyncio.to_thread(client.topics.create, "t")
                    )
        asyncio.run(main())
    """,
    "an error": """
        with raftlog.Client("127.0.0.1:1", timeout_s=0.3) as client:
            try:
                client.topics.list()
            except raftlog.errors.RequestTimedOutError as error:
                assert error.retriable
            else:
                raise AssertionError
    """,
    "fork": """
        client = raftlog.Client(ADDRESS)
        client.topics.create("t")
        child = os.fork()
        if not child:
            for call in client.topics.list, raftlog.Client(ADDRESS).topics.list:
                try:
                    call()
                except raftlog.errors.RaftlogError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(1)
            client.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.topics.create("t")
    """,
    "fork before the first call": """
        client = raftlog.Client(ADDRESS)
        child = os.fork()
        if not child:
            raftlog.Client(ADDRESS).topics.create("t")
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.topics.create("t")
    """,
    "Ctrl-C": """
        client = raftlog.Client(ADDRESS)
        client.topics.create("t")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        try:
            client.topics.create("slow")
        except KeyboardInterrupt:
            assert time.monotonic() - begun < 5
        else:
            raise AssertionError
        client.topics.create("t")
    """,
}


@pytest.mark.parametrize("name", ENDS)
def test_program_exits_cleanly_without_output(name: str, address: str) -> None:
    head = "import asyncio, os, signal, sys, threading, time, raftlog\nADDRESS = sys.argv[1]\n"
    begun = time.monotonic()
    assert program(head + inspect.cleandoc(ENDS[name]), address) == ("", "", 0)
    assert time.monotonic() - begun < 30


def test_library_is_imported_on_first_use() -> None:
    text = "import sys, raftlog; print('grpc' in sys.modules); raftlog.Client; print('grpc' in sys.modules)"
    assert program(text) == ("False\nTrue\n", "", 0)


def test_client_and_lock_have_readable_reprs() -> None:
    with raftlog.Client("127.0.0.1:1,127.0.0.1:2") as client:
        assert repr(client) == "<raftlog.Client of 127.0.0.1:1,127.0.0.1:2>"
        lock = raftlog.recipes.Lock(client, "nightly")
        assert repr(lock) == (
            "<blocking <AsyncLock 'nightly' of <raftlog.AsyncClient of 127.0.0.1:1,127.0.0.1:2>>>"
        )


def test_every_public_name_exists() -> None:
    assert set(raftlog.recipes.__all__) <= set(dir(raftlog.recipes))
    for name in raftlog.__all__:
        value: Any = getattr(raftlog, name)
        assert value is not None
        assert name in dir(raftlog)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = raftlog.nothing  # type: ignore[attr-defined]


def test_public_interface_has_no_protobuf() -> None:
    """Neither in parameters nor in results."""
    methods = [
        method
        for kind in vars(blocking_client).values()
        if inspect.isclass(kind) and issubclass(kind, (Blocking, AsyncClient))
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]
    assert len(methods) > 20
    for method in methods:
        assert "pb2" not in str(inspect.signature(method)), method
        assert "Message" not in str(inspect.signature(method)), method


LOGGING = """
import asyncio, random, socket, sys
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.controller.v1 import controller_pb2 as pb

SETUP

async def main():
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    transport = GrpcTransport()
    client = ControllerClient(transport, [f"127.0.0.1:{closed.getsockname()[1]}"], rng=random.Random(0))
    try:
        await client.call(pb.DescribeBrokersRequest(), timeout_s=0.5)
    except ApiError as error:
        assert error.code.name in ("REQUEST_TIMED_OUT", "NETWORK_EXCEPTION"), error
    else:
        raise AssertionError("answered by nobody")
    from raftlog.transport import links
    links.log.info("planted info", peer="x")
    links.log.warning("planted warning", peer="x")
    try:
        raise ValueError("planted cause")
    except ValueError:
        links.log.exception("planted exception")
    client.close()
    await transport.close()
    closed.close()

asyncio.run(main())
"""


def test_library_prints_nothing_by_default() -> None:
    assert program(LOGGING.replace("SETUP", "")) == ("", "", 0)


@pytest.mark.parametrize(
    ("setup", "stream"),
    [
        ("import logging; logging.basicConfig(level=logging.INFO)", 1),
        (
            "from raftlog.node.observability.logs import setup_logging; setup_logging('info', 'json')",
            1,
        ),
        ("import structlog; structlog.configure()", 0),
    ],
    ids=["logging", "a node", "structlog"],
)
def test_logs_are_printed_when_the_program_asks_for_them(setup: str, stream: int) -> None:
    *streams, code = program(LOGGING.replace("SETUP", setup))
    assert code == 0, streams
    printed = streams[stream]
    for text in (
        "planted info",
        "planted warning",
        "planted exception",
        "ValueError: planted cause",
    ):
        assert text in printed


RIGHT = """
import raftlog

def offsets(bootstrap: str) -> list[int | None]:
    with raftlog.connect(bootstrap, acks="visible", timeout_s=5) as client:
        written: raftlog.WriteResult = client.topics.create("t", partitions=3)
        names: list[str] = [topic.name for topic in client.topics.list(read="strict")]
        value: str = client.configs.describe("topic", "t")["retention.ms"].value
        try:
            client.configs.alter("topic", "t", set={"retention.ms": 1}, acks=raftlog.Acks.VISIBLE)
        except raftlog.errors.UnknownOutcomeError as error:
            print(error.code.name, error.field)
        for change in client.watch("topics/", since=written.token):
            token: raftlog.Token = change.token
            print(names, value, token.offset)
        return [written.offset]

async def main() -> None:
    async with raftlog.AsyncClient("a:1") as client:
        topic: raftlog.Topic = await client.topics.describe("t")
        print(topic.partitions[0].leader)
"""
WRONG = {
    "raftlog.connect('a:1', acks='all')": "arg-type",
    "raftlog.connect('a:1', nothing=1)": "call-arg",
    "raftlog.Client('a:1').topics.create('t', partitons=3)": "call-arg",
    "raftlog.Client('a:1').topics.create(7)": "arg-type",
    "raftlog.nothing": "attr-defined",
    "raftlog.Client('a:1').topics.describe('t').offset": "attr-defined",
}


@pytest.mark.timeout(600)
def test_types_of_the_library_check_in_user_code(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text("\n".join(["import raftlog", *WRONG]))
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py"]
    done = run_text(mypy, cwd=tmp_path, timeout=500)
    said = done.stdout + done.stderr
    assert "checked 2 source files" in said
    assert "right.py" not in said
    for number, code in enumerate(WRONG.values(), start=2):
        assert any(
            line.startswith(f"wrong.py:{number}: error:") and line.endswith(f"[{code}]")
            for line in said.splitlines()
        ), (number, said)


def test_cancelled_call_cleans_up_before_the_client_closes_at_exit() -> None:
    """[A place in a queue stayed until its lease ended: its removal was cut off by the close.]"""
    order: list[str] = []
    waiting = threading.Event()

    async def close() -> None:
        order.append("closed")

    async def wait() -> None:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            order.append("cleaned up")

    thread = LoopThread(close)
    with ThreadPoolExecutor(1) as callers:
        callers.submit(thread.call, wait, endless=True)
        assert waiting.wait(10)
        thread.end_waits()
        thread.stop()
    assert order == ["cleaned up", "closed"]


def test_signal_that_does_not_wake_the_waiting_thread_is_still_noticed() -> None:
    """[Ctrl-C just before the wait began was never noticed. Another thread receives this one.]"""
    waiting = threading.Event()

    async def close() -> None:
        pass

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    def interrupt() -> None:
        waiting.wait(10)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = LoopThread(close)
    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        thread.call(wait)
    other.join()
    thread.stop()
