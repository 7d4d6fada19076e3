"""The metrics of each role, made from the messages in which a node describes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from raftlog.metadata.image import Image
from raftlog.node.observability.figures import SnapshotFigures
from raftlog.node.observability.registry import MetricsRegistry, gauge
from raftlog.node.recovery.mending import NAMED_MAX, MendingState
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

ROLES = ("unattached", "prospective", "candidate", "leader", "follower", "resigned", "observer")


def add_quorum_metrics(
    metrics: MetricsRegistry, describe: Callable[[], quorum_pb2.DescribeQuorumResponse]
) -> None:
    """Add Kafka's ``raft-metrics``, from a DescribeQuorum response."""
    metrics.collect(lambda: _quorum(describe()))


def add_refusal_metrics(
    metrics: MetricsRegistry, refused: Callable[[], Mapping[tuple[str, str], int]]
) -> None:
    """Add the counts of refused quorum messages, by type and field."""

    def collect() -> Iterator[Metric]:
        family = CounterMetricFamily(
            "raftlog_quorum_messages_refused",
            "Quorum messages refused because this node does not believe their claims.",
            labels=("message", "field"),
        )
        for kind, count in refused().items():
            family.add_metric(kind, count)
        yield family

    metrics.collect(collect)


def add_audit_metrics(metrics: MetricsRegistry, dropped: Callable[[], int]) -> None:
    """Add the count of events missing from the audit log."""

    def collect() -> Iterator[Metric]:
        yield CounterMetricFamily(
            "raftlog_audit_events_dropped",
            "Events missing from the audit log: too many refusals, or the log cannot be written.",
            value=dropped(),
        )

    metrics.collect(collect)


def _clock(
    response: quorum_pb2.DescribeQuorumResponse | broker_pb2.DescribeBrokerResponse,
) -> Iterator[Metric]:
    if response.HasField("clock_ahead_ms"):
        yield gauge(
            "raftlog_clock_ahead_seconds",
            "How far this node's wall clock is ahead of those of a majority of the voters.",
            response.clock_ahead_ms / 1000,
        )


def _quorum(response: quorum_pb2.DescribeQuorumResponse) -> Iterator[Metric]:
    yield from _clock(response)
    states = (((role,), float(role == response.role)) for role in ROLES)
    yield gauge(
        "raft_metrics_current_state", "1 for this node's current role.", *states, labels=("state",)
    )
    yield gauge("raft_metrics_current_epoch", "The epoch of the quorum.", response.leader_epoch)
    yield gauge(
        "raft_metrics_current_leader", "The leader's id, or -1 if unknown.", response.leader_id
    )
    yield gauge(
        "raft_metrics_current_vote",
        "The candidate that has this node's vote in this epoch, or -1 if none has.",
        response.voted_id,
    )
    yield gauge(
        "raft_metrics_high_watermark",
        "The first uncommitted offset, or -1 if unknown.",
        response.high_watermark,
    )
    yield gauge(
        "raft_metrics_log_end_offset", "The offset after the last record.", response.log_end_offset
    )
    yield gauge(
        "raft_metrics_log_start_offset", "The first offset in the log.", response.log_start_offset
    )
    yield gauge(
        "raftlog_durable_end_offset",
        "The offset after the last record that is on disk.",
        response.durable_end_offset,
    )
    yield gauge("raft_metrics_number_of_voters", "Number of voters.", len(response.voters))
    yield gauge(
        "raft_metrics_number_of_observers",
        "Number of observers that replicate from this node.",
        len(response.observers),
    )
    if response.role == "leader":
        followers = [state for state in response.voters if state.replica_id != response.node_id]
        lags = (
            ((str(state.replica_id),), response.log_end_offset - state.log_end_offset)
            for state in followers
            if state.log_end_offset >= 0
        )
        yield gauge(
            "raftlog_replica_lag_records",
            "Records of the leader's log that a replica lacks.",
            *lags,
            labels=("replica",),
        )


