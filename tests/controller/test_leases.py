from typing import Any

import pytest
from deciding import Cell

from controller.decision import Reply
from controller.settings import ControllerSettings
from controller.state.leases import LeaseTracker
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Lease
from raftlog.wire.controller.v1 import controller_pb2 as rpc

TTL_MS = 5_000


def grant(at: Cell, ttl_ms: int = TTL_MS) -> int:
    return int(at.send(rpc.GrantLeaseRequest(name="l", ttl_ms=ttl_ms)).lease_id)


def put(at: Cell, *keys: str, lease_id: int) -> None:
    alterations = [rpc.KeyValueAlteration(key=key, lease_id=lease_id) for key in keys]
    at.send(rpc.AlterKeyValuesRequest(alterations=alterations))


def keep(at: Cell, lease_id: int) -> Any:
    decided = at.decide(rpc.KeepLeaseAliveRequest(lease_id=lease_id))
    at.propose(decided)
    return decided


def keys(at: Cell) -> list[str]:
    return sorted(at.pending.snapshot().key_values)


def leases(at: Cell) -> list[int]:
    return sorted(at.pending.snapshot().leases)


def test_lease_id_is_the_offset_of_its_record_and_its_keys_end_with_it() -> None:
    at = Cell(brokers=0)
    one, other = grant(at), grant(at, 60_000)
    assert at.pending.leases[one] == Lease(one, "l", TTL_MS, "")
    put(at, "a", "b", lease_id=one)
    put(at, "c", lease_id=other)
    at.send(rpc.AlterKeyValuesRequest(alterations=[rpc.KeyValueAlteration(key="d")]))
    at.now += TTL_MS / 1000 - 0.001
    at.due()
    assert leases(at) == [one, other]
    at.now += 0.001
    (write,) = at.due()
    # One batch: nobody sees a key whose lease is gone.
    assert write.types == [
        "KEY_VALUE", "KEY_VALUE", "REMOVE_LEASE",
    ]  # fmt: skip
    assert (leases(at), keys(at)) == ([other], ["c", "d"])


def test_keep_alive_writes_no_record() -> None:
    at = Cell(brokers=0)
    lease = grant(at)
    for _ in range(5):
        at.now += 4.0
        at.due()
        before = at.pending.offset
        decided = keep(at, lease)
        # An answer without records waits for a read-index round: nobody else led meanwhile.
        assert isinstance(decided.outcome, Reply)
        assert decided.body.ttl_ms == TTL_MS
        assert at.pending.offset == before
    at.now += 5.0
    at.due()
    assert leases(at) == []
    assert keep(at, lease).error.code == ErrorCode.RESOURCE_NOT_FOUND


def test_new_controller_grants_each_lease_its_whole_time_again() -> None:
    at = Cell(brokers=0)
    lease = grant(at)
    at.now += 4.9
    after = Cell(brokers=0, image=at.pending.snapshot(), epoch=2, now=at.now)
    after.now += 4.9
    after.due()
    assert leases(after) == [lease]
    after.now += 0.1
    after.due()
    assert leases(after) == []


@pytest.mark.parametrize(
    "request_of",
    [rpc.KeepLeaseAliveRequest, rpc.RevokeLeaseRequest],
    ids=lambda kind: str(kind.DESCRIPTOR.name),
)
def test_lease_id_of_another_generation_is_unknown(request_of: Any) -> None:
    before = Cell(brokers=0)
    image = before.pending.snapshot()
    lost = [grant(before) for _ in range(4)][-1]
    # The log goes on from before the lease was granted, and its offset is taken again.
    at = Cell(brokers=0, image=image, epoch=1000, generation=1)
    while (lease := grant(at)) < lost:
        pass
    assert lease == lost
    lost_request = request_of(lease_id=lost, generation=0)
    at.refused(lost_request, ErrorCode.RESOURCE_NOT_FOUND, "generation")
    assert lease in leases(at)
    assert at.decide(request_of(lease_id=lease, generation=1)).error is None
    # Who does not say which log it knows is taken at its word.
    assert at.decide(request_of(lease_id=lease)).error is None


def test_stalled_loop_ends_no_lease() -> None:
    at = Cell(brokers=0)
    lease = grant(at)
    at.now += 60.0
    at.decider.extend_for_pause(60.0, at.now)
    at.due()
    assert leases(at) == [lease]
    assert keep(at, lease).error is None


