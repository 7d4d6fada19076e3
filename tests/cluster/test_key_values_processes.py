"""Compare-and-set and leases on real processes, while leaders die."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from cluster_kit import PATIENCE_S, cluster_of, until
from cluster_kit import raftlog as raftlog_command
from command_runs import Ran

import raftlog
from raftlog import errors
from raftlog.local.cluster import LocalCluster

WRITERS = 4
DEATHS = 3
Step = tuple[int, int, int]
"""The offset of a success, the value that it wrote, and the offset that it expected."""


cluster = cluster_of(controllers=3, brokers=2, scope="function")


def _count(cluster: LocalCluster, stop: threading.Event, done: list[Step]) -> None:
    """Step after step, each on the condition that nobody was faster."""
    with raftlog.Client(cluster.bootstrap_servers, timeout_s=30) as client:
        while not stop.is_set():
            found = client.kv.get("count", read="latest")
            assert found is not None
            value = int(found.text) + 1
            try:
                written = client.kv.put("count", str(value), expected=found.offset)
            except errors.InvalidUpdateVersionError:
                continue
            done.append((written.offset, value, found.offset))


@pytest.mark.nightly
def test_each_success_of_a_compare_and_set_has_seen_the_one_before(cluster: LocalCluster) -> None:
    """Several programs count in one key, each step on the condition that nobody
    was faster, while leader after leader is killed: no step is lost, and none counts twice.
    """
    stop = threading.Event()
    done: list[Step] = []
    failed: list[BaseException] = []
    with raftlog.Client(cluster.bootstrap_servers, timeout_s=30) as first:
        first.kv.put("count", "0")
        lease = first.leases.grant(10.0, name="survivor")
        first.kv.put("live", "here", lease_id=lease.id)

        def count() -> None:
            try:
                _count(cluster, stop, done)
            except BaseException as error:
                failed.append(error)

        def more() -> None:
            enough = len(done) + 30
            until(lambda: failed or len(done) >= enough, "the programs go on counting")
            assert not failed

        threads = [threading.Thread(target=count) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            for death in range(DEATHS):
                more()
                leader = cluster.wait_leader()
                cluster.kill(leader.name, signal.SIGKILL)
                assert cluster.wait_gone(leader.name)
                if death < DEATHS - 1:
                    # One may stay away: two are a majority.
                    cluster.start(leader.name)
            more()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failed == []
        end = first.kv.get("count", read="strict")
        assert end is not None
        steps = sorted(done)
        assert [value for _, value, _ in steps] == list(range(1, len(steps) + 1))
        assert int(end.text) == len(steps)
        # Each has compared with the very one before it.
        assert [expected for _, _, expected in steps[1:]] == [offset for offset, _, _ in steps[:-1]]
        assert lease.is_held, lease.why_lost
        assert first.kv.get("live", read="strict") is not None
        lease.revoke()
        assert first.kv.get("live", read="strict") is None


@pytest.mark.nightly
def test_kv_commands_put_lease_lock_and_delete_keys(cluster: LocalCluster) -> None:
    ask = {
        "RAFTLOG_BOOTSTRAP_SERVER": cluster.bootstrap_servers,
        "RAFTLOG_BOOTSTRAP_CONTROLLER": cluster.bootstrap_controllers,
    }

    def run(*arguments: object) -> Ran:
        return raftlog_command(*arguments, environment=ask)

    made = run("kv", "put", "a/b", "1", "--expected-offset", "-1", "--json").json
    assert made["items"][0]["offset"] == made["token"]["offset"]
    assert run("kv", "put", "a/b", "2", "--expected-offset", "-1").code == 1
    assert run("kv", "get", "a/b").out == "1"
    assert run("kv", "get", "nothing").code == 1
    lease = run("kv", "lease", "grant", "60").out.strip()
    assert run("kv", "put", "a/c", "3", "--lease", lease).code == 0
    assert [one["key_count"] for one in run("kv", "lease", "list", "--json").json["items"]] == [1]
    assert f"lease {lease} lives for 60 s" in run("kv", "lease", "keep-alive", lease, "--once").out
    assert [one["key"] for one in run("kv", "list", "a/", "--json").json["items"]] == ["a/b", "a/c"]
    assert run("kv", "lease", "revoke", lease).code == 0
    (gone,) = run("kv", "delete", "--prefix", "a/", "--json").json["items"]
    assert gone == {"name": "a/b", "error": None, "offset": None}
    assert run("kv", "delete", "--prefix", "a/", "--json").json["items"] == []
    held = run("kv", "lock", "job", "--", "sh", "-c", 'test "$LOCK_TOKEN" -gt 0 && exit 7')
    assert held.code == 7
    assert run("kv", "list", "--json").json["items"] == []
    # One whose lock is taken away is ended.
    with subprocess.Popen(
        [sys.executable, "-m", "raftlog", "kv", "lock", "job", "--", "sleep", "60"],
        env={**os.environ, **ask},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: run("kv", "lease", "list", "--json").json["items"], "it has a lease")
        leases = run("kv", "lease", "list", "--json").json["items"]
        assert run("kv", "lock", "job", "--wait", "0.5", "--", "true").code == 4
        (found,) = [one["id"] for one in leases if one["name"] == "lock job"]
        assert run("kv", "lease", "revoke", found).code == 0
        assert process.wait(PATIENCE_S) == 4
        assert process.stderr is not None
        assert "the lock was lost" in process.stderr.read()