def add_controller_metrics(
    metrics: MetricsRegistry,
    *,
    active: Callable[[], bool],
    image: Callable[[], Image],
    describe_brokers: Callable[[], controller_pb2.DescribeBrokersResponse],
    lowest_known_lao: Callable[[], int],
) -> None:
    """Add Kafka's ``KafkaController`` metrics and the brokers' acknowledged offsets.

    ``image``: the committed one. ``describe_brokers`` and ``lowest_known_lao`` are called only on
    the active controller.
    """

    def collect() -> Iterable[Metric]:
        leads = active()
        yield gauge(
            "kafka_controller_active_controllers",
            "1 if this is the active controller.",
            float(leads),
        )
        yield from _controller_image(image())
        if leads:
            yield from _brokers(describe_brokers())
            yield gauge(
                "raftlog_lowest_known_lao",
                "The lowest LAO that an unfenced broker knows, or -1 if unknown: up to this offset,"
                " plain reads show every write on every unfenced broker.",
                lowest_known_lao(),
            )

    metrics.collect(collect)


def _controller_image(now: Image) -> Iterator[Metric]:
    brokers = list(now.brokers.values())
    fenced = sum(broker.fenced for broker in brokers)
    yield gauge("kafka_controller_fenced_brokers", "Registered brokers that are fenced.", fenced)
    yield gauge(
        "kafka_controller_active_brokers",
        "Registered brokers that are not fenced.",
        len(brokers) - fenced,
    )
    stopping = sum(broker.in_controlled_shutdown for broker in brokers)
    yield gauge(
        "kafka_controller_controlled_shutdown_brokers",
        "Brokers in controlled shutdown.",
        stopping,
    )
    yield gauge("kafka_controller_global_topics", "Topics.", len(now.topics))
    yield gauge("kafka_controller_global_partitions", "Partitions.", len(now.partitions))
    yield gauge(
        "kafka_controller_last_applied_record_offset",
        "The last committed offset that this node has folded.",
        now.offset,
    )
    yield gauge(
        "kafka_controller_last_applied_record_timestamp_seconds",
        "Time of the last batch that this node has folded, in seconds since 1970.",
        now.timestamp_ms / 1000,
    )
    yield gauge("raftlog_kv_keys", "Keys in the key-value store.", len(now.key_values))
    yield gauge(
        "raftlog_kv_bytes",
        "Total size of all keys and values in the key-value store, in bytes.",
        now.key_value_bytes,
    )
    yield gauge("raftlog_leases", "Leases in the key-value store.", len(now.leases))
    yield gauge(
        "raftlog_export_cursor_lag_records",
        "Committed records that an export has not read yet, according to its cursor.",
        *(
            ((name,), max(0, now.offset + 1 - now.export_cursors[name].end_offset))
            for name in sorted(now.export_cursors)
        ),
        labels=("cursor",),
    )


def _brokers(response: controller_pb2.DescribeBrokersResponse) -> Iterator[Metric]:
    label = ("broker",)
    newest = response.high_watermark - 1
    reported = [broker for broker in response.brokers if broker.applied_offset >= 0]
    yield gauge(
        "raftlog_lowest_acknowledged_offset",
        "The highest offset that every unfenced broker has applied, or -1 if unknown.",
        response.lowest_acknowledged_offset,
    )
    yield gauge(
        "raftlog_broker_acknowledged_offset_lag",
        "Committed records that a broker has not acknowledged as applied.",
        *(
            ((str(broker.broker_id),), max(0, newest - broker.applied_offset))
            for broker in reported
        ),
        labels=label,
    )
    yield gauge(
        "kafka_controller_time_since_last_heartbeat_received_seconds",
        "Seconds since a broker was last heard from.",
        *(
            ((str(b.broker_id),), b.last_contact_age_ms / 1000)
            for b in response.brokers
            if b.last_contact_age_ms >= 0
        ),
        labels=label,
    )
    yield gauge(
        "raftlog_lowest_acknowledged_offset_held_back_seconds",
        "Seconds for which the lowest acknowledged offset has been unknown, or has not advanced"
        " although it is below the high watermark.",
        response.held_back_ms / 1000,
    )
    yield from _partition_counts(response.partitions)
    held_back = set(response.held_back_by)
    yield gauge(
        "raftlog_broker_holds_lowest_acknowledged_offset",
        "1 for the brokers that hold back the lowest acknowledged offset.",
        *(
            ((str(broker.broker_id),), float(broker.broker_id in held_back))
            for broker in response.brokers
        ),
        labels=label,
    )


