"""The LAO tracker: one test for each counter-example behind its rules."""

import random
from typing import Any

import pytest

from controller.visibility.lao import LaoTracker
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

A, B, C = 1, 2, 3
NO_OP = record(pb.NoOpRecord())


def register(broker_id: int, epoch: int, *, fenced: bool = True, version: int = 1) -> Record:
    return record(
        pb.RegisterBrokerRecord(
            broker_id=broker_id, broker_epoch=epoch, fenced=fenced, registration_version=version
        )
    )


def change(broker_id: int, epoch: int, **fields: Any) -> Record:
    return record(
        pb.BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, **fields)
    )


def unregister(broker_id: int) -> Record:
    return record(pb.UnregisterBrokerRecord(broker_id=broker_id))


def fold(*batches: list[Record]) -> Image:
    builder = ImageBuilder(Image())
    for records in batches:
        builder.apply_batch(records, base_offset=builder.offset + 1, epoch=1, timestamp_ms=0)
    return builder.snapshot()


def claim(image: Image, *tail: list[Record], epoch: int = 2) -> LaoTracker:
    """A controller that just claimed: committed image, tail, and its own first record."""
    base = image.offset + 1
    tracker = LaoTracker(epoch, base + sum(len(records) for records in tail))
    tracker.seed(image)
    for records in (*tail, [NO_OP]):
        tracker.proposed(records, base)
        base += len(records)
    return tracker


def three(*unfenced: int) -> Image:
    """Brokers A, B and C registered at offsets 0, 1 and 2."""
    return fold([register(b, b - 1, fenced=b not in unfenced) for b in (A, B, C)])


def committed(*unfenced: int, no_ops: int = 0) -> LaoTracker:
    """A controller whose claim, and this many records after it, are committed."""
    tracker = claim(three(*unfenced))
    if no_ops:
        tracker.proposed([NO_OP] * no_ops, 4)
    tracker.committed(4 + no_ops)
    return tracker


def said(
    tracker: LaoTracker,
    broker_id: int,
    applied: int,
    known_lao: int = -1,
    *,
    epoch: int | None = None,
) -> None:
    """Report as broker A, B or C, registered by ``three``, under the tracker's epoch unless given."""
    tracker.report(
        broker_id, broker_id - 1, tracker.epoch if epoch is None else epoch, applied, known_lao
    )


# --- reports ------------------------------------------------------------------------------------


def test_lao_is_the_lowest_applied_offset_of_the_members() -> None:
    tracker = committed(A, B, no_ops=6)
    said(tracker, A, 9)
    assert tracker.lao == -1
    said(tracker, B, 5)
    assert tracker.lao == 5
    said(tracker, C, 4)
    assert tracker.lao == 5, "C is fenced"
    said(tracker, B, 8)
    assert tracker.lao == 8
    assert tracker.applied_of(C) == 4


def test_reports_of_another_controller_epoch_are_ignored() -> None:
    """A deposed controller's LAO would rise above the one announced by the new controller."""
    tracker = committed(A)
    said(tracker, A, 3, epoch=3)
    said(tracker, A, 3, epoch=1)
    assert tracker.applied_of(A) == -1
    said(tracker, A, 3)
    assert tracker.lao == 3


def test_reports_ahead_of_the_high_watermark_are_parked() -> None:
    """After a failover correct reports are ahead of the new high watermark."""
    tracker = claim(three(A), [NO_OP] * 4)
    said(tracker, A, 5, known_lao=4)
    assert (tracker.lao, tracker.applied_of(A), tracker.known_lao_of(A)) == (-1, -1, -1)
    tracker.committed(8)
    assert (tracker.lao, tracker.min_known_lao) == (5, 4)
    tracker.proposed([NO_OP] * 2, 8)
    said(tracker, A, 8)
    assert tracker.lao == 5
    tracker.committed(9)
    assert tracker.lao == 8


