"""Faults of identity and time: nodes replaced, at other addresses, or with wrong clocks."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path

from raftlog.client.quorum_queries import ask_quorum
from raftlog.node.storage.api import NodeIdentity
from raftlog.node.storage.directory import format_storage
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from simulation.chaos.nodes import PORT, Stranger
from simulation.chaos.scene import Scene

MOVED_PORT = 9094
AHEAD_S = 10 * 365 * 86_400
ASK_S = 2.0
CAUGHT_UP_WITHIN_S = 60.0


def transfer_leader(scene: Scene) -> None:
    """Transfer the leadership. It may fail while other faults last."""
    _ask(scene, "quorum", "transfer", "--timeout", "5")


def clock_ahead(scene: Scene) -> None:
    node = scene.leading
    node.kill()
    node.start(clock_ahead_s=AHEAD_S)
    scene.cluster.undo.append(node.kill)


def move_controllers(scene: Scene) -> None:
    """Move all controllers to new addresses at once: their logs contain the old ones."""
    _move(scene, MOVED_PORT, PORT)


def _move(scene: Scene, port: int, back: int | None = None) -> None:
    cluster = scene.cluster
    for node in cluster.nodes:
        node.kill()
    for node in cluster.controllers:
        node.endpoint = node.address(port)
    for node in cluster.nodes:
        node.configure(cluster.cluster_id, cluster.voters)
    cluster.start_all()
    if unready := cluster.wait_ready(CAUGHT_UP_WITHIN_S):
        cluster.violations.append(f"not ready at new addresses: {unready}")
    if back is not None:
        cluster.undo.append(partial(_move, scene, back))


def foreign_controller(scene: Scene) -> None:
    """Run a controller of another cluster at a follower's address, then transfer the leadership."""
    node, other = scene.following, str(uuid.uuid4())
    node.kill()
    stranger = Stranger(node, "foreign", PORT)
    stranger.configure(other, scene.cluster.voters)
    format_storage(stranger.data, NodeIdentity(other, node.id, str(uuid.uuid4())))
    stranger.start()
    scene.cluster.undo.append(stranger.remove)
    time.sleep(1)
    _ask(scene, "quorum", "transfer", "--timeout", "5")


def copied_follower(scene: Scene) -> None:
    """A copy of a follower's directory runs beside it, on another port."""
    node = scene.following
    node.kill()
    twin = Stranger(node, "twin", MOVED_PORT)
    twin.configure(scene.cluster.cluster_id, scene.cluster.voters)
    shutil.copytree(node.data, twin.data)
    node.start()
    twin.start()
    scene.cluster.undo.append(twin.remove)


def set_back_follower(scene: Scene) -> None:
    """Replace a follower's directory by an older copy, once the others have committed what it
    forgets.
    """
    node, cluster = scene.following, scene.cluster
    copy = cluster.directory / f"{node.name}-older"
    node.kill()
    shutil.copytree(node.data, copy)
    node.start()
    time.sleep(2)
    node.kill()
    others = [one.endpoint for one in cluster.controllers if one is not node]
    end = max((one.log_end_offset for one in _described(others)), default=0)
    deadline = time.monotonic() + CAUGHT_UP_WITHIN_S
    while not _committed_on_both(_described(others), end):
        if time.monotonic() > deadline:
            cluster.violations.append(f"without {node.name} the others do not commit up to {end}")
            break
        time.sleep(0.1)
    else:
        shutil.rmtree(node.data)
        shutil.copytree(copy, node.data)
        os.sync()  # A later power cut takes nothing of the copy.
    shutil.rmtree(copy)
    node.start()
    if unready := cluster.wait_ready(CAUGHT_UP_WITHIN_S):
        cluster.violations.append(f"not ready with a directory that was set back: {unready}")


def _committed_on_both(found: list[pb.DescribeQuorumResponse], end: int) -> bool:
    return len(found) == 2 and all(one.high_watermark >= end for one in found)


def restore_twice(scene: Scene) -> None:
    """Restore two clusters from one backup: all three logs must have different generations."""
    cluster = scene.cluster
    file = cluster.directory / "twice.checkpoint"
    done = _ask(scene, "backup", str(file), "--timeout", "30")
    if done.returncode:
        cluster.violations.append(f"no backup: {done.stderr}")
        return
    generations: list[int] = []
    for number in range(2):
        stranger = Stranger(cluster.controllers[number], "restored", MOVED_PORT)
        generations.append(_restored_generation(scene, stranger, file))
        stranger.remove()
    file.unlink()
    generations += [one.generation for one in _described(cluster.endpoints)][:1]
    if len(set(generations)) != len(generations) or 0 in generations:
        cluster.violations.append(f"two logs of one generation: {generations}")


def _restored_generation(scene: Scene, stranger: Stranger, file: Path) -> int:
    endpoint, other = stranger.endpoint, str(uuid.uuid4())
    stranger.configure(other, [f"{stranger.id}@{endpoint}"])
    done = _raftlog("restore", "--from", str(file), "-c", str(stranger.config))
    if done.returncode:
        scene.cluster.violations.append(f"no restore: {done.stderr}")
    stranger.start()
    deadline = time.monotonic() + CAUGHT_UP_WITHIN_S
    while time.monotonic() < deadline:
        for one in _described([endpoint]):
            if one.role == "leader" and one.high_watermark > 0 and one.generation:
                return one.generation
        time.sleep(0.1)
    return 0


def _described(endpoints: list[str]) -> list[pb.DescribeQuorumResponse]:
    return asyncio.run(ask_quorum(endpoints, ASK_S)).descriptions


def _ask(scene: Scene, *words: str) -> subprocess.CompletedProcess[str]:
    return _raftlog(*words, "--bootstrap-controller", ",".join(scene.cluster.endpoints))


def _raftlog(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raftlog", *words], check=False, capture_output=True, text=True
    )