def _partition_counts(counts: controller_pb2.PartitionCounts) -> Iterator[Metric]:
    yield gauge(
        "kafka_controller_offline_partitions", "Partitions without a leader.", counts.offline
    )
    yield gauge(
        "kafka_controller_preferred_replica_imbalance",
        "Partitions that their preferred leader does not lead.",
        counts.not_led_by_preferred,
    )
    yield gauge(
        "raftlog_reassigning_partitions",
        "Partitions that are being reassigned.",
        counts.reassigning,
    )
    yield gauge(
        "raftlog_recovering_partitions",
        "Partitions whose unclean leader has not recovered yet.",
        counts.recovering,
    )
    yield gauge(
        "raftlog_partitions_with_eligible_leader_replicas",
        "Partitions with eligible leader replicas: fewer than min.insync.replicas were in sync.",
        counts.with_elr,
    )
    yield gauge(
        "raftlog_partitions_awaiting_recovery",
        "Partitions that can get a leader only by an unclean recovery.",
        counts.awaiting_recovery,
    )
    yield CounterMetricFamily(
        "kafka_controller_election_from_eligible_leader_replicas",
        "Leaders elected from the eligible leader replicas since this controller became active.",
        value=counts.elections_from_elr,
    )
    yield CounterMetricFamily(
        "kafka_controller_unclean_leader_elections",
        "Unclean leader elections since this controller became active.",
        value=counts.unclean_elections,
    )


def add_broker_metrics(
    metrics: MetricsRegistry, describe: Callable[[], broker_pb2.DescribeBrokerResponse]
) -> None:
    """Add Kafka's ``broker-metadata-metrics`` and this broker's view of the others, from a
    DescribeBroker response.
    """
    metrics.collect(lambda: _broker(describe()))


def _broker(response: broker_pb2.DescribeBrokerResponse) -> Iterator[Metric]:
    yield from _clock(response)
    names = controller_pb2.BrokerLifecycleState
    states = (
        ((name.lower(),), float(names.Value(name) == response.state))
        for name in map(str, names.keys())
    )
    yield gauge(
        "kafka_server_broker_state",
        "1 for this broker's current state.",
        *states,
        labels=("state",),
    )
    yield gauge(
        "raftlog_broker_epoch",
        "The offset of this broker's registration, or -1 if it has none.",
        response.broker_epoch,
    )
    yield gauge(
        "broker_metadata_metrics_last_applied_record_offset",
        "The last offset that this broker has applied.",
        response.applied_offset,
    )
    yield gauge(
        "raft_metrics_current_leader",
        "The active controller's id, or -1 if unknown.",
        response.controller_id,
    )
    yield gauge(
        "raft_metrics_current_epoch", "The active controller's epoch.", response.controller_epoch
    )
    yield gauge(
        "raft_metrics_high_watermark",
        "The first uncommitted offset, as last received.",
        response.high_watermark,
    )
    yield gauge(
        "raftlog_lowest_acknowledged_offset",
        "The lowest acknowledged offset that this broker knows, or -1 if unknown.",
        response.lowest_acknowledged_offset,
    )
    yield gauge(
        "raftlog_broker_self_fenced",
        "1 if this broker has fenced itself.",
        float(response.self_fenced),
    )
    yield gauge(
        "raftlog_image_kept_bytes",
        "Bytes kept for reads at the lowest acknowledged offset.",
        response.image_bytes_kept,
    )


