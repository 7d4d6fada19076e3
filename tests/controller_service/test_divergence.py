"""Comparison of an observer's last applied batch with the controller's log."""

from dataclasses import asdict, dataclass

from quorum_world import Node, QuorumWorld
from scenarios import simulated

from broker.metadata.follower import STATE_HASH_MASK
from broker.metadata.view import View
from raftlog import batch
from raftlog.wire.controller.v1 import controller_pb2 as pb

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Applied:
    """The last batch that an observer has applied, as it reports it."""

    end_offset: int
    base_offset: int
    epoch: int
    crc: int
    state_hash: int

    def compared_by(self, node: Node, **changed: int) -> tuple[int, int] | None:
        """Return the offset at which the controller says that the logs diverge."""
        named = asdict(self) | changed
        return node.service.node.divergence(named.pop("end_offset"), pb.AppliedBatch(**named))


def applied_by_an_observer(node: Node) -> list[Applied]:
    """Apply the log of a controller batch by batch, as a broker does."""
    controller = node.service.node
    view, found = View(7, max_bytes=MAX_BYTES), []
    while view.applied + 1 < controller.committed_end:
        chunk = controller.read(view.applied + 1, controller.committed_end, MAX_BYTES)
        first = chunk[: next(iter(batch.headers(chunk))).size]
        view.apply(first, high_watermark=controller.committed_end)
        assert view.last_batch is not None
        state_hash = view.tip.state_hash & STATE_HASH_MASK
        found.append(Applied(view.applied + 1, *view.last_batch, state_hash))
    return found


async def two_epochs() -> tuple[QuorumWorld, Node, list[Applied]]:
    """Return three controllers, the second leader's log, and all of its batches."""
    world = QuorumWorld(voters=3)
    for name in ("a", "b"):
        await world.write(name)
    (await world.active()).kill()
    leader = await world.active()
    for name in ("c", "d"):
        await world.write(name)
    applied = applied_by_an_observer(leader)
    assert len({one.epoch for one in applied}) == 2
    return world, leader, applied


@simulated
async def test_controller_recognizes_each_batch_of_its_log_and_detects_another_one() -> None:
    _, leader, applied = await two_epochs()
    assert len(applied) >= 6
    for one in applied:
        assert one.compared_by(leader) is None
        parted = one.epoch, one.base_offset
        assert one.compared_by(leader, crc=one.crc ^ 1) == parted
        if one.base_offset:
            earlier = one.base_offset - 1
            assert one.compared_by(leader, base_offset=earlier) == (one.epoch, earlier)


@simulated
async def test_controller_detects_another_state_after_the_same_batch() -> None:
    _, leader, applied = await two_epochs()
    compared = 0
    for one in applied:
        if leader.service.node.committed.recent_state_hash(one.end_offset - 1) is not None:
            compared += 1
            other = one.compared_by(leader, state_hash=one.state_hash ^ 1)
            assert other == (one.epoch, one.end_offset)
    assert compared >= 2


@simulated
async def test_controller_detects_a_batch_of_another_epoch() -> None:
    _, leader, applied = await two_epochs()
    first = applied[0].epoch
    last_of_first = [one for one in applied if one.epoch == first][-1]
    newest = applied[-1]
    # An epoch that ends before the batch does, and a log that is shorter.
    assert newest.compared_by(leader, epoch=first) == (first, last_of_first.end_offset)
    beyond = newest.compared_by(leader, end_offset=newest.end_offset + 1)
    assert beyond == (newest.epoch, newest.end_offset)


@simulated
async def test_each_node_counts_the_applied_bytes_of_the_log() -> None:
    """Snapshots depend on them, on the leader, whose image a commit replaces, and on followers."""
    world, _, _ = await two_epochs()
    await world.converged()
    for node in world.up():
        controller = node.service.node
        total, offset = 0, 0
        while offset < controller.committed_end:
            chunk = controller.read(offset, controller.committed_end, MAX_BYTES)
            total += len(chunk)
            offset = max(header.end_offset for header in batch.headers(chunk))
        assert controller.committed.applied_bytes == total > 0