@pytest.mark.parametrize("offset", [4, 2**31 - 1, 2**63 - 1])
@pytest.mark.parametrize("field", ["applied", "told"])
def test_report_beyond_the_log_end_is_ignored(field: str, offset: int) -> None:
    """If it were parked, it would displace the true reports, which arrive later and are lower."""
    tracker = committed(A)
    said(tracker, A, 3)
    said(tracker, A, *((offset,) if field == "applied" else (3, offset)))
    assert (tracker.lao, tracker.applied_of(A), tracker.known_lao_of(A)) == (3, 3, -1)
    tracker.proposed([NO_OP] * 2, 4)
    said(tracker, A, 4, known_lao=3)
    tracker.committed(5)
    assert (tracker.lao, tracker.min_known_lao) == (4, 3)


def test_later_report_replaces_the_parked_one_and_a_countable_one_counts_at_once() -> None:
    tracker = claim(three(A))
    tracker.proposed([NO_OP] * 6, 4)
    tracker.committed(5)
    said(tracker, A, 6)
    said(tracker, A, 8)
    said(tracker, A, 4)
    assert tracker.lao == 4
    tracker.committed(9)
    assert tracker.lao == 8


def test_nothing_counts_as_committed_before_the_first_commit_of_the_epoch() -> None:
    """B's fencing was committed and LAO reached 6; the new controller knows less."""
    tracker = claim(three(A, B), [NO_OP], [change(B, 1, fenced=True)], [NO_OP] * 3)
    assert tracker._epoch_start_offset == 8
    tracker.committed(3)
    said(tracker, A, 2)
    said(tracker, B, 2)
    assert tracker.lao == -1
    assert "committed" in tracker.unknown_reason
    said(tracker, A, 6)
    tracker.committed(8)
    assert tracker.lao == -1
    tracker.committed(9)
    assert tracker.lao == 6
    assert tracker.members == [A]


def test_lao_is_unknown_until_every_member_has_reported_in_this_epoch() -> None:
    nobody = committed()
    assert (nobody.lao, nobody.unknown_reason) == (-1, "no broker is unfenced")
    tracker = committed(A, B, C)
    said(tracker, A, 3)
    assert tracker.lao == -1
    assert tracker.unknown_reason == "brokers [2, 3] have not reported in controller epoch 2"
    said(tracker, B, 3)
    said(tracker, C, 3)
    assert tracker.lao == 3
    assert tracker.unknown_reason == ""


def test_reports_never_decrease_within_a_broker_epoch() -> None:
    tracker = committed(A, no_ops=6)
    said(tracker, A, 7, known_lao=6)
    said(tracker, A, 5, known_lao=3)
    assert (tracker.lao, tracker.min_known_lao) == (7, 6)


def test_only_reports_of_the_registered_broker_epoch_count() -> None:
    tracker = claim(three(A))
    tracker.proposed([register(A, 4)], 4)
    tracker.committed(5)
    tracker.report(A, 3, 2, 4, -1)
    tracker.report(A, 0, 2, 4, -1)
    assert tracker.applied_of(A) == -1
    tracker.report(A, 4, 2, 4, 3)
    assert (tracker.applied_of(A), tracker.known_lao_of(A)) == (4, 3)


# --- who counts ---------------------------------------------------------------------------------


def test_images_between_the_batches_of_the_tail_count() -> None:
    """Tail: unfence B, fence B. Neither the committed nor the pending image shows B."""
    tracker = claim(three(A), [change(B, 1, fenced=False)], [change(B, 1, fenced=True)])
    assert tracker.members == [A, B]
    said(tracker, A, 5)
    tracker.committed(6)
    assert tracker.members == [A]
    assert tracker.lao == 5


def test_broker_counts_from_the_proposal_of_its_unfencing() -> None:
    tracker = committed(A)
    said(tracker, A, 3)
    said(tracker, B, 3)
    tracker.proposed([change(B, 1, fenced=False)], 4)
    assert tracker.members == [A, B]
    tracker.committed(5)
    said(tracker, A, 4)
    assert tracker.lao == 3


