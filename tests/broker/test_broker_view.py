from typing import Any

import pytest
from broker_log import LogMaker
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.metadata.view import WAITING_BYTES, ChangeCollector, View
from broker.partition.events import Changes
from raftlog.errors import CorruptLogError
from raftlog.metadata.image import FoldError, Image
from raftlog.metadata.records import UnknownRecordError, record
from raftlog.wire.records.v1 import records_pb2 as rec

ME = 7
BIG = 1 << 30


def apply(view: View, log: LogMaker, *, until: int | None = None) -> None:
    view.apply(log.since(view.applied + 1, until), high_watermark=log.end)


def member(max_bytes: int = BIG) -> tuple[View, LogMaker, int]:
    """A view that shows its own broker registered and unfenced in epoch 1."""
    view, log = View(ME, max_bytes=max_bytes), LogMaker()
    view.reset(0)
    log.leader()
    epoch = log.register(ME)
    log.unfence(ME, epoch)
    apply(view, log)
    return view, log, epoch


def value(image: Image | None) -> str | None:
    assert image is not None
    return (image.configs.get((4, "")) or {}).get("retention.ms")


def repeatable(view: View) -> Image | None:
    """Return the repeatable image, which changes with every step."""
    return view.repeatable


def set_to(log: LogMaker, text: str) -> int:
    """Return the place in the configuration that sets this key."""
    log.config(text)
    return log.last


def test_new_view_is_empty() -> None:
    view = View(ME, max_bytes=BIG)
    assert view.applied == -1
    assert view.known_lao == -1
    assert view.repeatable is None
    assert view.registration is None
    assert view.at_least(-1) is view.tip
    assert view.at_least(0) is None


def test_lao_above_the_applied_offset_is_neither_exposed_nor_reported() -> None:
    view, log, _ = member()
    view.hear(1, view.applied, log.end)
    known_lao = view.known_lao
    for n in range(3):
        log.config(str(n))
    view.hear(1, log.last, log.end)
    assert bool(view.lao_above_applied)
    assert repeatable(view) is None
    assert view.known_lao == known_lao
    apply(view, log)
    assert not view.lao_above_applied
    assert (view.known_lao, value(view.repeatable)) == (log.last, "2")


def test_response_of_a_lower_controller_epoch_is_ignored() -> None:
    view, log, _ = member()
    log.config("x")
    apply(view, log)
    view.hear(3, 1, 2)
    assert not view.hear(2, log.last, log.end)
    assert (view.known_lao, view.high_watermark, view.controller_epoch) == (1, 2, 3)


def test_known_lao_never_decreases() -> None:
    view, log, _ = member()
    view.hear(1, 2, log.end)
    view.hear(1, 1, log.end)
    view.hear(2, -1, log.end)
    assert view.known_lao == 2
    assert view.repeatable.offset == 2


def test_lao_received_before_the_broker_was_unfenced_counts_as_unknown() -> None:
    """[After a failover B would serve reads at 3, although the write at 5 was answered as visible.]"""
    view, log = View(ME, max_bytes=BIG), LogMaker()
    log.leader()
    epoch = log.register(ME)
    apply(view, log)
    view.hear(1, 1, log.end)
    assert view.known_lao == 1
    assert repeatable(view) is None, "not unfenced yet"
    log.epoch = 2
    log.leader(2)
    log.unfence(ME, epoch)
    apply(view, log)
    view.hear(2, -1, log.end)
    assert view.known_lao == 1, "it is still reported"
    assert repeatable(view) is None, "told by epoch 1, unfenced by epoch 2"
    view.hear(2, 1, log.end)
    assert view.repeatable.offset == 1
    assert view.hear(3, -1, log.end)
    assert view.repeatable.offset == 1, "told by an epoch not below the one that unfenced it"


