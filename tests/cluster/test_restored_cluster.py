"""A lost cluster restored from its followed export."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cluster_kit import PATIENCE_S, cluster_of, crash, raftlog, running, succeed, until
from command_runs import run_text
from test_export_follows import end_of, follower

from raftlog import NewTopic, batch, connect
from raftlog.errors import InconsistentGenerationError
from raftlog.local.cluster import LocalCluster
from raftlog.recipes import Lock
from raftlog.segments.manifest import RAW, read_manifest
from raftlog.segments.raw import read_segment

TOPIC = "orders"


cluster = cluster_of(controllers=3, brokers=2)


def produced(cluster: LocalCluster, *values: str) -> None:
    sent = run_text([sys.executable, "-m", "raftlog", "produce", TOPIC,
         "--bootstrap-server", cluster.bootstrap_servers, "--timeout", str(PATIENCE_S)], input="".join(f"{one}\n" for one in values), timeout=PATIENCE_S)  # fmt: skip
    assert sent.returncode == 0, sent.stderr


def consumed(cluster: LocalCluster, count: int) -> list[str]:
    read = raftlog(f"consume {TOPIC} --max-messages {count} --from-beginning", brokers=cluster)
    return read.out.split()


def lose_all_controllers(cluster: LocalCluster) -> None:
    names = [node.name for node in cluster.controllers]
    crash(cluster, *names)
    for name in names:
        shutil.rmtree(cluster.data_path(name))


@pytest.mark.nightly
def test_lost_cluster_is_restored_from_its_export(cluster: LocalCluster, tmp_path: Path) -> None:
    target = tmp_path / "export"
    process = follower(target, cluster)
    try:
        with connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
            client.topics.create(TOPIC, partitions=1, replication_factor=2)
            produced(cluster, "one", "two")
            lock = Lock(client, "held", ttl_s=60)
            lock.acquire()
            kept = client.kv.put("app/mode", "blue").token
            assert kept is not None
            client.topics.create("late")
            last = client.kv.put("app/late", "1").token
            assert last is not None
            until(lambda: end_of(target) > last.offset, "the export has it all")
            lose_all_controllers(cluster)
            for node in cluster.controllers:
                restore = f"restore --same-cluster --yes --json --from {target} --at-offset"
                config = cluster.config_path(node.name)
                said = succeed(restore, kept.offset, "-c", config).json
                assert said["cluster_id"] == cluster.cluster_id
                assert "node" in said["vouched_by"]
                assert (said["after"]["brokers"], said["after"]["leases"]) == (2, 1)
            cluster.start_controllers()
            cluster.wait_ready([node.name for node in cluster.nodes], PATIENCE_S)
            assert lock.wait_lost(PATIENCE_S)
            with pytest.raises(InconsistentGenerationError):
                client.kv.get("app/mode")
            client.forget()
            found = client.kv.get("app/mode", read="strict")
            assert found is not None
            assert found.text == "blue"
            assert client.kv.get("app/late") is None, "after the point"
        assert consumed(cluster, 2) == ["one", "two"]
        produced(cluster, "three")
        assert consumed(cluster, 3) == ["one", "two", "three"]
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, (out, err)
        assert "generation" in err, "the export of the lost log ends with an error"
        # The log begins after the restore, and its export has the state there all the same.
        again = tmp_path / "again"
        succeed("export", again, controllers=cluster)
        new = "2c3f2edf-e9bc-4582-a4db-94a918a591d8"
        restore = f"restore --json --cluster-id {new} --node-id 1 -I 1@127.0.0.1:1:{new} --from"
        done = succeed(restore, again, tmp_path / "third")
        assert len(done.json["restored_from"]["generations"]) == 2
    finally:
        process.kill()
        process.communicate()


DELETED = [f"team-{number}" for number in range(400)]


@pytest.mark.nightly
def test_deleted_topics_are_restored_by_one_reviewed_file(tmp_path: Path) -> None:
    """The runbook of docs/operations.md, with a side cluster."""
    target, file = tmp_path / "export", tmp_path / "put-back.yaml"
    side = LocalCluster(tmp_path / "side", controllers=1, brokers=0)
    with running(LocalCluster(tmp_path / "c", controllers=1, brokers=1)) as cluster:
        process = follower(target, cluster)
        live = cluster.bootstrap_controllers
        try:
            with connect(cluster.bootstrap_servers, timeout_s=PATIENCE_S) as client:
                client.topics.create_all([NewTopic(one, partitions=1) for one in DELETED])
                client.configs.alter("topic", DELETED[7], set={"retention.ms": 5000})
                client.kv.put("app/mode", "blue")
                client.topics.delete(*DELETED)
                later = client.kv.put("app/mode", "green").token
                assert later is not None
                until(lambda: end_of(target) > later.offset, "the export has it all")
                # 1. Which change was it?
                changes = raftlog("history topic", DELETED[7], "--json", controllers=live)
                last = [msgspec.json.decode(one) for one in changes.out.splitlines()][-1]
                assert (last["type_name"], last["after"]) == ("REMOVE_TOPIC", None)
                (first,) = {
                    header.base_offset
                    for data in raw_batches(target)
                    for header in batch.headers(data, verify=False)
                    if header.base_offset <= last["offset"] <= header.last_offset
                }
                # 2. The state before it, in a side cluster.
                side.generate()
                (node,) = side.controllers
                shutil.rmtree(side.data_path(node.name))
                restore = f"restore --from {target} --at-offset {first - 1} -c"
                succeed(restore, side.config_path(node.name))
                side.start_controllers()
                side.wait_leader(PATIENCE_S)
                # 3. What differs, as a file; a person takes out what is right as it is.
                found = raftlog("diff --json", live, side.bootstrap_controllers)
                assert len(found.json["changes"]) == 400 + 1 + 1
                shown = raftlog("diff --yaml", live, side.bootstrap_controllers)
                assert "1 key, whose values may be secrets" in shown.err
                assert shown.out == raftlog("diff --yaml", live, f"{target}@{first - 1}").out
                file.write_text(shown.out)
                # 4. The plan, reviewed, and exactly that.
                planned = succeed("plan", file, "--json", controllers=live)
                assert planned.json["records"] == 400 * 2 + 1
                succeed("apply", file, "--plan", planned.json["plan"], controllers=live)
                left = raftlog("diff --json", live, side.bootstrap_controllers)
                changes = left.json["changes"]
                topics = [one["change"] for one in changes if one["kind"] == "topic"]
                assert topics == ["a different topic with that name"] * 400
                assert {one["kind"] for one in changes} == {"topic", "key"}
                kept = client.kv.get("app/mode", read="latest")
                assert kept is not None
                assert kept.text == "green", "what the file does not name stays"
        finally:
            process.kill()
            process.communicate()
            side.stop_all(timeout_s=5)


def raw_batches(target: Path) -> Iterator[bytes]:
    for segment in read_manifest(target).of_kind(RAW):
        yield from read_segment(target, segment)