def test_broker_counts_until_its_fencing_is_committed() -> None:
    tracker = committed(A, B)
    said(tracker, A, 3)
    said(tracker, B, 3)
    tracker.proposed([change(B, 1, fenced=True), NO_OP], 4)
    tracker.committed(5)
    assert tracker.members == [A, B], "the batch is not committed as a whole"
    said(tracker, A, 4)
    assert tracker.lao == 3
    tracker.committed(6)
    assert tracker.members == [A]
    assert tracker.lao == 4


def test_unfencing_after_a_pending_fencing_keeps_the_membership() -> None:
    tracker = committed(A, B)
    said(tracker, A, 3)
    said(tracker, B, 3)
    for offset, fenced in ((4, True), (5, False), (6, True)):
        tracker.proposed([change(B, 1, fenced=fenced)], offset)
    tracker.committed(5)
    assert tracker.members == [A, B]
    tracker.committed(6)
    assert tracker.members == [A, B]
    tracker.committed(7)
    assert tracker.members == [A]


def test_earlier_of_two_endings_counts() -> None:
    tracker = claim(three(A, B))
    tracker.proposed([change(B, 1, fenced=True)], 4)
    tracker.proposed([unregister(B)], 5)
    tracker.committed(5)
    assert tracker.members == [A]
    said(tracker, B, 3)
    assert (tracker.applied_of(B), tracker.may_join(B)) == (-1, False)


@pytest.mark.parametrize("ending", [unregister(B), register(B, 4)])
def test_replaced_or_unregistered_broker_counts_until_the_commit(ending: Record) -> None:
    tracker = committed(A, B)
    tracker.proposed([ending, NO_OP], 4)
    said(tracker, A, 3)
    assert tracker.lao == -1
    said(tracker, B, 2)
    assert tracker.lao == 2, "the old process still reads, and reports"
    tracker.committed(6)
    assert tracker.members == [A]
    assert tracker.lao == 3
    said(tracker, B, 3)
    assert tracker.applied_of(B) == -1


def test_lao_counts_two_registrations_of_one_broker_in_the_tail() -> None:
    """The committed image shows the first registration in the tail, the log end the second."""
    tracker = claim(three(A, B), [register(B, 3)], [change(B, 3, fenced=False)])
    said(tracker, A, 5)
    tracker.report(B, 1, 2, 0, -1)
    tracker.report(B, 3, 2, 4, -1)
    assert tracker.members == [A, B]
    tracker.committed(6)
    assert tracker.members == [A, B]
    assert tracker.lao == 4


def test_repeated_registration_keeps_its_reports() -> None:
    tracker = committed(A)
    said(tracker, A, 3)
    tracker.proposed([register(A, 0, fenced=False)], 4)
    assert (tracker.lao, tracker.members) == (3, [A])


def test_parked_report_of_a_dropped_registration_is_dropped() -> None:
    tracker = claim(three(A, B))
    said(tracker, C, 3)
    tracker.proposed([register(C, 4)], 4)
    tracker.proposed([unregister(B)], 5)
    said(tracker, B, 5)
    tracker.committed(6)
    assert tracker.applied_of(C) == tracker.applied_of(B) == -1
    assert tracker.members == [A]


def test_broker_in_controlled_shutdown_still_counts() -> None:
    tracker = claim(three(A, B))
    tracker.proposed([change(B, 1, in_controlled_shutdown=True)], 4)
    tracker.committed(5)
    assert tracker.members == [A, B]


def test_lao_does_not_advance_without_members() -> None:
    tracker = committed(A)
    said(tracker, A, 3)
    tracker.proposed([change(A, 0, fenced=True)], 4)
    tracker.proposed([NO_OP] * 5, 5)
    tracker.committed(10)
    assert tracker.members == []
    assert tracker.lao == 3
    assert (tracker.min_known_lao, tracker.held_back_by()) == (-1, [])