def test_fencing_and_unfencing_within_one_chunk_is_detected() -> None:
    view, log, epoch = member()
    view.hear(1, view.applied, log.end)
    assert repeatable(view) is not None
    log.fence(ME, epoch)
    log.epoch = 2
    log.leader(2)
    log.unfence(ME, epoch)
    apply(view, log)
    assert repeatable(view) is None
    view.hear(2, view.applied, log.end)
    assert view.repeatable.offset == view.applied


def test_controlled_shutdown_does_not_end_repeatable_reads() -> None:
    view, log, epoch = member()
    view.hear(1, view.applied, log.end)
    log.epoch = 2
    log.change(ME, epoch, in_controlled_shutdown=True)
    apply(view, log)
    assert view.repeatable is not None


def test_at_least_returns_the_oldest_image_from_an_offset_on() -> None:
    view, log, _ = member()
    view.hear(1, view.applied, log.end)
    base = view.applied
    for n in range(4):
        log.config(str(n))
        apply(view, log)
    assert [view.at_least(base + step).offset for step in range(5)] == [
        base + step for step in range(5)
    ]
    assert view.at_least(base + 5) is None
    assert view.at_least(0).offset == base


@pytest.mark.parametrize("position", [0, 5, 20, -1])
def test_corrupt_chunk_changes_nothing(position: int) -> None:
    view, log, _ = member()
    before = view.tip
    log.config("a")
    log.config("b")
    chunk = bytearray(log.since(view.applied + 1))
    chunk[position] ^= 0x40
    with pytest.raises(CorruptLogError):
        view.apply(bytes(chunk), high_watermark=log.end)
    assert view.tip is before
    apply(view, log)
    assert value(view.tip) == "b"


def test_gap_duplicate_and_empty_chunk_are_refused() -> None:
    view, log, _ = member()
    log.config("a")
    log.config("b")
    with pytest.raises(CorruptLogError):
        view.apply(log.since(log.last), high_watermark=log.end)
    with pytest.raises(CorruptLogError):
        view.apply(log.since(view.applied), high_watermark=log.end)
    with pytest.raises(CorruptLogError):
        view.apply(b"", high_watermark=log.end)
    assert view.applied == 2


def test_uncommitted_records_are_refused() -> None:
    view, log, _ = member()
    log.config("a")
    with pytest.raises(CorruptLogError, match="not committed"):
        view.apply(log.since(log.last), high_watermark=log.last)
    assert view.applied == log.last - 1


def test_config_writes_mixed_with_other_records_fold_as_they_do_alone() -> None:
    together, log, _ = member()
    one_by_one, _, _ = member()
    begin = client_id = log.end
    log.append(rec.OpenClientRecord(), rec.OpenClientRecord())
    log.config("a")
    log.append(
        rec.ConfigRecord(resource_type=4, resource_name="b", name="k", value="v"),
        client_id=client_id,
    )
    log.topic("t", ([ME], ME))
    log.config("c")
    log.append(*(rec.ConfigRecord(resource_type=4, resource_name=n, name="k") for n in "bd"))
    log.append(rec.NoOpRecord(), client_id=client_id + 1)
    together.changes.take()
    together.apply(log.since(begin), high_watermark=log.end)
    for _, data in log.batches[-7:]:
        one_by_one.apply(data, high_watermark=log.end)
    expected = log.image(log.last)
    for view in (together, one_by_one):
        assert (view.tip.offset, view.tip.state_hash) == (log.last, expected.state_hash)
        assert len(view.tip.client_results) == 2
    assert set(together.changes.take().configs) == {(4, ""), (4, "b"), (4, "d")}


def test_records_that_do_not_fit_the_image_are_fatal() -> None:
    view, log, _ = member()
    log.unregister(99, 0)
    with pytest.raises(FoldError):
        apply(view, log)
    assert not issubclass(UnknownRecordError, CorruptLogError)