def add_watch_metrics(
    metrics: MetricsRegistry,
    *,
    watchers: Callable[[], int],
    live: Callable[[], int],
    told: Callable[[], int],
    compacted: Callable[[], int],
    too_slow: Callable[[], int],
) -> None:
    """Add the number of a broker's watches, and of the changes sent to them."""
    metrics.gauge("raftlog_watchers", "Open watches.", watchers)
    metrics.gauge(
        "raftlog_watchers_live",
        "Watches that have received all changes. The others are catching up, or read slowly.",
        live,
    )
    metrics.counter(
        "raftlog_watch_changes_sent",
        "Changes sent to watchers, counted once per watcher.",
        told,
    )
    metrics.counter(
        "raftlog_watches_compacted",
        "Watches that ended because the history no longer had the changes that they needed.",
        compacted,
    )
    metrics.counter(
        "raftlog_watches_too_slow",
        "Watches counted in raftlog_watches_compacted whose clients had read too slowly.",
        too_slow,
    )


def add_space_metrics(metrics: MetricsRegistry, low: Callable[[], bool]) -> None:
    """Add whether the log directory's disk is below the node's free-space reserve."""
    metrics.gauge(
        "raftlog_low_on_space",
        "1 if the disk is below its free-space reserve. A broker then stores no records; a"
        " controller transfers its leadership, and refuses writes only if no majority has space.",
        lambda: float(low()),
    )


def add_log_metrics(metrics: MetricsRegistry, contradicted: Callable[[], bool]) -> None:
    """Add whether the metadata log contradicts this node's copy of it."""
    metrics.gauge(
        "raftlog_log_contradicted",
        "1 if the metadata log and this node's copy of it contradict each other: committed records"
        " were lost, or two nodes have different states.",
        lambda: float(contradicted()),
    )


def add_mending_metrics(metrics: MetricsRegistry, state: Callable[[], MendingState]) -> None:
    """Add the records that a damaged controller lacks, and which controllers it has asked
    for them.
    """

    def collect() -> Iterator[Metric]:
        now = state()
        missing = gauge(
            "raftlog_mending_missing_records",
            "Records that this damaged controller lacks, by offsets; 0 if it lacks other data.",
            labels=("first", "last"),
        )
        for begin, end in now.missing[:NAMED_MAX]:
            missing.add_metric((str(begin), str(end - 1)), end - begin)
        if not now.missing:
            missing.add_metric(("", ""), 0)
        yield missing
        asked = gauge(
            "raftlog_mending_controller_answers",
            "1 if the labelled controller has answered the last request for missing records.",
            labels=("controller",),
        )
        for source in now.asked:
            asked.add_metric((source,), float(source not in now.failures))
        yield asked

    metrics.collect(collect)


def add_snapshot_metrics(metrics: MetricsRegistry, describe: Callable[[], SnapshotFigures]) -> None:
    """Add Kafka's ``SnapshotEmitter`` and ``MetadataLoader`` metrics, and the sizes on this node's
    disk.
    """
    metrics.collect(lambda: _snapshots(describe()))
    metrics.counter(
        "kafka_server_metadata_loader_handle_load_snapshot_count",
        "How often this process started from a snapshot, or installed one.",
        lambda: describe().loaded,
    )
    metrics.counter(
        "raftlog_export_cursors_passed",
        "Export cursors whose unread records this process has dropped: those exports cannot"
        " continue from this node.",
        lambda: describe().cursors_passed,
    )


def _snapshots(now: SnapshotFigures) -> Iterator[Metric]:
    yield gauge(
        "raftlog_export_cursors_holding_log",
        "Export cursors for which this node keeps more of its log than retention requires.",
        now.cursors_holding,
    )
    yield gauge("raftlog_snapshots", "Complete snapshots on this node.", now.count)
    yield gauge(
        "raftlog_snapshot_size_bytes",
        "Size of the newest snapshot, or 0 if there is none.",
        now.newest_bytes,
    )
    yield gauge(
        "kafka_server_snapshot_emitter_latest_snapshot_generated_bytes",
        "Size of the last snapshot that this process took, or 0 if none.",
        now.generated_bytes,
    )
    yield gauge(
        "kafka_server_snapshot_emitter_latest_snapshot_generated_age_seconds",
        "Seconds since this process took a snapshot, or since its start.",
        now.generated_age_ms / 1000,
    )
