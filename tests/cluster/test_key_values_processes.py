import os
import subprocess
import sys

import pytest
from cluster_kit import PATIENCE_S, cluster_of, until
from cluster_kit import raftlog as raftlog_command
from command_runs import Ran

from raftlog.local.cluster import LocalCluster

cluster = cluster_of(controllers=3, brokers=2, scope="function")


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