def test_view_restarts_in_another_generation() -> None:
    view, log, _ = member()
    view.hear(5, 2, log.end)
    view.reset(1)
    assert view.generation == 1
    assert view.applied == -1
    assert view.known_lao == -1
    assert view.repeatable is None
    assert view.bytes_kept == 0
    assert view.controller_epoch == 5


def test_memory_bound_keeps_the_oldest_and_newest_image_and_is_reported() -> None:
    view, log, _ = member(max_bytes=30_000)
    view.hear(1, view.applied, log.end)
    base = view.applied
    while not bool(view.backpressure):
        log.config("x" * 200)
        apply(view, log)
        assert view.repeatable.offset == base
        assert view.at_least(log.last) is view.tip
        assert view.bytes_kept <= 30_000 or view.backpressure
    assert log.end > 50, "images between went first"
    middle = (base + log.last) // 2
    view.hear(1, middle, log.end)
    assert not view.backpressure
    assert view.repeatable.state_hash == log.image(middle).state_hash
    view.hear(1, log.last, log.end)
    assert view.repeatable is view.tip
    assert view.bytes_kept == 0


def test_broker_that_does_not_count_for_lao_never_stops_reading() -> None:
    """[All brokers restart, LAO is unknown until they catch up: they would stop forever.]"""
    view, log = View(ME, max_bytes=10_000), LogMaker()
    for n in range(200):
        log.config(f"{n}" * 100)
        apply(view, log)
        assert not view.backpressure
    epoch = log.register(ME)
    log.unfence(ME, epoch)
    apply(view, log)
    view.hear(1, 3, log.end)
    assert repeatable(view) is None, "what LAO 3 shows was given up: unknown rather than wrong"
    view.hear(1, view.applied, log.end)
    assert view.repeatable is view.tip


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("chunk"), st.lists(st.integers(0, 4), min_size=1, max_size=4)),
            st.tuples(st.just("lao"), st.floats(0, 1)),
            st.tuples(st.sampled_from(["tip", "at lao", "all"]), st.none()),
        ),
        max_size=40,
    ),
    st.sampled_from([1, 20_000, BIG]),
)
def test_view_matches_the_fold_in_any_history(steps: list[tuple[str, Any]], max_bytes: int) -> None:
    """At LAO the fold to LAO, at the tip that to the end, and in between what it says."""
    view, log, _ = member(max_bytes)
    view.hear(1, view.applied, log.end)
    known_lao = view.applied
    number = 0
    for kind, argument in [*steps, ("all", None)]:
        if kind == "chunk":
            if view.backpressure:
                view.hear(1, log.last, log.end)
                known_lao = log.last
            for size in argument:
                number += 1
                changes = [
                    rec.ConfigRecord(
                        resource_type=4, resource_name="", name=f"k{key}", value=str(number)
                    )
                    for key in range(size)
                ]
                log.append(*([] if size in (1, 2) else [rec.ProgressRecord()]), *changes)
            apply(view, log)
        elif kind == "lao":
            known_lao = max(known_lao, int(argument * log.last))
            view.hear(1, known_lao, log.end)
        assert (view.applied, view.known_lao) == (log.last, known_lao)
        if kind in ("tip", "all"):
            assert view.tip.state_hash == log.image(log.last).state_hash
        if kind in ("at lao", "all"):
            expected = log.image(known_lao)
            assert view.repeatable.offset == expected.offset
            assert view.repeatable.state_hash == expected.state_hash
        if kind == "all":
            for offset in range(known_lao, log.end):
                image = view.at_least(offset)
                assert image.offset >= offset or image is view.repeatable
                assert image.state_hash == log.image(image.offset).state_hash
        assert view.bytes_kept >= 0
        if max_bytes == BIG:
            assert not view.backpressure