def test_legacy_member_makes_lao_unknown_and_is_reported() -> None:
    tracker = committed(A)
    said(tracker, A, 3)
    tracker.proposed([register(C, 4, version=0)], 4)
    assert tracker.lao == 3
    assert tracker.may_join(C)
    tracker.proposed([change(C, 4, fenced=False)], 5)
    tracker.committed(6)
    tracker.report(C, 4, 2, 5, 5)
    said(tracker, A, 5)
    assert tracker.lao == -1
    why = "brokers [3] have a legacy registration, which reports no applied offset"
    assert tracker.unknown_reason == why
    tracker.proposed([change(C, 4, fenced=True)], 6)
    tracker.committed(7)
    assert tracker.lao == 5


# --- joining ------------------------------------------------------------------------------------


def test_joining_requires_lao_applied() -> None:
    tracker = committed(A, no_ops=6)
    said(tracker, A, 7)
    said(tracker, B, 6)
    assert not tracker.may_join(B)
    said(tracker, B, 7)
    assert tracker.may_join(B)
    assert not tracker.may_join(9)


def test_joining_requires_the_first_record_of_the_epoch_applied() -> None:
    """LAO is not known yet: only offsets above all announcements of earlier controllers are safe."""
    tracker = claim(three(A), [NO_OP] * 3)
    tracker.committed(7)
    said(tracker, B, 5)
    assert not tracker.may_join(B)
    said(tracker, B, 6)
    assert tracker.may_join(B)


def test_joining_broker_must_know_the_lao_of_the_members() -> None:
    """Members knew LAO 5, `visible` was answered; fenced B knew 3, and would read from 3."""
    tracker = committed(A, no_ops=6)
    said(tracker, A, 9, known_lao=5)
    said(tracker, B, 9, known_lao=4)
    assert not tracker.may_join(B)
    said(tracker, B, 9, known_lao=5)
    assert tracker.may_join(B)


def test_member_without_a_known_lao_does_not_lower_the_requirement_for_joining() -> None:
    tracker = committed(A, no_ops=6)
    said(tracker, A, 9, known_lao=5)
    tracker.proposed([register(C, 10, fenced=False, version=0)], 10)
    assert tracker.min_known_lao == -1
    said(tracker, B, 9, known_lao=3)
    assert not tracker.may_join(B)


def test_joining_an_empty_set_requires_knowing_lao() -> None:
    tracker = claim(three(A))
    tracker.proposed([change(A, 0, fenced=True)], 4)
    tracker.proposed([NO_OP] * 5, 5)
    tracker.committed(4)
    said(tracker, A, 3)
    tracker.committed(10)
    said(tracker, B, 9, known_lao=2)
    assert not tracker.may_join(B)
    said(tracker, B, 9, known_lao=3)
    assert tracker.may_join(B)


def test_first_member_of_an_empty_set_binds_the_next() -> None:
    """In one turn: LAO of the first may be answered visible before the second reports."""
    tracker = claim(three(C))
    tracker.proposed([change(C, 2, fenced=True)], 4)
    tracker.proposed([NO_OP] * 5, 5)
    tracker.committed(4)
    said(tracker, C, 3)
    tracker.committed(10)
    said(tracker, A, 9, known_lao=5)
    said(tracker, B, 9, known_lao=3)
    assert tracker.may_join(B)
    tracker.proposed([change(A, 0, fenced=False)], 10)
    assert tracker.min_known_lao == 5
    assert not tracker.may_join(B)
    said(tracker, B, 9, known_lao=5)
    assert tracker.may_join(B)


def test_joining_while_lao_is_unknown_requires_no_known_lao() -> None:
    """A broker unfenced in this epoch ignores the LAO of earlier epochs by its own rule."""
    tracker = committed(A)
    said(tracker, B, 3)
    assert tracker.may_join(B)


# --- answers ------------------------------------------------------------------------------------


def test_brokers_that_delay_writers_are_reported() -> None:
    tracker = committed(A, B, C, no_ops=6)
    said(tracker, C, 5, known_lao=4)
    said(tracker, A, 9, known_lao=5)
    assert tracker.held_back_by() == [B]
    said(tracker, B, 5, known_lao=5)
    assert tracker.held_back_by() == [B, C]
    assert tracker.waiting_for_applied(5) == []
    assert tracker.waiting_for_applied(6) == [B, C]
    assert tracker.waiting_for_known_lao(5) == [C]
    assert tracker.waiting_for_known_lao(6) == [A, B, C]
    assert list(tracker.applied_offsets()) == [(A, 0, 9), (B, 1, 5), (C, 2, 5)]
    for broker in (B, C):
        said(tracker, broker, 9)
    assert tracker.held_back_by() == []


