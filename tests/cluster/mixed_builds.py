"""A cluster of two builds: every node is upgraded, rolled back and upgraded again under writes;
then the feature level is raised, and lowered again. Against a real other build: ``.venv/bin/python
tests/cluster/mixed_builds.py RAFTLOG``, which prints what it observes and fails if a promise is
broken.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster_kit import (
    Load,
    committed_image,
    controllers_of,
    lost,
    raftlog,
    running,
    setting,
    succeed,
    until,
)

from raftlog.local.cluster import LocalCluster
from raftlog.metadata.versions import LATEST_METADATA_VERSION


def pinned(level: int) -> list[str]:
    """A stand-in for another build, which knows metadata.version up to ``level``."""
    return [sys.executable, str(Path(__file__).with_name("pinned_build.py")), str(level)]


PINNED = pinned(LATEST_METADATA_VERSION - 1)
"""The build before, as far as levels go."""
WRITES = 60
"""Number of writes that must succeed after each step."""
Say = Callable[[str], None]


class MixedCluster(LocalCluster):
    """Nodes of two builds. ``other``: the ``raftlog`` command of the other one."""

    def __init__(self, directory: Path, other: Sequence[str], **kwargs: Any) -> None:
        super().__init__(directory, **kwargs)
        self.other = list(other)
        self.of_other: set[str] = set()
        """The nodes that are of the other build when they are started next."""

    def program(self, name: str) -> list[str]:
        """This build or the other one."""
        return self.other if name in self.of_other else super().program(name)

    def generate(self) -> None:
        """Generate all nodes with the other build."""
        super().generate()
        for node in self.nodes:
            self.of_other.add(node.name)
            shutil.rmtree(self.data_path(node.name))
            command = [*self.other, "storage", "format", "-c", str(self.config_path(node.name))]
            subprocess.run(command, check=True, capture_output=True, timeout=60)

    def change(self, name: str, *, to_other: bool) -> None:
        """Stop a node and start it with the other of the two builds."""
        assert self.stop([name], 20) == [], f"{name} had to be killed"
        (self.of_other.add if to_other else self.of_other.discard)(name)
        self.start(name)


def levels(cluster: LocalCluster) -> dict[int, tuple[int, int]]:
    """Return the finalized and the highest supported metadata.version, by node that reports them."""
    ran = succeed("cluster features describe --json", controllers=cluster)
    rows = [row for row in ran.json["features"] if row["feature"] == "metadata.version"]
    return {row["node_id"]: (row["finalized_level"], row["max_supported_version"]) for row in rows}


def upgrade(cluster: LocalCluster) -> Any:
    """Upgrade to the latest metadata.version."""
    level = f"metadata.version={LATEST_METADATA_VERSION}"
    return raftlog(f"cluster features upgrade {level}", controllers=cluster)


async def _step(cluster: MixedCluster, load: Load, name: str, *, to_other: bool, say: Say) -> None:
    load.longest_gap_s = 0.0
    await asyncio.to_thread(cluster.change, name, to_other=to_other)
    await asyncio.to_thread(cluster.wait_ready, [name], 60)
    await load.more(WRITES)
    leader = await asyncio.to_thread(cluster.leader)
    say(
        f"{name} is now of {'the other' if to_other else 'this'} build, leader"
        f" {leader.name if leader else '?'}, {len(load.acknowledged)} writes acknowledged, longest"
        f" gap {load.longest_gap_s * 1000:.0f} ms"
    )


async def _every_node(cluster: MixedCluster, load: Load, *, to_other: bool, say: Say) -> None:
    for node in cluster.controllers:
        await _step(cluster, load, node.name, to_other=to_other, say=say)


async def _life(cluster: MixedCluster, say: Say) -> None:
    names = [node.name for node in cluster.controllers]
    broker = cluster.brokers[0].name
    async with controllers_of(cluster) as client:
        load = Load(client, prefix="mixed", writers=4, pause_s=0.01)
        await load.more(WRITES)
        await _every_node(cluster, load, to_other=False, say=say)
        known = await asyncio.to_thread(levels, cluster)
        ((before, latest),) = set(known.values())
        assert before < latest == LATEST_METADATA_VERSION, known
        refused = await asyncio.to_thread(upgrade, cluster)
        assert refused.code != 0
        assert f"broker 4 supports metadata.version 1 to {before}, not {latest}" in refused.err, (
            refused.err
        )
        say(f"the broker is of the other build: {refused.err.strip()}")

        await _every_node(cluster, load, to_other=True, say=say)
        say("all nodes were rolled back")
        await asyncio.to_thread(cluster.change, broker, to_other=False)
        await asyncio.to_thread(cluster.wait_ready, [broker], 60)
        for name in names[1:]:
            await _step(cluster, load, name, to_other=False, say=say)
        if (await asyncio.to_thread(cluster.wait_leader)).name == names[0]:
            # Only a controller of this build can say who stands against it.
            await _step(cluster, load, names[0], to_other=True, say=say)
        refused = await asyncio.to_thread(upgrade, cluster)
        assert refused.code != 0
        assert f"voter 1 supports metadata.version up to {before}, not {latest}" in refused.err, (
            refused.err
        )
        say(f"one voter is of the other build: {refused.err.strip()}")
        await _step(cluster, load, names[0], to_other=False, say=say)

        raised = await asyncio.to_thread(upgrade, cluster)
        assert raised.code == 0, raised.err
        say(raised.out.strip().replace("\n", "; "))
        await load.more(WRITES)
        session = client.session("mixed")
        assert (await session.write(setting("once", "once"), timeout_s=30)).write.token.offset > 0
        await session.close()
        await _refused(cluster, names[2], say)
        await load.more(WRITES)
        await _lowered(cluster, before, names[2], say)
        await load.more(WRITES)
        await load.stop()
    image = await committed_image(cluster)
    assert lost(load.acknowledged, image) == []
    assert image.features["metadata.version"] == before
    say(
        f"all {len(load.acknowledged)} acknowledged writes are there, metadata.version is {before},"
        f" the voter set is {image.voters}"
    )


async def _refused(cluster: MixedCluster, name: str, say: Say) -> None:
    """Assert that this build starts on the present log, and the other one does not."""
    log = cluster.log_path(name)
    size = log.stat().st_size
    await asyncio.to_thread(cluster.change, name, to_other=True)
    await asyncio.to_thread(
        until, lambda: cluster.pid(name) is None, f"{name} of the other build stops"
    )
    with log.open("rb") as file:
        file.seek(size)
        said = file.read().decode()
    reasons = [line for line in said.splitlines() if "this build" in line]
    assert reasons, said
    assert "Traceback" not in said, said
    say(f"{name} of the other build stops: {reasons[-1].strip()}")
    cluster.of_other.discard(name)
    cluster.start(name)
    await asyncio.to_thread(cluster.wait_ready, [name], 60)


async def _lowered(cluster: MixedCluster, level: int, name: str, say: Say) -> None:
    """Lower the level. Stopped nodes of the other build stay so: the log holds the raise."""
    command = f"cluster features downgrade metadata.version={level}"
    lowered = await asyncio.to_thread(succeed, command, controllers=cluster)
    assert "warning: metadata.version goes from" in lowered.err
    await _refused(cluster, name, say)


def live(directory: Path, other: Sequence[str], say: Say) -> None:
    """Run the whole life of an upgraded cluster. Raises AssertionError."""
    cluster = MixedCluster(directory, other, controllers=3, brokers=1)
    with running(cluster):
        asyncio.run(_life(cluster, say))


if __name__ == "__main__":
    live(Path(tempfile.mkdtemp()) / "cluster", sys.argv[1:] or PINNED, print)