def test_config_values_are_folded_on_read() -> None:
    view, log, _ = member()
    view.hear(1, view.applied, log.end)
    epoch, folded = log.epoch, []

    class TipListener:
        def needs_image(self, chunk_bytes: int) -> bool:
            return False

        def applied(self, before: Any, chunk: bytes, last_offset: int, epoch: int) -> None:
            folded.append((before, last_offset, epoch))

        def replaced(self, image: Any) -> None:
            raise AssertionError

    view.tip_listener = TipListener()
    others = view.other_moves
    for n in range(6):
        # Progress records and no-ops change nothing, so they need not be folded either.
        if n % 3:
            log.config(str(n))
        else:
            log.append(rec.ProgressRecord(high_watermark=n), rec.NoOpRecord())
        apply(view, log)
        view.hear(1, log.last, log.end)
        assert view.applied == log.last
        assert view.known_lao == log.last
        assert view.repeatable_from < log.last
    assert [(before, epoch) for before, _, epoch in folded] == [(None, epoch)] * 6
    assert view.other_moves == others
    assert value(view.repeatable) == "5"
    assert view.tip.state_hash == log.image(log.last).state_hash
    assert view.repeatable is view.tip
    assert (view.repeatable_from, view.bytes_kept) == (log.last, 0)


def test_many_pending_config_values_are_folded_without_a_read() -> None:
    view, log, _ = member()
    view.hear(1, view.applied, log.end)
    begin, kept = view.applied, []
    for _ in range(200):
        log.config("x" * 1000)
        apply(view, log)
        view.hear(1, log.last, log.end)
        kept.append(view.bytes_kept)
    assert max(kept) < WAITING_BYTES + 2000
    assert view.repeatable_from > begin + 100


# --- beginning with a snapshot ------------------------------------------------------------------


def test_view_continues_with_the_log_after_a_snapshot() -> None:
    view, log, epoch = member()
    at = [set_to(log, str(n)) for n in range(6)]
    assert view.install(log.image(at[3]))
    assert (view.applied, value(view.tip), view.bytes_kept) == (at[3], "3", 0)
    assert view.registration is not None
    assert view.registration.epoch == epoch
    apply(view, log)
    assert (view.applied, value(view.tip)) == (at[5], "5")
    assert view.tip.state_hash == log.image(at[5]).state_hash
    assert view.hear(1, at[4], log.end)
    assert value(view.repeatable) == "4"


@pytest.mark.parametrize("back", [0, 1, 3])
def test_a_snapshot_at_or_below_what_is_applied_is_refused(back: int) -> None:
    view, log, _ = member()
    for n in range(5):
        log.config(str(n))
    apply(view, log)
    view.hear(1, view.applied, log.end)
    before = (view.tip, view.known_lao, view.repeatable, view.bytes_kept)
    assert not view.install(log.image(view.applied - back))
    assert (view.tip, view.known_lao, view.repeatable, view.bytes_kept) == before


def test_lao_never_decreases_over_a_snapshot_and_the_gap_is_never_shown() -> None:
    view, log, _ = member()
    at = [set_to(log, str(n)) for n in range(6)]
    apply(view, log, until=at[1] + 1)
    view.hear(1, at[1], log.end)
    assert (view.known_lao, value(view.repeatable)) == (at[1], "1")
    assert view.install(log.image(at[4]))
    assert view.known_lao == at[1]
    assert repeatable(view) is None, (
        "the image at LAO is gone, and a newer one is not what was acknowledged"
    )
    view.hear(1, at[2], log.end)
    assert (view.known_lao, view.repeatable) == (at[2], None)
    view.hear(1, at[1], log.end)
    assert view.known_lao == at[2]
    view.hear(1, at[4], log.end)
    assert (view.known_lao, value(view.repeatable)) == (at[4], "4")


def test_lao_above_the_applied_offset_takes_effect_once_a_snapshot_covers_it() -> None:
    view, log, _ = member()
    at = [set_to(log, str(n)) for n in range(4)]
    view.hear(1, at[3], log.end)
    assert view.lao_above_applied
    assert view.install(log.image(at[3]))
    assert (view.lao_above_applied, view.known_lao, value(view.repeatable)) == (False, at[3], "3")


