"""Every configuration key: its name, type, default, unit, and why one would change it.

A field's name with dots for underscores is its key (Kafka's where Kafka has one); ``RAFTLOG_`` and the name in capitals is
its environment variable. ``raftlog config keys`` prints this file as a table.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from raftlog.config.fields import Endpoints, NodeId, NonNegative, Positive, Strings, Voters

BOTH = ("controller", "broker")
CONTROLLER = ("controller",)
BROKER = ("broker",)


class KeyInfo(NamedTuple):
    """What a key's type does not say: its unit, and which roles read it."""

    unit: str
    roles: tuple[str, ...]


def _key(default: Any, doc: str, *, unit: str = "", roles: tuple[str, ...] = BOTH) -> Any:
    return Field(default, description=doc, json_schema_extra={"unit": unit, "roles": " ".join(roles)})


class Settings(BaseModel):
    """The values of all keys, as given or defaulted, before they are checked against each other."""

    model_config = ConfigDict(
        alias_generator=lambda name: name.replace("_", "."), extra="forbid", frozen=True, arbitrary_types_allowed=True
    )

    # --- who this node is ---------------------------------------------------------------------------------------------
    process_roles: Strings = _key(
        (), 'What this process is: ["controller"] or ["broker"]. Required. One process has one role: a broker that is'
        " paused or out of memory must not take a vote with it.",
    )  # fmt: skip
    node_id: NodeId | None = _key(
        None,
        "The node's number, unique in the cluster; fixed by `storage format`. Required for a controller. A broker without it is"
        " given one at its first start: that of its hostname, or the one that is missing, or a new one (KIP-426).",
    )
    cluster_id: str = _key(
        "", "The cluster's id, the same on every node. Required: it keeps a node with a wrong address list out of a foreign"
        " cluster. Make one with `raftlog storage random-uuid`.",
    )  # fmt: skip
    log_dirs: Strings = _key((), "The data directory; a relative path counts from the configuration file. Exactly one.")
    metadata_log_dir: str = _key(
        "",
        "Where a controller keeps its log; empty: log.dirs. Give it a disk of its own: each commit waits for its fsync.",
    )

    # --- where it listens, and whom it knows --------------------------------------------------------------------------
    listeners: Endpoints = _key(
        (), "Where this node serves, host:port or NAME://host:port; exactly one. Port 0 takes a free one. A controller's"
        " default is its own address in controller.quorum.voters.",
    )  # fmt: skip
    advertised_listeners: Endpoints = _key(
        (), "The address that others are told; default: listeners, for a controller its own address in"
        " controller.quorum.voters. Needed behind NAT, or when listening on 0.0.0.0.",
    )  # fmt: skip
    controller_quorum_voters: Voters = _key(
        (), 'The voters to begin with, ["1@host:port", ...], the same on every controller. An odd number: three survive the'
        " loss of one, five of two. Empty if `storage format` names them. Once the log names voters, those count.",
    )  # fmt: skip
    controller_quorum_bootstrap_servers: Endpoints = _key(
        (), "Controllers to ask first who leads, [host:port, ...]; default: those of controller.quorum.voters. A controller"
        " that joins a running quorum needs it.",
    )  # fmt: skip
    controller_quorum_auto_join_enable: bool = _key(
        False, "A controller that is no voter becomes one by itself as soon as it is caught up; on a new disk it takes the"
        " place of the voter it was before (KIP-853).", roles=CONTROLLER,
    )  # fmt: skip
    http_listener: Endpoints = _key(
        (), "Where /metrics, /livez and /readyz are served, host:port; empty: nowhere. Port 0 takes a free one."
    )

    # --- the quorum ---------------------------------------------------------------------------------------------------
    controller_quorum_election_timeout_ms: Positive = _key(
        1000, "How long a node without a leader waits before it asks for votes. Serves cold starts and failed elections; a"
        " dead leader is noticed at once.", unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    controller_quorum_election_jitter_max_ms: Positive = _key(
        200, "Spread added to the election timeout, and by half to the fetch timeout, so that two nodes do not ask for votes in the"
        " same instant.",
        unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    controller_quorum_election_backoff_max_ms: Positive = _key(
        40, "A refused or split election is tried again after at most this.", unit="ms", roles=CONTROLLER
    )
    controller_quorum_fetch_timeout_ms: Positive = _key(
        1000, "A follower that hears nothing from the leader for so long asks for votes; a leader that a majority has not"
        " fetched from for 1.5 times this resigns. Raise it where pauses or the network take longer.",
        unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    controller_quorum_fetch_max_wait_ms: Positive = _key(
        400, "How long an idle leader parks a fetch. It must be well below the fetch timeout, which it keeps from expiring.",
        unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    controller_quorum_fetch_max_bytes: Positive = _key(
        8 << 20, "The most log bytes in one fetch reply. A follower that is far behind catches up faster with more, at the"
        " price of memory.", unit="bytes", roles=CONTROLLER,
    )  # fmt: skip
    controller_quorum_request_timeout_ms: Positive = _key(
        1000,
        "How long a request of the quorum may stay unanswered before it is sent again, and its link, if nothing has come on it, replaced.",
        unit="ms",
        roles=CONTROLLER,
    )

    # --- brokers as the controller sees them --------------------------------------------------------------------------
    broker_heartbeat_interval_ms: Positive = _key(
        2000, "How often a broker tells the controller that it lives.", unit="ms", roles=BROKER
    )
    broker_session_timeout_ms: Positive = _key(
        9000, "A broker that is silent for so long is fenced. More than two heartbeats, else one lost message fences it.",
        unit="ms", roles=BOTH,
    )  # fmt: skip
    broker_metadata_lag_max_ms: Positive = _key(
        30000, "A broker that heartbeats, but whose applied metadata is older than this, is fenced: it would hold back the"
        " lowest acknowledged offset for ever.", unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    broker_metadata_lag_probation_ms: Positive = _key(
        10000, "How long a broker that was fenced for its lag stays fenced at the least; doubled each time it happens again.",
        unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    broker_metadata_lag_probation_max_ms: Positive = _key(
        600_000, "The longest such probation; a broker that lives so long without lagging starts over.",
        unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    broker_id_adopt_after_ms: Positive = _key(
        600_000, "A broker id that holds replicas, and whose broker has been fenced or unregistered for so long, is missing: if"
        " there is exactly one, a broker without an id gets it. Longer than a broker is ever away for a restart.",
        unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    reserved_broker_max_id: NonNegative = _key(
        1000,
        "Ids that are generated, for brokers without one, begin above this. Configured ids belong below.",
        roles=CONTROLLER,
    )
    num_partitions: Positive = _key(1, "Partitions of a topic created without saying how many.", roles=CONTROLLER)
    default_replication_factor: Positive = _key(
        3, "Replicas of a topic created without saying how many; lowered to the live brokers where there are fewer.",
        roles=CONTROLLER,
    )  # fmt: skip
    auto_leader_rebalance_enable: bool = _key(
        True, "Preferred leaders (the first replicas) get their partitions back by themselves when they can lead again.",
        roles=CONTROLLER,
    )  # fmt: skip
    leader_imbalance_check_interval_seconds: Positive = _key(
        300, "How often the controller looks for partitions that their preferred leader could lead and does not.",
        unit="s", roles=CONTROLLER,
    )  # fmt: skip
    unclean_leader_election_interval_ms: Positive = _key(
        300_000, "How often the controller looks for partitions without a leader in topics with"
        " unclean.leader.election.enable=true, which was perhaps set after they lost theirs. `raftlog partitions elect --unclean`"
        " does not wait for it.", unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    max_records_per_request: Positive = _key(
        10_000, "The most records that one request may write: they are committed in one piece and hold up all behind them.",
        unit="records", roles=CONTROLLER,
    )  # fmt: skip
    config_value_max_bytes: Positive = _key(
        32_768, "The largest value of a topic's or broker's config.", unit="bytes", roles=CONTROLLER
    )
    progress_interval_ms: Positive = _key(
        1000, "The least time between two progress records, which write the lowest acknowledged offset and the brokers'"
        " offsets into the log.", unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    producer_id_expiration_ms: Positive = _key(
        86_400_000, "An exactly-once client that has written nothing for so long, in the log's time, is closed: a retry of its"
        " writes is an error then.", unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    max_clients: Positive = _key(
        1000, "Exactly-once clients open at a time; above it the one that is idle for longest is closed. Each may keep the"
        " results of 256 writes in memory.", roles=CONTROLLER,
    )  # fmt: skip

    metadata_log_free_space_reserve_bytes: NonNegative = _key(
        256 << 20, "A controller whose log's file system has less than this free, but at most a twentieth of it, does not lead if"
        " another can. While no majority of the voters has it, writes are refused. 0: the disk is not watched.",
        unit="bytes", roles=CONTROLLER,
    )  # fmt: skip

    # --- snapshots ----------------------------------------------------------------------------------------------------
    metadata_log_max_record_bytes_between_snapshots: Positive = _key(
        20 << 20, "A node takes a snapshot when it has applied so much of the log since the last one, and, when its state has more than"
        " 4 MiB, four times the size of the state: writing down a large state must not cost more than the writes themselves, and a log"
        " that is hardly longer than the state is replayed as fast as a snapshot is loaded. More often means a shorter start and more"
        " writing.", unit="bytes", roles=CONTROLLER,
    )  # fmt: skip
    metadata_log_max_snapshot_interval_ms: NonNegative = _key(
        3_600_000, "A node takes a snapshot when the last one is this old and something was applied since. 0: never for its age.",
        unit="ms", roles=CONTROLLER,
    )  # fmt: skip
    metadata_max_retention_bytes: Positive = _key(
        100 << 20, "When log and snapshots of a node take more, it drops the oldest snapshot and the log up to the end of the next"
        " one; the newest snapshot always stays. What was dropped can no longer be exported.", unit="bytes", roles=CONTROLLER,
    )  # fmt: skip
    metadata_max_retention_ms: Positive = _key(
        604_800_000,
        "A snapshot older than this is dropped likewise, if there is a newer one.",
        unit="ms",
        roles=CONTROLLER,
    )
    metadata_export_cursor_max_bytes: Positive = _key(
        1 << 30, "What an export has yet to read, as its cursor says (`raftlog export --cursor`), is not dropped, until log and snapshots"
        " of a node take more than this: a cursor that is forgotten must not fill the disk. Then the log start passes it, which the node"
        " logs as an error and counts. With no more than metadata.max.retention.bytes cursors keep nothing that is dropped for its"
        " size.", unit="bytes", roles=CONTROLLER,
    )  # fmt: skip

    # --- the broker itself --------------------------------------------------------------------------------------------
    broker_rack: str = _key(
        "",
        "The failure domain of this broker: replicas of new partitions are spread over racks, and clients are told.",
        roles=BROKER,
    )
    broker_fencing_timeout_ms: Positive = _key(
        12000, "A broker that has not reached the controller for so long fences itself (KIP-343). Longer than the session"
        " timeout: the controller should have moved its leaderships before it stops.", unit="ms", roles=BROKER,
    )  # fmt: skip
    controlled_shutdown_timeout_ms: Positive = _key(
        30000, "A broker that is told to stop waits so long for the controller to move its leaderships and to let it go; then it"
        " ends without. At least two heartbeats.", unit="ms", roles=BROKER,
    )  # fmt: skip
    initial_broker_registration_timeout_ms: Positive = _key(
        60000, "A broker that cannot register for so long exits. One without an id that is told to wait for another broker's waits longer.",
        unit="ms", roles=BROKER,
    )  # fmt: skip
    broker_id_generation_force: bool = _key(
        False, "A broker that has no id, and whose host has none, gets a new one at once, though another broker that holds replicas"
        " is absent. Its replicas stay one short; take it out again when the broker has its id.", roles=BROKER,
    )  # fmt: skip

    # --- partition replicas -------------------------------------------------------------------------------------------
    replica_lag_time_max_ms: Positive = _key(
        30_000, "A follower that has not been caught up with its leader for so long leaves the in-sync replicas. Shorter: a slow"
        " disk costs redundancy; longer: writes with acks=all wait longer for a follower that is gone.", unit="ms", roles=BROKER,
    )  # fmt: skip
    replica_fetch_wait_max_ms: Positive = _key(
        500, "How long a leader parks a follower's fetch when there is nothing new. Below replica.lag.time.max.ms.",
        unit="ms", roles=BROKER,
    )  # fmt: skip
    replica_fetch_max_bytes: Positive = _key(
        1 << 20, "The most bytes of one partition in an answer to a follower; one batch may be larger.",
        unit="bytes", roles=BROKER,
    )  # fmt: skip
    replica_fetch_response_max_bytes: Positive = _key(
        10 << 20, "The most bytes of all partitions in an answer to a follower.", unit="bytes", roles=BROKER
    )
    replica_fetch_backoff_ms: Positive = _key(
        200, "How long a follower leaves a partition alone whose fetch was refused.", unit="ms", roles=BROKER
    )
    replica_socket_timeout_ms: Positive = _key(
        30_000, "A follower hangs up on a leader that answers a fetch so much later than it may park it.",
        unit="ms", roles=BROKER,
    )  # fmt: skip
    log_free_space_reserve_bytes: NonNegative = _key(
        256 << 20, "A broker whose partitions' file system has less than this free, but at most a twentieth of it, refuses what"
        " producers send it; it goes on serving reads and followers. 0: the disk is not watched.", unit="bytes", roles=BROKER,
    )  # fmt: skip

    # --- requests -----------------------------------------------------------------------------------------------------
    request_timeout_ms: Positive = _key(30000, "The deadline of a request that names none.", unit="ms", roles=BOTH)
    request_timeout_max_ms: Positive = _key(
        300_000, "The longest timeout of a request; one that names a longer one has this. What waits takes a place that others want.",
        unit="ms", roles=BOTH,
    )  # fmt: skip
    socket_request_max_bytes: Positive = _key(
        64 << 20, "The largest message; a larger one is refused. Towards a server each conversation has a smaller bound of its own:"
        " 32 MiB for a broker's clients, 8 MiB for a controller's.", unit="bytes",
    )  # fmt: skip

    # --- connections --------------------------------------------------------------------------------------------------
    max_connections: Positive = _key(
        1_000, "Connections accepted at a time on the listener; more are closed at once. Fewer, where the process may not open so many"
        " files.",
    )  # fmt: skip
    connections_max_idle_ms: Positive = _key(
        600_000, "A connection without an open call is closed after this.", unit="ms"
    )
    queued_max_response_bytes: Positive = _key(
        128 << 20, "What all peers together may leave unread of the answers sent to them. Above it the peer is cut off that has read"
        " nothing for the longest.", unit="bytes",
    )  # fmt: skip

    # --- TLS ----------------------------------------------------------------------------------------------------------
    tls_certificate_file: str = _key(
        "", "This node's certificate chain, PEM. With the key and the authority it makes every connection mutual TLS."
    )
    tls_key_file: str = _key("", "The certificate's private key, PEM.")
    tls_ca_file: str = _key("", "The authorities that sign the certificates of the other nodes, PEM.")

    # --- logs ---------------------------------------------------------------------------------------------------------
    log_level: Literal["debug", "info", "warning", "error"] = _key("info", "The least severe level that is logged.")
    log_format: Literal["auto", "console", "json"] = _key(
        "auto", "How log lines look on stderr; auto: for people on a terminal, JSON otherwise."
    )


def key_of(field_name: str) -> str:
    """The configuration key of a field."""
    return field_name.replace("_", ".")


FIELD_OF_KEY: dict[str, str] = {key_of(name): name for name in Settings.model_fields}
"""Configuration key -> field name of :class:`Settings`."""


def _info(name: str) -> KeyInfo:
    extra = Settings.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return KeyInfo(str(extra["unit"]), tuple(str(extra["roles"]).split()))


KEYS: dict[str, KeyInfo] = {name: _info(name) for name in Settings.model_fields}
"""Field name of :class:`Settings` -> unit and roles."""