def test_lease_with_many_keys_ends_in_several_batches_and_is_not_revived() -> None:
    at = Cell(brokers=0, settings=ControllerSettings(max_records_per_request=3))
    lease = grant(at)
    for names in ("ab", "cd", "e"):
        put(at, *names, lease_id=lease)
    at.refused(rpc.RevokeLeaseRequest(lease_id=lease), ErrorCode.POLICY_VIOLATION, "lease_id")
    at.now += 5.0
    first = at.decider.due.next(at.now)
    assert first is not None
    at.propose(first)
    assert (keys(at), leases(at)) == (["c", "d", "e"], [lease])
    assert keep(at, lease).error.code == ErrorCode.RESOURCE_NOT_FOUND
    at.due()
    assert (keys(at), leases(at)) == ([], [])


def test_overwritten_key_changes_its_lease() -> None:
    at = Cell(brokers=0)
    one, other = grant(at), grant(at)
    put(at, "a", "b", lease_id=one)
    put(at, "a", lease_id=other)
    put(at, "b", lease_id=0)
    at.send(rpc.RevokeLeaseRequest(lease_id=one))
    assert (keys(at), leases(at)) == (["a", "b"], [other])
    at.send(rpc.RevokeLeaseRequest(lease_id=other))
    assert (keys(at), leases(at)) == (["b"], [])
    again = rpc.RevokeLeaseRequest(lease_id=other)
    at.refused(again, ErrorCode.RESOURCE_NOT_FOUND, "lease_id")


def test_time_and_number_of_leases_are_bounded() -> None:
    at = Cell(settings=ControllerSettings(lease_max_count=2))
    for ttl_ms in (-1, 0, 999, 86_400_001):
        invalid = rpc.GrantLeaseRequest(ttl_ms=ttl_ms)
        at.refused(invalid, ErrorCode.INVALID_REQUEST, "ttl_ms")
    first = grant(at)
    grant(at)
    at.refused(rpc.GrantLeaseRequest(ttl_ms=TTL_MS), ErrorCode.POLICY_VIOLATION, "")
    at.send(rpc.RevokeLeaseRequest(lease_id=first))
    grant(at)


def test_leases_are_listed_with_their_remaining_time() -> None:
    at = Cell(brokers=0)
    one, other = grant(at), grant(at, 60_000)
    put(at, "a", "b", lease_id=one)
    at.now += 2.0
    listed = at.send(rpc.ListLeasesRequest()).leases
    assert [(each.lease_id, each.key_count) for each in listed] == [(one, 2), (other, 0)]
    assert [each.remaining_ms for each in listed] == pytest.approx([3_000, 58_000], abs=1)


def test_tracker_orders_by_deadline_and_never_shortens() -> None:
    tracker = LeaseTracker()
    tracker.start([(1, 5_000), (2, 1_000), (3, 3_000)], 10.0)
    assert tracker.next_due() == 11.0
    tracker.keep(2, 9_000, 10.5)
    tracker.keep(2, 1_000, 10.0)
    assert (tracker.next_due(), tracker.expired(12.9)) == (13.0, None)
    assert tracker.expired(13.0) == 3
    tracker.end(3)
    tracker.end(3)
    tracker.extend_all(2.0)
    assert (tracker.next_due(), tracker.expired(16.9), tracker.expired(17.0)) == (17.0, None, 1)
    assert (tracker.remaining_s(2, 17.0), tracker.remaining_s(7, 17.0)) == (4.5, 0.0)


def test_tracker_grants_no_more_than_the_whole_time_after_a_stall() -> None:
    """[A lease that was kept alive after a stall lived on for the stall's time in addition.]"""
    tracker = LeaseTracker()
    tracker.start([(1, 5_000)], 10.0)
    tracker.extend_all(60.0)
    tracker.keep(1, 5_000, 80.0)
    tracker.keep(2, 3_000, 80.0)
    assert (tracker.remaining_s(1, 80.0), tracker.remaining_s(2, 80.0)) == (5.0, 3.0)
    assert (tracker.expired(82.9), tracker.expired(83.0)) == (None, 2)


def test_keep_alive_answers_for_each_of_many_leases() -> None:
    at = Cell(brokers=0)
    one, two, ended = grant(at), grant(at), grant(at)
    at.send(rpc.RevokeLeaseRequest(lease_id=ended))
    at.now += TTL_MS / 1000 - 1
    request = rpc.KeepLeaseAliveRequest(
        lease_id=one, generation=0, more_lease_ids=[ended, two, 0, 10**9]
    )
    decided = at.propose(at.decide(request))
    body: Any = decided.body
    assert (body.ttl_ms, list(body.more_ttl_ms)) == (TTL_MS, [0, TTL_MS, 0, 0])
    at.now += TTL_MS / 1000 - 1
    at.due()
    assert leases(at) == [one, two]
    first_ended = rpc.KeepLeaseAliveRequest(lease_id=ended, more_lease_ids=[two])
    body = at.propose(at.decide(first_ended)).body
    assert (body.ttl_ms, list(body.more_ttl_ms)) == (0, [TTL_MS])
    at.now += 2
    at.due()
    assert leases(at) == [two]