def test_lao_of_an_epoch_before_the_snapshots_is_ignored() -> None:
    """The epoch that unfenced the broker is unknown: it may be as late as the snapshot's."""
    view, log, _ = member()
    log.epoch = 5
    log.leader()
    view.hear(4, log.last, log.end)
    assert view.install(log.image(log.last))
    assert repeatable(view) is None
    view.hear(5, log.last, log.end)
    assert view.repeatable is view.tip


def test_fenced_broker_has_no_repeatable_reads_after_a_snapshot() -> None:
    view, log, epoch = member()
    log.fence(ME, epoch)
    view.install(log.image(log.last))
    view.hear(1, log.last, log.end)
    assert repeatable(view) is None


def test_lao_from_before_heartbeats_resumed_is_ignored() -> None:
    """[fenced, it was told 3, the others 5 and `visible` answered at 5; unfenced without
    heartbeats, it would read from 3]
    """
    view, log, _ = member()
    assert view.hear(1, log.last, log.end)
    assert view.repeatable is not None
    assert bool(view.heartbeats)
    levels = {"metadata.version": 2, "lao.version": 0}
    log.append(
        *[rec.FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()]
    )
    apply(view, log)
    assert not bool(view.heartbeats)
    assert repeatable(view) is None
    log.append(rec.FeatureLevelRecord(name="broker.heartbeat.version", feature_level=1))
    apply(view, log)
    raised = log.last
    assert view.heartbeats
    assert repeatable(view) is None
    assert view.hear(1, raised - 1, log.end)
    assert repeatable(view) is None
    assert view.hear(1, raised, log.end)
    assert view.repeatable is not None
    assert view.repeatable.offset == raised


def test_view_listener_is_called_only_when_the_view_moves() -> None:
    moves: list[int] = []
    view, log = View(ME, max_bytes=BIG, on_moved=lambda: moves.append(view.applied)), LogMaker()
    view.reset(0)
    log.leader()
    apply(view, log)
    assert view.hear(2, log.last)
    assert moves == [-1, log.last, log.last]
    assert view.known_lao_epoch == 2
    assert not view.hear(1, log.last)
    assert not view.install(log.image(log.last))
    set_to(log, "a")
    assert view.install(log.image(log.last))
    assert moves[3:] == [log.last]


# --- Which entities a batch changes --------------------------------------------------------------


NO_ID = bytes(16)


def test_batch_names_each_entity_that_it_changes_once() -> None:
    collector = ChangeCollector()
    assert collector.take() is None
    collector.note(
        [
            record(rec.TopicRecord(name="t", topic_id=NO_ID)),
            record(rec.PartitionRecord(topic_id=NO_ID, partition_id=1)),
            record(rec.PartitionChangeRecord(topic_id=NO_ID, partition_id=2)),
            record(rec.PartitionChangeRecord(topic_id=NO_ID, partition_id=1)),
            record(rec.RegisterBrokerRecord(broker_id=4)),
            record(rec.BrokerRegistrationChangeRecord(broker_id=5)),
            record(rec.UnregisterBrokerRecord(broker_id=4)),
            record(
                rec.ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas")
            ),
            record(rec.NoOpRecord()),
        ]
    )
    collector.note([record(rec.RemoveTopicRecord(topic_id=NO_ID))])
    assert collector.take() == Changes(((NO_ID, 1), (NO_ID, 2)), (NO_ID,), (4, 5), ((2, "t"),))
    assert collector.take() == Changes()


def test_replaced_image_counts_as_changed_everywhere_once() -> None:
    collector = ChangeCollector()
    collector.take()
    collector.everything()
    collector.note([record(rec.RegisterBrokerRecord(broker_id=4))])
    assert collector.take() is None
    assert collector.take() == Changes()
