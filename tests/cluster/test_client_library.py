"""The programs of the README and of docs/client.md against a real cluster."""

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, cluster_of, until
from command_runs import run_text

import raftlog
from raftlog import errors
from raftlog.client.consumer import Consumer, ConsumerSettings
from raftlog.client.core import Core
from raftlog.local.cluster import LocalCluster
from raftlog.recipes import Barrier, Election, Lock

ROOT = Path(__file__).parents[2]


cluster = cluster_of(controllers=1, brokers=2)


def python_of(document: str, cluster: LocalCluster) -> str:
    """Return the document's Python code in order, with the addresses of this cluster."""
    text = (ROOT / document).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    one, two = (node.endpoint for node in cluster.brokers)
    return "\n".join(blocks).replace("127.0.0.1:9092", one).replace("127.0.0.1:9192", two)


def run(text: str, *arguments: str) -> str:
    done = run_text([sys.executable, "-W", "error", "-c", text, *arguments], timeout=PATIENCE_S)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def test_programs_of_the_documents_run(cluster: LocalCluster) -> None:
    said = run(python_of("README.md", cluster)).splitlines()
    assert re.fullmatch(r"visible on every broker at offset \d+", said[0])
    assert said[1] == "TOPIC_ALREADY_EXISTS: topic 'orders' already exists (field topics[0].name)"
    assert len(said) == 2
    with raftlog.Client(cluster.brokers[0].endpoint) as client:
        client.topics.delete("orders")
    said = run(python_of("docs/client.md", cluster)).splitlines()
    assert "orders [" in said[1]
    assert "TOPIC_ALREADY_EXISTS: topic 'a' already exists (field topics[0].name)" in said
    assert "another client was first" in said
    assert any(line.endswith("b'greeting' b'hello'") for line in said)
    assert said[-1] == "b'hello'"
    said = run(python_of("docs/recipes.md", cluster)).splitlines()
    assert re.fullmatch(r"fencing token \d+", said[0])
    lead = r"True \d+ Leader\(value='10\.0\.0\.7:8080', token=\d+, key='elections/scheduler/\d+'\)"
    assert re.fullmatch(lead, said[1])
    assert said[2] == "False"
    begin, end = "starts once all three have entered", "continues once all three have left"
    assert sorted(said[3:6]) == [f"{number} {begin}" for number in range(3)]
    assert sorted(said[6:]) == [f"{number} {end}" for number in range(3)]


def test_unresponsive_leader_raises_an_error(cluster: LocalCluster) -> None:
    name = cluster.brokers[1].name
    with raftlog.Client(cluster.brokers[0].endpoint) as client:
        assigned = [[cluster.brokers[1].node_id]]
        client.topics.create_all([raftlog.NewTopic("hangs", assignments=assigned)], acks="visible")
        cluster.kill(name, signal.SIGSTOP)
        try:
            with pytest.raises(errors.NetworkError, match="did not answer the query"):
                client.partitions.describe("hangs", timeout_s=0.5)
        finally:
            cluster.kill(name, signal.SIGCONT)


def test_topics_are_listed_page_by_page(cluster: LocalCluster) -> None:
    with raftlog.Client(cluster.brokers[0].endpoint) as client:
        names = [f"paged-{number}" for number in range(5)]
        client.topics.create_all([raftlog.NewTopic(name, partitions=2) for name in names])
        found: list[raftlog.Topic] = []
        cursor, pages = "paged-", 0
        while len(found) < 5:
            page = client.topics.page(cursor, partitions=4)
            found += page.topics
            cursor, pages = page.next, pages + 1
        assert [topic.name for topic in found][:5] == names
        assert pages == 3
        everything = client.topics.page(partitions=100_000)
        assert (list(everything.topics), everything.next) == (client.topics.list(), "")
        with pytest.raises(errors.InvalidRequestError, match="cursor"):
            client.topics.page("paged-1", partitions=0)


def open_watches(client: raftlog.Client) -> int:
    core = client.parts[1]._core
    assert core is not None
    streams = core._watch_streams
    return 0 if streams is None else sum(len(one._calls) for one in streams._open.values())


def first_of(items: Iterable[object]) -> None:
    for _ in items:
        break


