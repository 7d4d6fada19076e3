"""Watches while brokers and controllers are killed."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, crash, running, until

import raftlog
from raftlog.local.cluster import LocalCluster

TOPIC, KEY = "watched", "retention.ms"
SELECTOR = f"configs/topic/{TOPIC}/{KEY}"
PERIOD_S = 0.02


class Writer(threading.Thread):
    """Counts up in one config with numbered writes."""

    def __init__(self, brokers: str) -> None:
        super().__init__(daemon=True)
        self._client = raftlog.connect(brokers, timeout_s=PATIENCE_S, exactly_once=True)
        self._client.topics.create(TOPIC, acks="visible")
        self._ending = threading.Event()
        self.written = 0
        self.longest_s = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ending.wait(PERIOD_S):
                begun = time.monotonic()
                self._client.configs.alter("topic", TOPIC, set={KEY: self.written + 1})
                self.written += 1
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
        except BaseException as error:
            self.failure = error

    def end(self) -> int:
        """Stop; return the last value written."""
        self._ending.set()
        self.join(PATIENCE_S)
        self._client.close()
        assert self.failure is None
        return self.written


class Watcher(threading.Thread):
    """Reads a watch to its end, and keeps its changes."""

    def __init__(self, brokers: str, *, tip: bool, since: str | None = None) -> None:
        super().__init__(daemon=True)
        self._client = raftlog.connect(brokers, timeout_s=PATIENCE_S)
        self._changes = self._client.watch(SELECTOR, tip=tip, since=since)
        self.seen: list[raftlog.Change] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for change in self._changes:
                self.seen.append(change)
        except BaseException as error:
            self.failure = error

    @property
    def newest(self) -> int:
        return int(self.seen[-1].after) if self.seen else 0

    def end(self, newest: int) -> list[raftlog.Change]:
        """Return the changes that the watch received up to the given value."""
        until(lambda: self.newest >= newest or self.failure is not None, f"it is told of {newest}")
        self._changes.close()
        self.join(PATIENCE_S)
        self._client.close()
        assert self.failure is None
        return self.seen


def each_once(seen: list[raftlog.Change], first: int, last: int) -> None:
    """Assert that all values came once and in order, each with its predecessor."""
    assert [int(change.after) for change in seen] == list(range(first, last + 1))
    for before, change in pairwise(seen):
        assert change.before == before.after
        assert change.offset > before.offset


@contextmanager
def writing(cluster: LocalCluster) -> Iterator[Writer]:
    writer = Writer(cluster.bootstrap_servers)
    writer.start()
    try:
        yield writer
    finally:
        writer.end()


@pytest.mark.nightly
def test_many_watchers_receive_each_change_once_over_many_kills(tmp_path: Path) -> None:
    """Each broker in turn, and the leader, is killed and restarted."""
    with running(LocalCluster(tmp_path / "c", controllers=3, brokers=3)) as cluster:
        watchers = [
            Watcher(cluster.bootstrap_servers, tip=tip) for tip in (False, True) for _ in range(6)
        ]
        for one in watchers:
            one.start()
        with writing(cluster) as writer:
            until(lambda: all(one.newest for one in watchers), "every watcher is told something")
            dead = ""
            for turn in list(range(len(cluster.brokers) + 1)) * 4:
                if dead:
                    cluster.start(dead)
                    cluster.wait_ready([dead], PATIENCE_S)
                node = cluster.brokers[turn - 1] if turn else cluster.wait_leader()
                dead = node.name
                crash(cluster, dead)
                low = writer.written + 5
                until(lambda low=low: writer.written > low, f"writes go on without {dead}")  # type: ignore[misc]
            # Behind a token, by a client of its own: what came since then, and nothing else.
            middle = watchers[0].seen[len(watchers[0].seen) // 2]
            late = Watcher(cluster.bootstrap_servers, tip=False, since=str(middle.token))
            late.start()
            written = writer.end()
        for one in watchers:
            each_once(one.end(written), 1, written)
        each_once(late.end(written), int(middle.after) + 1, written)