def test_lao_report_names_at_most_a_hundred_brokers() -> None:
    tracker = claim(fold([register(b, b, fenced=False) for b in range(250)]))
    assert tracker.waiting_for_applied(0) == tracker.waiting_for_known_lao(0) == list(range(100))


def test_skipped_batch_is_refused() -> None:
    tracker = claim(three(A))
    with pytest.raises(ValueError, match="offset 5 does not follow the log end 4"):
        tracker.proposed([NO_OP], 5)
    tracker.proposed([NO_OP], 4)


# --- leases for strict reads --------------------------------------------------------------------


def test_unfencing_counts_when_committed_until_the_registration_is_replaced_or_removed() -> None:
    tracker = claim(three(A), [change(A, 0, fenced=True)], [change(A, 0, fenced=False)])
    assert not tracker.unfenced_throughout(A)
    tracker.committed(6)
    assert tracker.unfenced_throughout(A)
    tracker = committed(A, B)
    tracker.proposed([register(A, 4)], 4)
    tracker.proposed([unregister(B)], 5)
    assert not tracker.unfenced_throughout(A)
    assert not tracker.unfenced_throughout(B)


# --- the feature level --------------------------------------------------------------------------


def level(name: str, level: int) -> Record:
    return record(pb.FeatureLevelRecord(name=name, feature_level=level))


def test_lao_is_unknown_below_its_feature_level_and_does_not_decrease() -> None:
    both = [level("broker.heartbeat.version", 1), level("lao.version", 1)]
    levels = [level("metadata.version", 2), *both]
    tracker = claim(fold([register(A, 0, fenced=False)], levels))
    tracker.committed(6)
    said(tracker, A, 4)
    assert tracker.lao == 4
    tracker.proposed([level("lao.version", 0)], 5)
    assert (tracker.lao, tracker.unknown_reason) == (-1, "lao.version is 0")
    tracker.committed(7)
    said(tracker, A, 5)
    assert tracker.lao == -1
    tracker.proposed([level("lao.version", 1)], 6)
    assert tracker.lao == 5


def test_lease_holders_are_unfenced_in_all_images_above_the_high_watermark() -> None:
    """Compared with folding the log to every batch, over random histories."""
    for seed in range(300):
        rng = random.Random(seed)
        tracker = claim(three(*rng.sample((A, B, C), rng.randint(0, 3))))
        # What the log says of (broker, registration) after each batch, from the claim's image on;
        # None: another or no registration.
        epochs = {b: b - 1 for b in (A, B, C)}
        now = {b: b in tracker.members for b in (A, B, C)}
        images = [dict(now), dict(now)]
        ends = [3, 4]
        end, high_watermark = 4, 0
        for _ in range(40):
            if rng.random() < 0.4:
                high_watermark = rng.choice(
                    [one for one in ends if one > max(high_watermark, 3)] or [high_watermark]
                )
                tracker.committed(high_watermark)
            else:
                broker_id = rng.choice((A, B, C))
                if rng.random() < 0.15:
                    epochs[broker_id], now[broker_id] = end, False
                    for image in images:
                        image[broker_id] = False
                    batch = [register(broker_id, end)]
                else:
                    now[broker_id] = rng.random() < 0.5
                    batch = [change(broker_id, epochs[broker_id], fenced=not now[broker_id])]
                tracker.proposed(batch, end)
                end += 1
                images.append(dict(now))
                ends.append(end)
            for broker_id in (A, B, C):
                shown = [
                    image[broker_id]
                    for at, image in zip(ends, images, strict=True)
                    if at >= high_watermark
                ]
                assert tracker.unfenced_throughout(broker_id) == (
                    high_watermark > 0 and all(shown)
                ), (seed, broker_id)