def test_dropped_streams_are_closed_with_a_warning(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers: list[Consumer] = []
    begin = Core.consumer

    def consumer(core: Core, settings: ConsumerSettings) -> Consumer:
        consumers.append(begin(core, settings))
        return consumers[-1]

    monkeypatch.setattr(Core, "consumer", consumer)
    with raftlog.Client(cluster.brokers[0].endpoint) as client:
        client.topics.create("dropped", partitions=1, acks="visible")
        client.produce("dropped", "1")
        with pytest.warns(ResourceWarning, match="unclosed watch"):
            first_of(client.watch("topics", initial=True))
        with pytest.warns(ResourceWarning, match="unclosed consumer"):
            first_of(client.consume("dropped", offset="earliest"))
        first_of(Election(client, "dropped").observe())
        until(lambda: open_watches(client) == 0, "the watches end")
        until(lambda: consumers[0]._closed, "the consumer ends")


@pytest.mark.parametrize("kind", ["watch", "consumer"])
def test_stream_has_one_reader_and_any_thread_closes_it(cluster: LocalCluster, kind: str) -> None:
    with raftlog.Client(cluster.brokers[0].endpoint) as client:
        client.topics.create(f"one-{kind}", partitions=1, acks="visible")
        stream: Any = (
            client.watch("topics/nothing") if kind == "watch" else client.consume(f"one-{kind}")
        )
        ended: list[list[Any]] = []
        reader = threading.Thread(target=lambda: ended.append(list(stream)))
        reader.start()
        until(stream._reader._lock.locked, "the first one reads")
        with pytest.raises(
            errors.RaftlogError, match=f"another task or thread is reading this {kind}"
        ):
            next(stream)
        stream.close()
        reader.join(PATIENCE_S)
        assert ended == [[]]
        assert list(stream) == []
        stream.close()
        with pytest.raises(errors.RaftlogError, match="was closed"), stream:
            pass
        if kind == "consumer":
            with pytest.raises(errors.RaftlogError, match="consumer was closed"):
                stream.poll()


def test_closing_a_client_ends_every_wait(cluster: LocalCluster) -> None:
    client = raftlog.Client(cluster.brokers[0].endpoint)
    client.topics.create("waits", partitions=1, acks="visible")
    held, other = Lock(client, "waits"), Lock(client, "waits")
    held.acquire()
    barrier = Barrier(client, "waits")
    barrier.hold()
    changes, records = client.watch("topics/nothing"), client.consume("waits")
    polled = client.consume("waits")
    election = Election(client, "waits")
    waits: dict[str, Callable[[], Any]] = {
        "watch": lambda: list(changes),
        "consume": lambda: list(records),
        "poll": lambda: polled.poll(PATIENCE_S),
        "observe": lambda: list(election.observe()),
        "wait_lost": held.wait_lost,
        "acquire": other.acquire,
        "barrier": barrier.wait,
    }
    ends: dict[str, Any] = {}

    def wait(name: str) -> None:
        try:
            ends[name] = waits[name]()
        except errors.RaftlogError as error:
            ends[name] = str(error)

    threads = [threading.Thread(target=wait, args=[name]) for name in waits]
    for thread in threads:
        thread.start()
    calls = client.parts[0]._calls
    until(lambda: len(calls) == len(waits), "all of them wait")
    with changes, Lock(client, "free"):
        client.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ends == {
        "watch": [],
        "consume": [],
        "poll": [],
        "observe": [None],
        "wait_lost": True,
        "acquire": "the client was closed",
        "barrier": "the client was closed",
    }
    changes.close()
    assert list(changes) == []
    for late in (client, held):
        with pytest.raises(errors.ClientClosedError), late:
            pass


def test_records_keep_their_order_when_next_and_poll_are_mixed(cluster: LocalCluster) -> None:
    with raftlog.Client(cluster.brokers[0].endpoint) as client:
        client.topics.create("mixed", partitions=1, acks="visible")
        for number in range(3):
            client.produce("mixed", str(number))
        with client.consume("mixed", offset="earliest") as records:
            read = [next(records)]
            for number in range(3, 6):
                client.produce("mixed", str(number))
            while len(read) < 6:
                read += records.poll(timeout_s=5.0)
                if len(read) < 6:
                    read.append(next(records))
        assert [one.offset for one in read] == list(range(6))
        # The end is where the records end, however short the time.
        with client.consume("mixed", offset="earliest", idle_timeout_s=0) as records:
            assert [one.offset for one in records] == list(range(6))


MAIN_ENDS = """
import sys, threading, raftlog
from concurrent.futures import ThreadPoolExecutor
from raftlog.client.consumer import Consumer, ConsumerSettings
from raftlog.client.core import Core
from raftlog.recipes import Barrier, DoubleBarrier, Election, Lock
client = raftlog.connect(sys.argv[1])
held = Lock(client, "held", ttl_s=2)
held.acquire()
changes, records = client.watch("topics/nothing"), client.consume("ends")
Barrier(client, "stands").hold()
waits = [
    held.wait_lost,
    Lock(client, "held").acquire,
    Barrier(client, "stands").wait,
    DoubleBarrier(client, "alone", 2).enter,
    lambda: list(changes),
    lambda: list(records),
    lambda: list(Election(client, "nobody").observe()),
]

def wait(work):
    try:
        work()
    except raftlog.errors.RaftlogError as error:
        print(error)

for work in waits:
    threading.Thread(target=wait, args=[work]).start()
ThreadPoolExecutor().submit(wait, held.wait_lost)
while len(client.parts[0]._endless) <= len(waits):
    threading.Event().wait(0.01)
"""


def test_main_thread_exits_while_other_threads_wait_forever(cluster: LocalCluster) -> None:
    with raftlog.Client(cluster.brokers[0].endpoint) as client:
        client.topics.create("ends", partitions=1, acks="visible")
        said = run(MAIN_ENDS, cluster.brokers[0].endpoint)
        assert said.count("the main thread has ended") == len(said.splitlines()) == 8
        begun = time.monotonic()
        assert Lock(client, "held").acquire(timeout_s=PATIENCE_S)
        assert time.monotonic() - begun < 10


def test_client_without_file_descriptors_fails_to_connect(cluster: LocalCluster) -> None:
    text = """
import os, resource, sys, raftlog
client = raftlog.connect(sys.argv[1], timeout_s=2)
client.topics.list()
used = max(map(int, os.listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
with client.consume("few", offset="earliest") as records:
    try:
        next(records)
    except raftlog.errors.RequestTimedOutError as error:
        print(error)
"""
    with raftlog.Client(cluster.brokers[0].endpoint) as client:
        client.topics.create("few", partitions=1, acks="visible")
    assert "Too many open files" in run(text, cluster.brokers[0].endpoint)