def test_keep_alive_bounds_leases_and_requires_one_log() -> None:
    at = Cell(brokers=0)
    lease = grant(at)
    many = rpc.KeepLeaseAliveRequest(lease_id=lease, more_lease_ids=[lease] * 1_001)
    at.refused(many, ErrorCode.INVALID_REQUEST, "more_lease_ids")
    old = rpc.KeepLeaseAliveRequest(lease_id=lease, more_lease_ids=[lease], generation=1)
    at.refused(old, ErrorCode.RESOURCE_NOT_FOUND, "generation")


def grant_with(*alterations: dict[str, Any], **fields: Any) -> rpc.AlterKeyValuesRequest:
    """A request that grants a lease with these keys."""
    made = [rpc.KeyValueAlteration(**{"lease_id": -1, **one}) for one in alterations]
    lease = rpc.GrantLeaseRequest(name="l", ttl_ms=fields.pop("ttl_ms", TTL_MS))
    return rpc.AlterKeyValuesRequest(alterations=made, lease=lease, **fields)


def test_lease_and_its_keys_are_one_batch() -> None:
    at = Cell(brokers=0)
    put(at, "q/old", "p", "q/deep/er", "qq/other", lease_id=0)
    before = at.pending.offset
    decided = at.propose(at.decide(grant_with({"key": "q/new"}, {"key": "p"}, {"key": "q/old"})))
    assert decided.types == ["LEASE"] + ["KEY_VALUE"] * 3
    lease, answer = before + 1, decided.body
    assert (answer.lease.lease_id, answer.lease.ttl_ms) == (lease, TTL_MS)
    assert list(answer.offsets) == [lease + 1, lease + 2, lease + 3]
    # Other keys of the same directory, as they were before: not those of deeper ones.
    assert list(answer.sibling_counts) == [1, 0, 0]
    assert at.pending.leases[lease] == Lease(lease, "l", TTL_MS, "")
    assert {at.pending.key_values[key].lease_id for key in ("q/new", "p", "q/old")} == {lease}
    at.now += TTL_MS / 1000
    at.due()
    assert (leases(at), keys(at)) == ([], ["q/deep/er", "qq/other"])


def test_second_key_in_a_directory_has_a_sibling_though_nothing_is_committed() -> None:
    at = Cell(brokers=0)
    at.hold_commits = True
    counts = [at.send(grant_with({"key": f"q/{name}"})).sibling_counts[0] for name in "abc"]
    assert counts == [0, 1, 2]


KEY, COMPARE = {"key": "a"}, rpc.KEY_VALUE_COMPARE
INVALID, GONE = ErrorCode.INVALID_REQUEST, ErrorCode.RESOURCE_NOT_FOUND
NO_GRANT = rpc.AlterKeyValuesRequest(alterations=[rpc.KeyValueAlteration(key="a", lease_id=-1)])


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (grant_with({"key": "a", "lease_id": 0}), INVALID, "lease"),
        (grant_with(KEY, ttl_ms=1), INVALID, "lease.ttl_ms"),
        (
            grant_with(KEY, {"key": "b", "expected_offset": 5}),
            ErrorCode.INVALID_UPDATE_VERSION,
            "alterations[1].expected_offset",
        ),
        (grant_with(KEY, {"key": "b", "lease_id": 77}), GONE, "alterations[1].lease_id"),
        (grant_with(KEY, {"key": "b", "operation": COMPARE}), INVALID, "alterations[1].lease_id"),
        (NO_GRANT, GONE, "alterations[0].lease_id"),
    ],
)
def test_refused_keys_grant_no_lease(
    request_: rpc.AlterKeyValuesRequest, code: ErrorCode, field: str
) -> None:
    Cell(brokers=0).refused(request_, code, field)


def test_validate_only_grant_changes_nothing() -> None:
    """[An unknown lease's time ran, and its end was a record that no node could fold.]"""
    at = Cell(brokers=0)
    before = at.pending.state_hash
    decided = at.propose(at.decide(grant_with({"key": "q/a"}, validate_only=True)))
    assert list(decided.body.sibling_counts) == [0]
    at.now += 2 * TTL_MS / 1000
    assert at.due() == []
    assert at.pending.state_hash == before


def test_grant_with_keys_respects_both_bounds() -> None:
    at = Cell(brokers=0, settings=ControllerSettings(lease_max_count=1, max_records_per_request=3))
    two = [{"key": f"q/{number}"} for number in range(2)]
    at.refused(grant_with(*two, {"key": "q/2"}), ErrorCode.POLICY_VIOLATION, "alterations")
    at.send(grant_with(*two))
    one_more = grant_with({"key": "q/3"})
    at.refused(one_more, ErrorCode.POLICY_VIOLATION, "", "lease.max.count")
